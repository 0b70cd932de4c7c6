"""Engine metrics that a deployment attaches to response events (contract section 21.5, last paragraph)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .intervals import interval_block, rounded

ENGINE_SOURCE = "engine_stage_metrics"

_LABELS = ("final_output_type", "output_unit_type")
_TOKEN_UNITS = frozenset({"token", "tokens", "text_token", "text_tokens"})
_STREAM_KEYS = ("serving_time_to_first_output_ms", "time_per_output_unit_ms", "inter_output_latencies_ms")

Metrics = Mapping[str, Any]


def metric_places(event: Metrics, *, with_duplex_event: bool = False) -> Iterator[Metrics]:
    """The objects of an event that may hold metrics, the least specific first."""
    metadata = _object(event, "metadata")
    response_metadata = _object(_object(event, "response"), "metadata")
    yield _object(event, "vllm_omni")
    yield metadata
    yield _object(metadata, "vllm_omni")
    yield response_metadata
    yield _object(response_metadata, "vllm_omni")
    if with_duplex_event:
        yield _object(event, "duplex_event")
        yield _object(metadata, "duplex_event")
        yield _object(response_metadata, "duplex_event")


def latest_stage_metrics(events: Iterable[Metrics]) -> dict[str, Metrics]:
    """`stage_metrics` by stage id as a string; for each stage the latest one counts."""
    found: dict[str, Metrics] = {}
    for event in events:
        for place in metric_places(event):
            stages = place.get("stage_metrics")
            if isinstance(stages, Mapping):
                found.update({str(key): value for key, value in stages.items() if isinstance(value, Mapping)})
            elif isinstance(stages, Sequence) and not isinstance(stages, str):
                found.update(
                    {
                        str(value.get("stage_id", index)): value
                        for index, value in enumerate(stages)
                        if isinstance(value, Mapping)
                    }
                )
    return found


def latest_request_metrics(events: Iterable[Metrics]) -> Metrics:
    """The server's own `response_request_metrics`, the latest; empty if there are none."""
    found: Metrics = {}
    for event in events:
        for place in metric_places(event, with_duplex_event=True):
            value = place.get("response_request_metrics")
            if isinstance(value, Mapping):
                found = value
    return found


def latest_deadlines(events: Iterable[Metrics]) -> Metrics:
    """The server's account of the session's deadlines, the latest; empty if there is none."""
    found: Metrics = {}
    for event in events:
        for place in (event, *metric_places(event)):
            value = place.get("deadlines")
            if isinstance(value, Mapping):
                found = value
    return found


def stage_block(metrics: Metrics, *, sample_rate_hz: int) -> dict[str, Any]:
    """One stage's metrics under the names of the summary, according to what the stage produces."""
    block: dict[str, Any] = {"source": ENGINE_SOURCE}
    block.update({label: metrics[label] for label in _LABELS if metrics.get(label) is not None})
    if metrics.get("final_output_type") == "audio" or number(metrics, "audio_generated_frames"):
        _audio(block, metrics, sample_rate_hz)
    elif is_token_stage(metrics):
        _tokens(block, metrics)
    elif any(key in metrics for key in _STREAM_KEYS):
        _stream(block, metrics)
    elif "stage_gen_time_ms" in metrics:
        block["stage_gen_time_ms"] = number(metrics, "stage_gen_time_ms")
    return block


def is_token_stage(metrics: Metrics) -> bool:
    """Whether the stage writes text tokens."""
    return (
        metrics.get("final_output_type") == "text"
        or metrics.get("output_unit_type") in _TOKEN_UNITS
        or ("vllm_ttft_ms" in metrics and metrics.get("final_output_type") != "audio")
    )


def number(metrics: Metrics, key: str) -> float | None:
    """A finite number rounded to 3 decimals (whole numbers stay whole), else None."""
    return rounded(metrics.get(key))


def _tokens(block: dict[str, Any], metrics: Metrics) -> None:
    itls_ms = _numbers(metrics, "vllm_itls_ms")
    block["output_token_count"] = number(metrics, "num_tokens_out")
    block["ttft_ms"] = number(metrics, "vllm_ttft_ms")
    block["tpot_ms"] = number(metrics, "vllm_tpot_ms")
    block["itls_ms"] = itls_ms
    block["inter_token_interval_ms"] = interval_block(itls_ms)


def _audio(block: dict[str, Any], metrics: Metrics, sample_rate_hz: int) -> None:
    frames = number(metrics, "audio_generated_frames")
    duration_s = number(metrics, "audio_duration_s")
    if duration_s is None and frames is not None:
        duration_s = rounded(frames / sample_rate_hz)
    block["output_unit_count"] = number(metrics, "output_unit_count")
    block["audio_generated_frames"] = frames
    block["audio_duration_s"] = duration_s
    if "serving_time_to_first_output_ms" in metrics:
        block["ttfp_ms"] = number(metrics, "serving_time_to_first_output_ms")


def _stream(block: dict[str, Any], metrics: Metrics) -> None:
    icls_ms = _numbers(metrics, "inter_output_latencies_ms")
    block["output_unit_count"] = number(metrics, "output_unit_count")
    block["ttfc_ms"] = number(metrics, "serving_time_to_first_output_ms")
    block["tpop_ms"] = number(metrics, "time_per_output_unit_ms")
    block["icls_ms"] = icls_ms
    block["inter_chunk_interval_ms"] = interval_block(icls_ms)


def _numbers(metrics: Metrics, key: str) -> list[float]:
    values = metrics.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [value for value in map(rounded, values) if value is not None]


def _object(holder: Metrics, key: str) -> Metrics:
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}
