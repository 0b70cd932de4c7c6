"""The gather: which rows share a step (pure logic, the test owns the clock)."""

from __future__ import annotations

import attrs
import pytest

from duplex_gpu.gather import IDLE, NEWCOMER_S, START, Gather

WINDOW = 0.004
PERIOD = 0.032


@attrs.frozen
class Row:
    arrived_s: float
    due_s: float | None = None


def taken_slots(gather: Gather[Row]) -> list[int]:
    return sorted(slot for slot, _ in gather.take())


def steady(slots: int, *, at: float = 10.0) -> Gather[Row]:
    """A gather whose slots have all sent two rows, one period apart, the last one at ``at``."""
    gather: Gather[Row] = Gather(WINDOW)
    for slot in range(slots):
        gather.open(slot, at - 5 * PERIOD)
    for when in (at - PERIOD, at):
        for slot in range(slots):
            gather.add(slot, Row(when))
        gather.take()
    return gather


def test_nothing_waits() -> None:
    gather: Gather[Row] = Gather(WINDOW)
    assert gather.wait(0.0, 0.0).seconds is None
    gather.open(0, 0.0)
    assert gather.wait(0.0, 0.0).seconds is None


def test_g3_slots_in_phase_are_waited_for_and_share_a_step() -> None:
    gather = steady(3)
    gather.add(0, Row(10.0 + PERIOD))
    assert gather.wait(10.0 + PERIOD, 0.0).seconds == pytest.approx(WINDOW)
    gather.add(2, Row(10.0 + PERIOD + 0.001))
    assert gather.wait(10.0 + PERIOD + 0.001, 0.0).seconds == pytest.approx(0.003)
    gather.add(1, Row(10.0 + PERIOD + 0.002))
    assert gather.wait(10.0 + PERIOD + 0.002, 0.0).seconds == 0.0
    assert taken_slots(gather) == [0, 1, 2]


def test_the_wait_says_how_many_rows_may_end_it() -> None:
    gather = steady(4)
    assert gather.wait(10.0, 0.0) == IDLE
    now = 10.0 + PERIOD
    for sent in range(3):
        gather.add(sent, Row(now))
        assert gather.wait(now, 0.0).rows == 3 - sent
    gather.add(3, Row(now))
    assert gather.wait(now, 0.0) == START


def test_the_oldest_row_waits_no_longer_than_the_window() -> None:
    gather = steady(2)
    gather.add(0, Row(10.0 + PERIOD))
    assert gather.wait(10.0 + PERIOD + WINDOW + 1e-9, 0.0).seconds == 0.0
    assert taken_slots(gather) == [0]


def test_a_lone_slot_never_waits() -> None:
    gather = steady(1)
    gather.add(0, Row(10.0 + PERIOD))
    assert gather.wait(10.0 + PERIOD, 0.0).seconds == 0.0


def test_a_slot_of_another_phase_is_not_waited_for() -> None:
    gather = steady(1)
    gather.open(7, 9.0)
    gather.add(7, Row(10.0 - PERIOD / 2))
    gather.take()
    gather.add(7, Row(10.0 + PERIOD / 2))
    gather.take()
    gather.add(0, Row(10.0 + PERIOD))
    assert gather.wait(10.0 + PERIOD, 0.0).seconds == 0.0


def test_an_idle_slot_holds_nobody_up() -> None:
    gather = steady(2)
    later = 10.0
    for _ in range(3):  # slot 1 has fallen silent
        later += PERIOD
        gather.add(0, Row(later))
        gather.take()
    gather.add(0, Row(later + PERIOD))
    assert gather.wait(later + PERIOD, 0.0).seconds == 0.0


def test_newcomers_are_waited_for_briefly() -> None:
    gather: Gather[Row] = Gather(WINDOW)
    gather.open(0, 1.0)
    gather.open(1, 1.0)
    gather.add(0, Row(1.01))
    assert gather.wait(1.01, 0.0).seconds == pytest.approx(WINDOW)
    gather.take()
    gather.add(0, Row(1.0 + NEWCOMER_S + 0.001))
    assert gather.wait(1.0 + NEWCOMER_S + 0.001, 0.0).seconds == 0.0


def test_a_deadline_ends_the_wait_in_time_for_the_step() -> None:
    gather = steady(2)
    now = 10.0 + PERIOD
    gather.add(0, Row(now, due_s=now + 0.003))
    assert gather.wait(now, 0.002).seconds == pytest.approx(0.001)
    assert gather.wait(now, 0.005).seconds == 0.0


def test_one_row_of_a_slot_per_step_in_order() -> None:
    gather: Gather[Row] = Gather(WINDOW)
    gather.open(0, 0.0)
    gather.open(1, 0.0)
    first, second = Row(1.0), Row(1.0001)
    gather.add(0, first)
    gather.add(0, second)
    gather.add(1, Row(1.0))
    assert dict(gather.take())[0] is first
    assert gather.take() == [(0, second)]
    assert gather.wait(2.0, 0.0).seconds is None


def test_closing_drops_rows_and_ends_the_wait() -> None:
    gather = steady(2)
    now = 10.0 + PERIOD
    gather.add(0, Row(now))
    assert gather.wait(now, 0.0).seconds == pytest.approx(WINDOW)
    assert gather.close(1) == 0
    assert gather.wait(now, 0.0).seconds == 0.0
    gather.add(0, Row(now))
    assert gather.close(0) == 2
    assert gather.wait(now, 0.0).seconds is None
    assert 0 not in gather


def test_bursts_count_as_one_arrival() -> None:
    """A client that sends 96 ms at once has a rhythm of 96 ms, not of the microseconds inside the burst."""
    gather: Gather[Row] = Gather(WINDOW)
    gather.open(0, 0.0)
    gather.open(1, 0.0)
    for start in (1.0, 1.096, 1.192):
        for part in range(3):
            gather.add(0, Row(start + part * 1e-5))
        for _ in range(3):
            gather.take()
    gather.add(1, Row(1.192 + PERIOD))
    assert gather.wait(1.192 + PERIOD, 0.0).seconds == 0.0
    gather.take()
    gather.add(1, Row(1.192 + 0.095))
    assert gather.wait(1.192 + 0.095, 0.0).seconds == pytest.approx(WINDOW)
