"""The server that is measured: a process of its own, what it costs, and what it says about itself."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import orjson
import trio

from trio_duplex.client.errors import unwrapped

__all__ = ["NoServer", "ServerProcess", "Strangers", "health_page", "with_server_process"]

Json = dict[str, Any]
T = TypeVar("T")

START_WITHIN_S: Final = 120.0
STOP_WITHIN_S: Final = 20.0


class NoServer(Exception):
    """The server did not start; the message says what it printed, in one line."""


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
        """CPU seconds that the process has used, all threads (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory now, in MiB (Linux)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


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


async def with_server_process(work: Callable[[ServerProcess], Awaitable[T]], arguments: Sequence[str] = ()) -> T:
    """Run ``work`` beside ``trio-duplex serve`` on a free port; stop the server by SIGTERM afterwards.

    ``arguments`` are further ones for ``serve``; what it writes to standard error passes through.  Raises
    :class:`NoServer` and what ``work`` raises.  Cancellation: kills the server.
    """
    command = [sys.executable, "-m", "trio_duplex.cli", "serve", "--port", "0", "--log-level", "warning", *arguments]
    with unwrapped():
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            )
            url = await _ready(process)
            result = await work(ServerProcess(url, process.pid))
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_WITHIN_S):
                await process.wait()
            nursery.cancel_scope.cancel()
    return result


async def _ready(process: trio.Process) -> str:
    """Wait for the one line on standard output.  Cancellation: only stops waiting."""
    assert process.stdout is not None
    line = b""
    with trio.move_on_after(START_WITHIN_S):
        while not line.endswith(b"\n"):
            part = await process.stdout.receive_some(4096)
            if not part:
                raise NoServer("the server ended before it was ready")
            line += part
        return line.decode().partition(": ")[2].split()[0].removesuffix("/v1/realtime")
    raise NoServer(f"the server was not ready within {START_WITHIN_S:.0f} s")


async def health_page(ws_url: str) -> Json | None:
    """The server's own statistics, None when it tells none.  Cancellation: a request under way is abandoned."""
    return await trio.to_thread.run_sync(_health, ws_url, abandon_on_cancel=True)


def _health(ws_url: str) -> Json | None:
    scheme, _, rest = ws_url.partition("://")
    address = ("https" if scheme in ("wss", "https") else "http") + "://" + rest.partition("/")[0]
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            page = orjson.loads(answer.read())
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
        return None
    return page if isinstance(page, dict) else None
