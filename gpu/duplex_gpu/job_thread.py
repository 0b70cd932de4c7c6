"""A thread for long work that cannot be batched or interrupted: recognition, synthesis, loading.

It exists so that such work never stands between a batched step and its deadline (the work is
expected to release the GIL, as onnxruntime does).  Jobs run one at a time, the most urgent first,
and hand their result back through one ``call_soon`` call each.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import Generic, TypeVar

import attrs

from duplex_gpu.samples import SampleRing
from duplex_gpu.steps import CallSoon, ThreadDied

__all__ = ["Job", "JobFailed", "JobResult", "JobThread", "JobThreadStatistics"]

T = TypeVar("T")


class JobFailed(RuntimeError):
    """The job's function raised; ``__cause__`` is what it raised."""


@attrs.frozen
class JobResult(Generic[T]):
    """What became of one job.  ``error`` is ``None`` exactly when the function returned ``output``."""

    output: T | None
    error: JobFailed | ThreadDied | None
    submitted_s: float
    started_s: float
    finished_s: float
    """Seconds of ``time.monotonic()``."""


@attrs.frozen
class JobThreadStatistics:
    """A snapshot; percentiles are over the last 1024 jobs and ``None`` before the first."""

    alive: bool
    jobs: int
    failed_jobs: int
    cancelled_jobs: int
    """Cancelled before they ran, or while they ran."""
    queued_jobs: int
    """Waiting to run, including cancelled ones that the thread has not come across yet."""
    wait_ms_p50: float | None
    wait_ms_p99: float | None
    run_ms_p50: float | None
    run_ms_p99: float | None
    busy_for_s: float
    """How long the job that runs now has been running; 0.0 between jobs."""


class Job:
    """A handle on one submitted job.  The function gets it too, to poll :attr:`cancelled` between slices."""

    def __init__(self) -> None:
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted."""
        return self._cancelled

    def cancel(self) -> None:
        """Idempotent.  Waiting: the job never runs.  Running: it is asked to stop.  Its ``done`` is never called.

        That last promise holds from the moment of the call when it is made on the loop thread.
        """
        self._cancelled = True


@attrs.define(order=False, eq=False)
class _Entry(Generic[T]):
    priority: float
    number: int
    job: Job
    fn: Callable[[Job], T] | None
    """``None`` stops the thread."""
    done: Callable[[JobResult[T]], None]
    submitted_s: float

    def __lt__(self, other: _Entry[T]) -> bool:
        return (self.priority, self.number) < (other.priority, other.number)

    def deliver(self, result: JobResult[T]) -> None:
        # The one place where results enter the loop thread.
        if not self.job.cancelled:
            self.done(result)


class JobThread:
    """Construct, :meth:`start`, :meth:`submit`, and :meth:`stop` at the end.

    ``call_soon`` and ``loop_gone`` as in :class:`duplex_gpu.model_thread.ModelThread`.  ``nice`` lowers
    the thread's scheduling priority (0 to 19) where the system has such a thing for threads (Linux), so
    that on a machine with few cores the model thread goes first.
    """

    def __init__(
        self,
        *,
        call_soon: CallSoon,
        name: str = "jobs",
        loop_gone: tuple[type[BaseException], ...] = (),
        nice: int = 0,
    ) -> None:
        self.name = name
        self._call_soon = call_soon
        self._loop_gone = loop_gone
        self._nice = nice
        # Entries hold jobs of many result types; the type of one is known to its own function and ``done``.
        self._queue: PriorityQueue[_Entry[object]] = PriorityQueue()
        self._numbers = count()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._death: BaseException | None = None
        self._ended = False
        self._jobs = 0
        self._failed_jobs = 0
        self._cancelled_jobs = 0
        self._busy_since: float | None = None
        self._wait_s = SampleRing()
        self._run_s = SampleRing()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Started and not ended."""
        return self._thread.is_alive() and not self._ended

    def submit(self, fn: Callable[[Job], T], *, priority: int = 0, done: Callable[[JobResult[T]], None]) -> Job:
        """Queue ``fn(job)``.  Lower ``priority`` runs first, equal ones in the order they were handed in.

        ``done(result)`` is called once on the loop thread, unless the job is cancelled first; it must not
        block or raise.  Raises :class:`~duplex_gpu.steps.ThreadDied`.  Never blocks.
        """
        if self._ended:
            raise self._died()
        job = Job()
        self._put(float(priority), job, fn, done)
        return job

    def stop(self, timeout_s: float) -> bool:
        """End after the current job; block up to ``timeout_s``; whether the thread has ended.

        Jobs that wait are told :class:`~duplex_gpu.steps.ThreadDied`.
        """
        self._put(float("-inf"), Job(), None, lambda _: None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def statistics(self) -> JobThreadStatistics:
        """A snapshot.  Never blocks for long."""
        wait_p50, wait_p99 = self._wait_s.percentiles(0.5, 0.99)
        run_p50, run_p99 = self._run_s.percentiles(0.5, 0.99)
        busy_since = self._busy_since
        return JobThreadStatistics(
            alive=self.alive,
            jobs=self._jobs,
            failed_jobs=self._failed_jobs,
            cancelled_jobs=self._cancelled_jobs,
            queued_jobs=self._queue.qsize(),
            wait_ms_p50=_ms(wait_p50),
            wait_ms_p99=_ms(wait_p99),
            run_ms_p50=_ms(run_p50),
            run_ms_p99=_ms(run_p99),
            busy_for_s=0.0 if busy_since is None else time.monotonic() - busy_since,
        )

    def _put(
        self, priority: float, job: Job, fn: Callable[[Job], T] | None, done: Callable[[JobResult[T]], None]
    ) -> None:
        entry = _Entry(priority, next(self._numbers), job, fn, done, time.monotonic())
        self._queue.put(entry)  # type: ignore[arg-type]  # an entry's function and ``done`` agree among themselves

    def _died(self) -> ThreadDied:
        error = ThreadDied(f"job thread {self.name!r} has ended")
        error.__cause__ = self._death
        return error

    # ---- on the thread -----------------------------------------------------------------------

    def _main(self) -> None:
        try:
            if self._nice and sys.platform == "linux":
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
            while (entry := self._queue.get()).fn is not None:
                self._run(entry, entry.fn)
        except BaseException as error:  # noqa: BLE001  # border: whatever ends this thread must reach everyone who waits for a job
            self._death = error
        finally:
            self._ended = True
            self._busy_since = None
            self._to_loop(self._tell_waiting)

    def _run(self, entry: _Entry[object], fn: Callable[[Job], object]) -> None:
        if entry.job.cancelled:
            self._cancelled_jobs += 1
            return
        started = time.monotonic()
        self._busy_since = started
        output: object = None
        error: JobFailed | None = None
        try:
            output = fn(entry.job)
        except Exception as raised:  # noqa: BLE001  # border: a job that raises fails alone
            error = JobFailed(f"job of {self.name!r} failed: {raised!r}")
            error.__cause__ = raised
        except BaseException:
            self._queue.put(entry)  # so that its owner is told with the others
            raise
        finished = time.monotonic()
        self._busy_since = None
        self._jobs += 1
        self._failed_jobs += error is not None
        self._cancelled_jobs += entry.job.cancelled
        self._wait_s.add(started - entry.submitted_s)
        self._run_s.add(finished - started)
        self._to_loop(partial(entry.deliver, JobResult(output, error, entry.submitted_s, started, finished)))

    def _tell_waiting(self) -> None:
        """On the loop thread, once, after the end: nobody can submit any more."""
        while not self._queue.empty():
            entry = self._queue.get_nowait()
            now = time.monotonic()
            if entry.fn is not None:
                entry.deliver(JobResult(None, self._died(), entry.submitted_s, now, now))

    def _to_loop(self, fn: Callable[[], object]) -> None:
        try:
            self._call_soon(fn)
        except self._loop_gone:
            return  # nobody is left to be told


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds
