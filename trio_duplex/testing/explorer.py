"""The cancellation explorer: play a scenario, cancel one scope at one step of Trio, check every promise; for all steps.

A *cancel point* is (scenario, kind of scope, step k at which that scope was cancelled while it lived). A Trio
instrument counts the steps in a first run; then the scenario is played once per step, on the virtual clock and with
the same seed, so that the run up to the cancellation is the same and a failure can be replayed by its four numbers.

    report = explore(Scenario("mine", play), seed=1)
    report.check()             # raises with the replay of each failure
    print(report)

``play`` is an async function of a :class:`~trio_duplex.testing.rig.Rig`. After it, whatever was cancelled, the rest of
the system must be whole: the history checker runs over every session's log, slots, sessions and tasks are counted, a
new conversation must be possible (unless the hub itself was cancelled), and nothing may have crashed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import structlog
import trio
import trio.testing

from trio_duplex.client import DuplexClientError
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.server.socket import SocketGone
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing.history import Violation
from trio_duplex.testing.rig import BrokenPromises, Rig, open_rig
from trio_duplex.testing.schedule import run_seeded
from trio_duplex.testing.scopes import CALLER, KINDS, ScopeKind, root_of, tasks_below
from trio_duplex.testing.scripted_model import ScriptedOptions
from trio_duplex.testing.sites import AwaitSite, await_sites, suspended_at
from trio_duplex.testing.sockets import Faults
from trio_duplex.vad_scorer import VadScorer

__all__ = ["CancelPoint", "Failure", "Report", "Scenario", "explore", "play_once"]

RUN_TIMEOUT_S = 3_600.0
"""Virtual seconds after which a run counts as hanging."""

END_TIMEOUT_S = 900.0
"""Virtual seconds in which a session must have ended after its client left: grace, idle receive and lease together."""

ALARMING = frozenset(
    {"session_crashed", "epoch_join_timeout", "model_session_close_timeout", "endpoint_crashed", "sessions_cancelled"}
)
"""Log lines that only a fault writes."""

PLAY_PATIENCE_S = 120.0
"""Virtual seconds for which a scenario may wait for what a cancellation has made impossible."""

EXPECTED = (DuplexClientError, TimeoutError, SocketGone, OSError)
"""What the scenario itself may run into once something was cancelled under it."""

Play = Callable[[Rig], Awaitable[None]]


@attrs.frozen
class Scenario:
    """A named conversation: what the client does, with which model and bounds.

    One session is admitted at a time, so that a slot that is not given back is felt at once.
    """

    name: str
    play: Play
    options: ScriptedOptions = ScriptedOptions()
    settings: SessionSettings = SessionSettings(max_sessions=1)
    faults: tuple[Faults, ...] = ()
    plugin: Callable[[], ModelPlugin] | None = None
    scorer: Callable[[], VadScorer] | None = None
    thorough: bool = True
    """Whether a quick exploration takes every step of the scope's own tasks."""
    undisturbed: bool = True
    """Without a cancellation all input is used and every command answered."""


@attrs.frozen
class CancelPoint:
    """Where one run was cancelled."""

    scenario: str
    kind: str
    step: int
    own: bool
    """Whether the step was one of the scope's own tasks (else: of a task elsewhere, while the scope lived)."""


@attrs.frozen
class Failure:
    """A run that broke a promise, with the words that replay it."""

    point: CancelPoint
    seed: int
    violations: tuple[Violation, ...]
    suspended: tuple[AwaitSite, ...]

    @property
    def replay(self) -> str:
        """The command that plays this run again."""
        where = f"--scenario {self.point.scenario} --kind {self.point.kind} --step {self.point.step}"
        return f"python -m trio_duplex.testing.explore {where} --seed {self.seed}"

    def __str__(self) -> str:
        lines = [self.replay, *(f"  {v}" for v in self.violations)]
        lines += [f"  cancelled at {site}" for site in self.suspended]
        return "\n".join(lines)


@attrs.define
class Report:
    """What an exploration covered and what it found."""

    seed: int
    points: list[CancelPoint] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)
    sites: set[AwaitSite] = attrs.field(factory=set)
    seconds: float = 0.0

    @property
    def missed(self) -> list[AwaitSite]:
        """Await sites of session, hub, server and client at which nothing was cancelled."""
        return [site for site in await_sites() if site not in self.sites]

    def add(self, other: Report) -> None:
        """Take over another report's findings."""
        self.points += other.points
        self.failures += other.failures
        self.sites |= other.sites
        self.seconds += other.seconds

    def check(self) -> None:
        """Raises AssertionError with the replay of every failure."""
        if self.failures:
            shown = "\n".join(str(f) for f in self.failures[:10])
            raise AssertionError(f"{len(self.failures)} of {len(self.points)} cancel points broke a promise:\n{shown}")

    def __str__(self) -> str:
        lines = [
            f"{len(self.points)} cancel points ({sum(p.own for p in self.points)} at own steps), "
            f"{len(self.failures)} failures, {len(self.sites)} of {len(await_sites())} await sites hit, "
            f"{self.seconds:.1f} s, seed {self.seed}"
        ]
        table: dict[tuple[str, str], int] = {}
        for point in self.points:
            table[point.scenario, point.kind] = table.get((point.scenario, point.kind), 0) + 1
        lines += [f"  {scenario:24} {kind:12} {n:5}" for (scenario, kind), n in table.items()]
        lines += [str(failure) for failure in self.failures]
        return "\n".join(lines)


class _Cutter(trio.abc.Instrument):
    """Counts steps; at the chosen one cancels. ``step`` None only counts."""

    def __init__(self, kind: ScopeKind, step: int | None) -> None:
        self.kind = kind
        self.step = step
        self.count = 0
        self.cut = False
        self.own = False
        self.sites: tuple[AwaitSite, ...] = ()
        self.rig: Rig | None = None
        self.caller = trio.CancelScope()
        self._root: trio.lowlevel.Task | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio before each step of each task."""
        rig = self.rig
        if rig is None or self.cut:
            return
        root = root_of(self.kind, task)
        if root is not None:
            self._root = root
        elif not self.kind.everywhere:
            return
        if not self.kind.alive(rig, self._root):
            return
        self.count += 1
        if self.count != self.step:
            return
        sites: list[AwaitSite] = []
        for below in tasks_below(self._root) if self._root is not None else ():
            sites += suspended_at(below)
        if self.kind.cancel(rig, self.caller, self._root):
            self.cut = True
            self.own = root is not None
            self.sites = tuple(dict.fromkeys(sites))


def play_once(
    scenario: Scenario, kind: str, step: int | None, *, seed: int = 0
) -> tuple[int, CancelPoint | None, tuple[AwaitSite, ...], tuple[Violation, ...]]:
    """One run: cancelled at ``step`` (None: not at all). Returns steps counted, the point, its sites, violations."""
    cutter = _Cutter(KINDS[kind], step)
    problems: list[Violation] = []
    with structlog.testing.capture_logs() as logs:
        try:
            run_seeded(functools.partial(_run, scenario, cutter, seed), seed, instruments=[cutter])
        except* BrokenPromises as broken:
            problems += [v for error in _leaves(broken) if isinstance(error, BrokenPromises) for v in error.violations]
        except* Exception as errors:  # noqa: BLE001  (border: every way to fail is a finding)
            problems += [Violation("no_crash", (), f"{type(e).__name__}: {e}") for e in _leaves(errors)]
    problems += [
        Violation("no_crash", (), f"logged {line['event']}: {line.get('exception', '')}")
        for line in logs
        if line["event"] in ALARMING
    ]
    point = CancelPoint(scenario.name, kind, step, cutter.own) if cutter.cut and step is not None else None
    return cutter.count, point, cutter.sites, tuple(problems)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _run(scenario: Scenario, cutter: _Cutter, seed: int) -> None:
    """The scenario in a rig, then the proof that the rest is whole. Raises what was broken."""
    with trio.move_on_after(RUN_TIMEOUT_S) as patience:
        async with open_rig(
            scenario.options,
            settings=scenario.settings,
            faults=scenario.faults,
            seed=seed,
            plugin=scenario.plugin() if scenario.plugin is not None else None,
            scorer=scenario.scorer() if scenario.scorer is not None else None,
        ) as rig:
            async with trio.open_nursery() as nursery:
                cutter.rig = rig
                nursery.start_soon(_caller, scenario, rig, cutter, name=CALLER)
            cutter.rig = None
            if not cutter.cut and scenario.undisturbed and (problems := rig.check(undisturbed=True)):
                raise BrokenPromises(problems)
            if not rig.hub_scope.cancel_called:
                await _still_serves(rig)
    if patience.cancelled_caught:
        raise BrokenPromises([Violation("no_hang", (), f"still running after {RUN_TIMEOUT_S} virtual seconds")])


async def _caller(scenario: Scenario, rig: Rig, cutter: _Cutter) -> None:
    try:
        with cutter.caller, trio.move_on_after(PLAY_PATIENCE_S) as patience:
            await scenario.play(rig)
        if patience.cancelled_caught and not cutter.cut:
            raise BrokenPromises([Violation("no_hang", (), f"nothing more happens after {PLAY_PATIENCE_S} seconds")])
    except* EXPECTED:
        if not cutter.cut:
            raise


async def _still_serves(rig: Rig) -> None:
    """Every session ends when its client has left, and a new one can be opened and closed."""
    with trio.move_on_after(END_TIMEOUT_S) as patience:
        while rig.hub.statistics().sessions:  # noqa: ASYNC110  (a hub has no event for this; virtual time is free)
            await trio.sleep(1)
    if patience.cancelled_caught:
        raise BrokenPromises([Violation("ends_alone", (), f"a session lives {END_TIMEOUT_S} s after its client")])
    async with rig.client():
        pass


def explore(
    scenario: Scenario | Play,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    seed: int = 0,
    stride: int = 1,
    budget_s: float = math.inf,
) -> Report:
    """Cancel the scenario at every ``stride``-th step of each kind of scope.

    ``budget_s`` bounds the real time; what was not reached then is simply missing from the report. Raises
    RuntimeError when the scenario does not even pass undisturbed. Starts its own Trio runs: call it from plain code.
    """
    if not isinstance(scenario, Scenario):
        scenario = Scenario(getattr(scenario, "__name__", "scenario"), scenario)
    report = Report(seed)
    begun = time.perf_counter()
    for kind in kinds:
        steps, _, _, problems = play_once(scenario, kind, None, seed=seed)
        if problems:
            raise RuntimeError(f"{scenario.name} fails without any cancellation:\n" + "\n".join(map(str, problems)))
        for step in range(1, steps + 1, stride):
            if time.perf_counter() - begun > budget_s:
                break
            _, point, sites, problems = play_once(scenario, kind, step, seed=seed)
            if point is None:
                if problems:
                    lost = CancelPoint(scenario.name, kind, step, False)
                    report.failures.append(Failure(lost, seed, problems, sites))
                continue
            report.points.append(point)
            report.sites.update(sites)
            if problems:
                report.failures.append(Failure(point, seed, problems, sites))
    report.seconds = time.perf_counter() - begun
    return report
