"""Aggregating the measurements of many turns (contract section 21.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .intervals import nearest_rank, rounded

Metrics = Mapping[str, Any]


def distribution_summary(values: Iterable[float | None], *, digits: int = 3) -> dict[str, float] | None:
    """`count`, `mean`, `p50`, `p99` (nearest rank) of the numbers among `values`; None if there are none."""
    ordered = sorted(_numbers(values))
    if not ordered:
        return None
    return {
        "count": len(ordered),
        "mean": round(math.fsum(ordered) / len(ordered), digits),
        "p50": round(nearest_rank(ordered, 0.50), digits),
        "p99": round(nearest_rank(ordered, 0.99), digits),
    }


def metric_mean(values: Iterable[float | None], *, digits: int = 3) -> float | None:
    """Mean of the numbers among `values`, rounded; None if there are none."""
    found = _numbers(values)
    return round(math.fsum(found) / len(found), digits) if found else None


def summarize_stage_metrics(turns: Iterable[Mapping[str, Metrics]]) -> dict[str, dict[str, Any]]:
    """The `stages` of several turns as one: for each stage its labels and a distribution of every plain number."""
    by_stage: dict[str, list[Metrics]] = {}
    for stages in turns:
        for stage_id, block in stages.items():
            by_stage.setdefault(stage_id, []).append(block)
    result: dict[str, dict[str, Any]] = {}
    for stage_id, blocks in by_stage.items():
        summary: dict[str, Any] = {}
        for key in dict.fromkeys(key for block in blocks for key in block):
            values = [block[key] for block in blocks if block.get(key) is not None]
            if values and isinstance(values[-1], str):
                summary[key] = values[-1]
            elif (distribution := distribution_summary(values)) is not None:
                summary[key] = distribution
        result[stage_id] = summary
    return result


def summarize_session_request_metrics(turns: Sequence[Metrics], *, session_id: str | None) -> dict[str, Any]:
    """The turns of one session. Each turn is a `request_metrics` block, or a whole `timing_summary` (for `stages`).

    A turn counts as an audio turn if it sounded. Its real-time factor is `audio_generation_ms / audio_duration_ms`.
    Both generations of keys are given: `mean_*` and distributions. `deadlines` is the last turn's, which counts all.
    """
    requests = [_request_of(turn) for turn in turns]
    ttft = [request.get("ttft_ms") for request in requests]
    ttfp = [request.get("ttfp_ms") for request in requests]
    rtf = [factor for factor in map(_real_time_factor, requests) if factor is not None]
    result: dict[str, Any] = {
        "session_id": session_id,
        "audio_turn_count": sum((rounded(request.get("audio_duration_ms")) or 0) > 0 for request in requests),
        "mean_ttft_ms": metric_mean(ttft),
        "mean_ttfp_ms": metric_mean(ttfp),
        "mean_rtf": metric_mean(rtf, digits=6),
        "ttft_ms": distribution_summary(ttft),
        "ttfp_ms": distribution_summary(ttfp),
        "rtf": distribution_summary(rtf, digits=6),
    }
    tpot = distribution_summary(request.get("tpot_ms") for request in requests)
    if tpot is not None:
        result["tpot_ms"] = tpot
    stages = summarize_stage_metrics(turn["stages"] for turn in turns if isinstance(turn.get("stages"), Mapping))
    if stages:
        result["stages"] = stages
    accounts = [turn["deadlines"] for turn in turns if isinstance(turn.get("deadlines"), Mapping)]
    if accounts:
        result["deadlines"] = dict(accounts[-1])  # it counts from the session's beginning
    return result


def _request_of(turn: Metrics) -> Metrics:
    inner = turn.get("request_metrics")
    return inner if isinstance(inner, Mapping) else turn


def _real_time_factor(request: Metrics) -> float | None:
    generation_ms = rounded(request.get("audio_generation_ms"))
    duration_ms = rounded(request.get("audio_duration_ms"))
    return generation_ms / duration_ms if generation_ms is not None and duration_ms else None


def _numbers(values: Iterable[object]) -> list[float]:
    return [
        float(value)
        for value in values
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
