"""The parts of the showcase by themselves, on the virtual clock where there is one."""

from __future__ import annotations

import json
import math
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pybase64
import pytest
import trio
from trio.testing import MockClock

from trio_duplex.client import DuplexSessionClosedError
from trio_duplex.showcase.event_log import EventLog, Missing
from trio_duplex.showcase.facts import answers, epoch_of, epochs, user_turns
from trio_duplex.showcase.microphone import Microphone
from trio_duplex.showcase.recordings import Recording, RecordingError, load_recording, speech_bounds
from trio_duplex.showcase.speaker import Played, Speaker
from trio_duplex.showcase.timeline import draw_timeline

# --- recordings -------------------------------------------------------------------------------------------------------


def tone(ms: int, *, level: float = 8_000, rate_hz: int = 16_000) -> np.ndarray[Any, np.dtype[np.int16]]:
    times = np.arange(rate_hz * ms // 1000) / rate_hz
    return (level * np.sin(2 * math.pi * 440 * times)).astype(np.int16)


def test_speech_is_where_it_is_loud() -> None:
    samples = np.concatenate([tone(400, level=20), tone(700), tone(300, level=20)])
    assert speech_bounds(samples, 16_000) == (400, 1_100)


def test_a_click_is_no_onset() -> None:
    samples = np.concatenate([tone(100, level=10), tone(20), tone(300, level=10), tone(700), tone(300, level=10)])
    assert speech_bounds(samples, 16_000) == (420, 1_120)


def test_silence_has_no_bounds() -> None:
    assert speech_bounds(np.zeros(16_000, np.int16), 16_000) is None
    assert speech_bounds(np.zeros(0, np.int16), 16_000) is None


def test_stereo_is_mixed_and_any_rate_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "two.wav"
    with wave.open(str(file), "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(22_050)
        writer.writeframes(struct.pack("<4h", 100, 300, -50, 50))
    recording = load_recording(file)
    assert recording.samples.tolist() == [200, 0]
    assert recording.rate_hz == 22_050


@pytest.mark.parametrize("rate_hz", [7_999, 192_001])
def test_rates_that_no_server_takes(rate_hz: int, tmp_path: Path) -> None:
    (tmp_path / "x.raw").write_bytes(bytes(64))
    with pytest.raises(RecordingError, match=r"x\.raw: a rate of"):
        load_recording(tmp_path / "x.raw", raw_rate_hz=rate_hz)


# --- the loudspeaker --------------------------------------------------------------------------------------------------


def sound(ms: int) -> bytes:
    return bytes(48 * ms)  # 24 kHz, 2 bytes


def test_chunks_sound_one_after_the_other() -> None:
    played = Played("r", 24_000)
    played.add(sound(100), 10.0)
    played.add(sound(100), 10.05)
    assert [played.played_ms(t) for t in (9.0, 10.0, 10.15, 10.2, 99.0)] == pytest.approx([0, 0, 150, 200, 200])
    assert played.end_s == pytest.approx(10.2)
    assert played.gaps_s == []


def test_a_late_chunk_leaves_a_gap() -> None:
    played = Played("r", 24_000)
    played.add(sound(100), 10.0)
    played.add(sound(100), 10.4)
    assert played.played_ms(10.3) == pytest.approx(100)
    assert played.played_ms(10.45) == pytest.approx(150)
    assert played.gaps_s == pytest.approx([0.3])


def test_a_silenced_answer_stays_where_it_was() -> None:
    played = Played("r", 24_000)
    played.add(sound(500), 10.0)
    played.stopped_s = 10.2
    played.add(sound(500), 10.3)
    assert played.played_ms(99.0) == pytest.approx(200)
    assert played.received_ms == 500


class FakeClient:
    """Takes down what the parts want to send."""

    def __init__(self) -> None:
        self.acks: list[tuple[float, int, str]] = []
        self.chunks: list[tuple[float, bytes]] = []
        self.closed = False
        self.began = trio.current_time()

    async def ack_playback(self, played_ms: float, *, response_id: str) -> str:
        await trio.lowlevel.checkpoint()
        self._check()
        self.acks.append((trio.current_time() - self.began, int(played_ms), response_id))
        return "evt"

    async def append_audio(self, pcm: bytes) -> str:
        await trio.lowlevel.checkpoint()
        self._check()
        self.chunks.append((trio.current_time() - self.began, pcm))
        return "evt"

    def _check(self) -> None:
        if self.closed:
            raise DuplexSessionClosedError("closed")


def delta(response_id: str, ms: int) -> dict[str, Any]:
    audio = pybase64.b64encode(sound(ms)).decode()
    return {"type": "response.output_audio.delta", "response_id": response_id, "delta": audio, "sample_rate_hz": 24_000}


def done(response_id: str, status: str) -> dict[str, Any]:
    return {"type": "response.done", "response_id": response_id, "response": {"id": response_id, "status": status}}


async def test_an_answer_is_acknowledged_every_200_ms_and_at_its_end(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    log, client = EventLog(), FakeClient()
    speaker = Speaker(client, log)  # type: ignore[arg-type]
    nursery.start_soon(speaker.run)
    log.add("server", delta("r1", 500))
    log.add("server", done("r1", "completed"))
    await speaker.wait_finished("r1")
    assert [(round(at, 3), ms) for at, ms, _ in client.acks] == [(0, 0), (0.2, 200), (0.4, 400), (0.6, 500)]
    nursery.cancel_scope.cancel()


async def test_an_interruption_silences_it_and_says_how_far_it_got(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    log, client = EventLog(), FakeClient()
    speaker = Speaker(client, log)  # type: ignore[arg-type]
    nursery.start_soon(speaker.run)
    log.add("server", delta("r1", 5_000))
    await trio.sleep(1.05)
    log.add("server", {"type": "overlap.decision", "action": "barge_in"})
    log.add("server", done("r1", "cancelled"))
    assert not await speaker.wait_played("r1", 2_000)
    await speaker.wait_finished("r1")
    assert client.acks[-1][1:] == (1_050, "r1")
    silenced = [entry.event for entry in log.entries if entry.type == "speaker.silenced"]
    assert [event["played_ms"] for event in silenced] == [1_050]
    nursery.cancel_scope.cancel()


async def test_waiting_for_a_place_in_an_answer(autojump_clock: MockClock) -> None:
    log, client = EventLog(), FakeClient()
    speaker = Speaker(client, log)  # type: ignore[arg-type]
    log.add("server", delta("r1", 5_000))
    began = trio.current_time()
    assert await speaker.wait_played("r1", 1_500)
    assert trio.current_time() - began == pytest.approx(1.5)
    log.add("server", done("r1", "completed"))
    assert not await speaker.wait_played("r1", 6_000)


async def test_the_loudspeaker_rests_when_the_session_is_over(autojump_clock: MockClock) -> None:
    log, client = EventLog(), FakeClient()
    speaker = Speaker(client, log)  # type: ignore[arg-type]
    client.closed = True
    log.add("server", delta("r1", 500))
    with trio.fail_after(5):
        await speaker.run()


# --- the microphone ---------------------------------------------------------------------------------------------------


async def test_the_microphone_streams_in_real_time(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    log, client = EventLog(), FakeClient()
    microphone = Microphone(client, log)  # type: ignore[arg-type]
    nursery.start_soon(microphone.run)
    await trio.sleep(0.1)
    spoken = microphone.say(Recording.of("tone", tone(320), 16_000))
    await spoken.finished.wait()
    await trio.sleep(0.5)
    nursery.cancel_scope.cancel()
    times = [at for at, _ in client.chunks]
    assert times == pytest.approx([0.032 * (n + 1) for n in range(len(times))])
    assert {len(pcm) for _, pcm in client.chunks} == {1_024}
    # A chunk is sent when its last sample was recorded; the utterance begins where the log says.
    level = [float(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)).max()) for _, pcm in client.chunks]
    loud = [n for n, peak in enumerate(level) if peak > 1_000]
    assert loud == list(range(loud[0], loud[0] + 10))
    assert spoken.started_s - client.began == pytest.approx(0.032 * loud[0])
    assert all(0 < peak < 100 for n, peak in enumerate(level) if n not in loud)


async def test_the_microphone_stops_with_the_session(autojump_clock: MockClock) -> None:
    client = FakeClient()
    microphone = Microphone(client, EventLog())  # type: ignore[arg-type]
    client.closed = True
    with trio.fail_after(1):
        await microphone.run()


async def test_a_recording_of_another_rate_is_not_taken(autojump_clock: MockClock) -> None:
    microphone = Microphone(FakeClient(), EventLog())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="8000 Hz"):
        microphone.say(Recording.of("x", tone(100, rate_hz=8_000), 8_000))


# --- the log ----------------------------------------------------------------------------------------------------------


async def test_waiting_for_an_event(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    log = EventLog()
    log.add("client", {"type": "a"})

    async def later() -> None:
        await trio.sleep(1)
        log.add("server", {"type": "b"})
        log.add("server", {"type": "a"})

    nursery.start_soon(later)
    found = await log.expect(lambda e: e.type == "a", what="a", within_s=5)
    assert found is log.entries[2]
    with pytest.raises(Missing, match="another a did not come within 5 s"):
        await log.expect(lambda e: e.type == "a", what="another a", within_s=5, after=3)


async def test_the_written_log_is_short_and_complete(autojump_clock: MockClock, tmp_path: Path) -> None:
    log = EventLog()
    log.add("client", {"type": "input_audio_buffer.append", "audio": "A" * 1_368})
    await trio.sleep(0.5)
    log.add("server", {"type": "response.output_audio_transcript.delta", "delta": "word " * 100})
    log.note("speaker.silenced", played_ms=5)
    log.write(tmp_path / "events.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert [line["t"] for line in lines] == [0, 0.5, 0.5]
    assert lines[0]["event"]["audio"] == "A" * 16 + "… (1368 characters)"
    assert lines[1]["event"]["delta"] == "word " * 100
    assert lines[2] == {"t": 0.5, "from": "local", "event": {"type": "speaker.silenced", "played_ms": 5}}


async def test_a_conversation_that_broke_off_can_be_drawn(autojump_clock: MockClock, tmp_path: Path) -> None:
    log = EventLog()
    draw_timeline(log, tmp_path / "nothing.png")
    log.add("server", {"type": "session.created", "server_event_seq": 1})
    await trio.sleep(1)
    log.add("server", {"type": "response.listen", "epoch": 0})
    draw_timeline(log, tmp_path / "little.png")
    assert (tmp_path / "nothing.png").stat().st_size > 1_000
    assert (tmp_path / "little.png").stat().st_size > 1_000


async def test_epochs_begin_with_the_terminal_that_names_them(autojump_clock: MockClock) -> None:
    log = EventLog()
    log.add("server", {"type": "session.created"})
    await trio.sleep(1)
    cancelled = done("r1", "cancelled")
    cancelled["response"]["metadata"] = {"cancelled_epoch": 0, "epoch": 1}
    log.add("server", cancelled)
    await trio.sleep(2)
    log.add("server", {"type": "response.listen", "epoch": 1})
    assert epoch_of(cancelled) == 0
    assert [(e.number, round(e.until_s - e.from_s, 3)) for e in epochs(log)] == [(0, 1), (1, 2)]
    assert answers(log) == []
    assert user_turns(log) == []
