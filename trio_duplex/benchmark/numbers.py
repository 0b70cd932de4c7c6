"""Many numbers → a few. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Spread", "spread"]

Spread = dict[str, float]
"""``count`` and, unless it is 0, ``min``, ``p50``, ``p90``, ``p99``, ``max``."""

RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def spread(values: Sequence[float]) -> Spread:
    """Count, extremes and percentiles, to a hundredth; percentiles are values that occurred (nearest rank)."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    ranks = {name: ordered[max(0, math.ceil(rank * len(ordered)) - 1)] for name, rank in RANKS.items()}
    numbers = {"min": ordered[0], **ranks, "max": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 2) for name, value in numbers.items()}}
