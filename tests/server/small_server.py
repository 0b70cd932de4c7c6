"""A server process for the signal tests: prints its address, ends on SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from functools import partial

import structlog
import trio

from tests.server.server_kit import Recorder, make_app, send_unreadable
from tests.server.test_shutdown import QUICK, polite
from trio_duplex.server.guards import quicken_thread_switches
from trio_duplex.server.listener import serve_asgi


async def main() -> None:
    shutdown = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            app = make_app(stuck=Recorder(send_unreadable), polite=polite)
            bound = await nursery.start(partial(serve_asgi, app, options=QUICK, shutdown=shutdown))
            print(bound.host, bound.port, flush=True)
            async for _ in signals:
                break
            shutdown.set()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open("/dev/null", "w")))  # noqa: SIM115
    quicken_thread_switches()
    trio.run(main)
