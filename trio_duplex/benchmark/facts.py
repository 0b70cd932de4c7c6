"""What a result was measured on."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Final

__all__ = ["machine_facts"]

PACKAGES: Final = ("trio-duplex", "trio", "hypercorn", "trio-websocket", "torch", "onnxruntime", "numpy")


def machine_facts(hardware: str) -> dict[str, Any]:
    """The operator's own word for the machine, and what it says about itself."""
    return {
        "hardware": hardware,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "load_average_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The short hash, with ``+`` when the tree differs from it; None outside a repository."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
