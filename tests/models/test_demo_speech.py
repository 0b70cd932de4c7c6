"""The demo model with its real networks on the real clock: recorded people in, recognisable answers out.

Bounds are generous, because tests share the machine; the measured times are printed (``pytest -s``) and recorded.
"""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import trio

from duplex_protocol.values import TurnDetection
from tests.models.models_kit import NOON, config_of
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.demo.session import DemoSession
from trio_duplex.models.demo.threads import ThreadEngine
from trio_duplex.models.plugin import (
    Listened,
    ModelResult,
    ResponseRequest,
    SessionContext,
    Speech,
    SpeechStarted,
    TurnEnded,
)
from trio_duplex.resampling import Resampler
from trio_duplex.samples import float_from_int16

pytestmark = [pytest.mark.speech, pytest.mark.realtime]

FloatAudio = npt.NDArray[np.float32]
Record = Callable[[str, object], None]

SPEECH = Path(__file__).parents[1] / "data" / "speech"
TRANSCRIPTS = {
    "goforward.raw": "go forward ten meters",
    "librivox_0880.wav": "he was not an ill disposed young man",
    "librivox_0890.wav": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "cards_001.wav": "ten of clubs",
    "cards_005.wav": "eight of spades four of clubs seven of hearts",
}


def recording(name: str) -> FloatAudio:
    if name.endswith(".raw"):
        return float_from_int16(np.fromfile(SPEECH / name, "<i2"))
    with wave.open(str(SPEECH / name)) as file:
        return float_from_int16(np.frombuffer(file.readframes(file.getnframes()), "<i2"))


def spoken_part(audio: FloatAudio) -> slice:
    """From the first to the last 10 ms that are louder than a twentieth of the loudest."""
    loudness = np.sqrt(np.mean(audio[: len(audio) // 160 * 160].reshape(-1, 160) ** 2, axis=1))
    [loud] = np.nonzero(loudness > loudness.max() / 20)
    return slice(int(loud[0]) * 160, int(loud[-1] + 1) * 160)


def pause(ms: int) -> FloatAudio:
    """A room's silence: noise at -80 dBFS."""
    return (1e-4 * np.random.default_rng(3).standard_normal(16 * ms)).astype(np.float32)


def words(text: str) -> list[str]:
    return "".join(char if char.isalnum() else " " for char in text.lower()).split()


def word_errors(expected: str, heard: str) -> int:
    wanted, got = words(expected), words(heard)
    row = list(range(len(got) + 1))
    for i, one in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(got, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


@attrs.define
class Conversation:
    engine: ThreadEngine
    plugin: DemoPlugin
    nursery: trio.Nursery

    @classmethod
    async def start(cls, nursery: trio.Nursery) -> Conversation:
        options = DemoOptions()
        engine = ThreadEngine(options, max_sessions=4)
        plugin = DemoPlugin(options, engine=engine, clock=lambda: NOON)
        with trio.fail_after(120):
            await nursery.start(plugin.run)
        return cls(engine, plugin, nursery)

    async def session(self, silence_ms: int = 500) -> DemoSession:
        config = config_of(self.plugin, TurnDetection(silence_duration_ms=silence_ms))
        session = await self.plugin.open(config, SessionContext("sess_1", tuple))
        await self.nursery.start(session.run)
        return session

    async def microphone(
        self, session: DemoSession, *parts: FloatAudio, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        """:meth:`stream` that can be ended: the scope to cancel is handed over at the start."""
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await self.stream(session, *parts)

    async def stream(self, session: DemoSession, *parts: FloatAudio) -> None:
        """20 ms at a time, each when its last sample would have been spoken."""
        audio = np.concatenate(parts)
        begin_s = trio.current_time()
        for begin in range(0, len(audio), 320):
            chunk = audio[begin : begin + 320]
            await trio.sleep_until(begin_s + (begin + len(chunk)) / 16_000)
            session.submit(chunk)


async def until(session: DemoSession, kind: type[ModelResult]) -> ModelResult:
    async for result in session.results:
        if isinstance(result, kind):
            return result
    raise AssertionError("the results ended")


@pytest.mark.parametrize("silence_ms", [500, 200])
async def test_a_person_is_answered_and_can_interrupt(
    nursery: trio.Nursery, silence_ms: int, record_property: Record
) -> None:
    talk = await Conversation.start(nursery)
    session = await talk.session(silence_ms)
    first, second = recording("goforward.raw"), recording("librivox_0880.wav")
    first, second = first[spoken_part(first)], second[spoken_part(second)]
    said: list[Speech] = []
    first_unit = trio.Event()

    def say(speech: Speech) -> None:
        said.append(speech)
        first_unit.set()

    with trio.fail_after(60):
        end_s = trio.current_time() + len(first) / 16_000
        room = await nursery.start(talk.microphone, session, first, pause(20_000))
        ended = await until(session, TurnEnded)
        assert isinstance(ended, TurnEnded)
        assert ended.respond
        assert word_errors(TRANSCRIPTS["goforward.raw"], ended.turn.transcript or "") <= 1
        request = ResponseRequest(epoch=0, response_id="r", config=config_of(talk.plugin), history=(), turn=ended.turn)
        async with trio.open_nursery() as epoch:
            epoch.start_soon(session.respond, request, say)
            await first_unit.wait()
            answered_ms = 1000 * (trio.current_time() - end_s)
            await trio.sleep(4)
            room.cancel()  # one microphone hears one thing at a time
            onset_s = trio.current_time()
            nursery.start_soon(talk.stream, session, second)
            await until(session, SpeechStarted)
            interrupted_ms = 1000 * (trio.current_time() - onset_s)
            epoch.cancel_scope.cancel()
    print(f"silence {silence_ms}: first unit {answered_ms:.0f} ms, onset {interrupted_ms:.0f} ms after the speech")
    record_property("first_unit_after_speech_ms", answered_ms)
    record_property("onset_detected_ms", interrupted_ms)
    assert silence_ms < answered_ms + 200 < 3_000
    assert interrupted_ms < 1_500

    # What was said until then is what its text says (case A4).
    text = "".join(speech.text for speech in said)
    assert text.startswith("You said: Go forward")
    audio = float_from_int16(np.concatenate([speech.audio for speech in said]))
    resampler = Resampler(24_000, 16_000)
    with trio.fail_after(30):
        heard = await talk.engine.transcribe(np.concatenate([resampler.push(audio), resampler.flush()]), "now")
    spoken = len(words(text))
    assert spoken >= 8
    assert word_errors(text, heard) <= 0.4 * spoken, (text, heard)
    nursery.cancel_scope.cancel()


async def test_recorded_people_are_understood_and_noise_is_not_speech(nursery: trio.Nursery) -> None:
    talk = await Conversation.start(nursery)
    session = await talk.session()
    errors = total = 0
    with trio.fail_after(60):
        for name, transcript in TRANSCRIPTS.items():
            session.submit(np.concatenate([pause(500), recording(name), pause(1_200)]))  # faster than real time
            ended = await until(session, TurnEnded)
            assert isinstance(ended, TurnEnded)
            errors += word_errors(transcript, ended.turn.transcript or "")
            total += len(words(transcript))
    assert errors <= 0.15 * total

    # Case V4: pink noise at -40 dBFS brings no onset.
    spectrum = np.fft.rfft(np.random.default_rng(5).standard_normal(16_000 * 20))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    noise = np.fft.irfft(spectrum)
    noise *= 10 ** (-40 / 20) / np.sqrt(np.mean(noise**2))
    session.submit(noise.astype(np.float32))
    units = 0
    with trio.fail_after(60):
        async for result in session.results:
            assert isinstance(result, Listened), result
            units += 1
            if units == 200:  # 19.2 s
                break
    nursery.cancel_scope.cancel()
