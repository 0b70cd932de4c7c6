"""``trio-duplex bench``: run the loads one after the other, print, write."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from trio_duplex.benchmark.caller import Target
from trio_duplex.benchmark.facts import machine_facts
from trio_duplex.benchmark.load import Load, Run, run_load
from trio_duplex.benchmark.plan import Scenario
from trio_duplex.benchmark.report import as_json, claim, print_facts, print_runs, write_json
from trio_duplex.benchmark.server_process import ServerProcess, with_server_process

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Bench"]


@attrs.frozen(kw_only=True)
class Bench:
    """What the command line says.  ``url`` None: a server of our own, with ``deploy`` as its deploy file.

    ``out``: where the result goes, without an ending; None: a folder ``bench_out`` and a name with the time.
    """

    hardware: str
    scenarios: Sequence[Scenario]
    sessions: Sequence[int]
    seconds: float
    ramp_s: float
    silence_ms: int = 500
    model: str = "demo"
    url: str | None = None
    api_key: str | None = attrs.field(default=None, repr=False)
    deploy: Path | None = None
    out: Path | None = None

    def measure(self, console: Console) -> list[Run]:
        """Everything, on a Trio loop of its own; what is said goes to ``console``.

        Raises :class:`trio_duplex.benchmark.report.ResultExists` before anything is measured,
        :class:`trio_duplex.benchmark.server_process.NoServer`, and ``ValueError`` for a ``url`` that is none.
        """
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
        files = claim(self.out or Path("bench_out") / f"bench-{stamp}")
        Target(self.url or "ws://localhost", self.model).session_url()
        # Loaded now: a missing package should not be noticed after the last run.
        from trio_duplex.benchmark.picture import draw

        facts = machine_facts(self.hardware)
        print_facts(console, facts)
        runs = trio.run(self._run, console)
        for scenario in self.scenarios:
            print_runs(console, scenario, [run for run in runs if run.load.scenario == scenario])
        write_json(files[".json"], as_json(facts, self._settings(), runs))
        draw(files[".png"], f"{self.hardware}: {facts['cpu']}, {facts['cores']} cores", runs)
        for file in files.values():
            console.print(f"wrote {file}", highlight=False, markup=False)
        return runs

    def _settings(self) -> dict[str, Any]:
        hidden = {"api_key", "out"}
        found = attrs.asdict(self, filter=lambda field, _value: field.name not in hidden)
        return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}

    async def _run(self, console: Console) -> list[Run]:
        """Cancellation: hangs up and stops the server."""
        if self.url is not None:
            return await self._loads(self.url, None, console)

        async def beside(server: ServerProcess) -> list[Run]:
            return await self._loads(server.ws_url, server, console)

        return await with_server_process(beside, ["--deploy", str(self.deploy)] if self.deploy is not None else [])

    async def _loads(self, url: str, server: ServerProcess | None, console: Console) -> list[Run]:
        """Cancellation: hangs up."""
        target = Target(url, self.model, self.api_key, self.silence_ms)
        runs = []
        for scenario in self.scenarios:
            for sessions in self.sessions:
                load = Load(scenario=scenario, sessions=sessions, seconds=self.seconds, ramp_s=self.ramp_s)
                took_s = load.ramp_s + load.settle_s + load.seconds
                console.print(f"{scenario}, {sessions} sessions: {took_s:.0f} s", style="dim", highlight=False)
                runs.append(await run_load(load, target, server))
        return runs
