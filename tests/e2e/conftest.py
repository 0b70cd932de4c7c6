"""The demo's conversation, held once for all tests that look at it (it takes as long as people would); a server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from io import StringIO
from pathlib import Path

import attrs
import pytest
import trio
from rich.console import Console

from tests.cli.command import command
from tests.e2e.served import Server
from trio_duplex.config import Deployment
from trio_duplex.models.registry import build_plugin
from trio_duplex.showcase.demo import Demo
from trio_duplex.showcase.promises import Verdict


@attrs.frozen
class Held:
    """A finished run of the demo."""

    demo: Demo
    verdicts: list[Verdict]
    printed: str


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    """The demo deployment, a real socket, recorded speech, the real clock."""
    page = StringIO()
    deployment = Deployment(model="demo")
    folder: Path = tmp_path_factory.mktemp("demo") / "demo_out"
    demo = Demo(deployment, build_plugin(deployment), folder, Console(file=page, width=200, highlight=False))

    async def run() -> list[Verdict]:
        with trio.fail_after(180):
            return await demo.run()

    return Held(demo, trio.run(run), page.getvalue())


@pytest.fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[Server]:
    """``trio-duplex serve`` on a free port; killed if a test leaves it alive."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = partial(
        trio.run_process,
        command("serve", "--port", "0", "--log-level", "warning"),
        stdout=subprocess.PIPE,
        check=False,
        env=environment,
    )
    process = await nursery.start(run)
    yield Server(process)
    if process.poll() is None:
        process.kill()
