"""Who is let in: places, memory, and the time of a step with everybody in it."""

from __future__ import annotations

import attrs
import pytest

from trio_duplex.models.personaplex.admission import P99_OVER_MEDIAN, Admission, step_times

GB = 1 << 30
TIMES = step_times([(1, 5.0), (2, 5.5), (4, 7.0), (8, 12.0)], weight_bytes=10 * GB, column_bytes=GB // 1000)
ROOMY = Admission(TIMES, columns=100, budget_ms=1000.0, kv_columns=100_000, rows=8)


def test_a_step_of_a_few_rows_takes_the_time_of_its_bucket() -> None:
    assert [TIMES.bucket_ms(rows) for rows in (1, 2, 3, 4, 5, 8)] == [5.0, 5.5, 7.0, 7.0, 12.0, 12.0]
    assert TIMES.bucket_ms(16) == 24.0


def test_a_larger_bucket_never_counts_as_quicker() -> None:
    assert step_times([(4, 6.0), (1, 7.0)], weight_bytes=1, column_bytes=1).median_ms == (7.0, 7.0)


def test_long_contexts_cost_their_bytes() -> None:
    # 2 GB a ms by the one-row step; 4 rows of 1000 columns of a thousandth of a GB are 4 GB.
    assert TIMES.predicted_ms(4, 1000) == pytest.approx(7.0 * P99_OVER_MEDIAN + 2.0, rel=0.01)


def test_the_places_are_an_end() -> None:
    assert ROOMY.refusal(7) is None
    assert "places" in str(ROOMY.refusal(8))
    assert ROOMY.most_sessions() == 8


def test_memory_is_an_end() -> None:
    small = attrs.evolve(ROOMY, kv_columns=350)
    assert small.most_sessions() == 3
    assert "memory" in str(small.refusal(3))


def test_time_is_an_end_but_not_for_the_first() -> None:
    tight = attrs.evolve(ROOMY, budget_ms=9.0)
    assert tight.most_sessions() == 4  # 1.25 * 7 ms and 0.2 ms for the contexts
    assert "ms" in str(tight.refusal(4))
    assert attrs.evolve(ROOMY, budget_ms=0.1).most_sessions() == 1


def test_measured_steps_correct_the_prediction_upwards_only() -> None:
    limit = attrs.evolve(ROOMY, budget_ms=TIMES.predicted_ms(4, 100) * 1.1)
    predicted = TIMES.predicted_ms(3, 100)
    assert limit.refusal(3, measured_p99_ms=predicted) is None
    assert limit.refusal(3, measured_p99_ms=predicted / 10) is None
    assert limit.refusal(3, measured_p99_ms=predicted * 1.2) is not None
    beyond = attrs.evolve(ROOMY, budget_ms=TIMES.predicted_ms(4, 100) * 0.9)
    assert beyond.refusal(3, measured_p99_ms=predicted / 10) is not None
