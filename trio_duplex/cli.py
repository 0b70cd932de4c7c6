"""The ``trio-duplex`` command: ``serve``, ``talk``, ``demo``, ``bench``.

Heavy imports happen inside the commands, so that ``--help`` is instant and works in a client-only installation. What
a user can cause (a bad file, a busy port, a missing package) is one line on standard error and a non-zero exit.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

    from trio_duplex.benchmark.plan import Scenario
    from trio_duplex.config import Deployment
    from trio_duplex.models.plugin import ModelPlugin
    from trio_duplex.server.listener import BoundAddress

__all__ = ["main"]

STOP_WITHIN_S: Final = 15.0
"""After a signal everything has a bound of its own; this one is for the case that one of them is broken."""

EXTRA_PACKAGES: Final = frozenset(
    {
        "hypercorn", "h11", "wsproto", "yaml", "structlog", "torch", "safetensors", "onnxruntime", "matplotlib",
        "outcome", "httpx", "sentencepiece", "onnx",
    }
)  # fmt: skip
"""What the base installation lacks; all of it comes with the extra ``demo``."""

EXPECTED: Final = {
    "trio_duplex.config": ("DeployError",),
    "trio_duplex.server.listener": ("ListenError",),
    "trio_duplex.benchmark.report": ("ResultExists",),
    "trio_duplex.benchmark.server_process": ("NoServer",),
    "trio_duplex.client": ("DuplexClientError",),
    "trio_duplex.showcase.recordings": ("RecordingError",),
    "trio_duplex.showcase.event_log": ("Missing",),
    "duplex_gpu.steps": ("DeviceMissing",),
    "duplex_gpu.weights": ("WeightsMissing", "WeightsCorrupt"),
    "duplex_gpu.piper_voice": ("VoiceUnsuitable",),
}
"""Errors that a user can cause, by the module that defines them. Their text is one line that says what to do."""


# --- errors as one line -----------------------------------------------------------------------------------------------


def expected_errors() -> tuple[type[BaseException], ...]:
    """The classes of :data:`EXPECTED`, and groups, which may hold them. A module never loaded has raised nothing."""
    found: list[type[BaseException]] = [BaseExceptionGroup, ModuleNotFoundError, OSError, TimeoutError]
    for module, names in EXPECTED.items():
        loaded = sys.modules.get(module)
        if loaded is not None:
            found += [getattr(loaded, name) for name in names]
    return tuple(found)


def one_line(error: BaseException) -> str | None:
    """What to tell the user; None for an error that is ours and deserves its traceback."""
    lines = [_explain(leaf) for leaf in _leaves(error)]
    return None if not lines or None in lines else lines[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _explain(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_PACKAGES:
            return None
        return f"the package {package!r} is not installed; install the extra: pip install 'trio-duplex[demo]'"
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return None if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) if isinstance(error, expected_errors()) else None


class OneLineErrors(click.Group):
    """A group whose commands turn expected errors into click's one-line form (``Error: …``, exit status 1)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Anything unexpected keeps its traceback."""
        try:
            return super().invoke(ctx)
        except expected_errors() as error:
            line = one_line(error)
            if line is None:
                raise
            raise click.ClickException(line) from None


# --- the process ------------------------------------------------------------------------------------------------------


def configure_logging(log_format: str, level: str) -> None:
    """Set up structlog (and the standard library's loggers) for this process: one line per fact, on standard error.

    Tracebacks are printed without the values of variables, which may hold what users said.
    """
    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def tune_process() -> None:
    """Settings that only an entry point may choose: they hold for the whole process. Before numpy and torch load."""
    # One core for the model's steps, the rest for the event loop: more threads make both slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from trio_duplex.server.guards import quicken_thread_switches

    quicken_thread_switches()


def settle_process() -> None:
    """Once the model is warm: take everything that was loaded out of the garbage collector's sight.

    A full collection over torch and the weights stopped the event loop for 150 to 300 ms in the middle of an answer.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def _console() -> Console:
    """Where progress goes: standard error, so that standard output holds results only."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _deployment(path: Path | None) -> tuple[Deployment, ModelPlugin]:
    """The deployment of a file, or the demo model with every default; and its plugin, with nothing loaded yet.

    Raises DeployError naming the file.
    """
    from trio_duplex.config import DeployError, Deployment, load_deployment
    from trio_duplex.models.registry import build_plugin

    deployment = Deployment(model="demo", session_mode="duplex") if path is None else load_deployment(path)
    try:
        return deployment, build_plugin(deployment)
    except DeployError as error:
        raise error if path is None else DeployError(f"{path}: {error}") from None


# --- commands ---------------------------------------------------------------------------------------------------------

BENCH_WIDTH: Final = 110
CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


def _version() -> str:
    try:
        return importlib.metadata.version("trio-duplex")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


@click.group(cls=OneLineErrors, context_settings=CONTEXT)
@click.version_option(_version(), prog_name="trio-duplex")
def main() -> None:
    """Full-duplex speech sessions over WebSocket: the model listens while it speaks, and can be interrupted."""


@main.command()
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
    deployment, plugin = _deployment(deploy)
    configure_logging(log_format, log_level)
    deployment = _with_auth(deployment, api_keys_file, no_auth, allow_origin)
    import trio

    trio.run(_serve, deployment, plugin, host, port)


def _with_auth(deployment: Deployment, keys_file: Path | None, no_auth: bool, origins: tuple[str, ...]) -> Deployment:
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


async def _serve(deployment: Deployment, plugin: ModelPlugin, host: str, port: int) -> None:
    """Serve until a signal; the second signal ends everything at once. Cancellation: ends without good-byes."""
    import trio

    from trio_duplex.server.listener import BoundAddress
    from trio_duplex.server.serve import serve as run_server

    began_s = time.monotonic()
    shutdown = trio.Event()
    loading = ExitStack()

    class Announce(trio.TaskStatus[BoundAddress]):
        def started(self, value: BoundAddress | None = None) -> None:
            assert value is not None
            loading.close()
            settle_process()
            _say_ready(value, time.monotonic() - began_s)

    with loading, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        loading.enter_context(_busy(f"loading model {plugin.name!r}"))
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


def _busy(what: str) -> AbstractContextManager[Any]:
    """A spinner on a terminal, a plain line elsewhere."""
    console = _console()
    if console.is_terminal:
        return console.status(what)
    console.print(what)
    return nullcontext()


def _say_ready(bound: BoundAddress, took_s: float) -> None:
    """The one line on standard output."""
    click.echo(
        f"ready after {took_s:.1f} s: {bound.ws_url}/v1/realtime"
        f"  (try: trio-duplex talk --url {bound.ws_url} --wav FILE)"
    )
    sys.stdout.flush()


@main.command()
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


@main.command()
@click.option("--out", type=FOLDER, default=Path("demo_out"), show_default=True, help="Folder for what it leaves.")
@click.option("--deploy", type=FILE, help="Deploy file (YAML). Without one: the demo model with its defaults.")
def demo(out: Path, deploy: Path | None) -> None:
    """Hold a whole conversation with the demo model: ask, listen, interrupt, listen to the end.

    Starts a server on a free port, streams two recordings to it in real time, and leaves the answers as WAV files, the
    event log and a picture. Exits with status 1 and names every promise that was broken.
    """
    tune_process()
    deployment, plugin = _deployment(deploy)
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


def _numbers(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("expected whole numbers with commas between them, like 1,8,24")
    return numbers


@main.command()
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


if __name__ == "__main__":
    main()
