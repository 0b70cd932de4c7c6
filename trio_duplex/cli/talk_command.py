"""``trio-duplex talk``: with a recording, or with a microphone."""

from __future__ import annotations

import time
from pathlib import Path

import click

from trio_duplex.cli.shared import FILE, FOLDER

__all__ = ["talk"]


def _list_devices(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from trio_duplex.live.sound import Sound

        click.echo(Sound.find().listing())
        context.exit()


@click.command()
@click.option("--url", required=True, help="Where the server is, e.g. ws://127.0.0.1:8099")
@click.option("--wav", type=FILE, help="16-bit PCM WAV, any rate; or raw samples with --raw-rate.")
@click.option("--raw-rate", type=click.IntRange(8_000, 192_000), help="FILE has no header: s16le at this rate in Hz.")
@click.option("--out", type=FOLDER, help="Folder for the answers (WAV) and events.jsonl.")
@click.option("--mic", is_flag=True, help="Talk yourself: microphone and loudspeaker, until Ctrl-C (extra: mic).")
@click.option("--input-device", metavar="DEVICE", help="Microphone: number or part of the name.")
@click.option("--output-device", metavar="DEVICE", help="Loudspeaker: number or part of the name.")
@click.option(
    "--list-devices",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_devices,
    help="Show the sound devices and exit.",
)
@click.option("--model", default="demo", show_default=True, help="The model to ask for.")
@click.option("--api-key", envvar="TRIO_DUPLEX_API_KEY", help="For a server that asks for one; or TRIO_DUPLEX_API_KEY.")
def talk(
    url: str,
    wav: Path | None,
    raw_rate: int | None,
    out: Path | None,
    mic: bool,
    input_device: str | None,
    output_device: str | None,
    model: str,
    api_key: str | None,
) -> None:
    """Stream a recording to a server in real time, or talk to it yourself, and hear what it answers.

    Prints what the server understood, decided and said. Of the answers what was played is acknowledged; with a
    recording, as if it had been played aloud.
    """
    _check_usage(wav, raw_rate, out, mic, input_device, output_device)
    try:
        from trio_duplex.client import build_realtime_url

        build_realtime_url(url, model)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    if wav is None:
        _talk_live(url, model, api_key, input_device, output_device)
    else:
        _talk_from_file(url, model, api_key, wav, raw_rate, out)


def _check_usage(
    wav: Path | None,
    raw_rate: int | None,
    out: Path | None,
    mic: bool,
    input_device: str | None,
    output_device: str | None,
) -> None:
    if mic == (wav is not None):
        raise click.UsageError("give either --wav FILE or --mic")
    if mic and (raw_rate is not None or out is not None):
        raise click.UsageError("--raw-rate and --out belong to --wav")
    if not mic and (input_device is not None or output_device is not None):
        raise click.UsageError("--input-device and --output-device belong to --mic")


class _Teller:
    """Prints lines with the seconds since the start in front."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()

    def __call__(self, line: str) -> None:
        click.echo(f"{time.monotonic() - self.began_s:5.1f} s  {line}")


def _talk_from_file(
    url: str, model: str, api_key: str | None, wav: Path, raw_rate: int | None, out: Path | None
) -> None:
    import trio

    from trio_duplex.showcase.recordings import load_recording
    from trio_duplex.showcase.talking import Talk

    recording = load_recording(wav, raw_rate_hz=raw_rate)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    run = Talk(url, model, recording, _Teller(), api_key=api_key)
    try:
        trio.run(run.run)
    finally:
        if out is not None:
            from trio_duplex.showcase.report import leave_events, leave_sound

            for path in [*leave_sound(run.log, out), leave_events(run.log, out)]:
                click.echo(f"wrote {path}")


def _talk_live(url: str, model: str, api_key: str | None, input_device: str | None, output_device: str | None) -> None:
    from functools import partial

    import trio

    from trio_duplex.live.live_talk import talk_live
    from trio_duplex.live.sound import Sound

    run = partial(
        talk_live,
        url,
        model=model,
        api_key=api_key,
        sound=Sound.find(),
        input_device=_device(input_device),
        output_device=_device(output_device),
        tell=_Teller(),
    )
    trio.run(run)


def _device(text: str | None) -> int | str | None:
    """A number or a part of a name."""
    return int(text) if text is not None and text.isdecimal() else text
