"""``trio-duplex talk``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from trio_duplex.cli.shared import FILE, FOLDER

__all__ = ["talk"]


@click.command()
@click.option("--url", required=True, help="Where the server is, e.g. ws://127.0.0.1:8099")
@click.option("--wav", required=True, type=FILE, help="16-bit PCM WAV, any rate; or raw samples with --raw-rate.")
@click.option("--raw-rate", type=click.IntRange(8_000, 192_000), help="FILE has no header: s16le at this rate in Hz.")
@click.option("--out", type=FOLDER, help="Folder for the answers (WAV) and events.jsonl.")
@click.option("--model", default="demo", show_default=True, help="The model to ask for.")
@click.option("--api-key", envvar="TRIO_DUPLEX_API_KEY", help="For a server that asks for one; or TRIO_DUPLEX_API_KEY.")
def talk(url: str, wav: Path, raw_rate: int | None, out: Path | None, model: str, api_key: str | None) -> None:
    """Stream a recording to a server in real time and hear what it answers.

    Prints what the server understood and decided, and acknowledges the answers as if they were played aloud.
    """
    import trio

    from trio_duplex.showcase.recordings import load_recording
    from trio_duplex.showcase.talking import Talk

    recording = load_recording(wav, raw_rate_hz=raw_rate)
    try:
        from trio_duplex.client import build_realtime_url

        build_realtime_url(url, model)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()

    def tell(line: str) -> None:
        click.echo(f"{time.monotonic() - began_s:5.1f} s  {line}")

    run = Talk(url, model, recording, tell, api_key=api_key)
    try:
        trio.run(run.run)
    finally:
        if out is not None:
            from trio_duplex.showcase.report import leave_events, leave_sound

            for path in [*leave_sound(run.log, out), leave_events(run.log, out)]:
                click.echo(f"wrote {path}")
