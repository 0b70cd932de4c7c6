"""``trio-duplex serve``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trio_duplex.cli.process import configure_logging, settle_process, tune_process
from trio_duplex.cli.progress import LoadingProgress
from trio_duplex.cli.shared import FILE, find_deployment

if TYPE_CHECKING:
    from trio_duplex.config import Deployment
    from trio_duplex.models.plugin import ModelPlugin
    from trio_duplex.server.listener import BoundAddress

__all__ = ["serve", "with_access"]

STOP_WITHIN_S: Final = 15.0
"""After a signal everything has a bound of its own; this one is for the case that one of them is broken."""


@click.command()
@click.option("--deploy", type=FILE, help="Deploy file (YAML). Without one: the demo model with its defaults.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in.")
@click.option("--port", default=8099, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--api-keys-file", type=FILE, help="File with one API key a line; clients must send one of them.")
@click.option("--no-auth", is_flag=True, help="Ask for no key, even when --host lets other machines in.")
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="A web page that may connect; repeatable; * = all."
)
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
)
def serve(
    deploy: Path | None,
    host: str,
    port: int,
    api_keys_file: Path | None,
    no_auth: bool,
    allow_origin: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Serve one model until SIGTERM or Ctrl-C.

    Once the model is warm, one line on standard output says where. Logs and progress go to standard error. API keys
    come from --api-keys-file, the deploy file's auth block or the variable TRIO_DUPLEX_API_KEYS; without any, only
    this machine is served.
    """
    tune_process()
    loading = LoadingProgress()
    deployment, plugin = find_deployment(deploy, loading)
    configure_logging(log_format, log_level)
    deployment = with_access(deployment, api_keys_file, no_auth, allow_origin)
    import trio

    trio.run(_serve, deployment, plugin, host, port, loading)


def with_access(deployment: Deployment, keys_file: Path | None, no_auth: bool, origins: tuple[str, ...]) -> Deployment:
    """The deployment with what the command line says about access, and keys from the environment."""
    import attrs

    from trio_duplex.server.auth import with_keys_from_environment

    if no_auth and keys_file is not None:
        raise click.UsageError("--no-auth and --api-keys-file exclude each other")
    auth = deployment.auth
    if keys_file is not None:
        auth = attrs.evolve(auth, keys_file=keys_file, required=True)
    if no_auth:
        auth = attrs.evolve(auth, required=False)
    if origins:
        try:
            auth = attrs.evolve(auth, origins=origins)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--allow-origin") from None
    return attrs.evolve(deployment, auth=with_keys_from_environment(auth))


async def _serve(deployment: Deployment, plugin: ModelPlugin, host: str, port: int, loading: LoadingProgress) -> None:
    """Serve until a signal; the second signal ends everything at once. Cancellation: ends without good-byes."""
    import trio

    from trio_duplex.server.listener import BoundAddress
    from trio_duplex.server.serve import serve as run_server

    began_s = time.monotonic()
    shutdown = trio.Event()

    class Announce(trio.TaskStatus[BoundAddress]):
        def started(self, value: BoundAddress | None = None) -> None:
            assert value is not None
            loading.close()
            settle_process()
            _say_ready(value, time.monotonic() - began_s)

    with loading.showing(plugin.name), trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for number in signals:
                    if shutdown.is_set():
                        nursery.cancel_scope.cancel()
                    click.echo(f"stopping ({signal.Signals(number).name})", err=True)
                    nursery.cancel_scope.deadline = trio.current_time() + STOP_WITHIN_S
                    shutdown.set()

            nursery.start_soon(watch)
            await run_server(deployment, plugin=plugin, host=host, port=port, shutdown=shutdown, task_status=Announce())
            nursery.cancel_scope.cancel()


def _say_ready(bound: BoundAddress, took_s: float) -> None:
    """The one line on standard output."""
    click.echo(
        f"ready after {took_s:.1f} s: {bound.ws_url}/v1/realtime"
        f"  (try: trio-duplex talk --url {bound.ws_url} --wav FILE)"
    )
    sys.stdout.flush()
