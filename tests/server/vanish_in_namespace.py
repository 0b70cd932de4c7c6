"""Run inside a network namespace of its own: clients whose address disappears, and one who stays.

Prints one JSON object: seconds from the disappearance to the end of each endpoint.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from functools import partial

import structlog
import trio

from tests.server.server_kit import RawClient, Recorder, converse, make_app, receive_for_ever, upgrade_request
from trio_duplex.server.listener import BoundAddress, ListenerOptions, serve_asgi
from trio_duplex.server.socket import ServerSocket

SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8914, 0x8916, 1
VANISHING = "10.77.0.2"
OPTIONS = ListenerOptions(user_timeout_s=1.5, keepalive_idle_s=1, keepalive_interval_s=1, keepalive_count=2)


def interface(name: str, up: bool, address: str | None = None) -> None:
    """What ``ip`` would do, without needing it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if address is not None:
            packed = struct.pack("16sH2s4s8s", name.encode(), socket.AF_INET, b"", socket.inet_aton(address), b"")
            fcntl.ioctl(sock, SIOCSIFADDR, packed)
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14s", name.encode(), IFF_UP if up else 0, b""))


async def connect_from(bound: BoundAddress, source: str, path: str) -> RawClient:
    sock = trio.socket.socket()
    await sock.bind((source, 0))
    await sock.connect((bound.host, bound.port))
    client = RawClient(trio.SocketStream(sock))
    await client.stream.send_all(upgrade_request(path))
    await client.read_head()
    assert client.status == 101
    return client


async def tick(sock: ServerSocket) -> None:
    """Sends now and then, and listens."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_for_ever, sock)
        while True:
            await sock.send("tick")
            await trio.sleep(0.05)


async def main() -> None:
    interface("lo", up=True)
    interface("lo:1", up=True, address=VANISHING)
    idle, talking = Recorder(receive_for_ever), Recorder(tick)
    took: dict[str, float] = {}

    async def stopwatch(name: str, endpoint: Recorder) -> None:
        await endpoint.ended.wait()
        took[name] = trio.current_time() - began

    with trio.fail_after(30):
        async with trio.open_nursery() as server:
            bound = await server.start(partial(serve_asgi, make_app(idle=idle, talking=talking), options=OPTIONS))
            stays = await connect_from(bound, "127.0.0.1", "/echo")
            one = await connect_from(bound, VANISHING, "/idle")
            two = await connect_from(bound, VANISHING, "/talking")
            await two.next_text()
            interface("lo:1", up=False)
            began = trio.current_time()
            async with trio.open_nursery() as watching:
                watching.start_soon(stopwatch, "idle", idle)
                watching.start_soon(stopwatch, "talking", talking)
                await stays.send_text("still here")
                assert await stays.next_text() == "still here"
                await converse(bound)
            await stays.send_text("still here afterwards")
            assert await stays.next_text() == "still here afterwards"
            for client in (stays, one, two):
                client.reset()
            server.cancel_scope.cancel()
    print(json.dumps(took))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open("/dev/null", "w")))  # noqa: SIM115
    trio.run(main)
