"""Which waiting rows share the next step, and how long it may wait for more.

Pure logic with the time handed in, so that it can be tested without a thread.  One slot is one
session; a step takes at most one row of each slot.  A step should start as soon as

* every slot *in phase* with the oldest waiting row has a row too, or
* the oldest waiting row has waited ``window_s``, or a waiting row would miss its deadline otherwise.

A slot is in phase when its next row is expected before the window ends, judged by when its last
row came and how far apart its rows usually are.  So sessions that send at the same moment share
a step, a lone session never waits, and an idle one holds nobody up.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Generic, Protocol, TypeVar

import attrs

__all__ = ["Gather", "Wait", "WaitingRow"]

# A slot whose rhythm is not known yet (fewer than two arrivals) is waited for this long after its opening or row.
NEWCOMER_S = 0.1


class WaitingRow(Protocol):
    """What the gather must know about a row (seconds of one monotonic clock)."""

    @property
    def arrived_s(self) -> float: ...
    @property
    def due_s(self) -> float | None: ...


RowT = TypeVar("RowT", bound=WaitingRow)


@attrs.define(eq=False)
class _Lane(Generic[RowT]):
    last_s: float
    """When the slot was opened, or its last row arrived."""
    arrivals: int = 0
    period_s: float | None = None
    rows: deque[RowT] = attrs.field(factory=deque)

    def add(self, row: RowT, burst_s: float) -> None:
        """Queue a row and learn the rhythm; rows less than ``burst_s`` apart are one arrival."""
        interval = row.arrived_s - self.last_s
        if self.arrivals == 0 or interval > burst_s:
            if self.arrivals:
                self.period_s = interval if self.period_s is None else 0.75 * self.period_s + 0.25 * interval
            self.arrivals += 1
            self.last_s = row.arrived_s
        self.rows.append(row)

    def expected(self, now_s: float, until_s: float, slack_s: float) -> bool:
        """Whether the next row is likely to come before ``until_s``."""
        if self.period_s is None:
            return now_s - self.last_s < NEWCOMER_S
        return now_s - slack_s <= self.last_s + self.period_s <= until_s


@attrs.frozen
class Wait:
    """What the next step waits for: this long, or until so many rows more have come, whichever is first."""

    seconds: float | None
    """``None``: until a row comes.  0.0: start now."""
    rows: int


START = Wait(0.0, 0)
IDLE = Wait(None, 1)


class Gather(Generic[RowT]):
    """The waiting rows of all open slots."""

    def __init__(self, window_s: float) -> None:
        if window_s < 0:
            raise ValueError("window_s must not be negative")
        self._window_s = window_s
        self._lanes: dict[int, _Lane[RowT]] = {}
        self._waiting: dict[int, _Lane[RowT]] = {}  # those with a row, in order of their oldest row

    def open(self, slot: int, now_s: float) -> None:
        """Let a slot take part."""
        self._lanes[slot] = _Lane(now_s)

    def close(self, slot: int) -> int:
        """Let a slot leave; returns how many of its rows are dropped."""
        self._waiting.pop(slot, None)
        lane = self._lanes.pop(slot, None)
        return len(lane.rows) if lane is not None else 0

    def __contains__(self, slot: int) -> bool:
        return slot in self._lanes

    def add(self, slot: int, row: RowT) -> None:
        """Queue one row of an open slot (``KeyError`` otherwise)."""
        lane = self._lanes[slot]
        lane.add(row, self._window_s)
        self._waiting[slot] = lane

    def wait(self, now_s: float, step_s: float) -> Wait:
        """What the next step should wait for, when steps take about ``step_s``."""
        if not self._waiting:
            return IDLE
        until_s, due_s = inf, inf
        for lane in self._waiting.values():
            head = lane.rows[0]
            until_s = min(until_s, head.arrived_s)
            if head.due_s is not None:
                due_s = min(due_s, head.due_s)
        until_s = min(until_s + self._window_s, due_s - step_s)
        if now_s >= until_s:
            return START
        missing = sum(
            slot not in self._waiting and lane.expected(now_s, until_s, self._window_s)
            for slot, lane in self._lanes.items()
        )
        return Wait(until_s - now_s, missing) if missing else START

    def take(self) -> list[tuple[int, RowT]]:
        """The rows of the next step: the oldest one of every slot that has any."""
        taken = [(slot, lane.rows.popleft()) for slot, lane in self._waiting.items()]
        self._waiting = {slot: lane for slot, lane in self._waiting.items() if lane.rows}
        return taken
