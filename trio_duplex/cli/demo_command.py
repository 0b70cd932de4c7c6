"""``trio-duplex demo``."""

from __future__ import annotations

from pathlib import Path

import click

from trio_duplex.cli.process import configure_logging, settle_process, tune_process
from trio_duplex.cli.shared import FILE, FOLDER, find_deployment

__all__ = ["demo"]


@click.command()
@click.option("--out", type=FOLDER, default=Path("demo_out"), show_default=True, help="Folder for what it leaves.")
@click.option("--deploy", type=FILE, help="Deploy file (YAML). Without one: the demo model with its defaults.")
def demo(out: Path, deploy: Path | None) -> None:
    """Hold a whole conversation with the demo model: ask, listen, interrupt, listen to the end.

    Starts a server on a free port, streams two recordings to it in real time, and leaves the answers as WAV files, the
    event log and a picture. Exits with status 1 and names every promise that was broken.
    """
    tune_process()
    deployment, plugin = find_deployment(deploy)
    configure_logging("console", "warning")
    import trio
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print("[dim]  0.0 s[/dim]  starting the server and loading the model")
    from trio_duplex.showcase.demo import Demo

    verdicts = trio.run(Demo(deployment, plugin, out, console, on_warm=settle_process).run)
    broken = [verdict.promise.text for verdict in verdicts if not verdict.kept]
    if broken:
        raise click.ClickException(f"broken promises: {'; '.join(broken)}")
