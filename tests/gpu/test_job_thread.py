"""The job thread: order, cancellation, failures, and that it leaves batched steps alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from duplex_gpu.job_thread import Job, JobFailed, JobResult, JobThread
from duplex_gpu.model_thread import ModelThread, RowResult, ThreadDied
from tests.gpu.gpu_kit import TIMEOUT_S, Loop, SumStep


@pytest.fixture
def jobs(loop: Loop) -> Iterator[JobThread]:
    thread = JobThread(call_soon=loop.call_soon, nice=5)
    thread.start()
    yield thread
    assert thread.stop(TIMEOUT_S)


class Gate:
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.go = threading.Event()

    def __call__(self, job: Job) -> bool:
        self.running.set()
        assert self.go.wait(TIMEOUT_S)
        return job.cancelled


def test_urgent_first_then_in_order(loop: Loop, jobs: JobThread) -> None:
    gate, order = Gate(), list[str]()
    results: list[JobResult[None]] = []
    jobs.submit(gate, done=lambda _: None)
    assert gate.running.wait(TIMEOUT_S)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -3)):
        jobs.submit(lambda _, name=name: order.append(name), priority=priority, done=results.append)  # type: ignore[misc]
    gate.go.set()
    loop.run_until(lambda: len(results) == 4)
    assert order == ["d", "b", "a", "c"]
    assert all(result.error is None and result.finished_s >= result.started_s for result in results)
    assert jobs.statistics().jobs == 5


def test_a_cancelled_waiting_job_never_runs(loop: Loop, jobs: JobThread) -> None:
    gate, ran, done = Gate(), list[str](), list[JobResult[None]]()
    jobs.submit(gate, done=lambda _: None)
    assert gate.running.wait(TIMEOUT_S)
    unwanted = jobs.submit(lambda _: ran.append("unwanted"), done=done.append)
    jobs.submit(lambda _: ran.append("wanted"), done=done.append)
    unwanted.cancel()
    unwanted.cancel()
    gate.go.set()
    loop.run_until(lambda: len(done) == 1)
    assert ran == ["wanted"]
    assert jobs.statistics().cancelled_jobs == 1


def test_a_cancelled_running_job_is_asked_to_stop_and_its_result_dropped(loop: Loop, jobs: JobThread) -> None:
    gate, saw, done = Gate(), list[bool](), list[JobResult[bool]]()
    job = jobs.submit(lambda job: saw.append(gate(job)) or True, done=done.append)
    assert gate.running.wait(TIMEOUT_S)
    job.cancel()
    gate.go.set()
    after: list[JobResult[int]] = []
    jobs.submit(lambda _: 1, done=after.append)
    loop.run_until(lambda: bool(after))
    assert saw == [True]
    assert done == []


def test_a_result_on_its_way_is_dropped_too(loop: Loop, jobs: JobThread) -> None:
    done: list[JobResult[int]] = []
    ended = threading.Event()
    job = jobs.submit(lambda _: 1, done=done.append)
    jobs.submit(lambda _: ended.set(), done=lambda _: None)
    assert ended.wait(TIMEOUT_S)  # so the first job's result waits at the loop already
    job.cancel()
    loop.run_waiting()
    assert done == []


def test_a_job_that_raises_fails_alone(loop: Loop, jobs: JobThread) -> None:
    results: list[JobResult[float]] = []
    jobs.submit(lambda _: 1 / 0, done=results.append)
    jobs.submit(lambda _: 2.0, done=results.append)
    loop.run_until(lambda: len(results) == 2)
    assert isinstance(results[0].error, JobFailed)
    assert isinstance(results[0].error.__cause__, ZeroDivisionError)
    assert (results[1].output, results[1].error) == (2.0, None)
    assert jobs.statistics().failed_jobs == 1


def test_death_reaches_those_who_wait(loop: Loop) -> None:
    jobs = JobThread(call_soon=loop.call_soon)
    results: list[JobResult[None]] = []

    def die(_: Job) -> None:
        raise SystemExit

    jobs.submit(die, done=results.append)
    jobs.submit(lambda _: None, done=results.append)
    jobs.submit(lambda _: None, done=results.append).cancel()
    jobs.start()
    loop.run_until(lambda: len(results) == 2)
    assert all(isinstance(result.error, ThreadDied) for result in results)
    assert not jobs.alive
    with pytest.raises(ThreadDied):
        jobs.submit(lambda _: None, done=results.append)
    assert jobs.stop(TIMEOUT_S)


def test_stop_ends_after_the_running_job_and_tells_the_others(loop: Loop) -> None:
    jobs = JobThread(call_soon=loop.call_soon)
    jobs.start()
    gate = Gate()
    first: list[JobResult[bool]] = []
    second: list[JobResult[None]] = []
    jobs.submit(gate, done=first.append)
    assert gate.running.wait(TIMEOUT_S)
    jobs.submit(lambda _: None, done=second.append)
    assert not jobs.stop(0.01)
    assert jobs.statistics().busy_for_s > 0.0
    gate.go.set()
    assert jobs.stop(TIMEOUT_S)
    loop.run_until(lambda: bool(first and second))
    assert first[0].error is None
    assert isinstance(second[0].error, ThreadDied)


def test_long_jobs_do_not_stand_between_a_step_and_its_deadline(loop: Loop, jobs: JobThread) -> None:
    """Steps keep running while one long job (which releases the GIL, as the networks do) is under way."""
    matrix = np.ones((400, 400), np.float32)
    started = threading.Event()
    stop = threading.Event()

    def long_job(job: Job) -> int:
        products = 0
        while not stop.is_set():
            _ = matrix @ matrix
            products += 1
            started.set()
        return products

    finished: list[JobResult[int]] = []
    thread = ModelThread(SumStep(), call_soon=loop.call_soon)
    thread.start()
    results: list[RowResult[int]] = []
    slot = thread.open_slot(results.append)
    jobs.submit(long_job, done=finished.append)
    assert started.wait(TIMEOUT_S)
    for frame in range(20):
        slot.submit(1, due_s=time.monotonic() + 1.0)
        loop.run_until(lambda frame=frame: len(results) == frame + 1)  # type: ignore[misc]
    assert not finished  # all 20 steps fell into one job
    assert thread.statistics().deadline_misses == 0
    stop.set()
    loop.run_until(lambda: bool(finished))
    run_s = finished[0].finished_s - finished[0].started_s
    assert all(result.finished_s < finished[0].finished_s for result in results)
    assert run_s > 0
    assert thread.stop(TIMEOUT_S)
