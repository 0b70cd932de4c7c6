"""The server's end is bounded whatever its clients do (cases H3, D4, G6; contract 1.1 close code 1001)."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from wsproto.events import CloseConnection, TextMessage
from wsproto.utilities import LocalProtocolError

from tests.server.server_kit import Recorder, make_app, open_tcp, raw_client, receive_for_ever, send_unreadable
from trio_duplex.server.listener import BoundAddress, ListenerOptions, serve_asgi
from trio_duplex.server.socket import ServerSocket, SocketGone

QUICK = ListenerOptions(grace_s=0.4, unwind_s=0.4)
ROOT = Path(__file__).parents[2]


async def polite(sock: ServerSocket) -> None:
    """Talks back, and says goodbye when the server goes away."""

    async def goodbye() -> None:
        await sock.going_away.wait()
        await sock.send("session.closed")
        await sock.close(1001, "server going away")

    await sock.accept()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(goodbye)
        try:
            while True:
                message = await sock.receive()
                if not sock.going_away.is_set():
                    await sock.send(message)
        except SocketGone:
            nursery.cancel_scope.cancel()


class Server:
    """``serve_asgi`` in a task whose end can be awaited."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.shutdown = trio.Event()
        self.ended = trio.Event()

    async def start(self, app: Any, options: ListenerOptions = QUICK) -> BoundAddress:
        return await self.nursery.start(partial(self._run, app, options))

    async def _run(self, app: Any, options: ListenerOptions, task_status: Any) -> None:
        await serve_asgi(app, options=options, shutdown=self.shutdown, task_status=task_status)
        self.ended.set()

    async def ends_within(self, limit_s: float) -> float:
        began = trio.current_time()
        self.shutdown.set()
        with trio.fail_after(limit_s):
            await self.ended.wait()
        return trio.current_time() - began


async def read_address(stream: trio.abc.ReceiveStream) -> BoundAddress:
    """The line ``host port`` that a server process prints."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = await stream.receive_some(100)
        assert chunk, "the server process ended"
        line += chunk
    host, port = line.decode().split()
    return BoundAddress(host, int(port), f"http://{host}:{port}")


@pytest.fixture
def server(nursery: trio.Nursery) -> Server:
    return Server(nursery)


async def test_with_no_client_the_end_is_immediate(server: Server, quiet: Any) -> None:
    bound = await server.start(make_app())
    await server.ends_within(0.3)
    with pytest.raises(OSError):  # noqa: PT011  (refused: nobody listens)
        await open_tcp(bound)


async def test_an_idle_keep_alive_connection_does_not_hold_it_up(server: Server, quiet: Any) -> None:
    bound = await server.start(make_app())
    async with await open_tcp(bound) as stream:
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 200 ")
        await server.ends_within(0.3)


@pytest.mark.parametrize("talking", [False, True], ids=["idle", "talking"])
async def test_d4_a_client_gets_the_last_event_and_1001(server: Server, quiet: Any, talking: bool) -> None:
    bound = await server.start(make_app(polite=polite), ListenerOptions(grace_s=5))
    async with raw_client(bound, "/polite") as client, trio.open_nursery() as nursery:

        async def talk() -> None:
            try:
                while True:
                    await client.send_text("bla " * 500)
            except (trio.BrokenResourceError, LocalProtocolError):
                return

        if talking:
            nursery.start_soon(talk)
            await client.next_text()
        server.shutdown.set()
        with trio.fail_after(3):
            last = ""
            while isinstance(event := await client.next_event(), TextMessage):
                last = event.data
            assert last == "session.closed"
            assert isinstance(event, CloseConnection)
            assert (event.code, event.reason) == (1001, "server going away")
            nursery.cancel_scope.cancel()
    await server.ends_within(3)


async def test_h3_a_client_that_never_reads_cannot_hold_it_up(server: Server, logs: list[dict[str, Any]]) -> None:
    stuck = Recorder(send_unreadable)
    bound = await server.start(make_app(stuck=stuck, polite=polite))
    async with raw_client(bound, "/stuck", receive_buffer=4096), raw_client(bound, "/polite") as bystander:
        server.shutdown.set()
        with trio.fail_after(2):
            close = await bystander.until_close()
            assert close is not None
            assert close.code == 1001
            await bystander.answer_close(close)
        took = await server.ends_within(2)
    assert took < QUICK.grace_s + QUICK.unwind_s
    assert stuck.gone is not None
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["connections_reset_at_shutdown"]


async def test_an_endpoint_that_ignores_everything_is_cancelled(server: Server) -> None:
    cancelled = trio.Event()

    async def ignorant(sock: ServerSocket) -> None:
        await sock.accept()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    bound = await server.start(make_app(ignorant=ignorant))
    async with raw_client(bound, "/ignorant"):
        await server.ends_within(2)
    assert cancelled.is_set()


async def test_cancelling_the_surrounding_nursery_ends_it_at_once_even_with_a_stalled_client() -> None:
    stuck = Recorder(send_unreadable)
    with trio.fail_after(3):
        async with trio.open_nursery() as outer:
            bound = await outer.start(partial(serve_asgi, make_app(stuck=stuck)))
            async with raw_client(bound, "/stuck", receive_buffer=4096):
                await stuck.started.wait()
                outer.cancel_scope.cancel()
    assert stuck.ended.is_set()
    assert not stuck.completed


async def test_shutdown_while_a_handshake_is_under_way(server: Server) -> None:
    bound = await server.start(make_app(any=Recorder(receive_for_ever)))
    async with await open_tcp(bound) as stream:
        await stream.send_all(b"GET /any HTTP/1.1\r\n")
        await server.ends_within(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_with_status_0_with_both_kinds_of_client(number: signal.Signals) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.server.small_server"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=True, cwd=ROOT))
        try:
            with trio.fail_after(20):
                bound = await read_address(process.stdout)
            async with (
                raw_client(bound, "/stuck", receive_buffer=4096),
                raw_client(bound, "/polite") as polite_client,
            ):
                began = trio.current_time()
                process.send_signal(number)
                with trio.fail_after(5):
                    close = await polite_client.until_close()
                    assert close is not None
                    assert close.code == 1001
                    await polite_client.answer_close(close)
                    assert await process.wait() == 0
                assert trio.current_time() - began < 3
        finally:
            if process.poll() is None:
                process.kill()
