"""The page ``GET /metrics`` in Prometheus' text format: the hub's plain counters, read when somebody asks.

Nothing here is global: each app has a registry of its own, so two hubs in one process do not mix. No label carries a
session, a key or anything else that a client chose; the values of labels are our own codes, states and thread names.
docs/operations.md says what each metric means.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trio_duplex.hub import Hub
from trio_duplex.models.plugin import RunsModelThreads
from trio_duplex.session.core import Session

__all__ = ["MetricsPage"]

PREFIX: Final = "trio_duplex_"
TICK_S: Final = 0.1
"""How often the event loop's lateness is looked at."""
LATENESS_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0)
SESSION_STATES: Final = ("attached", "detached", "closing", "cleanup_failed")


class LoopLateness:
    """How late the event loop wakes a task that asked for a time: what every session's events have to wait too."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENESS_BOUNDS_S) + 1)
        self._sum_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled. Cancellation: stops."""
        while True:
            due_s = trio.current_time() + TICK_S
            await trio.sleep_until(due_s)
            self.add(trio.current_time() - due_s)

    def add(self, lateness_s: float) -> None:
        """One wake-up came so much after its time."""
        self._counts[bisect_left(LATENESS_BOUNDS_S, lateness_s)] += 1
        self._sum_s += lateness_s

    def metric(self) -> HistogramMetricFamily:
        """The histogram so far."""
        total, buckets = 0, []
        for bound, count in zip((*LATENESS_BOUNDS_S, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        family = HistogramMetricFamily(
            PREFIX + "event_loop_lateness_seconds", "How late the event loop wakes a task that waits for a time."
        )
        family.add_metric([], buckets, self._sum_s)
        return family


class MetricsPage(Collector):
    """The metrics of one hub. ``lateness`` is to be run beside it (:meth:`LoopLateness.run`)."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.lateness = LoopLateness()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> str:
        """The page now. Never waits; some milliseconds at most."""
        return generate_latest(self._registry).decode("utf-8")

    def collect(self) -> Iterator[Metric]:
        """Prometheus' own way of asking."""
        yield from self._sessions()
        yield from self._counters()
        yield from self._threads()
        yield self.lateness.metric()

    def _sessions(self) -> Iterator[Metric]:
        hub, numbers = self._hub, self._hub.statistics()
        healthy, _ = hub.health()
        yield _gauge("ready", "1 once the model is warm.", float(numbers.ready))
        yield _gauge("healthy", "1 while GET /health answers 200.", float(healthy))
        states = dict.fromkeys(SESSION_STATES, 0)
        for session in hub.sessions():
            states[_state(session)] += 1
        family = GaugeMetricFamily(PREFIX + "sessions", "Sessions that hold a place now.", labels=["state"])
        for state, count in states.items():
            family.add_metric([state], count)
        yield family
        yield _gauge("sessions_limit", "How many sessions may hold a place (max_sessions).", numbers.max_sessions)
        yield _counter("sessions_opened", "Sessions that were admitted.", numbers.opened)
        yield _counter("deadline_units", "Units of work that had a deadline and were finished.", numbers.deadline_units)
        yield _counter("deadline_misses", "Of these, those finished after their deadline.", numbers.deadline_misses)

    def _counters(self) -> Iterator[Metric]:
        tally = self._hub.tally
        yield _by("sessions_ended", "Sessions that ended, by reason.", "reason", tally.ended)
        yield _by(
            "openings_refused", "Connections refused at the gate or in the handshake.", "code", tally.openings_refused
        )
        yield _by("errors", "Error events of established sessions.", "code", tally.errors)
        yield _by("responses", "Answers by how they ended.", "status", tally.responses)
        yield _by("resumes", "Attempts to resume: ok, or why not.", "result", tally.resumes)
        yield _counter("journal_overflows", "Sessions that told their client to resync.", tally.journal_overflows)
        yield _counter("readers_left_behind", "Sockets that read too slowly.", tally.readers_left_behind)
        reaper = self._hub.reaper
        yield _counter("cleanup_failures", "Sessions whose slot did not come back at their end.", reaper.failures)
        yield _counter("cleanup_retries", "How often such a slot was asked for again.", reaper.retries)
        yield _counter("received_bytes", "Payload of WebSocket messages from clients.", tally.received_bytes)
        yield _counter("sent_bytes", "Payload of WebSocket messages to clients.", tally.sent_bytes)

    def _threads(self) -> Iterator[Metric]:
        """Counters, and percentiles over the last 1024 steps or rows, of every thread that runs a batched step."""
        label = ["thread"]
        steps = CounterMetricFamily(PREFIX + "model_steps", "Batched steps of a model thread.", labels=label)
        seconds = CounterMetricFamily(PREFIX + "model_step_seconds", "Time spent in steps.", labels=label)
        rows = CounterMetricFamily(PREFIX + "model_rows", "Rows worked on.", labels=label)
        failed = CounterMetricFamily(PREFIX + "model_failed_rows", "Rows that failed.", labels=label)
        missed = CounterMetricFamily(PREFIX + "model_late_rows", "Rows finished after they were due.", labels=label)
        queued = GaugeMetricFamily(PREFIX + "model_queued_rows", "Rows that no step has taken yet.", labels=label)
        alive = GaugeMetricFamily(PREFIX + "model_thread_alive", "1 while the thread lives.", labels=label)
        step = GaugeMetricFamily(
            PREFIX + "model_step_recent_seconds",
            "Duration of a step, over the last 1024.",
            labels=[*label, "quantile"],
        )
        late = GaugeMetricFamily(
            PREFIX + "model_row_lateness_recent_seconds",
            "When a row was finished after it was due (negative: before), over the last 1024.",
            labels=[*label, "quantile"],
        )
        for source in (self._hub.plugin, self._hub.scorer):
            if not isinstance(source, RunsModelThreads):
                continue
            for name, numbers in source.model_threads().items():
                steps.add_metric([name], numbers.steps)
                seconds.add_metric([name], numbers.step_s_sum)
                rows.add_metric([name], numbers.rows)
                failed.add_metric([name], numbers.failed_rows)
                missed.add_metric([name], numbers.deadline_misses)
                queued.add_metric([name], numbers.queued_rows)
                alive.add_metric([name], float(numbers.alive))
                _percentiles(step, name, {"0.5": numbers.step_ms_p50, "0.99": numbers.step_ms_p99})
                _percentiles(
                    late,
                    name,
                    {"0.5": numbers.lateness_ms_p50, "0.99": numbers.lateness_ms_p99, "1": numbers.lateness_ms_max},
                )
        yield from (steps, seconds, rows, failed, missed, queued, alive, step, late)


def _state(session: Session) -> str:
    if session.cleanup_failed:
        return "cleanup_failed"
    return "closing" if session.ending else "detached" if session.attachment is None else "attached"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for word, count in counts.items():
        family.add_metric([word], count)
    return family


def _percentiles(family: GaugeMetricFamily, thread: str, values_ms: Mapping[str, float | None]) -> None:
    for quantile, value_ms in values_ms.items():
        if value_ms is not None:
            family.add_metric([thread, quantile], value_ms / 1000)
