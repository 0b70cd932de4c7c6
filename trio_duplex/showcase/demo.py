"""The demo as one call: server, conversation, files, report, verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import attrs
from rich.console import Console

from trio_duplex.client import DuplexClientError
from trio_duplex.config import Deployment
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.server.listener import BoundAddress
from trio_duplex.showcase import report
from trio_duplex.showcase.conversation import Conversation, converse
from trio_duplex.showcase.event_log import EventLog, Missing
from trio_duplex.showcase.local_server import with_server
from trio_duplex.showcase.promises import Verdict, judge
from trio_duplex.showcase.recordings import FIRST, SECOND, bundled
from trio_duplex.showcase.scenario import SESSION, Story, Told, story

__all__ = ["Demo"]


@attrs.define(eq=False)
class Demo:
    """One run of ``plugin``, which is the deployment's model. ``out`` is the folder for the files.
    ``on_warm`` is called once, between loading and talking."""

    deployment: Deployment
    plugin: ModelPlugin
    out: Path
    console: Console
    on_warm: Callable[[], object] = lambda: None
    plot: Story = attrs.field(factory=lambda: Story(bundled(FIRST), bundled(SECOND)))
    log: EventLog = attrs.field(factory=EventLog)
    files: list[Path] = attrs.field(factory=list)
    told: Told | None = None
    _began_s: float = attrs.field(factory=time.monotonic)

    async def run(self) -> list[Verdict]:
        """Hold the conversation, leave the files, print the report; returns the verdicts.

        Raises what the server's start raises, and OSError for the folder. A conversation that breaks off still leaves
        its log and its sound, and the promises tell what is missing. Cancellation: stops where it is, no files.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        stuck: Exception | None = None
        try:
            self.told = await with_server(self.deployment, self._talk, plugin=self.plugin)
        except (Missing, DuplexClientError) as error:
            stuck = error
        self.files += report.leave_sound(self.log, self.out)
        self.files.append(report.leave_events(self.log, self.out))
        self.files.append(report.leave_picture(self.log, self.out))
        verdicts = judge(self.log)
        self._print(verdicts, stuck)
        return verdicts

    async def _talk(self, bound: BoundAddress) -> Told:
        self.on_warm()
        self._tell(f"server is warm at {bound.ws_url}")
        return await converse(bound.ws_url, self.log, self._story, model=self.plugin.name, config=SESSION)

    async def _story(self, talk: Conversation) -> Told:
        return await story(talk, self.plot, self._tell)

    def _tell(self, line: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/dim]  {line}", highlight=False)

    def _print(self, verdicts: list[Verdict], stuck: Exception | None) -> None:
        console = self.console
        self._title("What was said")
        report.print_words(console, self.log)
        if self.told is not None:
            self._title("How long it took")
            report.print_measures(console, self.told)
        self._title("What was promised")
        report.print_verdicts(console, verdicts)
        self._title("Files")
        report.print_files(console, self.files)
        if stuck is not None:
            console.print(f"\n[bold red]The conversation broke off:[/bold red] {stuck}")

    def _title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")
