"""Latency summaries from collected events (contract section 21.5). Raw measurements; ratios are the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs

from .events import AudioDelta, DuplexEvent, TextDelta, TranscriptDelta, wrap_event
from .intervals import interval_block, rounded
from .stage_metrics import (
    is_token_stage,
    latest_deadlines,
    latest_request_metrics,
    latest_stage_metrics,
    number,
    stage_block,
)
from .values import PCM16_BYTES_PER_SAMPLE

CLIENT_SOURCE = "client_monotonic_receive"
SERVER_SOURCE = "server_request_metrics"

RECEIVED_AT = "_client_received_at_s"


@attrs.frozen
class _Heard:
    """What of a set of events matters here; times in seconds of one monotonic clock."""

    created_at_s: float | None
    first_text_at_s: float | None
    audio_at_s: list[float]
    chunk_ms: list[float]
    duration_ms: float
    """Per response the largest cumulative duration the server named, else what the bytes amount to; summed."""


def timing_summary(
    events: Sequence[dict[str, Any]],
    *,
    sample_rate_hz: int,
    after_s: float,
    input_committed_at_s: float | None = None,
    response_id: str | None = None,
    measurement_origin: str | None = None,
) -> dict[str, Any]:
    """Latency of one response among the events received at or after `after_s`.

    Without `response_id` it is the first response with output. Latencies start at `input_committed_at_s` if given,
    else at `response.created`; `measurement_origin` renames that start in the result. Of `stages`, `stage0_tokens`,
    `audio_output`, `request_metrics` and `deadlines` (the session's account when the response ended, as the server
    sent it) those are present for which there is anything to say.
    """
    window = [wrap_event(event) for event in events if event.get(RECEIVED_AT, 0.0) >= after_s]
    if response_id is None:
        response_id = _first_with_output(window)
    if response_id is not None:
        window = [event for event in window if event.response_id == response_id]
    heard = _listen(window, sample_rate_hz)
    raws = [event.raw for event in window]
    summary: dict[str, Any] = {}
    stages = latest_stage_metrics(raws)
    if stages:
        summary["stages"] = {key: stage_block(value, sample_rate_hz=sample_rate_hz) for key, value in stages.items()}
        if "0" in stages and is_token_stage(stages["0"]):
            summary["stage0_tokens"] = summary["stages"]["0"]
    if heard.audio_at_s:
        summary["audio_output"] = _audio_output(heard, input_committed_at_s)
    metrics = _request_metrics(heard, input_committed_at_s, measurement_origin, latest_request_metrics(raws))
    if metrics:
        summary["request_metrics"] = metrics
    deadlines = latest_deadlines(raws)
    if deadlines:
        summary["deadlines"] = dict(deadlines)
    return summary


def global_timing_summary(
    events: Sequence[dict[str, Any]],
    *,
    sample_rate_hz: int,
    after_s: float,
    window_started_at_s: float,
    response_ids: Sequence[str],
    measurement_origin: str,
) -> dict[str, Any]:
    """Latency of several responses taken as one answer that starts at `window_started_at_s`; {} if none sounded."""
    wanted = set(response_ids)
    window = [wrap_event(event) for event in events if event.get(RECEIVED_AT, 0.0) >= after_s]
    heard = _listen([event for event in window if event.response_id in wanted], sample_rate_hz)
    if not heard.audio_at_s:
        return {}
    return {
        "source": CLIENT_SOURCE,
        "response_ids": list(response_ids),
        "measurement_origin": measurement_origin,
        "ttft_ms": _since(window_started_at_s, heard.first_text_at_s),
        "ttfp_ms": _since(window_started_at_s, heard.audio_at_s[0]),
        "audio_generation_ms": _since(window_started_at_s, heard.audio_at_s[-1]),
        "audio_duration_ms": rounded(heard.duration_ms),
    }


def _first_with_output(window: Sequence[DuplexEvent]) -> str | None:
    for event in window:
        if isinstance(event, (AudioDelta, TextDelta, TranscriptDelta)) and event.response_id is not None:
            return event.response_id
    for event in window:
        if event.response_id is not None:
            return event.response_id
    return None


def _listen(window: Sequence[DuplexEvent], sample_rate_hz: int) -> _Heard:
    created_at_s: float | None = None
    first_text_at_s: float | None = None
    audio_at_s: list[float] = []
    chunk_ms: list[float] = []
    byte_ms: dict[str | None, float] = {}
    announced_ms: dict[str | None, int] = {}
    for event in window:
        at_s = event.raw.get(RECEIVED_AT, 0.0)
        if isinstance(event, AudioDelta):
            if not event.audio:
                continue
            key = event.response_id
            audio_at_s.append(at_s)
            length_ms = len(event.audio) * 1000 / (PCM16_BYTES_PER_SAMPLE * (event.sample_rate_hz or sample_rate_hz))
            chunk_ms.append(length_ms)
            byte_ms[key] = byte_ms.get(key, 0.0) + length_ms
            if event.audio_duration_ms is not None:
                announced_ms[key] = max(announced_ms.get(key, 0), event.audio_duration_ms)
        elif isinstance(event, (TextDelta, TranscriptDelta)):
            if first_text_at_s is None and event.text:
                first_text_at_s = at_s
        elif event.type == "response.created" and created_at_s is None:
            created_at_s = at_s
    duration_ms = sum(announced_ms.get(key) or by_bytes for key, by_bytes in byte_ms.items())
    return _Heard(created_at_s, first_text_at_s, audio_at_s, chunk_ms, duration_ms)


def _audio_output(heard: _Heard, input_committed_at_s: float | None) -> dict[str, Any]:
    gaps_ms = [(later - earlier) * 1000 for earlier, later in pairwise(heard.audio_at_s)]
    return {
        "source": CLIENT_SOURCE,
        "chunk_count": len(heard.audio_at_s),
        "response_created_to_first_audio_ms": _since(heard.created_at_s, heard.audio_at_s[0]),
        "commit_to_first_audio_ms": _since(input_committed_at_s, heard.audio_at_s[0]),
        "inter_chunk_interval_ms": interval_block(gaps_ms),
        "chunk_duration_ms": interval_block(heard.chunk_ms),
        "max_chunk_gap_ms": rounded(max(gaps_ms, default=0.0)),
    }


def _request_metrics(
    heard: _Heard, committed_at_s: float | None, origin: str | None, server: Any
) -> dict[str, Any] | None:
    start_s = heard.created_at_s if committed_at_s is None else committed_at_s
    first_audio_at_s = heard.audio_at_s[0] if heard.audio_at_s else None
    if start_s is None or (first_audio_at_s is None and heard.first_text_at_s is None and not server):
        return None
    if origin is None:
        origin = "response_created" if committed_at_s is None else "input_committed"
    result: dict[str, Any] = {
        "source": CLIENT_SOURCE,
        "measurement_origin": {"ttft": origin, "ttfp": origin},
        "ttft_ms": _since(start_s, heard.first_text_at_s),
        "ttfp_ms": _since(start_s, first_audio_at_s),
        "audio_generation_ms": _since(start_s, heard.audio_at_s[-1] if heard.audio_at_s else None),
        "audio_duration_ms": rounded(heard.duration_ms),
    }
    if not server:
        return result
    # The server's own numbers replace ours where it has them; ours stay available under their plain names.
    result["source"] = SERVER_SOURCE
    named = server.get("measurement_origin")
    for short, key in (("ttft", "ttft_ms"), ("ttfp", "ttfp_ms"), ("tpot", "tpot_ms")):
        value = number(server, key)
        if value is None:
            continue
        result[key] = value
        own = named.get(short) if isinstance(named, dict) else named
        result["measurement_origin"][short] = own if isinstance(own, str) else SERVER_SOURCE
    result["response_created_to_first_text_ms"] = _since(heard.created_at_s, heard.first_text_at_s)
    result["response_created_to_first_audio_ms"] = _since(heard.created_at_s, first_audio_at_s)
    return result


def _since(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else round((end_s - start_s) * 1000, 3)
