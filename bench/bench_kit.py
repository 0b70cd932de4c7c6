"""What the socket benchmarks share: the server in a process of its own, the machine's description, result files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import trio
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MIN_WIDTH = 132
PACKAGES = ("trio", "hypercorn", "trio-websocket", "torch", "onnxruntime", "numpy", "attrs", "orjson")

T = TypeVar("T")
Json = dict[str, Any]


# --- the server -------------------------------------------------------------------------------------------------------


@attrs.frozen
class ServerProcess:
    """A warm ``trio-duplex serve``: where it is, and its process id."""

    ws_url: str
    pid: int

    @property
    def http_url(self) -> str:
        """The same for ``/health``."""
        return "http" + self.ws_url.removeprefix("ws")

    def cpu_s(self) -> float:
        """CPU time that the process has used, all threads (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Strangers:
    """How busy the rest of the machine is: what neither this process nor the server has used (Linux).

    Somebody else's work on the same cores makes every number worse, so each result says how much there was.
    """

    server: ServerProcess
    since_s: float
    others_s: float

    @classmethod
    def watch(cls, server: ServerProcess) -> Strangers:
        """Begin to count."""
        return cls(server, time.monotonic(), cls._others_s(server))

    def cores(self) -> float:
        """Cores that others have kept busy since then, on average."""
        others_s = self._others_s(self.server) - self.others_s
        return round(max(0.0, others_s) / (time.monotonic() - self.since_s), 2)

    @staticmethod
    def _others_s(server: ServerProcess) -> float:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy_s - server.cpu_s() - time.process_time()


async def with_server_process(work: Callable[[ServerProcess], Awaitable[T]], *arguments: str) -> T:
    """Run ``work`` beside a server on a free port; stop the server by SIGTERM afterwards.

    Cancellation: kills the server.
    """
    command = [sys.executable, "-m", "trio_duplex.cli", "serve", "--port", "0", "--log-level", "warning", *arguments]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
        line = b""
        while not line.endswith(b"\n"):
            chunk = await process.stdout.receive_some(4096)
            if not chunk:
                raise SystemExit("the server did not start")
            line += chunk
        url = line.decode().partition(": ")[2].split()[0].removesuffix("/v1/realtime")
        result = await work(ServerProcess(url, process.pid))
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(20):
            await process.wait()
        nursery.cancel_scope.cancel()
    return result


# --- numbers ----------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> Json:
    """Count, median, p90, p99 and extremes, to a tenth; percentiles are values that occurred (nearest rank)."""
    if not values:
        return {"count": 0}
    ordered = np.sort(np.asarray(values, float))
    ranks = {
        name: float(ordered[max(0, int(np.ceil(q * len(ordered))) - 1)]) for name, q in
        (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    }  # fmt: skip
    numbers = {"min": float(ordered[0]), **ranks, "max": float(ordered[-1])}
    return {"count": len(ordered), **{name: round(value, 1) for name, value in numbers.items()}}


# --- the machine and the files ----------------------------------------------------------------------------------------


def machine(label: str | None) -> Json:
    """What the numbers were measured on; ``label`` is the operator's own word for it."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = models[0] if models else cpu
    return {
        "label": label,
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "commit": commit(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The short hash, with ``+`` when the tree differs from it."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def result_path(name: str, facts: Json) -> Path:
    """A new file's place without its ending: name, time, commit. An old result is never overwritten."""
    RESULTS.mkdir(exist_ok=True)
    stamp = facts["utc"].replace(":", "").replace("-", "").partition("+")[0]
    return RESULTS / f"{name}-{stamp}-{facts['commit'].rstrip('+')}"


def write_json(path: Path, data: Json) -> Path:
    """Write ``data``; FileExistsError instead of overwriting."""
    file = path.with_name(path.name + ".json")
    with file.open("x", encoding="utf-8") as out:
        json.dump(data, out, indent=1)
        out.write("\n")
    return file


def wide_console() -> Console:
    """Wide enough for the tables, also in a file."""
    console = Console(highlight=False)
    return console if console.width >= MIN_WIDTH else Console(highlight=False, width=MIN_WIDTH)


def print_machine(console: Console, facts: Json) -> None:
    """One paragraph."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    label = f"{facts['label']}: " if facts["label"] else ""
    console.print(
        f"{label}{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}, {packages}; "
        f"commit {facts['commit']}, {facts['utc']}, load average before {facts['load_average_before']}",
        highlight=False,
    )


def print_table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers to the right."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    console.print(table)
