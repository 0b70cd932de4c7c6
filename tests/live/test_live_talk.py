"""``talk --mic`` with devices that the test plays, against a scripted model, on the virtual clock."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import numpy as np
import pybase64
import pytest
import trio
from trio.testing import MockClock

from duplex_protocol.values import Json
from tests.live.fake_sounddevice import FakeSoundDevice
from trio_duplex.live.live_talk import LiveTalk
from trio_duplex.live.sound import Sound, SoundError
from trio_duplex.testing import Hang, Piece, Rig, ScriptedOptions, open_rig, speech
from trio_duplex.testing.scripted_model import decode_pieces

BLOCK_S = 0.02
ANSWER = [Piece("one "), Piece("two "), Piece("three "), Piece("four "), Piece("five.")]
TOTAL_MS = 1_000


@attrs.define(eq=False)
class Room:
    """The devices, what was told, and a person: ``say`` puts speech into the microphone."""

    rig: Rig
    sound: FakeSoundDevice
    talk: LiveTalk
    lines: list[str]
    waiting: bytearray = attrs.field(factory=bytearray)
    pumping: bool = True
    checks: int = 0

    @property
    def sent(self) -> list[Json]:
        return self.rig.sent(self.rig.hub.every_session[0])

    @property
    def received(self) -> list[Json]:
        return self.rig.log(self.rig.hub.every_session[0]).log

    def of(self, events: list[Json], *types: str) -> list[Json]:
        return [event for event in events if event["type"] in types]

    @property
    def voiced_ms(self) -> float:
        """How much of the answers the device took: the scripted model's samples are never zero."""
        return np.count_nonzero(np.frombuffer(self.sound.loudspeaker.taken, "<i2")) * 1000 / self.rate_hz

    @property
    def rate_hz(self) -> float:
        return self.sound.loudspeaker.samplerate

    def aired_ms(self) -> float:
        """The same without what is still under way in the device."""
        latency = round(self.sound.latency_s * self.rate_hz)
        taken = np.frombuffer(self.sound.loudspeaker.taken, "<i2")
        taken = taken[: max(0, len(taken) - latency)]
        if self.sound.rates is None:
            return np.count_nonzero(taken) * 1000 / self.rate_hz
        # A resampled square wave has zeros in it: everything since its first sample counts.
        return (len(taken) - int(np.flatnonzero(taken)[0])) * 1000 / self.rate_hz if taken.any() else 0.0

    def say(self, ms: int) -> None:
        self.waiting += speech(ms, int(self.sound.microphone.samplerate))

    def source(self, frames: int, _rate_hz: int) -> bytes:
        block = bytes(self.waiting[: 2 * frames])
        del self.waiting[: 2 * frames]
        return block.ljust(2 * frames, b"\0")

    async def pump(self) -> None:
        """Both devices in real time. Before each block: no ack may be ahead of the ear."""
        while True:
            if self.pumping:
                acked = [e["played_ms"] for e in self.of(self.sent, "playback.ack")]
                acked += [e["audio_end_ms"] for e in self.of(self.sent, "conversation.item.truncate")]
                assert max(acked, default=0) <= self.aired_ms()
                self.checks += len(acked)
                self.sound.microphone.pump()
                self.sound.loudspeaker.pump()
            await trio.sleep(BLOCK_S)

    async def until(self, holds: Callable[[], object], within_s: float = 10) -> None:
        with trio.fail_after(within_s):
            while not holds():  # noqa: ASYNC110
                await trio.sleep(BLOCK_S)


@asynccontextmanager
async def a_room(
    options: ScriptedOptions, sound: FakeSoundDevice | None = None, *, check: bool = True
) -> AsyncIterator[Room]:
    """A person who sits there until the block is left; then Ctrl-C."""
    sound = sound or FakeSoundDevice()
    lines: list[str] = []
    threads = set(threading.enumerate())
    async with open_rig(options, check=check) as rig:
        talk = LiveTalk(Sound(sound), lines.append)
        room = Room(rig, sound, talk, lines)
        sound.source = room.source
        config = talk.open()
        done = trio.Event()
        async with trio.open_nursery() as nursery:

            async def converse() -> None:
                async with rig.client(config) as client:
                    await talk.run(client)
                done.set()

            nursery.start_soon(converse)
            await room.until(lambda: all(stream.started for stream in sound.streams))
            nursery.start_soon(room.pump)
            yield room
            talk.stop.set()
            with trio.fail_after(5):
                await done.wait()
            nursery.cancel_scope.cancel()
        await room.until(lambda: rig.hub.every_session[0].ended.is_set())
    assert all(stream.closed and stream.aborted for stream in sound.streams)
    assert set(threading.enumerate()) <= threads


def answers(options: ScriptedOptions | None = None, **changes: object) -> ScriptedOptions:
    return attrs.evolve(options or ScriptedOptions(script=lambda _: ANSWER), **changes)


async def test_every_sample_of_the_microphone_arrives_once_and_in_order(autojump_clock: MockClock) -> None:
    random = np.random.default_rng(1)
    async with a_room(answers()) as room:
        room.sound.source = lambda frames, _: bytes(random.integers(-9, 9, frames, dtype="<i2").tobytes())
        await trio.sleep(3)
        room.pumping = False
        await trio.sleep(0.1)
        appends = room.of(room.sent, "input_audio_buffer.append")
        arrived = b"".join(pybase64.b64decode(e["audio"]) for e in appends)
        assert arrived == bytes(room.sound.microphone.given)
        assert len(arrived) >= 2 * 16_000 * 2.9
        assert appends[-1]["audio_end_ms"] == len(arrived) // 32
        assert {e["sample_rate_hz"] for e in appends} == {16_000}
        room.pumping = True


@pytest.mark.parametrize("unpaced", [False, True])
@pytest.mark.parametrize("latency_s", [0.0, 0.1])
async def test_an_answer_is_played_whole_and_acknowledged_as_it_sounds(
    autojump_clock: MockClock, unpaced: bool, latency_s: float
) -> None:
    async with a_room(answers(unpaced=unpaced), FakeSoundDevice(latency_s=latency_s)) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms == TOTAL_MS)
        await trio.sleep(0.5)
        voiced = np.frombuffer(room.sound.loudspeaker.taken, "<i2")
        place = np.flatnonzero(voiced)
        assert place[-1] - place[0] + 1 == len(place), "it was played with pauses"
        assert decode_pieces(voiced[place].tobytes()) == [(k, 4_800) for k in range(5)]
        acks = [e["played_ms"] for e in room.of(room.sent, "playback.ack")]
        assert acks == sorted(acks)
        assert acks[-1] == TOTAL_MS
        assert 5 <= len(acks) <= 8, acks
        assert room.checks > 100
        said = room.of(room.received, "playback.acknowledged")[-1]["event"]["playback"]
        assert said["committed_ms"] == said["sent_ms"] == TOTAL_MS
    assert "it understood: “hello”" in room.lines
    assert "it said: “one two three four five.”" in room.lines
    assert room.lines[1].startswith("use headphones")


@pytest.mark.parametrize("unpaced", [False, True], ids=["while it is generated", "while it is only played"])
@pytest.mark.parametrize("latency_s", [0.0, 0.1])
async def test_speech_silences_the_loudspeaker_and_what_was_heard_is_remembered(
    autojump_clock: MockClock, unpaced: bool, latency_s: float
) -> None:
    script = [*ANSWER] if unpaced else [*ANSWER, Hang()]
    options = answers(script=lambda _: script, unpaced=unpaced)
    async with a_room(options, FakeSoundDevice(latency_s=latency_s)) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 300)
        room.say(200)
        await room.until(lambda: [e for e in room.received if e.get("action") == "barge_in"], 2)
        at_once = room.voiced_ms
        assert at_once < TOTAL_MS
        await trio.sleep(0.4)
        assert room.voiced_ms == at_once
        truncations = room.of(room.sent, "conversation.item.truncate")
        assert [e["audio_end_ms"] for e in truncations] == [int(at_once)]
        said = room.of(room.received, "conversation.item.truncated")
        assert [e["audio_end_ms"] for e in said] == [int(at_once)]
        after = [e for e in room.received if e["type"] == "playback.acknowledged"][-1]["event"]
        assert after["playback"]["committed_ms"] == int(at_once)
        session = room.rig.hub.every_session[0]
        response = next(iter(session.responses.values()))
        assert response.ledger.committed_ms == int(at_once)
        assert response.ledger.cap_ms == int(at_once)
        assert [e["code"] for e in (x["error"] for x in room.of(room.received, "error"))] == []


async def test_a_second_answer_sounds_after_an_interruption(autojump_clock: MockClock) -> None:
    async with a_room(answers(unpaced=True)) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 300)
        room.say(200)
        await room.until(lambda: room.of(room.sent, "conversation.item.truncate"))
        cut = room.voiced_ms
        await room.until(lambda: room.voiced_ms == cut + TOTAL_MS)
        await trio.sleep(0.3)
        assert room.of(room.sent, "playback.ack")[-1]["played_ms"] == TOTAL_MS


async def test_an_answer_that_is_cancelled_without_speech(autojump_clock: MockClock) -> None:
    async with a_room(answers(script=lambda _: [Piece("a long one", 1_000), Hang()])) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 300)
        await room.rig.clients[0].cancel_response()
        await room.until(lambda: room.of(room.received, "response.done"), 1)
        cut = room.voiced_ms
        await trio.sleep(0.3)
        assert room.voiced_ms == cut < TOTAL_MS
        assert room.of(room.sent, "conversation.item.truncate")[-1]["audio_end_ms"] == int(cut)


async def test_clearing_the_output_silences_it(autojump_clock: MockClock) -> None:
    async with a_room(answers(unpaced=True)) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 300)
        await room.rig.clients[0].send({"type": "output_audio_buffer.clear"})
        await room.until(lambda: room.of(room.received, "output_audio_buffer.cleared"), 1)
        cut = room.voiced_ms
        await trio.sleep(0.3)
        assert room.voiced_ms == cut < TOTAL_MS
        assert room.of(room.sent, "conversation.item.truncate")[-1]["audio_end_ms"] == int(cut)


async def test_the_end_in_the_middle_of_an_answer(autojump_clock: MockClock) -> None:
    async with a_room(answers(unpaced=True), FakeSoundDevice(latency_s=0.1)) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 500)
    heard = int(room.aired_ms())
    assert [e["audio_end_ms"] for e in room.of(room.sent, "conversation.item.truncate")] == [heard]
    assert 300 <= heard < 600
    assert room.received[-1] | {"type": "session.closed", "reason": "session_close"} == room.received[-1]


async def test_devices_that_have_rates_of_their_own(autojump_clock: MockClock) -> None:
    async with a_room(answers(), FakeSoundDevice(rates=(44_100,))) as room:
        assert (room.sound.microphone.samplerate, room.sound.loudspeaker.samplerate) == (44_100, 44_100)
        room.say(300)
        done = "response.done"
        await room.until(lambda: room.of(room.received, done) and room.of(room.sent, "playback.ack"))
        await trio.sleep(1.5)
        assert {e["sample_rate_hz"] for e in room.of(room.sent, "input_audio_buffer.append")} == {44_100}
        assert room.of(room.sent, "playback.ack")[-1]["played_ms"] == TOTAL_MS
        voiced = np.flatnonzero(np.frombuffer(room.sound.loudspeaker.taken, "<i2"))
        assert abs((voiced[-1] - voiced[0]) / 44.1 - TOTAL_MS) < 5
    assert "it understood: “hello”" in room.lines


# --- what goes wrong --------------------------------------------------------------------------------------------------


async def fails(options: ScriptedOptions, spoil: Callable[[Room], None], *, within_s: float) -> str:
    """The one line that the conversation ended with."""
    with pytest.RaisesGroup(pytest.RaisesExc(SoundError), flatten_subgroups=True) as caught:
        async with a_room(options) as room:
            room.say(300)
            await room.until(lambda: room.voiced_ms > 300)
            streams = room.sound.streams
            spoil(room)
            await trio.sleep(within_s)
    assert all(stream.closed and stream.aborted for stream in streams)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return str(error)


@pytest.mark.parametrize("which", ["microphone", "loudspeaker"])
async def test_a_device_that_stops_in_the_middle(autojump_clock: MockClock, which: str) -> None:
    threads = set(threading.enumerate())
    line = await fails(answers(), lambda room: getattr(room.sound, which).finished_callback(), within_s=1)
    name = {"microphone": "Desk mic", "loudspeaker": "Box"}[which]
    assert line == f"the {which} {name!r} has stopped; was it unplugged?"
    assert set(threading.enumerate()) <= threads


async def test_a_device_that_falls_silent_without_a_word(autojump_clock: MockClock) -> None:
    line = await fails(answers(), lambda room: setattr(room, "pumping", False), within_s=4)
    assert line == "the microphone 'Desk mic' gave no sign of life for 3 s; was it unplugged?"


async def test_a_device_that_does_not_start(autojump_clock: MockClock) -> None:
    sound = FakeSoundDevice(start_error="Error starting stream: Device unavailable [PaErrorCode -9985]")
    talk = LiveTalk(Sound(sound), lambda _: None)
    async with open_rig(answers()) as rig:
        config = talk.open()
        with pytest.RaisesGroup(pytest.RaisesExc(SoundError, match="'Desk mic' cannot be started: .*unavailable")):
            async with trio.open_nursery(), rig.client(config) as client:
                await talk.run(client)
    assert all(stream.closed for stream in sound.streams)


async def test_a_lost_connection_is_told_with_what_it_cost(autojump_clock: MockClock) -> None:
    async with a_room(answers(), check=False) as room:
        room.say(300)
        await room.until(lambda: room.voiced_ms > 300)
        room.rig.drop()
        await room.until(lambda: "the connection was lost and is back" in room.lines)
        await room.until(lambda: any(line.startswith("the connection was away: ") for line in room.lines))
        await trio.sleep(1)
        appends = room.of(room.sent, "input_audio_buffer.append")
        arrived = sum(len(pybase64.b64decode(e["audio"])) for e in appends) // 2
        given = len(room.sound.microphone.given) // 2
        assert room.talk.microphone.unsent_frames > 0
        assert given - room.talk.microphone.unsent_frames - arrived <= 320
        assert room.of(room.sent, "playback.ack")[-1]["played_ms"] == TOTAL_MS


async def test_a_session_that_ends_ends_the_talk(autojump_clock: MockClock) -> None:
    from trio_duplex.client import DuplexSessionClosedError

    with pytest.RaisesGroup(
        pytest.RaisesExc(DuplexSessionClosedError, match="server_shutdown"), flatten_subgroups=True
    ):
        async with a_room(answers()) as room:
            room.rig.hub.stop()
            await trio.sleep(5)


async def test_zeros_for_ever_are_told_once(autojump_clock: MockClock) -> None:
    async with a_room(answers()) as room:
        await trio.sleep(10)
    assert [line for line in room.lines if "nothing but zeros" in line] == [
        "the microphone 'Desk mic' gives nothing but zeros: is it muted, or forbidden to this program?"
    ]


async def test_an_error_that_comes_with_every_block_is_counted(autojump_clock: MockClock) -> None:
    async with a_room(answers(overloaded=True)) as room:
        await trio.sleep(3)
    errors = [line for line in room.lines if line.startswith("error: ")]
    assert 2 <= len(errors) <= 4, errors
    counted = sum(int(line.rpartition("(")[2].split()[0]) for line in errors if line.endswith(" times more)"))
    told = sum(not line.endswith(" times more)") for line in errors)
    assert counted + told == len(room.of(room.received, "error")) > 100


async def test_what_a_device_lost_is_told(autojump_clock: MockClock) -> None:
    async with a_room(answers()) as room:
        room.sound.microphone.pump(overflow=True)
        room.sound.loudspeaker.pump(underflow=True)
        await trio.sleep(5)
    assert "the microphone lost something 1 times so far: this machine is too busy" in room.lines
    assert "the loudspeaker ran dry 1 times so far: this machine is too busy" in room.lines
