"""The beat of PersonaPlex's input: when silence is due, and when a unit has to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_duplex.models.personaplex.unit_clock import CATCH_UP, UnitClock

PERIOD = 0.080
PATIENCE = 0.080


def clock(start_s: float = 0.0) -> UnitClock:
    return UnitClock(PERIOD, start_s + PERIOD, PATIENCE, lead_units=2)


def test_silence_comes_after_the_patience_and_then_every_period() -> None:
    each = clock()
    due = []
    for _ in range(4):
        due.append(each.silence_s)
        each.filled(each.silence_s)
    assert due == pytest.approx([0.160, 0.240, 0.320, 0.400])


def test_a_late_wake_up_does_not_shift_the_beat() -> None:
    each = clock()
    each.filled(each.silence_s + 0.030)
    assert each.silence_s == pytest.approx(0.240)


def test_a_long_sleep_is_not_made_up_for() -> None:
    each = clock()
    each.filled(5.0)
    assert each.silence_s == pytest.approx(5.080)


def test_a_steady_client_never_waits_and_gets_no_silence() -> None:
    each = clock()
    for beat in range(1, 200):
        now = beat * PERIOD + (0.030 if beat % 7 == 0 else 0.0)
        assert each.may_feed(now)
        assert each.silence_s > now
        each.fed(now)


def test_a_burst_runs_ahead_by_the_lead_and_then_waits() -> None:
    each = clock()
    fed = 0
    while each.may_feed(0.0):
        each.fed(0.0)
        fed += 1
    # The first was expected at 80 ms only: both are ahead of the clock.
    assert fed == 2
    assert each.release_s == pytest.approx(PERIOD)


def test_a_client_that_comes_back_goes_on_at_once() -> None:
    each = clock()
    for _ in range(10):
        each.filled(each.silence_s)
    now = each.expected_s - PERIOD + 0.005
    assert each.may_feed(now)
    each.fed(now)
    assert each.silence_s == pytest.approx(each.expected_s + PATIENCE)


def test_what_waits_is_worked_off_a_little_faster_than_real_time() -> None:
    each = clock()
    each.fed(1.0, waiting=True)
    assert each.expected_s == pytest.approx(1.0 + PERIOD * CATCH_UP)


@given(st.lists(st.floats(0.0, 0.4), min_size=1, max_size=60))
def test_the_model_is_never_far_ahead_of_time(gaps: list[float]) -> None:
    """However a client sends: what was fed is never more than the lead above what has passed."""
    each = clock()
    now, fed = 0.0, 0
    for gap in gaps:
        until = now + gap
        while each.silence_s <= until:
            each.filled(each.silence_s)
            fed += 1
        now = until
        if each.may_feed(now):
            each.fed(now)
            fed += 1
        assert fed * PERIOD <= now + 2 * PERIOD + 1e-6
