"""The real ``trio-duplex serve`` in a process of its own."""

from __future__ import annotations

import signal

import trio

from trio_duplex.server.listener import BoundAddress

START_S = 60
STOP_S = 12
"""Five seconds of grace for the apps, two to unwind, two for the model's threads, and some for the machine."""


class Server:
    """``trio-duplex serve`` in a process; what it prints is read as it comes."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.printed = ""

    async def ready(self) -> BoundAddress:
        """Wait for the ready line; it is the only one on standard output."""
        assert self.process.stdout is not None
        with trio.fail_after(START_S):
            while not self.printed.endswith("\n"):
                chunk = await self.process.stdout.receive_some(4096)
                assert chunk, "the server ended before it was ready"
                self.printed += chunk.decode()
        url = self.printed.partition(": ")[2].split()[0].removesuffix("/v1/realtime")
        host, _, port = url.removeprefix("ws://").partition(":")
        return BoundAddress(host, int(port), f"http://{host}:{port}")

    async def stops(self, number: signal.Signals) -> float:
        """Send the signal; the seconds until the process has ended with status 0."""
        began = trio.current_time()
        self.process.send_signal(number)
        with trio.fail_after(STOP_S):
            assert await self.process.wait() == 0
        return trio.current_time() - began
