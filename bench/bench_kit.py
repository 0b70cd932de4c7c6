"""What the socket benchmarks share: the server in a process of its own, the machine's description, result files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trio_duplex.benchmark.server_process import ServerProcess, Strangers, with_server_process

__all__ = [
    "ROOT",
    "Json",
    "ServerProcess",
    "Strangers",
    "machine",
    "print_machine",
    "print_table",
    "result_path",
    "spread",
    "wide_console",
    "with_server_process",
    "write_json",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MIN_WIDTH = 132
PACKAGES = ("trio", "hypercorn", "trio-websocket", "torch", "onnxruntime", "numpy", "attrs", "orjson")

Json = dict[str, Any]


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
