"""The real command line in a process of its own, serving a model for tests that no deploy file can name."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from tests.cli.command import command
from tests.e2e.served import Server

ROOT = Path(__file__).parents[2]

PRELUDE = """
from trio_duplex.models import registry
from tests.faults.models import {maker}
plugin = {maker}()
registry.build_plugin = lambda deployment, progress=None: plugin
"""


@attrs.frozen
class Ended:
    """How a process ended: status, seconds since the signal, and what it left behind."""

    status: int
    took_s: float
    survivors: bool
    temp_files: tuple[str, ...]


@attrs.define
class ScriptedServer(Server):
    """``trio-duplex serve``, leader of a process group, with a folder for temporary files of its own."""

    process: trio.Process
    temp: Path
    printed: str = ""

    async def end(self, number: signal.Signals, limit_s: float) -> Ended:
        """Send the signal and wait for the end, at most ``limit_s`` seconds."""
        begun = trio.current_time()
        self.process.send_signal(number)
        with trio.fail_after(limit_s):
            status = await self.process.wait()
        took_s = trio.current_time() - begun
        return Ended(status, took_s, _group_lives(self.process.pid), tuple(sorted(os.listdir(self.temp))))


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def scripted_server(temp: Path, maker: str = "scripted") -> AsyncIterator[ScriptedServer]:
    """Start the command with the model that ``tests.faults.models`` makes; killed at the end if it still lives."""
    run = partial(
        trio.run_process,
        command("serve", "--port", "0", "--log-level", "error", prelude=PRELUDE.format(maker=maker)),
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temp)},
        cwd=ROOT,
        start_new_session=True,
    )
    async with trio.open_nursery() as nursery:
        process = await nursery.start(run)
        try:
            yield ScriptedServer(process, temp)
        finally:
            if process.poll() is None:
                process.kill()
