"""The account that a model session keeps of its units' deadlines. One thread, no clock: lateness comes in."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from duplex_protocol.values import Deadlines

__all__ = ["DeadlineAccount"]

KEPT: Final = 1024
"""Units that the percentiles are over: 82 s of PersonaPlex, 33 s of the demo model's detector."""


class DeadlineAccount:
    """See :class:`duplex_protocol.values.Deadlines`. Bounded memory, however long the session."""

    def __init__(self) -> None:
        self.units = 0
        self.missed = 0
        self.worst_ms: float | None = None
        self._recent_ms: deque[float] = deque(maxlen=KEPT)

    def add(self, lateness_s: float) -> None:
        """One unit was finished so much after it was due; negative: before."""
        late_ms = 1e3 * lateness_s
        self.units += 1
        self.missed += late_ms > 0
        self.worst_ms = late_ms if self.worst_ms is None else max(self.worst_ms, late_ms)
        self._recent_ms.append(late_ms)

    def snapshot(self) -> Deadlines:
        """The account now; percentiles are nearest-rank."""
        ordered = sorted(self._recent_ms)

        def rank(fraction: float) -> float | None:
            return ordered[math.ceil(fraction * len(ordered)) - 1] if ordered else None

        return Deadlines(
            units=self.units,
            missed=self.missed,
            lateness_ms_p50=rank(0.5),
            lateness_ms_p99=rank(0.99),
            lateness_ms_max=self.worst_ms,
        )
