"""Many callers at once: a ramp, a window in which everything counts, and refusals that stay in the denominator."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
import trio

from trio_duplex.benchmark.caller import Caller, Target
from trio_duplex.benchmark.measures import MEASURES, Counts, Record, Samples
from trio_duplex.benchmark.plan import CHUNK_S, Plan, Scenario, Sounds, plan_of
from trio_duplex.benchmark.server_process import ServerProcess, Strangers, health_page

__all__ = ["Load", "Run", "run_load"]

Json = dict[str, Any]

SETTLE_S: Final = 2.0
"""From the end of the ramp to the beginning of the window."""
WATCH_EVERY_S: Final = 1.0
GOLDEN: Final = 0.6180339887498949
"""Multiples of it spread evenly, however many there are."""
COUNTERS: Final = ("deadline_misses", "rows", "failed_rows")
"""Of the model thread, which its plugin shows in ``/health`` as ``vad`` or ``thread``."""


@attrs.frozen(kw_only=True)
class Load:
    """``sessions`` callers, started evenly over ``ramp_s``, then ``seconds`` that count."""

    scenario: Scenario
    sessions: int
    seconds: float
    ramp_s: float = 5.0
    settle_s: float = SETTLE_S
    plan: Plan | None = None
    """Instead of the scenario's own."""


@attrs.define(kw_only=True)
class Run:
    """What came of a load.  The window is in seconds of ``trio.current_time()``."""

    load: Load
    callers: list[Caller]
    begin_s: float
    end_s: float
    cpu_s: float | None = None
    memory_mb: list[float] = attrs.field(factory=list)
    others_cores: float | None = None
    health: list[Json] = attrs.field(factory=list)

    @property
    def admitted(self) -> list[Caller]:
        """Those that had a session."""
        return [caller for caller in self.callers if caller.record is not None]

    @property
    def refused(self) -> list[str]:
        """Why the others had none."""
        return [caller.refused or "unknown" for caller in self.callers if caller.record is None]

    @property
    def lost(self) -> list[str]:
        """How sessions ended before their time."""
        return [caller.lost for caller in self.callers if caller.lost is not None]

    def samples(self) -> Samples:
        """Everything that was measured in the window, of all callers."""
        together: Samples = {name: [] for name in MEASURES}
        for caller in self.callers:
            for name, values in self.samples_of(caller).items():
                together[name] += values
        return together

    def samples_of(self, caller: Caller) -> Samples:
        """One caller's."""
        if caller.record is None:
            return {name: [] for name in MEASURES}
        return caller.record.samples(self.begin_s, self.end_s)

    def counts(self) -> Counts:
        """How often, of all callers; a refused caller has asked what its plan says, and nobody answered."""
        together = Counts()
        for caller in self.callers:
            together.add(self.counts_of(caller))
        return together

    def counts_of(self, caller: Caller) -> Counts:
        """One caller's."""
        record = caller.record
        if record is None:
            load_start_s = self.begin_s - self.load.settle_s - self.load.ramp_s
            started_s = load_start_s + self.load.ramp_s * caller.number / max(1, self.load.sessions)
            utterances = tuple(caller.plan.utterances(started_s, caller.offset_chunks, self.end_s))
            record = Record(started_s, 1, utterances)
        return record.counts(self.begin_s, self.end_s)

    def server_counters(self) -> dict[str, int]:
        """How far the server's own counters went up in the window; empty when it tells none."""
        if len(self.health) < 2:
            return {}
        first, last = _thread(self.health[0]), _thread(self.health[-1])
        return {name: last[name] - first[name] for name in COUNTERS if name in first and name in last}

    def thread_lateness_ms(self) -> float | None:
        """The worst reading of the model thread's own p99 lateness against its deadline (negative: early)."""
        readings = [_thread(page).get("lateness_ms_p99") for page in self.health]
        numbers = [reading for reading in readings if isinstance(reading, int | float)]
        return round(max(numbers), 2) if numbers else None


def _thread(page: Json) -> Json:
    for name in ("vad", "thread"):
        if isinstance(page.get(name), dict):
            return dict(page[name])
    return {}


async def run_load(load: Load, target: Target, server: ServerProcess | None = None) -> Run:
    """Call, measure, hang up.  ``server``: the process whose cost is read, None for one that cannot be seen.

    Cancellation: everybody hangs up.
    """
    plan = load.plan or plan_of(load.scenario)
    sounds = Sounds(plan)
    callers = [
        Caller(
            number,
            target,
            load.scenario,
            plan,
            sounds,
            offset_chunks=math.floor(number * GOLDEN % 1 * plan.cycle_chunks),
            phase_s=(number * GOLDEN % 1) * CHUNK_S,
        )
        for number in range(load.sessions)
    ]
    start_s = trio.current_time()
    begin_s = start_s + load.ramp_s + load.settle_s
    run = Run(load=load, callers=callers, begin_s=begin_s, end_s=begin_s + load.seconds)
    async with trio.open_nursery() as outer:
        outer.start_soon(_watch, run, target, server)
        async with trio.open_nursery() as nursery:
            for caller in callers:
                await trio.sleep_until(start_s + load.ramp_s * caller.number / load.sessions)
                nursery.start_soon(caller.run, run.end_s)
        outer.cancel_scope.cancel()
    return run


async def _watch(run: Run, target: Target, server: ServerProcess | None) -> None:
    """Read the server's cost and statistics in the window, once a second.  Cancellation: stops."""
    await trio.sleep_until(run.begin_s)
    cpu_s = server.cpu_s() if server is not None else 0.0
    strangers = Strangers.watch(server) if server is not None else None
    await _look(run, target, server)
    while trio.current_time() < run.end_s:
        await trio.sleep_until(min(trio.current_time() + WATCH_EVERY_S, run.end_s))
        if server is not None and strangers is not None:
            run.cpu_s = server.cpu_s() - cpu_s
            run.others_cores = strangers.cores()
        await _look(run, target, server)
    await trio.sleep_forever()


async def _look(run: Run, target: Target, server: ServerProcess | None) -> None:
    """Cancellation: nothing is noted."""
    if server is not None:
        run.memory_mb.append(round(server.memory_mb(), 1))
    page = await health_page(target.url)
    if page is not None:
        run.health.append(page)
