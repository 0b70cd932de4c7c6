"""The bare ASGI app under a stock ``hypercorn -k trio`` works and warns once (issue 2)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from tests.server.server_kit import converse
from trio_duplex.server.listener import BoundAddress

ROOT = Path(__file__).parents[2]


async def test_the_bare_app_converses_and_warns_exactly_once() -> None:
    command = [sys.executable, "-u", "-m", "hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "tests.server.bare_app:app"]
    printed = b""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                check=False,
                cwd=ROOT,
            )
        )
        try:
            with trio.fail_after(30):
                bound = await _read_bound(process.stderr)
                for _ in range(3):
                    await converse(bound)
            process.terminate()
            with trio.fail_after(15):
                while chunk := await process.stdout.receive_some(4096):
                    printed += chunk
                await process.wait()
        finally:
            if process.poll() is None:
                process.kill()
    entries = [json.loads(line) for line in printed.decode().splitlines() if line.startswith("{")]
    warnings = [entry for entry in entries if entry["level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["bare_asgi"]
    assert "a vanished peer is noticed after minutes, if at all" in warnings[0]["lost"]


async def _read_bound(stream: trio.abc.ReceiveStream) -> BoundAddress:
    text = ""
    while (found := re.search(r"Running on http://([\d.]+):(\d+) ", text)) is None:
        chunk = await stream.receive_some(4096)
        assert chunk, f"hypercorn ended: {text}"
        text += chunk.decode()
    return BoundAddress(found[1], int(found[2]), f"http://{found[1]}:{found[2]}")
