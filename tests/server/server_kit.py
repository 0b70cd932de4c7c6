"""Helpers of the server tests: endpoints, and clients that speak WebSocket byte by byte."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio_websocket import open_websocket_url
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Event, Ping, TextMessage

from trio_duplex.server.app import DuplexApp
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.socket import ServerSocket, SocketGone

UNREADABLE = 16 * 1024 * 1024
"""Bytes of one message that no kernel buffer can swallow: sending it to a client that never reads must block."""


def upgrade_request(path: str = "/echo", headers: bytes = b"", method: bytes = b"GET") -> bytes:
    """The bytes of a WebSocket handshake, with more header lines put in."""
    key = base64.b64encode(os.urandom(16))
    return (
        method + b" " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n" + headers + b"\r\n"
    )


def masked_frame(payload: bytes, opcode: int = 1, fin: bool = True) -> bytes:
    """One client frame."""
    head = bytes(((0x80 if fin else 0) | opcode,))
    if len(payload) < 126:
        head += bytes((0x80 | len(payload),))
    elif len(payload) < 65536:
        head += b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        head += b"\xff" + len(payload).to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


@attrs.define
class RawClient:
    """A WebSocket client that does exactly what it is told, and reads only when asked."""

    stream: trio.SocketStream
    head: bytes = b""
    after_head: bytes = b""
    ws: Connection = attrs.field(factory=lambda: Connection(ConnectionType.CLIENT))
    events: list[Event] = attrs.field(factory=list)

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode()
        return None

    async def read_head(self) -> None:
        buffer = b""
        while b"\r\n\r\n" not in buffer:
            chunk = await self.stream.receive_some(4096)
            assert chunk, f"closed in the response head: {buffer!r}"
            buffer += chunk
        self.head, _, self.after_head = buffer.partition(b"\r\n\r\n")
        if self.status == 101:
            self.ws.receive_data(self.after_head)

    async def send_text(self, text: str) -> None:
        await self.stream.send_all(self.ws.send(TextMessage(data=text)))

    async def next_event(self) -> Event | None:
        """The next WebSocket event; None when TCP has ended."""
        while not self.events:
            if self.ws.state is ConnectionState.CLOSED:
                return None
            self.events += self.ws.events()
            if self.events:
                break
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.ws.receive_data(data)
        return self.events.pop(0)

    async def next_text(self) -> str:
        """The next whole text message."""
        parts: list[str] = []
        while True:
            event = await self.next_event()
            assert isinstance(event, TextMessage), event
            parts.append(event.data)
            if event.message_finished:
                return "".join(parts)

    async def until_close(self) -> CloseConnection | None:
        """Read and drop messages until the Close frame (returned) or the end of TCP (None)."""
        while True:
            event = await self.next_event()
            if event is None or isinstance(event, CloseConnection):
                return event

    async def ping(self) -> None:
        await self.stream.send_all(self.ws.send(Ping(b"p")))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self.stream.send_all(self.ws.send(CloseConnection(code=code, reason=reason)))

    async def answer_close(self, event: CloseConnection) -> None:
        await self.stream.send_all(self.ws.send(event.response()))

    async def rest(self) -> bytes:
        """Everything until TCP ends, by FIN or by reset."""
        return await read_to_end(self.stream)

    def reset(self) -> None:
        """End TCP with an RST."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything until TCP ends, by FIN or by reset."""
    received = b""
    try:
        while chunk := await stream.receive_some(65536):
            received += chunk
    except trio.BrokenResourceError:
        pass
    return received


async def open_tcp(bound: BoundAddress, receive_buffer: int | None = None) -> trio.SocketStream:
    """A plain TCP connection, with a small receive buffer if wanted."""
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await sock.connect((bound.host, bound.port))
    except OSError:
        sock.close()
        raise
    return trio.SocketStream(sock)


@asynccontextmanager
async def raw_client(
    bound: BoundAddress, path: str = "/echo", headers: bytes = b"", receive_buffer: int | None = None
) -> AsyncIterator[RawClient]:
    """A RawClient after its handshake (look at ``status``)."""
    async with await open_tcp(bound, receive_buffer) as stream:
        client = RawClient(stream)
        await stream.send_all(upgrade_request(path, headers))
        await client.read_head()
        yield client


async def converse(bound: BoundAddress, path: str = "/echo", times: int = 3) -> None:
    """A normal client, in a normal conversation with the echo endpoint."""
    with trio.fail_after(5):
        async with open_websocket_url(bound.ws_url + path) as ws:
            for number in range(times):
                await ws.send_message(f"hello {number}")
                assert await ws.get_message() == f"hello {number}"


async def echo(sock: ServerSocket) -> None:
    """Say back whatever comes."""
    await sock.accept("realtime")
    while True:
        message = await sock.receive()
        await sock.send(message if isinstance(message, str) else f"{len(message)} bytes")


@attrs.define(eq=False)
class Recorder:
    """An endpoint that accepts, then runs ``body``; remembers how it ended."""

    body: object
    socket: ServerSocket | None = None
    started: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    gone: SocketGone | None = None
    completed: bool = False

    async def __call__(self, sock: ServerSocket) -> None:
        self.socket = sock
        await sock.accept()
        self.started.set()
        try:
            await self.body(sock)  # type: ignore[operator]
            self.completed = True
        except SocketGone as gone:
            self.gone = gone
            raise
        finally:
            self.ended.set()


async def send_unreadable(sock: ServerSocket) -> None:
    """Send more than a client that never reads can take."""
    await sock.send(b"x" * UNREADABLE)


async def receive_for_ever(sock: ServerSocket) -> None:
    while True:
        await sock.receive()


def make_app(**sockets: object) -> DuplexApp:
    """An app with ``/echo`` and the given endpoints."""
    routes = {"/echo": echo, **{f"/{name}": endpoint for name, endpoint in sockets.items()}}
    return DuplexApp(sockets=routes, health=lambda: (True, {"model": "none"}))  # type: ignore[arg-type]
