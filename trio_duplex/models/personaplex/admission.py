"""Whether one more session fits: its memory, and the time of a step with everybody in it.

The step is timed at start for every batch bucket with short contexts. What long contexts add is bytes: keys and values
are read once per step, and a step of one row shows at what rate memory is read *at least* (its weights over its whole
time). So the prediction errs on the slow side. While sessions run, measured steps correct it upwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

__all__ = ["Admission", "StepTimes"]

P99_OVER_MEDIAN = 1.25
"""Few steps are timed at start, so their 99th percentile is taken from the median with this margin."""


@attrs.frozen
class StepTimes:
    """Median ms of a step by batch bucket (ascending), with short contexts, and the bytes that one row's step reads."""

    buckets: tuple[int, ...]
    median_ms: tuple[float, ...]
    weight_bytes: int
    column_bytes: int
    """Bytes of keys and values of one column."""

    def bucket_ms(self, rows: int) -> float:
        """Of the bucket that ``rows`` rows run in."""
        for bucket, ms in zip(self.buckets, self.median_ms, strict=True):
            if rows <= bucket:
                return ms
        return self.median_ms[-1] * rows / self.buckets[-1]

    def predicted_ms(self, rows: int, columns: int) -> float:
        """The 99th percentile of a step of ``rows`` sessions with ``columns`` live columns each."""
        bytes_per_ms = self.weight_bytes / self.median_ms[0]
        return P99_OVER_MEDIAN * self.bucket_ms(rows) + rows * columns * self.column_bytes / bytes_per_ms


@attrs.frozen
class Admission:
    """The rule of one replica.

    ``columns``: how many columns a session is expected to reach, at most the window. ``budget_ms``: what a step may
    take. ``kv_columns``: columns of memory for all sessions together.
    """

    times: StepTimes
    columns: int
    budget_ms: float
    kv_columns: int
    rows: int

    def refusal(self, sessions: int, measured_p99_ms: float | None = None) -> str | None:
        """Why a newcomer beside ``sessions`` running ones does not fit; None = it fits. Time never refuses the first.

        ``measured_p99_ms``: of the steps that ran lately with those sessions; None = too few to say.
        """
        wanted = sessions + 1
        if wanted > self.rows:
            return f"all {self.rows} places are taken"
        if wanted * self.columns > self.kv_columns:
            return f"no memory for one more session of {self.columns} columns beside {sessions}"
        if not sessions:
            return None  # too slow for one is for the operator to know (a warning at start); nobody is harmed by it
        predicted = self.times.predicted_ms(wanted, self.columns)
        if measured_p99_ms is not None:
            slower = measured_p99_ms / self.times.predicted_ms(sessions, self.columns)
            predicted *= max(1.0, slower)
        if predicted > self.budget_ms:
            return f"a step with one more session would take {predicted:.0f} ms of the {self.budget_ms:.0f} ms it may"
        return None

    def most_sessions(self) -> int:
        """How many fit by the numbers of the start."""
        fitting = 0
        while self.refusal(fitting) is None:
            fitting += 1
        return fitting


def step_times(timed: Sequence[tuple[int, float]], *, weight_bytes: int, column_bytes: int) -> StepTimes:
    """From (rows, median ms) pairs; a larger bucket never counts as quicker than a smaller one."""
    most, medians = 0.0, []
    for _, ms in sorted(timed):
        most = max(most, ms)
        medians.append(most)
    return StepTimes(tuple(rows for rows, _ in sorted(timed)), tuple(medians), weight_bytes, column_bytes)
