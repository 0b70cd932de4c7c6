"""The values a model thread deals in: the step it drives, what becomes of a row, its errors and statistics.

All times are seconds of ``time.monotonic()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs

__all__ = [
    "BatchedStep",
    "CallSoon",
    "ModelThreadStatistics",
    "RowResult",
    "SlotClosed",
    "SlotOverloaded",
    "SlotsExhausted",
    "StepFailed",
    "ThreadDied",
]

Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

CallSoon = Callable[[Callable[[], object]], object]
"""Runs a function later on the loop thread; callable from any thread, never blocks."""


class BatchedStep(Protocol[In_contra, Out_co]):
    """What a model thread drives.  Every method is called on that thread only."""

    @property
    def max_rows(self) -> int:
        """How many slots there are, which is also the largest batch."""
        ...

    def warm_up(self) -> None:
        """Load, capture and run whatever makes the first real step as quick as the later ones."""
        ...

    def reset(self, slot: int) -> None:
        """Put one slot into its initial state; no other slot changes by a single bit."""
        ...

    def run(self, rows: Sequence[tuple[int, In_contra]]) -> Sequence[Out_co]:
        """Advance the named slots (distinct, 1 to ``max_rows`` of them) by one row each.

        Slots that are not named stay unchanged bit for bit.  Returns one output per row, in order.
        An exception means that *no* slot was changed: the thread then tries the rows one by one.
        """
        ...


class SlotsExhausted(RuntimeError):
    """Every slot is taken."""


class SlotOverloaded(RuntimeError):
    """Too many rows of this slot wait already; only this slot's owner is concerned."""


class SlotClosed(RuntimeError):
    """The slot was closed by its owner."""


class DeviceMissing(Exception):
    """The device named in the options does not exist here; one line for the user."""


class StepFailed(RuntimeError):
    """The step raised for this row; ``__cause__`` is what it raised.  The slot's state is as before the row."""


class ThreadDied(RuntimeError):
    """The thread has ended (a fatal error, or ``stop``): no more results will come."""


@attrs.frozen
class RowResult(Generic[Out]):
    """What became of one row.  ``error`` is ``None`` exactly when ``output`` holds a result."""

    output: Out | None
    error: StepFailed | ThreadDied | None
    started_s: float
    finished_s: float
    due_s: float | None = None
    rows_in_step: int = 0

    @property
    def lateness_s(self) -> float | None:
        """``finished_s - due_s``: negative means early; ``None`` for a row without a deadline."""
        return None if self.due_s is None else self.finished_s - self.due_s


@attrs.frozen
class ModelThreadStatistics:
    """A snapshot.  Percentiles are over the last 1024 steps or rows and ``None`` before the first."""

    alive: bool
    warmed_up: bool
    steps: int
    rows: int
    failed_rows: int
    occupancy_mean: float
    """Rows per step, over all steps so far (0.0 before the first)."""
    step_s_sum: float
    """Seconds spent in steps, over all of them."""
    step_ms_p50: float | None
    step_ms_p99: float | None
    lateness_ms_p50: float | None
    lateness_ms_p99: float | None
    lateness_ms_max: float | None
    deadline_misses: int
    """Rows that finished after they were due, over all rows so far."""
    open_slots: int
    queued_rows: int
    """Rows handed in and not yet part of a step."""
    busy_for_s: float
    """How long the step that runs now has been running; 0.0 between steps.  For a watchdog."""
    wakes: int
    """How often the thread was woken by a row or a deadline; without silent rows, once per row."""
