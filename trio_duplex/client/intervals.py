"""Percentiles and rounding shared by the summaries: nearest rank, 3 decimals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def rounded(value: object, digits: int = 3) -> float | None:
    """A finite number rounded (an int stays an int); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else round(value, digits)


def nearest_rank(ordered: Sequence[float], fraction: float) -> float:
    """The smallest of the ascending values that at least `fraction` of them do not exceed."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def interval_block(values_ms: Iterable[float]) -> dict[str, float]:
    """`count`, `mean`, `p50`, `p95`, `max`; zeros when there are no values."""
    ordered = sorted(values_ms)
    if not ordered:
        return {"count": 0, "mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    return {
        "count": len(ordered),
        "mean": round(math.fsum(ordered) / len(ordered), 3),
        "p50": round(nearest_rank(ordered, 0.50), 3),
        "p95": round(nearest_rank(ordered, 0.95), 3),
        "max": round(ordered[-1], 3),
    }
