"""The clients' own environments under ``interop/``: made once, made again when their pins change."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE / ".venv"
NODE_MODULES = HERE / "node_modules"


class NoEnvironment(Exception):
    """An environment could not be made; the text is one line."""


def python_of(name: str) -> Path:
    """The interpreter of the virtual environment for ``requirements-NAME.txt``, made if need be."""
    pins = HERE / f"requirements-{name}.txt"
    folder = VENVS / name
    if not _is_made(folder, [pins]):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"making {folder.relative_to(HERE.parent)}", flush=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", str(pins)])
        _remember(folder, [pins])
    return folder / "bin" / "python"


def node() -> Path:
    """Node, with the packages of ``package-lock.json`` beside the scripts."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        raise NoEnvironment("node and npm are not installed")
    pins = [HERE / "package.json", HERE / "package-lock.json"]
    if not _is_made(NODE_MODULES, pins):
        print("making interop/node_modules", flush=True)
        _run(["npm", "ci", "--no-fund", "--no-audit", "--loglevel=error"])
        _remember(NODE_MODULES, pins)
    return Path(found)


def _digest(pins: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in pins)).hexdigest()


def _is_made(folder: Path, pins: list[Path]) -> bool:
    mark = folder / ".made-from"
    return mark.exists() and mark.read_text() == _digest(pins)


def _remember(folder: Path, pins: list[Path]) -> None:
    (folder / ".made-from").write_text(_digest(pins))


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(command, cwd=HERE, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEnvironment(f"{' '.join(command[:4])} … failed: {error}") from None
