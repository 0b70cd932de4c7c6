"""The demo engine's two threads on the real clock, with stand-ins for the networks: cancelling, failing, dying."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import trio

from duplex_gpu.piper_voice import Speech, TextMark
from duplex_gpu.weights import WeightsMissing
from trio_duplex.config import Deployment
from trio_duplex.models.demo import DemoOptions, threads
from trio_duplex.models.demo.engine import EngineFailed, EngineGone, FloatAudio, Heard
from trio_duplex.models.demo.networks import Networks
from trio_duplex.models.demo.threads import ThreadEngine
from trio_duplex.models.plugin import OpenRefused
from trio_duplex.models.registry import build_plugin
from trio_duplex.session.settings import SessionSettings

pytestmark = pytest.mark.realtime

SILENCE = np.zeros(16_000, np.float32)
FRAME = np.zeros(512, np.float32)
SOON_S = 5.0  # generous: other tests share the machine


class StandIns(Networks):
    """Networks that do what the samples or the text say; ``hold`` keeps a thread busy until ``release`` is set."""

    def __init__(self) -> None:
        super().__init__(DemoOptions())
        self.hold = False
        self.busy = threading.Event()
        self.release = threading.Event()
        self.runs: list[str] = []
        self.missing = ""
        self.warmed = 0
        self.max_rows = 2

    def detector(self, slots: int) -> StandIns:
        self._load("detector")
        self.max_rows = slots
        return self

    def recognizer(self) -> StandIns:
        self._load("recognizer")
        return self

    def voice(self) -> StandIns:
        self._load("voice")
        return self

    def _load(self, what: str) -> None:
        if self.missing == what:
            raise WeightsMissing(f"package of the {what} is not installed")

    # the detector
    def reset(self, slot: int) -> None:
        pass

    def run(self, rows: Sequence[tuple[int, FloatAudio]]) -> list[float]:
        values = [float(frame[0]) for _, frame in rows]
        if -1.0 in values:
            raise ValueError("a bad frame")
        if -2.0 in values:
            self.block()
        if -3.0 in values:
            raise SystemExit("the device is gone")
        return values

    # the recogniser and the voice
    sample_rate_hz = 24_000

    def warm_up(self) -> None:
        self.warmed += 1

    def transcribe(self, audio: FloatAudio, should_stop: Callable[[], bool]) -> str | None:
        self.runs.append(f"asr {len(audio)}")
        if len(audio) == 1:
            raise ValueError("too short")
        if self.hold:
            self.block()
        return None if should_stop() else "words"

    def stream(self, text: str) -> Iterator[Speech]:
        for number, word in enumerate(text.split(), start=1):
            self.runs.append(f"tts {word}")
            yield Speech(np.full(2_400, number, np.int16), 24_000, (TextMark(number, 100.0 * number),))

    def block(self) -> None:
        self.busy.set()
        assert self.release.wait(30)

    async def until_busy(self) -> None:
        with trio.fail_after(SOON_S):
            assert await trio.to_thread.run_sync(self.busy.wait, SOON_S)


@pytest.fixture
def nets() -> Iterator[StandIns]:
    stand_ins = StandIns()
    yield stand_ins
    stand_ins.release.set()


async def started(nursery: trio.Nursery, nets: StandIns, *, stuck_after_s: float = 30.0) -> ThreadEngine:
    engine = ThreadEngine(DemoOptions(stuck_after_s=stuck_after_s), max_sessions=2, networks=nets)
    with trio.fail_after(SOON_S):
        await nursery.start(engine.run)
    return engine


async def test_frames_words_and_sound_come_back(nursery: trio.Nursery, nets: StandIns) -> None:
    engine = await started(nursery, nets)
    send, receive = trio.open_memory_channel[Heard](8)
    ear = engine.open_ear(send.send_nowait)
    for value in (0.25, -1.0, 0.75):
        ear.submit(np.full(512, value, np.float32))
    with trio.fail_after(SOON_S):
        heard = [await receive.receive() for _ in range(3)]
        assert await engine.transcribe(SILENCE, "now") == "words"
        reading = engine.read("one two")
        clips = [await reading.next("now") for _ in range(3)]
    assert [each.probability for each in heard] == [0.25, 0.0, 0.75]
    assert [isinstance(each.failure, EngineFailed) for each in heard] == [False, True, False]
    assert [clip.marks for clip in clips if clip] == [((1, 100.0),), ((2, 200.0),)]
    assert clips[2] is None
    ear.close()
    health = engine.health()
    assert health.ready
    assert health.alive
    assert health.detail["vad"]["rows"] == 3


@pytest.mark.parametrize(("frames", "warmed"), [(0, 3), (-1, 1)])
async def test_a_negative_number_of_warm_up_frames_warms_nothing_up(
    frames: int, warmed: int, nursery: trio.Nursery, nets: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detector, recogniser and voice; the detector's is part of starting its thread."""
    monkeypatch.setattr(threads, "Networks", lambda _: nets)
    settings = SessionSettings(max_sessions=2, warmup_frames=frames)
    plugin = build_plugin(Deployment("demo", duplex_session=settings))
    with trio.fail_after(SOON_S):
        await nursery.start(plugin.run)
    assert nets.warmed == warmed


async def test_slots_are_limited_and_come_back(nursery: trio.Nursery, nets: StandIns) -> None:
    engine = await started(nursery, nets)
    ears = [engine.open_ear(lambda _: None) for _ in range(2)]
    with pytest.raises(OpenRefused):
        engine.open_ear(lambda _: None)
    ears[0].close()
    ears[0].close()
    engine.open_ear(lambda _: None)


async def test_cancelling_never_waits_for_the_thread(nursery: trio.Nursery, nets: StandIns) -> None:
    nets.hold = True
    engine = await started(nursery, nets)
    async with trio.open_nursery() as asking:
        asking.start_soon(engine.transcribe, SILENCE, "now")  # runs
        await nets.until_busy()
        asking.start_soon(engine.transcribe, SILENCE[:500], "now")  # waits
        await trio.testing.wait_all_tasks_blocked()
        begin_s = trio.current_time()
        asking.cancel_scope.cancel()
    assert trio.current_time() - begin_s < 1.0
    nets.hold = False
    nets.release.set()
    with trio.fail_after(SOON_S):
        assert await engine.transcribe(SILENCE[:700], "now") == "words"
    assert nets.runs == ["asr 16000", "asr 700"]  # the one that waited never ran


async def test_urgent_work_comes_first(nursery: trio.Nursery, nets: StandIns) -> None:
    nets.hold = True
    engine = await started(nursery, nets)
    async with trio.open_nursery() as asking:
        asking.start_soon(engine.transcribe, SILENCE, "now")
        await nets.until_busy()
        nets.hold = False
        asking.start_soon(engine.read("later").next, "later")
        await trio.testing.wait_all_tasks_blocked()
        asking.start_soon(engine.read("maybe").next, "maybe")
        await trio.testing.wait_all_tasks_blocked()
        asking.start_soon(engine.read("now").next, "now")
        await trio.testing.wait_all_tasks_blocked()
        nets.release.set()
    assert nets.runs == ["asr 16000", "tts now", "tts maybe", "tts later"]


async def test_a_failing_job_fails_alone(nursery: trio.Nursery, nets: StandIns) -> None:
    engine = await started(nursery, nets)
    with trio.fail_after(SOON_S):
        with pytest.raises(EngineFailed, match="too short"):
            await engine.transcribe(SILENCE[:1], "now")
        assert await engine.transcribe(SILENCE, "now") == "words"


@pytest.mark.parametrize("what", ["detector", "recognizer", "voice"])
async def test_missing_weights_come_out_of_run_as_they_are(nets: StandIns, what: str) -> None:
    nets.missing = what
    engine = ThreadEngine(DemoOptions(), max_sessions=1, networks=nets)
    with trio.fail_after(SOON_S), pytest.raises(WeightsMissing, match=what):
        await engine.run()
    assert not engine.health().ready


async def test_nothing_opens_before_it_is_ready(nets: StandIns) -> None:
    engine = ThreadEngine(DemoOptions(), max_sessions=1, networks=nets)
    with pytest.raises(OpenRefused, match="loading"):
        engine.open_ear(lambda _: None)
    with pytest.raises(EngineGone):
        await engine.transcribe(SILENCE, "now")


async def test_a_stuck_detector_is_declared_dead(
    nursery: trio.Nursery, nets: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WATCH_PERIOD_S", 0.05)
    monkeypatch.setattr(threads, "STOP_S", 0.2)
    engine = await started(nursery, nets, stuck_after_s=0.2)
    send, receive = trio.open_memory_channel[Heard](8)
    stuck, _bystander = engine.open_ear(send.send_nowait), engine.open_ear(send.send_nowait)
    stuck.submit(np.full(512, -2.0, np.float32))
    with trio.fail_after(SOON_S):
        told = [await receive.receive() for _ in range(2)]
    assert [type(each.failure) for each in told] == [EngineGone, EngineGone]
    assert not engine.health().alive
    assert "stuck" in engine.health().detail["reason"]
    with pytest.raises(OpenRefused, match="dead"):
        engine.open_ear(lambda _: None)
    with pytest.raises(EngineGone):
        await engine.transcribe(SILENCE, "now")


async def test_a_stuck_job_frees_those_who_wait(
    nursery: trio.Nursery, nets: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WATCH_PERIOD_S", 0.05)
    monkeypatch.setattr(threads, "STOP_S", 0.2)
    nets.hold = True
    engine = await started(nursery, nets, stuck_after_s=0.2)
    gone: list[str] = []

    async def wait_for_words() -> None:
        try:
            await engine.transcribe(SILENCE, "now")
        except EngineGone as failure:
            gone.append(str(failure))

    with trio.fail_after(SOON_S):
        async with trio.open_nursery() as asking:
            asking.start_soon(wait_for_words)
            asking.start_soon(wait_for_words)
    assert len(gone) == 2
    assert "job thread has been stuck" in gone[0]
    nets.release.set()  # what comes back now finds nobody, and hurts nobody
    await trio.sleep(0.1)


async def test_a_detector_that_dies_is_told_to_all(
    nursery: trio.Nursery, nets: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WATCH_PERIOD_S", 0.05)
    engine = await started(nursery, nets)
    send, receive = trio.open_memory_channel[Heard](8)
    ear = engine.open_ear(send.send_nowait)
    ear.submit(np.full(512, -3.0, np.float32))
    with trio.fail_after(SOON_S):
        told = [await receive.receive() for _ in range(2)]  # the thread's own word, then the watchdog's
    assert [type(each.failure) for each in told] == [EngineGone, EngineGone]
    assert not engine.health().alive
    with pytest.raises(EngineGone):
        ear.submit(FRAME)


async def test_cancelling_a_run_with_a_stuck_thread_is_bounded(nets: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STOP_S", 0.3)
    async with trio.open_nursery() as own:
        engine = await started(own, nets)
        engine.open_ear(lambda _: None).submit(np.full(512, -2.0, np.float32))
        await nets.until_busy()
        begin_s = trio.current_time()
        own.cancel_scope.cancel()
    assert trio.current_time() - begin_s < 2.0
    assert engine.health().detail["vad"]["alive"]  # a daemon, left behind


async def test_both_threads_end_with_the_run(nets: StandIns) -> None:
    async with trio.open_nursery() as own:
        engine = await started(own, nets)
        own.cancel_scope.cancel()
    detail = engine.health().detail
    assert (detail["vad"]["alive"], detail["jobs"]["alive"]) == (False, False)
    assert not engine.health().ready


async def test_progress_goes_from_nothing_to_all(nets: StandIns) -> None:
    told: list[tuple[str, float]] = []
    engine = ThreadEngine(
        DemoOptions(), max_sessions=1, networks=nets, progress=lambda what, part: told.append((what, part))
    )
    async with trio.open_nursery() as nursery:
        with trio.fail_after(SOON_S):
            await nursery.start(engine.run)
        nursery.cancel_scope.cancel()
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0.0, 1.0)
    assert len(told) >= 4
