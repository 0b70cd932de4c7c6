"""Running the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALL = "from trio_duplex.cli import main; main(prog_name='trio-duplex')"


def command(*arguments: str, prelude: str = "") -> list[str]:
    """The argument vector; ``prelude`` is Python that runs before the command, to take something away from it."""
    return [sys.executable, "-c", f"{prelude}\n{CALL}", *arguments]


def run(
    *arguments: str | Path, prelude: str = "", cwd: Path | None = None, limit_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run to the end with nothing on standard input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(
        command(*map(str, arguments), prelude=prelude),
        capture_output=True,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environment,
        check=False,
    )


def error_line(finished: subprocess.CompletedProcess[str]) -> str:
    """The one line that says what is wrong; fails the test unless it is the last and the only one of its kind."""
    assert finished.returncode not in (0, None)
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert [line.startswith("Error: ") for line in lines].count(True) == 1, finished.stderr
    assert lines[-1].startswith("Error: ")
    return lines[-1].removeprefix("Error: ")
