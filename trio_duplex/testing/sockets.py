"""WebSockets in memory, with faults on a schedule: the server's end is a ``SocketLike``, time is Trio's clock.

A :class:`MemoryNetwork` connects clients to one endpoint (an async function of a socket, the same that a listener would
serve). Each connection has its own :class:`Faults`. Messages are whole, as in a WebSocket; a connection that drops at
byte n loses the message that byte n lies in. Everything a client received and sent is kept for the history checker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

import attrs
import orjson
import trio

from duplex_protocol.values import Json
from trio_duplex.client import DuplexConnectionError, WebSocketTransport
from trio_duplex.server.socket import SocketGone, SocketLike

__all__ = ["Faults", "MemoryClientSocket", "MemoryNetwork", "MemoryServerSocket", "MemoryTransport"]

BUFFER_BYTES = 256 * 1024
"""What one direction holds before its sender has to wait, as kernel buffers would."""

FRAME_OVERHEAD_BYTES = 4


@attrs.frozen(kw_only=True)
class Faults:
    """What goes wrong on one connection; byte counts are of message payload, per direction.

    ``drop_sent_at`` / ``drop_received_at``: the connection breaks when the client has sent / was to receive this many
    bytes; the message holding that byte is lost, both sides see 1006. ``stall_received_at``: from this byte on nothing
    reaches the client for ``stall_s`` seconds (``inf``: never again). ``reads_per_s``: the client takes so many bytes
    per second. ``connect_delay_s`` before the server sees the connection. ``twin``: the client's first message also
    arrives on a second connection, at once, as from an impatient retry. ``buffer_bytes``: what a direction holds.
    """

    drop_sent_at: int | None = None
    drop_received_at: int | None = None
    stall_received_at: int | None = None
    stall_s: float = float("inf")
    reads_per_s: float | None = None
    connect_delay_s: float = 0.0
    twin: bool = False
    buffer_bytes: int = BUFFER_BYTES


NO_FAULTS = Faults()


@attrs.define(eq=False)
class _Pipe:
    """One direction of one connection: messages in order, bounded in bytes, ended once for both ends."""

    drop_at: int | None = None
    stall_at: int | None = None
    stall_s: float = float("inf")
    bytes_per_s: float | None = None
    buffer_bytes: int = BUFFER_BYTES
    passed: int = 0
    ended: bool = False
    _queue: deque[str | bytes] = attrs.field(factory=deque)
    _held: int = 0
    _taken: int = 0
    _wakeup: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        """Let everybody look again."""
        self._wakeup.set()
        self._wakeup = trio.Event()

    def end(self) -> None:
        """No more messages; what is queued can still be read."""
        self.ended = True
        self.wake()

    async def put(self, message: str | bytes) -> bool:
        """Queue one message; False when it was lost because the connection broke on it.

        Waits for room. Cancellation: nothing was queued. Raises :class:`trio.BrokenResourceError` after the end.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        size = _size(message)
        while not self.ended and self._held and self._held + size > self.buffer_bytes:
            await self._wakeup.wait()
        if self.ended:
            raise trio.BrokenResourceError
        self.passed += size
        if self.drop_at is not None and self.passed >= self.drop_at:
            self.end()
            return False
        self._queue.append(message)
        self._held += size
        self.wake()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return True

    async def get(self) -> str | bytes:
        """The next message. Raises :class:`trio.EndOfChannel` after the last one. Cancellation loses no message."""
        await trio.lowlevel.checkpoint()
        while not self._queue:
            if self.ended:
                raise trio.EndOfChannel
            await self._wakeup.wait()
        size = _size(self._queue[0])
        if self.stall_at is not None and self._taken + size >= self.stall_at:
            with trio.move_on_after(self.stall_s):
                await self._until_ended()
                raise trio.EndOfChannel
            self.stall_at = None
        if self.bytes_per_s is not None:
            await trio.sleep(size / self.bytes_per_s)
        message = self._queue.popleft()
        self._held -= size
        self._taken += size
        self.wake()
        return message

    async def _until_ended(self) -> None:
        while not self.ended:
            await self._wakeup.wait()


def _size(message: str | bytes) -> int:
    return FRAME_OVERHEAD_BYTES + (len(message.encode()) if isinstance(message, str) else len(message))


@attrs.define(eq=False)
class _Wire:
    """A connection: two pipes and how it ended."""

    to_server: _Pipe
    to_client: _Pipe
    closed: SocketGone | None = None

    def end(self, code: int, reason: str = "") -> None:
        """End both directions; the first end wins."""
        if self.closed is None:
            self.closed = SocketGone(code, reason)
        self.to_server.end()
        self.to_client.end()

    @property
    def gone(self) -> SocketGone:
        """How it ended."""
        return self.closed or SocketGone(1006)


@attrs.define(eq=False)
class MemoryServerSocket:
    """The server's end; implements :class:`trio_duplex.server.socket.SocketLike`."""

    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    subprotocols: Sequence[str]
    going_away: trio.Event
    _wire: _Wire
    client: tuple[str, int] | None = ("memory", 0)
    accepted: trio.Event = attrs.field(factory=trio.Event)
    refused: tuple[int, bytes] | None = None

    async def accept(self, subprotocol: str | None = None) -> str | None:
        """Complete the handshake. Cancellation: it may or may not have been completed."""
        await trio.lowlevel.checkpoint()
        if self._wire.closed is not None:
            raise self._wire.gone
        self.accepted.set()
        return subprotocol if subprotocol in self.subprotocols else None

    async def reject(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Refuse the handshake. Cancellation: it was refused all the same."""
        self.refused = (status, body)
        self._wire.end(1006)
        self.accepted.set()
        await trio.lowlevel.checkpoint()

    async def receive(self) -> str | bytes:
        """The client's next message; :class:`SocketGone` at the end. Cancellation loses no message."""
        try:
            return await self._wire.to_server.get()
        except trio.EndOfChannel:
            raise self._wire.gone from None

    async def send(self, message: str | bytes) -> None:
        """Send one message; waits while the client does not read. Cancellation: nothing was sent."""
        try:
            if not await self._wire.to_client.put(message):
                self._wire.end(1006)
        except trio.BrokenResourceError:
            raise self._wire.gone from None

    async def receive_each(self, take: Callable[[str | bytes], bool]) -> None:
        """Give each message to ``take`` until it returns False. Cancellation loses no message."""
        while take(await self.receive()):
            pass

    async def send_all(self, messages: list[bytes], timeout_s: float) -> None:
        """Send messages one by one; ``trio.TooSlowError`` after ``timeout_s``. Cancellation: some were sent."""
        with trio.fail_after(timeout_s):
            for message in messages:
                await self.send(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close; what was sent before can still be read. Cancellation: closed all the same."""
        self._wire.end(code, reason)
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """End at once."""
        self._wire.end(1006)


@attrs.define(eq=False)
class MemoryClientSocket:
    """The client's end, for tests that speak the wire themselves. ``received`` and ``sent`` keep everything.

    ``number`` counts the connections of the network, from 0. Cancelling ``scope`` kills the server's task.
    """

    number: int
    _wire: _Wire
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    received: list[Json] = attrs.field(factory=list)
    sent: list[Json] = attrs.field(factory=list)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _twin: MemoryClientSocket | None = None

    async def send(self, message: Json | str | bytes) -> None:
        """Send one event (or raw text, or a binary frame).

        Raises :class:`SocketGone` when the connection ended. Cancellation: nothing was sent.
        """
        text = orjson.dumps(message).decode() if isinstance(message, dict) else message
        if self._twin is not None:
            twin, self._twin = self._twin, None
            await twin.send(text)
        try:
            if not await self._wire.to_server.put(text):
                self._wire.end(1006)
        except trio.BrokenResourceError:
            raise self._wire.gone from None
        self.sent.append(orjson.loads(text) if isinstance(message, dict) or _is_json(text) else {"raw": str(text)})

    async def receive_raw(self) -> str | bytes:
        """The next message as sent. Raises :class:`SocketGone` at the end. Cancellation loses no message."""
        try:
            message = await self._wire.to_client.get()
        except trio.EndOfChannel:
            raise self._wire.gone from None
        text = message.decode() if isinstance(message, bytes) else message
        self.received.append(orjson.loads(text))
        self._changed.set()
        self._changed = trio.Event()
        return text

    async def receive(self) -> Json:
        """The next event. Raises and cancels as :meth:`receive_raw`."""
        await self.receive_raw()
        return self.received[-1]

    async def until(self, *kinds: str) -> Json:
        """Read until an event of one of these types; everything read is in ``received``.

        Cancellation loses nothing.
        """
        while True:
            event = await self.receive()
            if event.get("type") in kinds:
                return event

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Leave; the server sees the code. Never blocks."""
        self._wire.end(code, reason)

    def drop(self) -> None:
        """Break the connection without a word: both sides see 1006."""
        self._wire.end(1006)

    @property
    def ended(self) -> SocketGone | None:
        """How the connection ended, None while it lives."""
        return self._wire.closed


def _is_json(text: str | bytes) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


class MemoryTransport(WebSocketTransport):
    """A :class:`MemoryClientSocket` as :class:`trio_duplex.client.DuplexClient` wants it."""

    def __init__(self, socket: MemoryClientSocket) -> None:
        self.socket = socket

    async def send(self, text: str) -> None:
        """See :class:`WebSocketTransport`."""
        try:
            await self.socket.send(text)
        except SocketGone as gone:
            raise DuplexConnectionError(str(gone)) from None

    async def recv(self) -> str | bytes:
        """See :class:`WebSocketTransport`."""
        try:
            return await self.socket.receive_raw()
        except SocketGone as gone:
            raise DuplexConnectionError(str(gone)) from None

    async def close(self) -> None:
        """See :class:`WebSocketTransport`. Cancellation: closed all the same."""
        self.socket.close()
        await trio.lowlevel.checkpoint()

    async def is_alive(self, timeout_s: float) -> bool:
        """True until the connection has ended. Only a checkpoint."""
        await trio.lowlevel.checkpoint()
        return self.socket.ended is None


Endpoint = Callable[[SocketLike], Awaitable[None]]


@attrs.define(eq=False)
class MemoryNetwork:
    """Connects clients in memory to ``endpoint``; each served connection is a task ``connection <n>`` of ``nursery``.

    ``faults`` are those of the first, second, … connection; later ones have none. ``sockets`` keeps every client end.
    """

    endpoint: Endpoint
    nursery: trio.Nursery
    faults: Sequence[Faults] = ()
    sockets: list[MemoryClientSocket] = attrs.field(factory=list)
    going_away: trio.Event = attrs.field(factory=trio.Event)
    serving: int = 0
    opened: int = 0
    _left: trio.Event = attrs.field(factory=trio.Event)

    async def idle(self) -> None:
        """Wait until no connection is served. Cancellation: stops waiting."""
        while self.serving:
            self._left = trio.Event()
            await self._left.wait()

    async def connect(self, url: str = "ws://memory/v1/realtime") -> MemoryClientSocket:
        """Open a connection and complete its handshake.

        Raises :class:`ConnectionRefusedError` with the HTTP status and body when the server refuses. Cancellation: the
        connection is dropped.
        """
        number, self.opened = self.opened, self.opened + 1
        faults = self.faults[number] if number < len(self.faults) else NO_FAULTS
        to_server = _Pipe(drop_at=faults.drop_sent_at, buffer_bytes=faults.buffer_bytes)
        to_client = _Pipe(
            drop_at=faults.drop_received_at,
            stall_at=faults.stall_received_at,
            stall_s=faults.stall_s,
            bytes_per_s=faults.reads_per_s,
            buffer_bytes=faults.buffer_bytes,
        )
        wire = _Wire(to_server, to_client)
        client = MemoryClientSocket(number, wire)
        self.sockets.append(client)
        parts = urlsplit(url)
        server = MemoryServerSocket(
            path=parts.path or "/",
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={},
            subprotocols=("realtime",),
            going_away=self.going_away,
            wire=wire,
        )
        opened = False
        try:
            await trio.sleep(faults.connect_delay_s)
            self.nursery.start_soon(self._serve, server, client.scope, name=f"connection {number}")
            await server.accepted.wait()
            opened = server.refused is None
        finally:
            if not opened:
                wire.end(1006)
        if server.refused is not None:
            raise ConnectionRefusedError(f"HTTP {server.refused[0]}: {server.refused[1].decode(errors='replace')}")
        if faults.twin:
            client._twin = await self.connect(url)
        return client

    def forget(self, kept: Sequence[MemoryClientSocket]) -> None:
        """Keep the records of these connections only: for runs that make very many."""
        self.sockets[:] = kept

    async def transport(self, url: str) -> WebSocketTransport:
        """A new connection for ``DuplexClient(connect=network.transport)``. Raises and cancels as :meth:`connect`."""
        return MemoryTransport(await self.connect(url))

    async def _serve(self, server: MemoryServerSocket, scope: trio.CancelScope) -> None:
        """One connection's task. What the endpoint raises ends the network's nursery: a test wants to know.

        Cancellation: the connection ends with 1006, as when the process dies.
        """
        self.serving += 1
        try:
            with scope:
                await self.endpoint(server)
                await server.close(1000)
        except* SocketGone:
            pass  # the border that a real server has too: the client left
        finally:
            self.serving -= 1
            self._left.set()
            server.abort()
            # A handshake that ended before its answer: nobody is to wait for it.
            server.accepted.set()
