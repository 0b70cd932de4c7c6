"""Scripted servers for the client's tests: one in memory (virtual clock), one on a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pybase64
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from trio_duplex.client import DuplexClient, DuplexConnectionError, WebSocketTransport

SESSION: dict[str, Any] = {
    "object": "realtime.session",
    "id": "sess_1",
    "state": "open",
    "capabilities": {"supports_session_resume": True, "chunk_period_ms": 1000},
}


def created(seq: int | None = 1, **extra: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"type": "session.created", "incarnation": 0, "attachment_generation": 1}
    event |= {"resume_token": "rt_1", "session": SESSION}
    if seq is not None:
        event["server_event_seq"] = seq
    return event | extra


def delta(response_id: str, pcm: bytes, **extra: Any) -> dict[str, Any]:
    return {
        "type": "response.output_audio.delta",
        "response_id": response_id,
        "item_id": f"item_{response_id}",
        "delta": pybase64.b64encode(pcm).decode(),
        "format": "pcm16",
        "sample_rate_hz": 24000,
    } | extra


def done(response_id: str, status: str = "completed", **extra: Any) -> dict[str, Any]:
    response = {"id": response_id, "status": status}
    return {"type": "response.done", "response_id": response_id, "response": response} | extra


class Peer:
    """The server's end of one connection in memory."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._to_client, self.client_reads = trio.open_memory_channel[str | bytes](100_000)
        self.client_writes, self._from_client = trio.open_memory_channel[str](100_000)
        self.closed_by_client = trio.Event()
        self.broken = False

    def push(self, *events: dict[str, Any] | str | bytes) -> None:
        for event in events:
            self._to_client.send_nowait(json.dumps(event) if isinstance(event, dict) else event)

    async def take(self) -> dict[str, Any]:
        return json.loads(await self._from_client.receive())

    async def take_type(self, kind: str) -> dict[str, Any]:
        """The next message of that type; others on the way are skipped."""
        while True:
            message = await self.take()
            if message["type"] == kind:
                return message

    def taken_now(self) -> list[dict[str, Any]]:
        found = []
        while True:
            try:
                found.append(json.loads(self._from_client.receive_nowait()))
            except (trio.WouldBlock, trio.EndOfChannel):
                return found

    def drop(self) -> None:
        """The connection breaks: no close frame, no further byte either way."""
        self.broken = True
        self._to_client.close()

    async def open(self, **extra: Any) -> dict[str, Any]:
        update = await self.take_type("session.update")
        self.push(created(**extra))
        return update


class MemoryTransport(WebSocketTransport):
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def send(self, text: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.peer.broken or self.peer.closed_by_client.is_set():
            raise DuplexConnectionError("broken pipe")
        self.peer.client_writes.send_nowait(text)

    async def recv(self) -> str | bytes:
        try:
            return await self.peer.client_reads.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise DuplexConnectionError("the peer is gone") from None

    async def close(self) -> None:
        self.peer.closed_by_client.set()
        self.peer.client_reads.close()
        self.peer.client_writes.close()
        await trio.lowlevel.checkpoint()


class MemoryServer:
    """A `connect` factory. `accept()` gives the server's end of each connection in order."""

    def __init__(self) -> None:
        self._made, self._waiting = trio.open_memory_channel[Peer](100)
        self.refuse: list[Exception] = []
        """Exceptions for the next connection attempts, first in first out."""
        self.peers: list[Peer] = []
        self.attempted_at: list[float] = []

    async def connect(self, url: str) -> WebSocketTransport:
        await trio.lowlevel.checkpoint()
        self.attempted_at.append(trio.current_time())
        if self.refuse:
            raise self.refuse.pop(0)
        peer = Peer(url)
        self.peers.append(peer)
        self._made.send_nowait(peer)
        return MemoryTransport(peer)

    async def accept(self) -> Peer:
        return await self._waiting.receive()


def closing(peer: Peer, reason: str = "session_close") -> Callable[[], Awaitable[None]]:
    """A server task that answers `session.close`."""

    async def run() -> None:
        await peer.take_type("session.close")
        peer.push({"type": "session.closed", "session_id": "sess_1", "reason": reason})

    return run


class SocketPeer:
    """The server's end of one real WebSocket."""

    def __init__(self, ws: WebSocketConnection, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.ws = ws
        self.path = path
        self.headers = dict(headers)

    async def push(self, *events: dict[str, Any] | str | bytes) -> None:
        for event in events:
            await self.ws.send_message(json.dumps(event) if isinstance(event, dict) else event)

    async def take(self) -> dict[str, Any]:
        return json.loads(await self.ws.get_message())

    async def take_type(self, kind: str) -> dict[str, Any]:
        while True:
            message = await self.take()
            if message["type"] == kind:
                return message

    async def open(self, **extra: Any) -> dict[str, Any]:
        update = await self.take_type("session.update")
        await self.push(created(**extra))
        return update

    def stream(self) -> trio.SocketStream:
        return self.ws._stream


@asynccontextmanager
async def socket_server(handler: Callable[[SocketPeer], Awaitable[None]]) -> AsyncIterator[str]:
    """A WebSocket server on 127.0.0.1; gives its URL. `handler` runs per connection; the socket closes after it."""

    async def serve(request: WebSocketRequest) -> None:
        ws = await request.accept()
        with suppress(ConnectionClosed):
            await handler(SocketPeer(ws, request.path, request.headers))

    async with trio.open_nursery() as nursery:
        serve_here = partial(serve_websocket, serve, "127.0.0.1", 0, None, max_message_size=2**24, disconnect_timeout=1)
        server = await nursery.start(serve_here)
        yield f"ws://127.0.0.1:{server.port}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def tcp_server(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A plain TCP server that may lie in any way it likes."""

    async def guarded(stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):
                await handler(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, guarded, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def session(**options: Any) -> AsyncIterator[tuple[DuplexClient, Peer, MemoryServer]]:
    """A client with an open session on a scripted server; the test plays the server through the `Peer`.

    Leaving answers `session.close` on whatever connection is the newest.
    """
    server = MemoryServer()
    options = {"model": "m", "heartbeat_interval_s": None, "connect": server.connect} | options

    async def answer_close() -> None:
        with suppress(trio.EndOfChannel, trio.BrokenResourceError):  # the session was over before
            await closing(server.peers[-1])()

    # (a virtual limit, so that a test that waits for nothing fails instead of hanging)
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            client = DuplexClient("ws://host/v1/realtime", **options)

            async def serve() -> None:
                await (await server.accept()).open()

            nursery.start_soon(serve)
            async with client:
                yield client, server.peers[0], server
                if not server.peers[-1].broken:
                    nursery.start_soon(answer_close)
            nursery.cancel_scope.cancel()
