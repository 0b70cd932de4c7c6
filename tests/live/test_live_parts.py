"""The parts of ``talk --mic`` alone: the bounded queue, the first audio's patience, choosing devices."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pybase64
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.live.fake_sounddevice import FakeSoundDevice
from trio_duplex.client import AudioDelta, wrap_event
from trio_duplex.live.device import put_away
from trio_duplex.live.loudspeaker import Loudspeaker
from trio_duplex.live.microphone import LiveMicrophone
from trio_duplex.live.sound import Sound, SoundError


class SlowClient:
    """Takes appends only while its gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.appended: list[bytes] = []

    async def append_audio(self, pcm: bytes) -> str:
        await self.gate.wait()
        self.appended.append(pcm)
        return ""


def delta(response_id: str, frames: int, value: int = 1, **extra: Any) -> AudioDelta:
    audio = pybase64.b64encode(value.to_bytes(2, "little", signed=True) * frames).decode()
    raw = {"type": "response.output_audio.delta", "response_id": response_id, "delta": audio, "format": "pcm16"}
    event = wrap_event(raw | {"sample_rate_hz": 24_000} | extra)
    assert isinstance(event, AudioDelta)
    return event


def opened(sound: FakeSoundDevice) -> Loudspeaker:
    speaker = Loudspeaker()
    speaker.open(Sound(sound), None, 24_000)
    speaker.start(Sound(sound))
    return speaker


async def test_a_queue_that_is_full_counts_every_frame_it_refuses(nursery: trio.Nursery) -> None:
    numbers = iter(range(1, 1_000))
    sound = FakeSoundDevice(source=lambda frames, _: next(numbers).to_bytes(2, "little") * frames)
    microphone, client = LiveMicrophone(), SlowClient()
    microphone.open(Sound(sound), None, 16_000)
    microphone.start(Sound(sound))
    nursery.start_soon(microphone.run, client)

    def pump(blocks: int) -> None:
        """The library's thread: nobody may make it wait."""
        thread = Thread(target=lambda: [sound.microphone.pump() for _ in range(blocks)])
        thread.start()
        thread.join(5)
        assert not thread.is_alive()

    pump(1)
    await wait_all_tasks_blocked(0.02)  # one block is in the client's hands
    pump(150)
    client.gate.set()
    await wait_all_tasks_blocked(0.02)
    arrived = b"".join(client.appended)
    # Two seconds are kept, and they are the ones that came first.
    assert arrived == bytes(sound.microphone.given)[: 101 * 640]
    assert microphone.refused_frames == 50 * 320
    assert len(client.appended) == 1 + 10
    pump(3)
    await wait_all_tasks_blocked(0.02)
    assert b"".join(client.appended)[101 * 640 :] == bytes(sound.microphone.given)[151 * 640 :]
    assert microphone.refused_frames == 50 * 320
    put_away([microphone])


async def test_the_first_audio_waits_for_the_next(autojump_clock: MockClock) -> None:
    sound = FakeSoundDevice()
    speaker = opened(sound)
    out = sound.loudspeaker
    speaker.play(delta("r", 480))
    for _ in range(3):
        out.pump()
    assert not any(out.taken)  # 60 ms
    speaker.play(delta("r", 480))
    out.pump()
    out.pump()
    assert bytes(out.taken)[3 * 960 :] == b"\1\0" * 960
    out.pump()  # it ran dry: the next audio waits again
    speaker.play(delta("r", 480))
    out.pump()
    assert not any(out.taken[5 * 960 :])
    speaker.end("r")  # nothing more will come
    out.pump()
    assert bytes(out.taken)[7 * 960 :] == b"\1\0" * 480
    assert speaker.heard_ms("r") == 60
    put_away([speaker])


async def test_audio_that_comes_in_time_is_not_held_back(autojump_clock: MockClock) -> None:
    sound = FakeSoundDevice()
    speaker = opened(sound)
    out = sound.loudspeaker
    speaker.play(delta("a", 480))
    for _ in range(4):
        out.pump()
    speaker.play(delta("a", 700))  # the buffer is empty, but the device has not noticed yet
    out.pump()
    speaker.play(delta("a", 260))
    speaker.end("a")
    speaker.play(delta("b", 480, 2))
    for _ in range(2):
        out.pump()
    assert bytes(out.taken)[3 * 960 :] == b"\1\0" * 1440 + b"\2\0" * 480
    put_away([speaker])


async def test_what_was_cut_stays_silent_whatever_arrives(autojump_clock: MockClock) -> None:
    sound = FakeSoundDevice()
    speaker = opened(sound)
    out = sound.loudspeaker
    speaker.expect("early")
    speaker.play(delta("a", 4_800))
    for _ in range(4):
        out.pump()
    assert any(out.taken)
    speaker.cut()
    before = len(out.taken)
    speaker.play(delta("a", 4_800))
    speaker.play(delta("early", 4_800))
    for _ in range(10):
        out.pump()
    assert not any(out.taken[before:])
    assert speaker.heard_ms("a") == 20
    assert speaker.heard_ms("early") == 0
    put_away([speaker])


async def test_a_format_that_was_not_asked_for(autojump_clock: MockClock) -> None:
    speaker = opened(FakeSoundDevice())
    with pytest.raises(SoundError, match="'g711_ulaw', which cannot be played"):
        speaker.play(delta("r", 480, format="g711_ulaw"))
    put_away([speaker])


# --- choosing devices -------------------------------------------------------------------------------------------------


def open_input(sound: FakeSoundDevice, device: int | str | None = None) -> str:
    return Sound(sound).open_input(device, 16_000, lambda *_: None, lambda: None).what


@pytest.mark.parametrize("device", [2, "other", "OTHER mic"])
def test_a_device_is_named_by_number_or_by_a_part_of_its_name(device: int | str) -> None:
    assert open_input(FakeSoundDevice(), device) == "microphone 'Other mic'"


@pytest.mark.parametrize(
    ("sound", "device", "line"),
    [
        (FakeSoundDevice(names=("Box",)), None, "there is no microphone; see trio-duplex talk --list-devices"),
        (FakeSoundDevice(), 7, "no microphone fits 7: No input device; see trio-duplex talk --list-devices"),
        (
            FakeSoundDevice(),
            "mic",
            "no microphone fits 'mic': Multiple input devices found for 'mic': [0] Desk mic [2] Other mic; "
            "see trio-duplex talk --list-devices",
        ),
        (
            FakeSoundDevice(open_error="Error opening RawInputStream: Device unavailable [PaErrorCode -9985]"),
            None,
            "the microphone 'Desk mic' cannot be opened: Error opening RawInputStream: Device unavailable "
            "[PaErrorCode -9985]",
        ),
    ],
)
def test_devices_that_cannot_be_had(sound: FakeSoundDevice, device: int | str | None, line: str) -> None:
    with pytest.raises(SoundError) as caught:
        open_input(sound, device)
    assert str(caught.value) == line


def test_a_machine_without_devices() -> None:
    with pytest.raises(SoundError, match="this machine has no sound device"):
        Sound(FakeSoundDevice(names=())).listing()


def test_a_loudspeaker_that_is_missing_gives_the_microphone_back() -> None:
    from trio_duplex.live.live_talk import LiveTalk

    sound = FakeSoundDevice(names=("Desk mic",))
    with pytest.raises(SoundError, match="there is no loudspeaker"):
        LiveTalk(Sound(sound), lambda _: None).open()
    assert sound.microphone.closed


def test_a_driver_that_hangs_does_not_keep_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    from trio_duplex.live import device

    monkeypatch.setattr(device, "STOP_WITHIN_S", 0.05)
    sound, release = FakeSoundDevice(), Event()
    microphone = LiveMicrophone()
    microphone.open(Sound(sound), None, 16_000)
    monkeypatch.setattr(type(sound.microphone), "abort", lambda _: release.wait(10))
    assert not put_away([microphone])
    release.set()
    assert put_away([microphone])  # there is nothing left to do
