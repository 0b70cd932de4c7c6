"""One thread that owns one batched step and the slots it works on.

Rows come in from another thread (the *loop thread*: the one that runs an event loop) through
one queue; the thread gathers the rows that are due into one step, and hands all results of the
step back through exactly one ``call_soon`` call.  Nothing here blocks the loop thread, except
:meth:`ModelThread.stop` and :meth:`ModelThread.wait_ready`, which say so.

Waking a thread makes it fight for the interpreter lock, and at 1600 rows a second that would be
the loop thread's largest enemy.  So a row lies in the queue in silence, and the bell rings only
with the row that may let the step start: the first one, or the last of those it is gathered for.

When a step starts is the business of :mod:`duplex_gpu.gather`.

All times are seconds of ``time.monotonic()``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

import attrs

from duplex_gpu.gather import Gather, Wait
from duplex_gpu.samples import SampleRing
from duplex_gpu.steps import (
    BatchedStep,
    CallSoon,
    ModelThreadStatistics,
    RowResult,
    SlotClosed,
    SlotOverloaded,
    SlotsExhausted,
    StepFailed,
    ThreadDied,
)

__all__ = [
    "BatchedStep",
    "ModelThread",
    "ModelThreadStatistics",
    "RowResult",
    "Slot",
    "SlotClosed",
    "SlotOverloaded",
    "SlotsExhausted",
    "StepFailed",
    "ThreadDied",
]

In = TypeVar("In")
Out = TypeVar("Out")

NEVER: Final = sys.maxsize


@attrs.frozen(eq=False)
class _Row(Generic[In, Out]):
    slot: Slot[In, Out]
    payload: In
    due_s: float | None
    arrived_s: float


@attrs.frozen(eq=False)
class _Opened(Generic[In, Out]):
    slot: Slot[In, Out]


@attrs.frozen(eq=False)
class _Closed(Generic[In, Out]):
    slot: Slot[In, Out]


class Slot(Generic[In, Out]):
    """One session's place in the batch.  Use it from the loop thread only; nothing here blocks."""

    def __init__(self, thread: ModelThread[In, Out], index: int, deliver: Callable[[RowResult[Out]], None]) -> None:
        self._thread = thread
        self._deliver = deliver
        self.index = index
        self.closed = False
        # Two counters with one writer each (loop thread, model thread) instead of one that would need a lock.
        self._submitted = 0
        self._taken = 0

    @property
    def waiting(self) -> int:
        """Rows handed in that no step has taken yet."""
        return self._submitted - self._taken

    def submit(self, payload: In, *, due_s: float | None = None) -> None:
        """Queue one row; rows of one slot run in the order they were handed in, one per step.

        ``due_s`` is the ``time.monotonic()`` second by which the step should have finished.
        Raises :class:`SlotClosed`, :class:`SlotOverloaded` or :class:`ThreadDied`.
        """
        if self.closed:
            raise SlotClosed(f"slot {self.index} is closed")
        self._thread._enqueue_row(self, payload, due_s)

    def close(self) -> None:
        """Give the slot back (idempotent).  Waiting rows are dropped, and ``deliver`` is never called again."""
        if not self.closed:
            self.closed = True
            self._thread._enqueue_close(self)

    def _receive(self, result: RowResult[Out]) -> None:
        # The one place where results enter the loop thread: a closed slot hears nothing more.
        if not self.closed:
            self._deliver(result)


class ModelThread(Generic[In, Out]):
    """See the module's text.  Construct, :meth:`start`, :meth:`open_slot`, and :meth:`stop` at the end.

    ``call_soon(fn)`` must be callable from any thread and run ``fn()`` later on the loop thread; it is
    called once per step.  If it raises one of ``loop_gone``, the results are lost and the thread goes on.
    """

    def __init__(
        self,
        step: BatchedStep[In, Out],
        *,
        call_soon: CallSoon,
        gather_window_s: float = 0.004,
        max_waiting_rows: int = 64,
        name: str = "model",
        loop_gone: tuple[type[BaseException], ...] = (),
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._call_soon = call_soon
        self._max_waiting_rows = max_waiting_rows
        self._loop_gone = loop_gone
        self._on_ready = on_ready
        self._inbox: deque[_Row[In, Out] | _Opened[In, Out] | _Closed[In, Out] | None] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._ring_at = NEVER  # how many rows must have been handed in for the bell to ring; set by the model thread
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._settled = threading.Event()  # warm, or dead
        self._warmed_up = False
        self._death: BaseException | None = None
        self._ended = False
        # Loop thread's side.
        self._free = list(range(step.max_rows - 1, -1, -1))
        self._open: dict[int, Slot[In, Out]] = {}
        self._submitted = 0
        # Model thread's side.
        self._gather: Gather[_Row[In, Out]] = Gather(gather_window_s)
        self._slots: dict[int, Slot[In, Out]] = {}
        self._taken_in = 0  # rows out of the inbox
        self._taken = 0  # rows out of the gather
        self._wakes = 0
        self._steps = 0
        self._rows = 0
        self._failed_rows = 0
        self._misses = 0
        self._busy_since: float | None = None
        self._step_s = SampleRing()
        self._step_s_sum = 0.0
        self._lateness_s = SampleRing()
        self._typical_step_s = 0.0

    # ---- loop thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; the step's warm-up runs on it.  ``on_ready`` is called on the loop thread when warm."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Block until warm; ``False`` after ``timeout_s``.  Raises :class:`ThreadDied` if the warm-up failed."""
        if not self._settled.wait(timeout_s):
            return False
        if not self._warmed_up:
            raise self._died()
        return True

    @property
    def alive(self) -> bool:
        """Started and not ended."""
        return self._thread.is_alive() and not self._ended

    def open_slot(self, deliver: Callable[[RowResult[Out]], None]) -> Slot[In, Out]:
        """Take a free slot, reset before its first row.

        ``deliver(result)`` is called on the loop thread, once per row, and must not block or raise.
        Raises :class:`SlotsExhausted` or :class:`ThreadDied`.
        """
        if self._ended:
            raise self._died()
        if not self._free:
            raise SlotsExhausted(f"all {self._step.max_rows} slots of {self.name!r} are taken")
        slot = Slot(self, self._free.pop(), deliver)
        self._open[slot.index] = slot
        self._tell_thread(_Opened(slot))
        return slot

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after its current step; block up to ``timeout_s``; whether it has ended.

        Open slots are told :class:`ThreadDied`.  A step that never returns cannot be ended; the thread is a
        daemon, so it does not keep the process alive.
        """
        self._tell_thread(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def statistics(self) -> ModelThreadStatistics:
        """A snapshot, cheap enough to take every second.  Never blocks."""
        step_p50, step_p99 = self._step_s.percentiles(0.5, 0.99)
        late_p50, late_p99, late_max = self._lateness_s.percentiles(0.5, 0.99, 1.0)
        steps, busy_since = self._steps, self._busy_since
        return ModelThreadStatistics(
            alive=self.alive,
            warmed_up=self._warmed_up,
            steps=steps,
            rows=self._rows,
            failed_rows=self._failed_rows,
            occupancy_mean=self._rows / steps if steps else 0.0,
            step_s_sum=self._step_s_sum,
            step_ms_p50=_ms(step_p50),
            step_ms_p99=_ms(step_p99),
            lateness_ms_p50=_ms(late_p50),
            lateness_ms_p99=_ms(late_p99),
            lateness_ms_max=_ms(late_max),
            deadline_misses=self._misses,
            open_slots=len(self._open),
            queued_rows=self._submitted - self._taken,
            busy_for_s=0.0 if busy_since is None else time.monotonic() - busy_since,
            wakes=self._wakes,
        )

    def _enqueue_row(self, slot: Slot[In, Out], payload: In, due_s: float | None) -> None:
        if self._ended:
            raise self._died()
        if slot.waiting >= self._max_waiting_rows:
            raise SlotOverloaded(f"{slot.waiting} rows of slot {slot.index} of {self.name!r} wait already")
        slot._submitted += 1
        self._inbox.append(_Row(slot, payload, due_s, time.monotonic()))
        self._submitted += 1
        if self._submitted >= self._ring_at:
            self._bell.put(None)

    def _enqueue_close(self, slot: Slot[In, Out]) -> None:
        # The index may be taken again at once: the thread sees this close before the next opening's reset.
        del self._open[slot.index]
        self._free.append(slot.index)
        self._tell_thread(_Closed(slot))

    def _tell_thread(self, message: _Opened[In, Out] | _Closed[In, Out] | None) -> None:
        self._inbox.append(message)
        self._bell.put(None)

    def _died(self) -> ThreadDied:
        error = ThreadDied(f"model thread {self.name!r} has ended")
        error.__cause__ = self._death
        return error

    def _tell_all(self, result: RowResult[Out]) -> None:
        self._hand_out([(slot, result) for slot in self._open.values()])

    def _hand_out(self, results: Sequence[tuple[Slot[In, Out], RowResult[Out]]]) -> None:
        # An ExitStack calls every one of them even if one raises, and then raises: no neighbour loses its row.
        with ExitStack() as stack:
            for slot, result in reversed(results):
                stack.callback(slot._receive, result)

    # ---- model thread ------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._step.warm_up()
            self._warmed_up = True
            self._settled.set()
            if self._on_ready is not None:
                self._to_loop(self._on_ready)
            while self._take_in_until_due():
                self._run_step(self._gather.take())
        except BaseException as error:  # noqa: BLE001  # border: whatever ends this thread must reach every session
            self._death = error
        finally:
            self._ended = True
            self._busy_since = None
            self._settled.set()
            now = time.monotonic()
            self._to_loop(partial(self._tell_all, RowResult(None, self._died(), now, now)))

    def _to_loop(self, fn: Callable[[], object]) -> None:
        try:
            self._call_soon(fn)
        except self._loop_gone:
            return  # nobody is left to be told

    def _take_in_until_due(self) -> bool:
        """Apply messages until a step is due; ``False`` when asked to stop."""
        while True:
            while self._inbox:
                if not self._apply(self._inbox.popleft()):
                    return False
            wait = self._gather.wait(time.monotonic(), self._typical_step_s)
            if wait.seconds == 0.0:
                return True
            self._sleep(wait)

    def _apply(self, message: _Row[In, Out] | _Opened[In, Out] | _Closed[In, Out] | None) -> bool:
        match message:
            case None:
                return False
            case _Row() as row:
                self._taken_in += 1
                self._take_row(row)
            case _Opened(slot):
                self._open_lane(slot)
            case _Closed(slot):
                self._close_lane(slot)
        return True

    def _sleep(self, wait: Wait) -> None:
        """Until the bell rings, or the time is over."""
        while not self._bell.empty():  # rung for what has been seen, or lies in the inbox by now
            self._bell.get_nowait()
        self._ring_at = self._taken_in + wait.rows
        # Whoever added something before that line was not asked to ring: look once more.
        if not self._inbox:
            with suppress(Empty):
                self._bell.get(timeout=wait.seconds)
            self._wakes += 1
        self._ring_at = NEVER

    def _take_row(self, row: _Row[In, Out]) -> None:
        if self._slots.get(row.slot.index) is row.slot:
            self._gather.add(row.slot.index, row)
            return
        self._count_taken(row.slot)
        now = time.monotonic()
        error = StepFailed(f"slot {row.slot.index} of {self.name!r} could not be reset")
        self._failed_rows += 1
        self._to_loop(partial(self._hand_out, [(row.slot, RowResult(None, error, now, now, row.due_s))]))

    def _open_lane(self, slot: Slot[In, Out]) -> None:
        try:
            self._step.reset(slot.index)
        except Exception:  # noqa: BLE001  # border: a slot that cannot be reset fails its own rows only
            return
        self._slots[slot.index] = slot
        self._gather.open(slot.index, time.monotonic())

    def _close_lane(self, slot: Slot[In, Out]) -> None:
        if self._slots.get(slot.index) is slot:
            del self._slots[slot.index]
            self._count_taken(slot, self._gather.close(slot.index))

    def _count_taken(self, slot: Slot[In, Out], rows: int = 1) -> None:
        slot._taken += rows
        self._taken += rows

    def _run_step(self, taken: Sequence[tuple[int, _Row[In, Out]]]) -> None:
        rows = [row for _, row in taken]
        for row in rows:
            self._count_taken(row.slot)
        started = time.monotonic()
        self._busy_since = started
        outputs = self._outputs(rows)
        finished = time.monotonic()
        self._busy_since = None
        results = [
            (row.slot, RowResult(output, error, started, finished, row.due_s, len(rows)))
            for row, (output, error) in zip(rows, outputs, strict=True)
        ]
        self._account(results, finished - started)
        self._to_loop(partial(self._hand_out, results))

    def _outputs(self, rows: Sequence[_Row[In, Out]]) -> list[tuple[Out | None, StepFailed | None]]:
        """Run the step; if it raises, run its rows one by one so that only the guilty ones fail."""
        try:
            outputs = self._step.run([(row.slot.index, row.payload) for row in rows])
        except Exception as error:  # noqa: BLE001  # border: a row that the step cannot take must not stop the thread
            if len(rows) > 1:
                return [result for row in rows for result in self._outputs([row])]
            failed = StepFailed(f"step of {self.name!r} failed for slot {rows[0].slot.index}: {error!r}")
            failed.__cause__ = error
            return [(None, failed)]
        if len(outputs) != len(rows):  # a broken step, and its slots have moved on: nothing can be trusted any more
            raise TypeError(f"step of {self.name!r} gave {len(outputs)} outputs for {len(rows)} rows")
        return [(output, None) for output in outputs]

    def _account(self, results: Sequence[tuple[Slot[In, Out], RowResult[Out]]], step_s: float) -> None:
        self._steps += 1
        self._rows += len(results)
        self._step_s.add(step_s)
        self._step_s_sum += step_s
        self._typical_step_s += 0.125 * (step_s - self._typical_step_s)
        for _, result in results:
            self._failed_rows += result.error is not None
            lateness_s = result.lateness_s
            if lateness_s is not None:
                self._lateness_s.add(lateness_s)
                self._misses += lateness_s > 0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds
