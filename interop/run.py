"""Stock clients against the demo model: ``make interop``, or ``python interop/run.py [client …]``.

Starts ``trio-duplex serve`` with an API key on a free port, runs one client after the other against it, prints a table,
and exits with status 1 when anything failed. Each client speaks recordings in real time, hears answers, interrupts,
calls a function and leaves; ``interop/clients/`` has one script for each.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from environments import HERE, NoEnvironment, node, python_of
from rich.console import Console
from rich.table import Table

from trio_duplex.resampling import Resampler
from trio_duplex.showcase.recordings import load_recording

RATE_HZ: Final = 24_000
OUT: Final = HERE / "out"
SPEECH: Final = HERE.parent / "tests" / "data" / "speech"
RECORDINGS: Final = {
    "question": ("librivox_0880.wav", None),
    "interruption": ("cards_001.wav", None),
    "command": ("goforward.raw", 16_000),
}
STEPS: Final = ("connect", "answer", "interruption", "function", "end")
CLIENT_LIMIT_S: Final = 240
START_LIMIT_S: Final = 180
STOP_LIMIT_S: Final = 20


@attrs.frozen
class Client:
    """One client: the script that drives it, the environment it runs in (``node`` or a requirements file), and options
    of the interpreter.
    """

    name: str
    script: str
    environment: str
    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """How to start it. Raises NoEnvironment."""
        program = node() if self.environment == "node" else python_of(self.environment)
        return [str(program), *self.options, str(HERE / "clients" / self.script)]


CLIENTS: Final = (
    Client("openai", "openai_sdk.py", "openai"),
    Client("openai-agents", "openai_agents.py", "openai"),
    Client("livekit", "livekit_plugin.py", "livekit"),
    Client("pipecat", "pipecat_service.py", "pipecat"),
    Client("agents-realtime", "agents_realtime.mjs", "node"),
    # Its build for browsers, with Node's own browser-like WebSocket: no headers, the key as a sub-protocol.
    Client("agents-realtime-web", "agents_realtime.mjs", "node", ("--conditions=browser", "--experimental-websocket")),
)


@attrs.define
class Result:
    """What came out of one client; ``log`` is its output."""

    client: Client
    log: Path
    versions: dict[str, str] = attrs.field(factory=dict)
    steps: dict[str, tuple[str, str]] = attrs.field(factory=dict)

    @property
    def passed(self) -> bool:
        """Every step was done, or cannot be done with this client's API."""
        return all(self.steps.get(step, ("fail", ""))[0] in ("pass", "cannot") for step in STEPS)


def prepare_speech(folder: Path) -> None:
    """The recordings as the clients' own format: WAV, 24 kHz, mono, 16-bit."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (file, raw_rate_hz) in RECORDINGS.items():
        spoken = load_recording(SPEECH / file, raw_rate_hz=raw_rate_hz)
        resampler = Resampler(spoken.rate_hz, RATE_HZ)
        audio = spoken.samples.astype(np.float32)
        pcm = np.concatenate([resampler.push(audio), resampler.flush()]).clip(-32768, 32767).astype("<i2")
        with wave.open(str(folder / f"{name}.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE_HZ)
            out.writeframes(pcm.tobytes())


@contextmanager
def server(key: str, log: Path) -> Iterator[str]:
    """``trio-duplex serve`` in a process of its own; gives its ``ws://host:port``. Must end well on SIGTERM."""
    command = [sys.executable, "-m", "trio_duplex.cli", "serve", "--port", "0", "--log-format", "json"]
    environment = {**os.environ, "TRIO_DUPLEX_API_KEYS": key}
    with log.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        too_slow = threading.Timer(START_LIMIT_S, process.kill)
        try:
            assert process.stdout is not None
            too_slow.start()
            ready = re.search(r"ws://[^/\s]+", process.stdout.readline())
            too_slow.cancel()
            if ready is None:
                raise NoEnvironment(f"the server did not start, see {log}")
            yield ready.group()
            process.send_signal(signal.SIGTERM)
            try:
                status: int | str = process.wait(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                status = f"nothing within {STOP_LIMIT_S} s"
            if status != 0:
                raise NoEnvironment(f"the server answered SIGTERM with {status}, see {log}")
        finally:
            too_slow.cancel()
            process.kill()
            process.wait()


def server_faults(log: Path, since: int) -> list[str]:
    """What the server itself found worth a warning or an error, from byte ``since`` of its log on."""
    faults = []
    for line in log.read_bytes()[since:].decode().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"level": "warning", "event": line} if "Traceback" in line else {}
        if entry.get("level") in ("warning", "error", "critical"):
            faults.append(f"{entry['event']}")
    return faults


def run_client(client: Client, url: str, key: str) -> Result:
    """One client from start to end. Raises NoEnvironment."""
    log = OUT / f"{client.name}.log"
    result = Result(client, log)
    environment = {
        **os.environ,
        "INTEROP_URL": url,
        "INTEROP_KEY": key,
        "INTEROP_SPEECH": str(OUT / "speech"),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("OPENAI_API_KEY", None)
    command = client.command()
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            status = process.wait(timeout=CLIENT_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            result.steps["end"] = ("fail", f"still running after {CLIENT_LIMIT_S} s")
            return result
    report = _report(log)
    result.versions = report.get("versions", {})
    result.steps = {name: (step["status"], step["detail"]) for name, step in report.get("steps", {}).items()}
    if status != 0 and result.passed:
        result.steps["end"] = ("fail", f"the process ended with status {status}")
    return result


def _report(log: Path) -> dict[str, Any]:
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith('{"client"'):
            report: dict[str, Any] = json.loads(line)
            return report
    return {"steps": {"connect": {"status": "fail", "detail": f"no report, see {log}"}}}


def show(results: list[Result]) -> None:
    """The table, and below it the details of every step."""
    console = Console(width=150, highlight=False)
    table = Table("client", "versions", *STEPS)
    words = {"pass": "[green]pass[/]", "cannot": "[yellow]cannot[/]", "fail": "[red]FAIL[/]"}
    for result in results:
        versions = "\n".join(f"{name} {number}" for name, number in result.versions.items())
        table.add_row(result.client.name, versions, *(words[result.steps.get(step, ("fail", ""))[0]] for step in STEPS))
    console.print(table)
    for result in results:
        for step in STEPS:
            status, detail = result.steps.get(step, ("fail", f"not reached, see {result.log}"))
            console.print(f"{result.client.name:16} {step:13} {status:7}", detail, markup=False)


def main(names: list[str]) -> int:
    """Run the clients named (none: all) and return the exit status."""
    known = {client.name: client for client in CLIENTS}
    if unknown := set(names) - known.keys():
        print(f"unknown client {', '.join(sorted(unknown))}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names] or list(CLIENTS)
    OUT.mkdir(exist_ok=True)
    prepare_speech(OUT / "speech")
    key = "sk-interop-" + secrets.token_urlsafe(24)
    results: list[Result] = []
    server_log = OUT / "server.log"
    try:
        for client in chosen:
            client.command()
        with server(key, server_log) as url:
            for client in chosen:
                print(f"running {client.name}", flush=True)
                since = server_log.stat().st_size
                result = run_client(client, url, key)
                if faults := server_faults(server_log, since):
                    result.steps["end"] = ("fail", f"the server logged: {'; '.join(faults)}")
                results.append(result)
        if key in server_log.read_text():
            print("the server logged the API key", file=sys.stderr)
            return 1
    except NoEnvironment as error:
        show(results)
        print(error, file=sys.stderr)
        return 1
    show(results)
    (OUT / "results.json").write_text(json.dumps([_as_json(result) for result in results], indent=1))
    return 0 if all(result.passed for result in results) else 1


def _as_json(result: Result) -> dict[str, Any]:
    return {"client": result.client.name, "versions": result.versions, "steps": result.steps}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
