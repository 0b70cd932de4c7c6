"""`EventCollector`, its summaries, and what is built on them (contract 21.5, 21.6)."""

from __future__ import annotations

import time

import pytest
import trio

from tests.client.client_kit import delta, done, session
from trio_duplex.client import (
    EventCollector,
    acknowledge_collected_playback,
    distribution_summary,
    metric_mean,
    summarize_session_request_metrics,
    summarize_stage_metrics,
)

MS100 = bytes(4800)  # at 24 kHz


def made(response_id):
    return {"type": "response.created", "response_id": response_id, "response": {"id": response_id}}


def said(response_id, text, kind="response.output_audio_transcript.delta"):
    return {"type": kind, "response_id": response_id, "delta": text}


def collected(*timed):
    collector = EventCollector()
    for at_s, event in timed:
        collector.add(event, received_at_s=at_s)
    return collector


def answer(**extra):
    """Committed at 10.0; created 10.2, text 10.3, audio 10.5, 10.6, 10.9, done 11.0."""
    return collected(
        (9.0, made("old")),
        (9.1, delta("old", MS100)),
        (10.2, made("r")),
        (10.3, said("r", "It is ")),
        (10.5, delta("r", MS100)),
        (10.6, delta("r", MS100)),
        (10.6, said("r", "sunny")),
        (10.9, delta("r", MS100)),
        (11.0, done("r") | extra),
    )


def test_add_keeps_copies_with_times():
    collector = EventCollector()
    event = {"type": "x", "a": 1}
    collector.add(event, received_at_s=5.0)
    assert event == {"type": "x", "a": 1}
    assert collector.events == [{"type": "x", "a": 1, "_client_received_at_s": 5.0}]
    assert collector.event_received_at_s == [5.0]
    before = time.monotonic()
    collector.add({"type": "y"})
    assert before <= collector.event_received_at_s[-1] <= time.monotonic()


def test_accessors():
    collector = answer()
    collector.add({"type": "error", "error": {"code": "c"}}, received_at_s=12.0)
    collector.add(said("t", "text", "response.output_text.delta"), received_at_s=13.0)
    collector.add(said("t", " beta", "response.audio_transcript.delta"), received_at_s=13.0)
    assert collector.response_ids == ["old", "r"]
    assert collector.count("response.output_audio.delta") == 4
    assert collector.audio_bytes("r") == MS100 * 3
    assert collector.audio_bytes() == MS100 * 4
    assert collector.audio_bytes("nobody") == b""
    assert [event["error"]["code"] for event in collector.errors()] == ["c"]
    assert collector.response_is_done("r")
    assert not collector.response_is_done("old")
    assert collector.response_text("r") == "It is sunny"
    assert collector.response_text("t") == "text beta"
    assert collector.first_received_at("response.output_audio.delta") == 9.1
    assert collector.first_received_at("error", "response.output_audio.delta", after_s=10.0) == 10.5
    assert collector.first_received_at("never") is None
    assert collector.last_received_at("response.output_audio.delta") == 10.9
    assert collector.last_received_at("never") is None
    assert EventCollector.response_id({"response": {"id": "r"}}) == "r"
    assert EventCollector.response_id({"type": "x"}) is None


def test_rate_follows_the_deltas():
    collector = EventCollector()
    assert collector.output_sample_rate_hz == 24000
    collector.add(delta("r", MS100, sample_rate_hz=22050))
    assert collector.output_sample_rate_hz == 22050


async def test_consume_from_a_client(autojump_clock):
    async with session() as (client, peer, _), trio.open_nursery() as nursery:
        collector = EventCollector()
        await nursery.start(collector.consume, client)
        started = time.monotonic()
        peer.push(made("r"), delta("r", MS100), done("r"), {"type": "session.closed"})
        await trio.sleep(1)
        assert [event["type"] for event in collector.events] == [
            "response.created",
            "response.output_audio.delta",
            "response.done",
            "session.closed",
        ]
        assert all(started <= at_s <= time.monotonic() for at_s in collector.event_received_at_s)


def test_audio_output_block():
    block = answer().timing_summary(after_s=10.0, input_committed_at_s=10.0)["audio_output"]
    assert block == {
        "source": "client_monotonic_receive",
        "chunk_count": 3,
        "response_created_to_first_audio_ms": 300.0,
        "commit_to_first_audio_ms": 500.0,
        "inter_chunk_interval_ms": {"count": 2, "mean": 200.0, "p50": 100.0, "p95": 300.0, "max": 300.0},
        "chunk_duration_ms": {"count": 3, "mean": 100.0, "p50": 100.0, "p95": 100.0, "max": 100.0},
        "max_chunk_gap_ms": 300.0,
    }


def test_request_metrics_from_commit_and_from_created():
    committed = answer().timing_summary(after_s=10.0, input_committed_at_s=10.0)["request_metrics"]
    assert committed == {
        "source": "client_monotonic_receive",
        "measurement_origin": {"ttft": "input_committed", "ttfp": "input_committed"},
        "ttft_ms": 300.0,
        "ttfp_ms": 500.0,
        "audio_generation_ms": 900.0,
        "audio_duration_ms": 300.0,
    }
    created = answer().timing_summary(after_s=10.0, measurement_origin="mine")["request_metrics"]
    assert created["measurement_origin"] == {"ttft": "mine", "ttfp": "mine"}
    assert (created["ttft_ms"], created["ttfp_ms"], created["audio_generation_ms"]) == (100.0, 300.0, 700.0)


def test_cumulative_duration_wins_over_bytes():
    collector = collected(
        (1.0, made("r")),
        (1.1, delta("r", MS100, metadata={"audio_duration_ms": 120})),
        (1.2, delta("r", MS100, metadata={"audio_duration_ms": 240})),
    )
    assert collector.timing_summary(after_s=0)["request_metrics"]["audio_duration_ms"] == 240


def test_one_response_is_singled_out():
    summary = answer().timing_summary(after_s=0.0, response_id="r")
    assert summary["audio_output"]["chunk_count"] == 3
    assert answer().timing_summary(after_s=0.0)["audio_output"]["chunk_count"] == 1, "the first with output"
    assert answer().timing_summary(after_s=20.0) == {}
    assert answer().timing_summary(after_s=0.0, response_id="nobody") == {}


def test_text_only_response():
    collector = collected((1.0, made("r")), (1.25, said("r", "hi", "response.output_text.delta")), (2.0, done("r")))
    summary = collector.timing_summary(after_s=0.5)
    assert "audio_output" not in summary
    assert summary["request_metrics"]["ttft_ms"] == 250.0
    assert summary["request_metrics"]["ttfp_ms"] is None
    assert summary["request_metrics"]["audio_generation_ms"] is None


STAGES = {
    "0": {
        "final_output_type": "text",
        "output_unit_type": "token",
        "num_tokens_out": 3,
        "vllm_ttft_ms": 50.12345,
        "vllm_tpot_ms": 10.0,
        "vllm_itls_ms": [8.0, 12.0],
    },
    1: {
        "output_unit_type": "chunk",
        "output_unit_count": 4,
        "serving_time_to_first_output_ms": 70.0,
        "time_per_output_unit_ms": 5.0,
        "inter_output_latencies_ms": [4.0, 5.0, 6.0],
    },
    "2": {
        "final_output_type": "audio",
        "output_unit_count": 2,
        "audio_generated_frames": 48000,
        "serving_time_to_first_output_ms": 90.0,
    },
    "3": {"stage_gen_time_ms": 7.5},
}

PLACES = [
    lambda value: {"vllm_omni": value},
    lambda value: {"metadata": value},
    lambda value: {"metadata": {"vllm_omni": value}},
    lambda value: {"response": {"id": "r", "metadata": value}},
    lambda value: {"response": {"id": "r", "metadata": {"vllm_omni": value}}},
]


@pytest.mark.parametrize("place", PLACES)
def test_stage_metrics_by_kind_of_stage(place):
    summary = answer(**place({"stage_metrics": STAGES})).timing_summary(after_s=10.0)
    assert summary["stages"] == {
        "0": {
            "source": "engine_stage_metrics",
            "final_output_type": "text",
            "output_unit_type": "token",
            "output_token_count": 3,
            "ttft_ms": 50.123,
            "tpot_ms": 10.0,
            "itls_ms": [8.0, 12.0],
            "inter_token_interval_ms": {"count": 2, "mean": 10.0, "p50": 8.0, "p95": 12.0, "max": 12.0},
        },
        "1": {
            "source": "engine_stage_metrics",
            "output_unit_type": "chunk",
            "output_unit_count": 4,
            "ttfc_ms": 70.0,
            "tpop_ms": 5.0,
            "icls_ms": [4.0, 5.0, 6.0],
            "inter_chunk_interval_ms": {"count": 3, "mean": 5.0, "p50": 5.0, "p95": 6.0, "max": 6.0},
        },
        "2": {
            "source": "engine_stage_metrics",
            "final_output_type": "audio",
            "output_unit_count": 2,
            "audio_generated_frames": 48000,
            "audio_duration_s": 2.0,
            "ttfp_ms": 90.0,
        },
        "3": {"source": "engine_stage_metrics", "stage_gen_time_ms": 7.5},
    }
    assert summary["stage0_tokens"] == summary["stages"]["0"]


def test_stage_metrics_latest_wins_and_empty_lists_are_zeros():
    collector = collected(
        (1.0, made("r") | {"metadata": {"stage_metrics": {"0": {"vllm_ttft_ms": 1.0}}}}),
        (2.0, done("r") | {"metadata": {"stage_metrics": {"0": {"vllm_ttft_ms": 2.0}}}}),
    )
    block = collector.timing_summary(after_s=0)["stage0_tokens"]
    assert block["ttft_ms"] == 2.0
    assert block["inter_token_interval_ms"] == {"count": 0, "mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}


@pytest.mark.parametrize(
    "place", [*PLACES, lambda value: {"response": {"id": "r", "metadata": {"duplex_event": value}}}]
)
def test_server_request_metrics(place):
    value = {"response_request_metrics": {"ttft_ms": 42.0, "ttfp_ms": 88.0, "tpot_ms": 9.5}}
    metrics = answer(**place(value)).timing_summary(after_s=10.0, input_committed_at_s=10.0)["request_metrics"]
    assert (metrics["ttft_ms"], metrics["ttfp_ms"], metrics["tpot_ms"]) == (42.0, 88.0, 9.5)
    assert set(metrics["measurement_origin"]) == {"ttft", "ttfp", "tpot"}
    assert metrics["response_created_to_first_text_ms"] == 100.0
    assert metrics["response_created_to_first_audio_ms"] == 300.0
    assert metrics["audio_generation_ms"] == 900.0


@pytest.mark.parametrize("junk", [None, 5, "x", [], {"stage_metrics": 3}, {"stage_metrics": {"0": None}}])
def test_summaries_survive_junk(junk):
    collector = answer(metadata=junk, vllm_omni=junk, response={"id": "r", "metadata": junk})
    assert collector.timing_summary(after_s=10.0)["audio_output"]["chunk_count"] == 3


def test_global_summary():
    collector = answer()
    assert collector.global_timing_summary(
        after_s=0.0, window_started_at_s=9.0, response_ids=["old", "r"], measurement_origin="question_end"
    ) == {
        "source": "client_monotonic_receive",
        "response_ids": ["old", "r"],
        "measurement_origin": "question_end",
        "ttft_ms": 1300.0,
        "ttfp_ms": 100.0,
        "audio_generation_ms": 1900.0,
        "audio_duration_ms": 400.0,
    }
    assert (
        collector.global_timing_summary(
            after_s=10.0, window_started_at_s=10.0, response_ids=["old"], measurement_origin="x"
        )
        == {}
    )


def test_distributions():
    assert distribution_summary([]) is None
    assert distribution_summary([None, "x", float("nan"), True]) is None
    assert distribution_summary(range(1, 201)) == {"count": 200, "mean": 100.5, "p50": 100.0, "p99": 198.0}
    assert distribution_summary([0.123456], digits=6)["mean"] == 0.123456
    assert metric_mean([1, 2, None, 4]) == 2.333
    assert metric_mean([]) is None


def test_session_summary():
    turns = [
        {"ttft_ms": 100.0, "ttfp_ms": 200.0, "audio_generation_ms": 500.0, "audio_duration_ms": 1000.0, "tpot_ms": 8.0},
        {"ttft_ms": 300.0, "ttfp_ms": 600.0, "audio_generation_ms": 1000.0, "audio_duration_ms": 3000.0},
        {"ttft_ms": None, "ttfp_ms": None, "audio_generation_ms": None, "audio_duration_ms": 0.0},
    ]
    summary = summarize_session_request_metrics(turns, session_id="s")
    assert summary == {
        "session_id": "s",
        "audio_turn_count": 2,
        "mean_ttft_ms": 200.0,
        "mean_ttfp_ms": 400.0,
        "mean_rtf": 0.416667,
        "ttft_ms": {"count": 2, "mean": 200.0, "p50": 100.0, "p99": 300.0},
        "ttfp_ms": {"count": 2, "mean": 400.0, "p50": 200.0, "p99": 600.0},
        "rtf": {"count": 2, "mean": 0.416667, "p50": 0.333333, "p99": 0.5},
        "tpot_ms": {"count": 1, "mean": 8.0, "p50": 8.0, "p99": 8.0},
    }
    empty = summarize_session_request_metrics([], session_id="s")
    assert empty["audio_turn_count"] == 0
    assert empty["mean_rtf"] is None
    assert empty["ttft_ms"] is None
    assert "tpot_ms" not in empty
    assert "stages" not in empty


def test_session_summary_with_stages():
    turn = answer(metadata={"stage_metrics": STAGES}).timing_summary(after_s=10.0, input_committed_at_s=10.0)
    summary = summarize_session_request_metrics([turn, turn], session_id="s")
    assert summary["audio_turn_count"] == 2
    assert summary["mean_ttfp_ms"] == 500.0
    assert summary["stages"]["0"]["ttft_ms"]["count"] == 2
    assert summary["stages"]["0"]["final_output_type"] == "text"
    assert summarize_stage_metrics([turn["stages"]])["3"]["stage_gen_time_ms"]["mean"] == 7.5


async def test_acknowledge_collected_playback(autojump_clock):
    async with session() as (client, peer, _):
        collector = EventCollector()
        for event in (
            made("heard"),
            delta("heard", MS100),
            delta("heard", MS100),
            done("heard"),
            made("silent and done"),
            done("silent and done"),
            made("silent so far"),
            delta("never announced", MS100),
        ):
            collector.add(event)
        await acknowledge_collected_playback(client, collector)
        acks = [message for message in peer.taken_now() if message["type"] == "playback.ack"]
        assert [(a["response_id"], a["item_id"], a["played_ms"], a["committed_ms"]) for a in acks] == [
            ("heard", "item_heard", 200, 200),
            ("silent so far", "item_silent so far", 0, 0),
            ("never announced", "item_never announced", 100, 100),
        ]
