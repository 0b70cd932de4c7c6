"""The demo model's engine: a model thread for the detector, a job thread for recognition and synthesis.

Loading happens on the job thread too, so that the loop stays free.  One watchdog declares a dead or stuck thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
import outcome
import structlog
import trio

from duplex_gpu.job_thread import Job, JobFailed, JobResult, JobThread, JobThreadStatistics
from duplex_gpu.model_thread import ModelThread, Slot, SlotsExhausted, ThreadDied
from duplex_gpu.steps import ModelThreadStatistics, RowResult, SlotOverloaded
from trio_duplex.models.demo.engine import Clip, Ear, EngineFailed, EngineGone, FloatAudio, Heard, Reading, Urgency
from trio_duplex.models.demo.networks import Networks, Recognizer, Voice
from trio_duplex.models.demo.options import DemoOptions
from trio_duplex.models.plugin import ModelHealth, OpenRefused
from trio_duplex.models.progress import Progress

if TYPE_CHECKING:
    from duplex_gpu.piper_voice import Speech

__all__ = ["ThreadEngine"]

T = TypeVar("T")

PRIORITIES: dict[Urgency, int] = {"now": 0, "maybe": 1, "later": 2}
FRAME_DUE_S = 0.020
"""A frame's probability should be there this long after its samples (the target for the lateness of a unit)."""
LOAD_TIMEOUT_S = 300.0
WATCH_PERIOD_S = 0.5
STOP_S = 2.0

log = structlog.get_logger(__name__)


class _ThreadEar:
    def __init__(self, thread: ModelThread[FloatAudio, float], heard: Callable[[Heard], None]) -> None:
        self._heard = heard
        self._slot: Slot[FloatAudio, float] = thread.open_slot(self._receive)
        self.on_close: Callable[[_ThreadEar], object] = lambda _: None

    def submit(self, frame: FloatAudio) -> None:
        try:
            self._slot.submit(frame, due_s=time.monotonic() + FRAME_DUE_S)
        except (ThreadDied, SlotOverloaded) as error:
            # Overload cannot be: a session keeps fewer frames under way than a slot holds.
            raise EngineGone(str(error)) from error

    def close(self) -> None:
        self._slot.close()
        self.on_close(self)

    def fail(self, failure: EngineGone) -> None:
        self._heard(Heard(failure=failure))

    def _receive(self, result: RowResult[float]) -> None:
        if result.output is not None and math.isfinite(result.output):
            self._heard(Heard(result.output, lateness_s=result.lateness_s))
        elif result.output is not None:
            self._heard(Heard(failure=EngineFailed("the detector's probability is no number")))
        elif isinstance(result.error, ThreadDied):
            self._heard(Heard(failure=EngineGone(str(result.error))))
        else:
            self._heard(Heard(failure=EngineFailed(str(result.error))))


class _Jobs:
    """The job thread, awaitable."""

    def __init__(self, thread: JobThread) -> None:
        self.thread = thread
        self._waiting: set[trio.lowlevel.Task] = set()
        self._gone: EngineGone | None = None

    async def run(self, fn: Callable[[Job], T], priority: int) -> T:
        """``fn`` on the thread.  Raises ``JobFailed`` or ``EngineGone``.

        Cancellation: dropped if it waits, abandoned if it runs.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._gone is not None:
            raise EngineGone(*self._gone.args)
        task = trio.lowlevel.current_task()

        def done(result: JobResult[T]) -> None:
            if task in self._waiting:
                self._waiting.discard(task)
                trio.lowlevel.reschedule(task, outcome.Value(result))

        def abort(_: object) -> trio.lowlevel.Abort:
            job.cancel()
            self._waiting.discard(task)
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            job = self.thread.submit(fn, priority=priority, done=done)
        except ThreadDied as error:
            raise EngineGone(str(error)) from error
        self._waiting.add(task)
        result: JobResult[T] = await trio.lowlevel.wait_task_rescheduled(abort)
        if isinstance(result.error, ThreadDied):
            raise EngineGone(str(result.error)) from result.error
        if result.error is not None:
            raise result.error
        return result.output  # type: ignore[return-value]  # without an error this is what ``fn`` returned

    def fail_all(self, failure: EngineGone) -> None:
        """The thread is stuck: nobody waits for it any longer."""
        self._gone = failure
        while self._waiting:
            trio.lowlevel.reschedule(self._waiting.pop(), outcome.Error(EngineGone(*failure.args)))


class _ThreadReading:
    """One job per piece, so that more urgent ones come in between."""

    def __init__(self, engine: ThreadEngine, pieces: Iterator[Speech]) -> None:
        self._engine = engine
        self._pieces = pieces

    async def next(self, urgency: Urgency) -> Clip | None:
        """Cancellation: a job that waits is dropped, the result of a running one is."""
        piece = await self._engine.work(lambda _job: next(self._pieces, None), urgency)
        if piece is None:
            return None
        return Clip(piece.pcm, tuple((mark.text_chars, mark.audio_end_ms) for mark in piece.marks))


class ThreadEngine:
    """A :class:`trio_duplex.models.demo.engine.Engine`.  ``networks`` says what to load (tests load stand-ins).

    ``warm_up`` false: the first recognition and the first words take longer.
    """

    def __init__(
        self,
        options: DemoOptions,
        *,
        max_sessions: int,
        progress: Progress | None = None,
        warm_up: bool = True,
        networks: Networks | None = None,
    ) -> None:
        self._options = options
        self._max_sessions = max_sessions
        self._warm_up = warm_up
        self._progress = progress or (lambda _what, _part: None)
        self._networks = networks or Networks(options)
        self._detector: ModelThread[FloatAudio, float] | None = None
        self._jobs: _Jobs | None = None
        self._recognizer: Recognizer | None = None
        self._voice: Voice | None = None
        self._ears: set[_ThreadEar] = set()
        self._ready = False
        self._gone: EngineGone | None = None

    @property
    def voice_rate_hz(self) -> int:
        """Rate of the loaded voice."""
        if self._voice is None:
            raise RuntimeError("the voice is not loaded yet")
        return self._voice.sample_rate_hz

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load and warm up both threads, report started, then watch them until cancelled.

        Raises what loading raises (``WeightsMissing``, ``WeightsCorrupt``, ``VoiceUnsuitable``: one line each).
        Cancellation: the threads are asked to stop and waited for, at most two seconds.
        """
        token = trio.lowlevel.current_trio_token()
        thread = JobThread(
            call_soon=token.run_sync_soon, name=f"{self._options.name}-jobs", loop_gone=(trio.RunFinishedError,)
        )
        self._jobs = _Jobs(thread)
        thread.start()
        try:
            await self._load(self._jobs, token)
            self._ready = True
            self._progress("ready", 1.0)
            log.info("demo_ready", sessions=self._max_sessions, voice_rate_hz=self.voice_rate_hz)
            task_status.started()
            await self._watch()
        finally:
            self._ready = False
            with trio.move_on_after(STOP_S, shield=True):
                await trio.to_thread.run_sync(self._stop_threads, abandon_on_cancel=True)

    async def _load(self, jobs: _Jobs, token: trio.lowlevel.TrioToken) -> None:
        """Cancellation: the part under way is abandoned."""
        started_s = trio.current_time()
        self._progress("loading the speech detector", 0.0)
        step = await _loaded(jobs, partial(self._networks.detector, self._max_sessions))
        self._detector = ModelThread(
            step, call_soon=token.run_sync_soon, name=f"{self._options.name}-vad", loop_gone=(trio.RunFinishedError,)
        )
        self._detector.start()
        self._progress("loading the recogniser", 0.3)
        self._recognizer = await _loaded(jobs, self._networks.recognizer)
        self._progress("loading the voice", 0.5)
        self._voice = await _loaded(jobs, self._networks.voice)
        if self._warm_up:
            self._progress("warming up", 0.7)
            await _loaded(jobs, self._recognizer.warm_up)
            await _loaded(jobs, self._voice.warm_up)
        warm = await trio.to_thread.run_sync(self._detector.wait_ready, LOAD_TIMEOUT_S, abandon_on_cancel=True)
        if not warm:
            raise EngineGone(f"the detector was not warm after {LOAD_TIMEOUT_S:.0f} s")
        log.info("demo_loaded", load_s=round(trio.current_time() - started_s, 2))

    def open_ear(self, heard: Callable[[Heard], None]) -> Ear:
        """Take a slot.  Raises ``OpenRefused``: not ready, dead, or all taken."""
        if self._gone is not None:
            raise OpenRefused(f"the model is dead: {self._gone}")
        if self._detector is None or not self._ready:
            raise OpenRefused("the model is still loading")
        try:
            ear = _ThreadEar(self._detector, heard)
        except (SlotsExhausted, ThreadDied) as error:
            raise OpenRefused(str(error)) from error
        self._ears.add(ear)
        ear.on_close = self._ears.discard
        return ear

    async def transcribe(self, audio: FloatAudio, urgency: Urgency) -> str:
        """See the protocol.  Cancellation: dropped if it waits, abandoned between two tokens if it runs."""
        if self._recognizer is None:
            raise EngineGone("the recogniser is not loaded")
        text = await self.work(partial(_transcribe, self._recognizer, audio), urgency)
        return text or ""

    def read(self, text: str) -> Reading:
        """See the protocol."""
        if self._voice is None:
            raise EngineGone("the voice is not loaded")
        return _ThreadReading(self, self._voice.stream(text))

    async def work(self, fn: Callable[[Job], T], urgency: Urgency) -> T:
        """``fn`` on the job thread.  Raises ``EngineFailed`` or ``EngineGone``.

        Cancellation: dropped if it waits, abandoned if it runs.
        """
        if self._jobs is None:
            raise EngineGone("the model is not running")
        try:
            return await self._jobs.run(fn, PRIORITIES[urgency])
        except JobFailed as error:
            log.error("demo_job_failed", error=repr(error.__cause__))
            raise EngineFailed(str(error)) from error

    def model_threads(self) -> dict[str, ModelThreadStatistics]:
        """The detector's thread, once it was started."""
        return {} if self._detector is None else {"vad": self._detector.statistics()}

    def health(self) -> ModelHealth:
        """Both threads' statistics; ``alive`` is false once the watchdog has given up on one."""
        detail: dict[str, object] = {"open_sessions": len(self._ears)}
        if self._detector is not None:
            detail["vad"] = attrs.asdict(self._detector.statistics())
        if self._jobs is not None:
            detail["jobs"] = attrs.asdict(self._jobs.thread.statistics())
        if self._gone is not None:
            detail["reason"] = str(self._gone)
        return ModelHealth(ready=self._ready, alive=self._gone is None, detail=detail)

    async def _watch(self) -> None:
        """Cancellation: at any point."""
        assert self._detector is not None
        assert self._jobs is not None
        while True:
            await trio.sleep(WATCH_PERIOD_S)
            for name, statistics in (
                ("detector", self._detector.statistics()),
                ("job thread", self._jobs.thread.statistics()),
            ):
                trouble = self._trouble(statistics)
                if trouble is not None and self._gone is None:
                    self._declare_dead(EngineGone(f"the {name} {trouble}"))

    def _trouble(self, statistics: ModelThreadStatistics | JobThreadStatistics) -> str | None:
        if not statistics.alive:
            return "has died"
        if statistics.busy_for_s > self._options.stuck_after_s:
            return f"has been stuck for {statistics.busy_for_s:.0f} s"
        return None

    def _declare_dead(self, failure: EngineGone) -> None:
        log.error("demo_dead", reason=str(failure), sessions=len(self._ears))
        self._gone = failure
        if self._jobs is not None:
            self._jobs.fail_all(failure)
        for ear in list(self._ears):
            ear.fail(failure)

    def _stop_threads(self) -> None:
        """On a worker thread: blocks for less than ``STOP_S``."""
        if self._detector is not None:
            self._detector.stop(STOP_S / 2)
        if self._jobs is not None:
            self._jobs.thread.stop(STOP_S / 2)


async def _loaded(jobs: _Jobs, load: Callable[[], T]) -> T:
    """``load`` on the job thread, raising what it raises.  Cancellation: abandoned."""
    try:
        return await jobs.run(lambda _job: load(), PRIORITIES["now"])
    except JobFailed as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def _transcribe(recognizer: Recognizer, audio: FloatAudio, job: Job) -> str | None:
    return recognizer.transcribe(audio, lambda: job.cancelled)
