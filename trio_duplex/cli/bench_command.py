"""``trio-duplex bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trio_duplex.cli.process import tune_process
from trio_duplex.cli.shared import FILE

if TYPE_CHECKING:
    from trio_duplex.benchmark.plan import Scenario

__all__ = ["bench"]

BENCH_WIDTH: Final = 110


def _numbers(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("expected whole numbers with commas between them, like 1,8,24")
    return numbers


@click.command()
@click.option("--hardware", required=True, help="Your word for the machine the server runs on; goes into the result.")
@click.option(
    "--sessions", default="1,8,24", show_default=True, callback=_numbers, help="How many at once; one run each."
)
@click.option(
    "--scenario",
    multiple=True,
    type=click.Choice(["listen", "question", "barge-in"]),
    help="What callers do; repeatable. Default: all three.",
)
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1.0), help="What counts of each run.")
@click.option(
    "--ramp", default=5.0, show_default=True, type=click.FloatRange(0.0), help="Seconds to start all callers."
)
@click.option("--silence-ms", default=500, show_default=True, type=click.IntRange(0), help="Silence that ends a turn.")
@click.option("--url", help="A server that runs already. Without one: a server of our own in a second process.")
@click.option("--model", default="demo", show_default=True, help="The model to ask for.")
@click.option("--api-key", envvar="TRIO_DUPLEX_API_KEY", help="For --url; better in the variable TRIO_DUPLEX_API_KEY.")
@click.option("--deploy", type=FILE, help="Deploy file (YAML) of our own server.")
@click.option("--out", type=click.Path(path_type=Path), help="The result without its ending (.json, .png are added).")
def bench(
    hardware: str,
    sessions: list[int],
    scenario: tuple[Scenario, ...],
    seconds: float,
    ramp: float,
    silence_ms: int,
    url: str | None,
    model: str,
    api_key: str | None,
    deploy: Path | None,
    out: Path | None,
) -> None:
    """Load a server over real sockets and measure what its callers notice.

    Open loop: callers speak when their plan says so, whatever the server does. Refused callers stay in every
    denominator. Prints a table and writes JSON and a picture; an old result is never overwritten.
    """
    if url is not None and deploy is not None:
        raise click.UsageError("--deploy is for a server of our own and excludes --url")
    tune_process()
    from rich.console import Console

    from trio_duplex.benchmark.command import Bench
    from trio_duplex.benchmark.plan import SCENARIOS

    console = Console(highlight=False)
    command = Bench(
        hardware=hardware,
        scenarios=scenario or SCENARIOS,
        sessions=sessions,
        seconds=seconds,
        ramp_s=ramp,
        silence_ms=silence_ms,
        model=model,
        url=url,
        api_key=api_key,
        deploy=deploy,
        out=out,
    )
    try:
        runs = command.measure(console if console.width >= BENCH_WIDTH else Console(highlight=False, width=BENCH_WIDTH))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    if not any(run.admitted for run in runs):
        raise click.ClickException("no caller was admitted")
