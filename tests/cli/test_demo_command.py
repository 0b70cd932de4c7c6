"""``trio-duplex demo`` as a command: its exit status is its verdict."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import run

PRETEND = """
import sys
sys.modules['torch'] = None  # nothing heavy may be loaded before the server starts
from trio_duplex.showcase import demo, promises
async def held(self):
    return [promises.Verdict(promise, tuple(broken)) for promise, broken in zip(promises.PROMISES, {broken!r})]
demo.Demo.run = held
"""


def test_kept_promises_are_status_0(tmp_path: Path) -> None:
    finished = run("demo", "--out", tmp_path / "out", prelude=PRETEND.format(broken=[[], [], []]))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""


def test_every_broken_promise_is_named(tmp_path: Path) -> None:
    finished = run("demo", "--out", tmp_path / "out", prelude=PRETEND.format(broken=[["3 answers"], [], ["why"]]))
    assert finished.returncode == 1
    assert finished.stderr == (
        "Error: broken promises: two answers were given; the first answer was cut by the interruption\n"
    )
