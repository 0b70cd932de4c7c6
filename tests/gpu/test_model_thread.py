"""The model thread with real threads; the test's own thread plays the event loop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duplex_gpu.gather import START, Gather, Wait
from duplex_gpu.model_thread import (
    NEVER,
    ModelThread,
    RowResult,
    SlotClosed,
    SlotOverloaded,
    SlotsExhausted,
    StepFailed,
    ThreadDied,
)
from tests.gpu.gpu_kit import TIMEOUT_S, Loop, SumStep


@pytest.fixture
def step() -> SumStep:
    return SumStep()


Start = Callable[..., ModelThread[int, int]]


@pytest.fixture
def start(loop: Loop) -> Iterator[Start]:
    """Starts model threads and stops them after the test."""
    threads: list[ModelThread[int, int]] = []
    steps: list[SumStep] = []

    def _start(step: SumStep, **settings: object) -> ModelThread[int, int]:
        thread = ModelThread(step, **({"call_soon": loop.call_soon} | settings))  # type: ignore[arg-type]
        thread.start()
        threads.append(thread)
        steps.append(step)
        return thread

    yield _start
    for step in steps:
        step.go.set()
    for thread in threads:
        assert thread.stop(TIMEOUT_S)


def outputs(results: list[RowResult[int]]) -> list[int | None]:
    return [result.output for result in results]


def hold(step: SumStep, loop: Loop, thread: ModelThread[int, int]) -> list[RowResult[int]]:
    """Let one row of a slot of its own block the step, so that what comes next gathers behind it."""
    results: list[RowResult[int]] = []
    slot = thread.open_slot(results.append)
    step.running.clear()
    step.go.clear()
    slot.submit(0)
    assert step.running.wait(TIMEOUT_S)
    return results


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


class AllOfThem(Gather[Any]):
    """Starts a step when so many rows wait; says so in advance, as the real one does of slots in phase."""

    def __init__(self, rows: int) -> None:
        super().__init__(0.0)
        self.rows = rows
        self.looks = 0

    def wait(self, now_s: float, step_s: float) -> Wait:
        self.looks += 1
        missing = self.rows - len(self._waiting)
        return Wait(None if not self._waiting else TIMEOUT_S, missing) if missing else START


def test_rows_of_a_slot_run_in_order_from_a_reset_state(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    results: list[RowResult[int]] = []
    slot = thread.open_slot(results.append)
    for payload in (1, 2, 3):
        slot.submit(payload)
    loop.run_until(lambda: len(results) == 3)
    assert outputs(results) == [1, 3, 6]
    assert all(result.error is None and result.finished_s >= result.started_s for result in results)


def test_g2_rows_that_are_due_share_one_step_and_one_call(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    held = hold(step, loop, thread)
    results: list[RowResult[int]] = []
    slots = [thread.open_slot(results.append) for _ in range(7)]
    for slot in slots:
        slot.submit(5)
    step.go.set()
    loop.run_until(lambda: len(held) == 1 and len(results) == 7)
    assert sorted(map(len, step.batches)) == [1, 7]
    assert loop.calls == 2
    assert {result.rows_in_step for result in results} == {7}
    statistics = thread.statistics()
    assert (statistics.steps, statistics.rows, statistics.occupancy_mean) == (2, 8, 4.0)


def test_g3_gather_under_jitter(loop: Loop, step: SumStep, start: Start) -> None:
    """Eight sessions of one phase with up to 8 ms of jitter: few steps, not eight for each frame."""
    thread = start(step, gather_window_s=0.05)
    results: list[RowResult[int]] = []
    slots = [thread.open_slot(results.append) for _ in range(8)]
    dice = random.Random(5)
    frames = 6
    for frame in range(frames):
        for slot in dice.sample(slots, 8):
            slot.submit(1)
            time.sleep(dice.random() * 0.001)
        loop.run_until(lambda frame=frame: len(results) == 8 * (frame + 1))  # type: ignore[misc]
        time.sleep(0.06)
    statistics = thread.statistics()
    assert statistics.rows == 8 * frames
    assert statistics.steps == loop.calls <= 3 * frames
    assert all(len(set(batch)) == len(batch) for batch in step.batches)
    assert sorted(result.output or 0 for result in results) == sorted(list(range(1, frames + 1)) * 8)


def test_rows_that_a_step_still_waits_for_do_not_wake_the_thread(loop: Loop, step: SumStep) -> None:
    thread = ModelThread(step, call_soon=loop.call_soon)
    thread._gather = gather = AllOfThem(8)
    results: list[RowResult[int]] = []
    slots = [thread.open_slot(results.append) for _ in range(8)]
    thread.start()
    try:
        for frame in range(1, 4):
            until(lambda: thread._ring_at != NEVER)  # asleep
            seen, woken = gather.looks, thread.statistics().wakes
            for slot in slots[:7]:
                slot.submit(1)
                time.sleep(0.001)  # time enough to wake up, were it told
            assert gather.looks == seen
            slots[7].submit(1)
            loop.run_until(lambda frame=frame: len(results) == 8 * frame)  # type: ignore[misc]
            assert thread.statistics().wakes == woken + 1
            assert thread.statistics().steps == frame
    finally:
        assert thread.stop(TIMEOUT_S)


def test_a_slot_that_leaves_is_not_waited_for(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step, gather_window_s=TIMEOUT_S)
    results: list[RowResult[int]] = []
    staying, leaving = (thread.open_slot(results.append) for _ in range(2))
    staying.submit(1)
    until(lambda: thread._ring_at != NEVER and not thread._inbox)
    leaving.close()
    loop.run_until(lambda: bool(results), timeout_s=TIMEOUT_S / 2)


def test_a_closed_slot_hears_nothing_more(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    results: list[RowResult[int]] = []
    step.go.clear()
    slot = thread.open_slot(results.append)
    slot.submit(1)
    assert step.running.wait(TIMEOUT_S)
    slot.submit(2)
    slot.close()
    slot.close()
    with pytest.raises(SlotClosed):
        slot.submit(3)
    # The same place is taken again while the old row still runs.
    again: list[RowResult[int]] = []
    second = thread.open_slot(again.append)
    assert second.index == slot.index
    second.submit(7)
    step.go.set()
    loop.run_until(lambda: len(again) == 1)
    assert outputs(again) == [7]
    assert results == []
    assert thread.statistics().queued_rows == 0
    assert thread.statistics().open_slots == 1


def test_slots_run_out_and_come_back(loop: Loop, start: Start) -> None:
    thread = start(SumStep(max_rows=2))
    slots = [thread.open_slot(lambda _: None) for _ in range(2)]
    assert {slot.index for slot in slots} == {0, 1}
    with pytest.raises(SlotsExhausted):
        thread.open_slot(lambda _: None)
    for _ in range(50):
        slots.pop().close()
        slots.append(thread.open_slot(lambda _: None))
    with pytest.raises(SlotsExhausted):
        thread.open_slot(lambda _: None)


def test_overload_is_the_slots_own(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step, max_waiting_rows=4)
    hold(step, loop, thread)
    greedy_results: list[RowResult[int]] = []
    modest_results: list[RowResult[int]] = []
    greedy, modest = thread.open_slot(greedy_results.append), thread.open_slot(modest_results.append)
    for _ in range(4):
        greedy.submit(1)
    with pytest.raises(SlotOverloaded):
        greedy.submit(1)
    assert greedy.waiting == 4
    modest.submit(1)
    step.go.set()
    loop.run_until(lambda: len(greedy_results) == 4 and len(modest_results) == 1)
    greedy.submit(1)
    loop.run_until(lambda: len(greedy_results) == 5)
    assert outputs(greedy_results) == [1, 2, 3, 4, 5]
    assert outputs(modest_results) == [1]


def test_only_the_guilty_row_fails(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    hold(step, loop, thread)
    by_slot: dict[int, list[RowResult[int]]] = {}
    slots = []
    for _ in range(4):
        received: list[RowResult[int]] = []
        slots.append(thread.open_slot(received.append))
        by_slot[slots[-1].index] = received
    guilty = slots[2]
    for slot in slots:
        slot.submit(-1 if slot is guilty else 10)
    calls_before = loop.calls
    step.go.set()
    loop.run_until(lambda: all(by_slot.values()))
    assert loop.calls - calls_before == 2  # the held step, and the failed one with all its rows
    for slot in slots:
        [result] = by_slot[slot.index]
        if slot is guilty:
            assert isinstance(result.error, StepFailed)
            assert isinstance(result.error.__cause__, ValueError)
        else:
            assert (result.output, result.error) == (10, None)
    guilty.submit(3)
    loop.run_until(lambda: len(by_slot[guilty.index]) == 2)
    assert by_slot[guilty.index][1].output == 3
    assert thread.alive
    assert thread.statistics().failed_rows == 1


def test_death_reaches_every_open_slot(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    assert thread.wait_ready(TIMEOUT_S)
    first: list[RowResult[int]] = []
    second: list[RowResult[int]] = []
    closed: list[RowResult[int]] = []
    deadly, _bystander = thread.open_slot(first.append), thread.open_slot(second.append)
    thread.open_slot(closed.append).close()
    deadly.submit(-99)
    loop.run_until(lambda: bool(first and second))
    for [result] in (first, second):
        assert isinstance(result.error, ThreadDied)
        assert isinstance(result.error.__cause__, SystemExit)
    assert closed == []
    assert not thread.alive
    assert not thread.statistics().alive
    with pytest.raises(ThreadDied):
        deadly.submit(1)
    with pytest.raises(ThreadDied):
        thread.open_slot(first.append)
    deadly.close()


def test_a_failed_warm_up_is_told(loop: Loop) -> None:
    class Broken(SumStep):
        def warm_up(self) -> None:
            raise RuntimeError("no such device")

    ready: list[bool] = []
    thread = ModelThread(Broken(), call_soon=loop.call_soon, on_ready=lambda: ready.append(True))
    results: list[RowResult[int]] = []
    thread.open_slot(results.append)
    thread.start()
    with pytest.raises(ThreadDied) as caught:
        thread.wait_ready(TIMEOUT_S)
    assert "no such device" in str(caught.value.__cause__)
    loop.run_until(lambda: bool(results))
    assert isinstance(results[0].error, ThreadDied)
    assert not ready
    assert thread.stop(TIMEOUT_S)


def test_ready_is_told_once_warm(loop: Loop) -> None:
    class Slow(SumStep):
        def warm_up(self) -> None:
            assert self.go.wait(TIMEOUT_S)

    step = Slow()
    step.go.clear()
    ready: list[bool] = []
    thread = ModelThread(step, call_soon=loop.call_soon, on_ready=lambda: ready.append(True))
    thread.start()
    assert not thread.wait_ready(0.0)
    assert not thread.statistics().warmed_up
    step.go.set()
    loop.run_until(lambda: bool(ready))
    assert thread.wait_ready(TIMEOUT_S)
    assert thread.statistics().warmed_up
    assert thread.stop(TIMEOUT_S)


def test_stop_tells_open_slots(loop: Loop, step: SumStep) -> None:
    thread = ModelThread(step, call_soon=loop.call_soon)
    results: list[RowResult[int]] = []
    thread.open_slot(results.append)
    thread.start()
    assert thread.stop(TIMEOUT_S)
    loop.run_until(lambda: bool(results))
    assert isinstance(results[0].error, ThreadDied)
    assert not thread.alive


def test_a_stuck_step_shows_and_stop_gives_up(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    hold(step, loop, thread)
    assert not thread.stop(0.01)
    deadline = time.monotonic() + TIMEOUT_S
    while thread.statistics().busy_for_s < 0.02:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert thread.alive
    step.go.set()
    assert thread.stop(TIMEOUT_S)
    assert thread.statistics().busy_for_s == 0.0


def test_a_loop_that_is_gone_does_not_kill_the_thread(step: SumStep, start: Start) -> None:
    class LoopGone(RuntimeError):
        pass

    called = threading.Semaphore(0)

    def call_soon(fn: Callable[[], object]) -> None:
        called.release()
        raise LoopGone

    thread = start(step, call_soon=call_soon, loop_gone=(LoopGone,))
    slot = thread.open_slot(lambda _: None)
    for _ in range(2):
        slot.submit(1)
        assert called.acquire(timeout=TIMEOUT_S)
    assert thread.alive


def test_a_reset_that_fails_concerns_its_slot_only(loop: Loop, start: Start) -> None:
    class Picky(SumStep):
        def reset(self, slot: int) -> None:
            if slot == 0:
                raise RuntimeError("slot 0 is worn out")
            super().reset(slot)

    thread = start(Picky())
    bad: list[RowResult[int]] = []
    good: list[RowResult[int]] = []
    first, second = thread.open_slot(bad.append), thread.open_slot(good.append)
    assert first.index == 0
    first.submit(1)
    second.submit(1)
    loop.run_until(lambda: bool(bad and good))
    assert isinstance(bad[0].error, StepFailed)
    assert good[0].output == 1
    first.close()
    assert thread.statistics().queued_rows == 0


def test_one_deliver_that_raises_costs_no_neighbour_its_result(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    hold(step, loop, thread)
    results: list[RowResult[int]] = []

    def broken(_: RowResult[int]) -> None:
        raise RuntimeError("a bug of its owner")

    before, bad, after = (thread.open_slot(deliver) for deliver in (results.append, broken, results.append))
    for slot in (before, bad, after):
        slot.submit(4)
    step.go.set()
    with pytest.raises(RuntimeError, match="a bug of its owner"):
        loop.run_until(lambda: len(results) == 3)
    assert outputs(results) == [4, 4]


def test_lateness_and_misses_are_accounted(loop: Loop, step: SumStep, start: Start) -> None:
    thread = start(step)
    results: list[RowResult[int]] = []
    slot = thread.open_slot(results.append)
    now = time.monotonic()
    slot.submit(1, due_s=now - 1.0)
    slot.submit(1, due_s=now + 100.0)
    slot.submit(1)
    loop.run_until(lambda: len(results) == 3)
    late, early, free = (result.lateness_s for result in results)
    assert late is not None
    assert late >= 1.0
    assert early is not None
    assert early < 0.0
    assert free is None
    statistics = thread.statistics()
    assert statistics.deadline_misses == 1
    assert statistics.lateness_ms_max is not None
    assert statistics.lateness_ms_max >= 1000.0
    assert statistics.step_ms_p99 is not None


def test_statistics_before_anything_happened(loop: Loop, step: SumStep) -> None:
    statistics = ModelThread(step, call_soon=loop.call_soon).statistics()
    assert (statistics.alive, statistics.steps, statistics.step_ms_p50) == (False, 0, None)
