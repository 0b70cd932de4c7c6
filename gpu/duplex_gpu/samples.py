"""A bounded ring of timing samples with percentiles.

One thread writes, any thread reads: the ring is a plain list of fixed length that is
copied in one bytecode before it is sorted, so no lock is needed.
"""

from __future__ import annotations

import math

__all__ = ["SampleRing"]


class SampleRing:
    """The last ``capacity`` samples of one quantity, in whatever unit the writer uses."""

    def __init__(self, capacity: int = 1024) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._samples = [math.nan] * capacity
        self._count = 0

    @property
    def count(self) -> int:
        """How many samples were ever added."""
        return self._count

    def add(self, value: float) -> None:
        """Add one sample; the oldest one falls out when the ring is full.  One writer only."""
        self._samples[self._count % len(self._samples)] = value
        self._count += 1

    def recent(self) -> list[float]:
        """The samples now in the ring, sorted ascending."""
        return sorted(value for value in self._samples.copy() if not math.isnan(value))

    def percentiles(self, *fractions: float) -> tuple[float | None, ...]:
        """Nearest-rank percentiles (``0.5``, ``0.99``, ``1.0`` = maximum); ``None`` while empty."""
        values = self.recent()
        if not values:
            return tuple(None for _ in fractions)
        return tuple(values[max(0, math.ceil(fraction * len(values)) - 1)] for fraction in fractions)
