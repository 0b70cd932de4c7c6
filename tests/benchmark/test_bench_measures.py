"""Latencies out of an invented wire: every number is known in advance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_duplex.benchmark.measures import Record
from trio_duplex.benchmark.numbers import spread
from trio_duplex.benchmark.plan import Utterance

START_S = 1000.0
EVER = (START_S, START_S + 1000.0)


def at(seconds: float) -> float:
    return START_S + seconds


def created(record: Record, response_id: str, seconds: float) -> None:
    record.came({"type": "response.created", "response": {"id": response_id}}, at(seconds))


def audio(record: Record, response_id: str, seconds: float, total_ms: int) -> None:
    event = {"type": "response.output_audio.delta", "response_id": response_id, "delta": ""}
    record.came({**event, "metadata": {"audio_duration_ms": total_ms}}, at(seconds))


def done(record: Record, response_id: str, seconds: float, status: str = "completed") -> None:
    record.came({"type": "response.done", "response": {"id": response_id, "status": status}}, at(seconds))


def listened(record: Record, seconds: float, reason: str = "model_listen") -> None:
    record.came({"type": "response.listen", "response": {"metadata": {"reason": reason}}}, at(seconds))


def approx(*values: float) -> Any:
    return pytest.approx(list(values), abs=1e-6)


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([]) == {"count": 0}
    assert spread([3]) == {"count": 1, "min": 3, "p50": 3, "p90": 3, "p99": 3, "max": 3}
    assert spread(range(1, 101)) == {"count": 100, "min": 1, "p50": 50, "p90": 90, "p99": 99, "max": 100}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_percentiles_ascend(values: list[float]) -> None:
    numbers = spread(values)
    order = [numbers[name] for name in ("min", "p50", "p90", "p99", "max")]
    assert order == sorted(order)
    assert {round(value, 2) for value in values} >= set(order)


def test_decisions_are_counted_while_nobody_speaks() -> None:
    """A model of 96 ms decides every third chunk; a late one is late, however many have come."""
    record = Record(START_S, 96)
    for unit in (1, 2, 3, 4):
        listened(record, 0.096 * unit + 0.010)
    listened(record, 0.096 * 5 + 0.500)  # more than a unit late, and so is the next
    listened(record, 0.096 * 6 + 0.404)
    assert record.samples(*EVER)["decision"] == approx(10, 10, 10, 10, 500, 404)


def test_a_unit_that_is_no_multiple_of_a_chunk_is_due_with_the_chunk_that_completes_it() -> None:
    record = Record(START_S, 80)
    listened(record, 0.100)
    listened(record, 0.165)
    assert record.samples(*EVER)["decision"] == approx(4, 5)


def test_after_an_answer_decisions_are_matched_anew() -> None:
    record = Record(START_S, 96)
    listened(record, 0.101)
    created(record, "r", 0.2)
    done(record, "r", 3.0)
    listened(record, 3.083)  # unit 32 was due at 3.072
    listened(record, 3.172)
    listened(record, 3.2, reason="policy_listen_only")  # no unit's decision
    assert record.samples(*EVER)["decision"] == approx(5, 11, 4)


def test_a_question_and_its_answer() -> None:
    record = Record(START_S, 96, [Utterance(at(1), at(3)), Utterance(at(20), at(22))])
    created(record, "r1", 3.4)
    audio(record, "r1", 3.5, 100)
    audio(record, "r1", 3.58, 200)
    audio(record, "r1", 3.9, 300)
    done(record, "r1", 4.0)
    assert record.samples(*EVER)["first_audio"] == approx(500)
    assert record.samples(*EVER)["packet_interval"] == approx(80, 320)
    # 200 ms of sound from 3.5 on last until 3.7.
    assert record.samples(*EVER)["underrun"] == approx(200)
    counts = record.counts(*EVER)
    assert (counts.asked, counts.answered, counts.underruns, counts.audio_ms) == (2, 1, 1, 300)


def test_an_answer_into_a_pause_is_none() -> None:
    """Somebody draws breath, is answered, speaks on, and is answered again: the second answer counts."""
    record = Record(START_S, 96, [Utterance(at(1), at(3))])
    created(record, "early", 1.8)
    audio(record, "early", 2.0, 100)
    done(record, "early", 2.2, "cancelled")
    created(record, "right", 3.3)
    audio(record, "right", 3.6, 100)
    assert record.samples(*EVER)["first_audio"] == approx(600)
    counts = record.counts(*EVER)
    assert (counts.answered, counts.answered_early) == (1, 1)


def test_an_interruption_ends_with_the_last_audio() -> None:
    record = Record(START_S, 96, [Utterance(at(1), at(3)), Utterance(at(6), at(8), interrupts=True)])
    created(record, "r1", 3.4)
    for step in range(28):
        audio(record, "r1", 3.5 + 0.096 * step, 96 * (step + 1))
    done(record, "r1", 6.2, "cancelled")
    last_s = 3.5 + 0.096 * 27
    assert record.samples(*EVER)["interruption"] == approx((last_s - 6) * 1000)
    counts = record.counts(*EVER)
    assert (counts.interruptions, counts.interruptions_due, counts.answered) == (1, 1, 1)


@pytest.mark.parametrize("fate", ["completed", "cancelled by the client", "over before"])
def test_what_was_no_interruption(fate: str) -> None:
    record = Record(START_S, 96, [Utterance(at(6), at(8), interrupts=True)])
    created(record, "r1", 3.4)
    audio(record, "r1", 3.5, 100)
    if fate == "cancelled by the client":
        record.cancelled(at(6.5))
    done(record, "r1", 5.0 if fate == "over before" else 9.0, "completed" if fate == "completed" else "cancelled")
    counts = record.counts(*EVER)
    assert (counts.interruptions, counts.interruptions_due) == (0, 0 if fate == "over before" else 1)
    assert record.samples(*EVER)["interruption"] == []


def test_a_cancel_and_its_terminal() -> None:
    record = Record(START_S, 96)
    assert record.cancelled(at(1)) is None
    created(record, "r1", 2)
    assert record.cancelled(at(2.5)) == "r1"
    done(record, "r1", 2.512, "cancelled")
    created(record, "r2", 3)
    assert record.cancelled(at(4)) == "r2"
    assert record.samples(*EVER)["cancel"] == approx(12)
    counts = record.counts(*EVER)
    assert (counts.cancels, counts.cancelled) == (2, 1)


def test_only_the_window_counts() -> None:
    record = Record(START_S, 96, [Utterance(at(1), at(2)), Utterance(at(11), at(12)), Utterance(at(18), at(19))])
    for number, ended in enumerate((2, 12, 19)):
        created(record, f"r{number}", ended + 0.1)
        audio(record, f"r{number}", ended + 0.1 * (number + 1), 100)
        record.sent(at(ended), at(ended + 0.001 * (number + 1)))
        done(record, f"r{number}", ended + 0.9)
        record.came({"type": "error", "error": {"code": "engine_error"}}, at(ended))
    window = (at(10), at(21))
    samples, counts = record.samples(*window), record.counts(*window)
    assert samples["first_audio"] == approx(200)  # the third ends too near to the end of the window
    assert samples["sender_late"] == approx(2, 3)
    assert (counts.asked, counts.answered, counts.errors) == (1, 1, 2)


def test_what_a_loudspeaker_has_played() -> None:
    record = Record(START_S, 96)
    created(record, "r1", 1)
    assert record.sounding(at(1)) is None
    audio(record, "r1", 2.0, 500)
    assert record.sounding(at(2.2)) == ("r1", pytest.approx(200))
    assert record.sounding(at(2.6)) is None
    audio(record, "r1", 3.0, 1_000)  # it ran dry in between
    assert record.sounding(at(3.1)) == ("r1", pytest.approx(600))
    done(record, "r1", 3.2, "cancelled")
    assert record.sounding(at(3.3)) is None


@pytest.mark.parametrize(
    "event", [{}, {"type": 5}, {"type": "response.output_audio.delta"}, {"type": "response.done"}, {"type": "error"}]
)
def test_odd_events_break_nothing(event: dict[str, Any]) -> None:
    record = Record(START_S, 96)
    record.came(event, at(1))
    assert record.samples(*EVER)["decision"] == []
