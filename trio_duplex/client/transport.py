"""How the client reaches a server: an abstract text-frame transport, and the WebSocket one (contract 21.1).

A transport that is not a WebSocket (an in-memory channel, say) implements `WebSocketTransport` and comes in through
`DuplexClient(connect=...)`, an async function from URL to transport.
"""

from __future__ import annotations

import abc
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import attrs
import h11
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, WebSocketConnection, wrap_client_stream
from wsproto.utilities import ProtocolError

from .errors import DuplexConnectionError, unwrapped

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message taken from a server (contract 1.2); the library's default of 1 MiB is too small for audio."""

RECEIVE_BUFFER_BYTES = 65_536
"""The library's 4 KiB reads more than double the cost of a 30 KB frame."""

CLOSE_TIMEOUT_S = 1.0
"""How long the closing handshake may take before the socket is simply closed."""

PEER_TIMEOUT_S = 15.0
"""Kernel-level limit for a peer that has vanished: how long sent data or probes may stay unacknowledged. Less than the
30 s for which a server keeps a detached session, so that a resume still finds it."""

_REFUSAL_BODY_CHARS = 500

_BROKEN = (ConnectionClosed, ProtocolError, h11.ProtocolError, OSError, trio.BrokenResourceError)
"""What the library lets out when the connection or the peer's grammar is broken (h11's from answering non-HTTP)."""


class WebSocketTransport(abc.ABC):
    """An ordered, reliable pipe of text frames. All methods may be called from several tasks."""

    @abc.abstractmethod
    async def send(self, text: str) -> None:
        """Send one frame, whole or not at all, also when cancelled. DuplexConnectionError when it cannot."""

    @abc.abstractmethod
    async def recv(self) -> str | bytes:
        """The next frame. DuplexConnectionError once the connection is gone. Cancellation loses no frame."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close within bounded time, whatever the peer does. Idempotent; raises nothing for a dead connection.

        Cancellation ends the waiting only; the connection is closed all the same.
        """

    async def is_alive(self, timeout_s: float) -> bool:
        """Whether the peer gives a sign of life within `timeout_s`. True where that cannot be asked.

        Cancellation: nothing is known; no frame is lost.
        """
        await trio.lowlevel.checkpoint()
        return True


ConnectFactory = Callable[[str], Awaitable[WebSocketTransport]]
"""An async function from URL to a connected transport, for `DuplexClient(connect=...)`."""

TRANSPORT_FAILURES = (
    DuplexConnectionError,
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.EndOfChannel,
)
"""What a transport may raise to say that the connection is gone."""


@attrs.frozen
class WebSocketConnector:
    """Settings of the WebSocket transport, for `DuplexClient(connect=WebSocketConnector(headers=...))`.

    `headers` go with the upgrade request (`Authorization: Bearer ...`); `ssl_context` replaces the default one.
    `close_timeout_s` bounds the closing handshake. `peer_timeout_s` is how long the network may swallow everything
    before the connection counts as lost (and is resumed); where the system has no such option its default holds.
    """

    headers: Mapping[str, str] = attrs.field(factory=dict, repr=lambda headers: repr(sorted(headers)))  # no secrets
    """Sent with the upgrade request."""
    ssl_context: ssl.SSLContext | None = None
    """Replaces the default context of `wss://`."""
    close_timeout_s: float = CLOSE_TIMEOUT_S
    """Bound of the closing handshake."""
    peer_timeout_s: float = PEER_TIMEOUT_S
    """Silence of the network after which the connection counts as lost."""

    def prepare(self, url: str) -> TrioWebSocketTransport:
        """A transport that is not connected yet; ValueError for a URL that is not ws:// or wss://."""
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"not a WebSocket URL: {url!r}")
        return TrioWebSocketTransport(url, self)


class TrioWebSocketTransport(WebSocketTransport):
    """A WebSocket whose tasks live in a nursery of the caller's.

    One task owns the connection and does all writing, so that a cancelled `send` cannot leave half a frame on the
    wire. Once connected, that task is shielded: it ends by `close()`, which the owner must call on every way out.
    In exchange a cancelled owner can still say goodbye to the server in a short shielded scope of its own.
    """

    def __init__(self, url: str, connector: WebSocketConnector) -> None:
        self._url = url
        self._connector = connector
        self._ws: WebSocketConnection | None = None
        self._outbox, self._to_write = trio.open_memory_channel[_Outgoing](0)
        self._closing = trio.CancelScope()
        self._closed = trio.Event()
        self._abort = False
        self.frames_received = 0

    async def connect(self, nursery: trio.Nursery) -> None:
        """Connect and upgrade, with tasks in `nursery`.

        Raises DuplexConnectionError if the server cannot be reached or refuses (status and body are named). There is
        no time limit of its own. Cancellation leaves no socket and no task.
        """
        try:
            await nursery.start(self._run)
        except ConnectionRejected as refused:
            raise DuplexConnectionError(_describe_refusal(refused)) from None
        except (HandshakeError, *_BROKEN) as error:
            raise DuplexConnectionError(f"cannot connect to {self._url}: {_describe(error)}") from error

    async def send(self, text: str) -> None:
        outgoing = _Outgoing(text)
        try:
            await self._outbox.send(outgoing)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise DuplexConnectionError(self._gone()) from None
        await outgoing.done.wait()
        if not outgoing.sent:
            raise DuplexConnectionError(self._gone())

    async def recv(self) -> str | bytes:
        ws = self._ws
        if ws is None:
            raise DuplexConnectionError("not connected")
        try:
            message = await ws.get_message()
        except ConnectionClosed:
            raise DuplexConnectionError(self._gone()) from None
        self.frames_received += 1
        return message

    async def close(self) -> None:
        """Say goodbye, wait at most `close_timeout_s` for the answer, then close the socket.

        Cancellation only ends the waiting; the connection is closed all the same.
        """
        self._closing.cancel()
        if self._ws is not None:
            await self._closed.wait()
        else:
            await trio.lowlevel.checkpoint()

    async def is_alive(self, timeout_s: float) -> bool:
        """Ping; a pong or any other frame within `timeout_s` counts. A peer found dead is not waited for by close."""
        ws = self._ws
        if ws is None or ws.closed is not None:
            return False
        before = self.frames_received
        with trio.move_on_after(timeout_s) as scope:
            try:
                await ws.ping()
            except (ConnectionClosed, ProtocolError):
                return False
        alive = not scope.cancelled_caught or self.frames_received != before
        if not alive:
            self._abort = True
        return alive

    def _gone(self) -> str:
        reason = None if self._ws is None else self._ws.closed
        if reason is None:
            return "the WebSocket is closed"
        text = f" {reason.reason}" if reason.reason else ""
        return f"WebSocket closed with code {reason.code}{text}"

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        """The owning task. Before `started` it is cancelled like any other, afterwards only `close` ends it."""
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        tcp = await trio.open_tcp_stream(host, port)
        stream = _HandshakeStream(tcp)
        try:
            _notice_vanished_peer(tcp, self._connector.peer_timeout_s)
            if parts.scheme == "wss":
                await stream.start_tls(self._connector.ssl_context or ssl.create_default_context(), host)
            with unwrapped(), trio.CancelScope() as life:
                async with trio.open_nursery() as nursery:
                    self._ws = await wrap_client_stream(
                        nursery,
                        cast(trio.SocketStream, stream),  # the library takes any stream, its annotation only two
                        _host_header(host, parts.port),
                        _resource(self._url),
                        extra_headers=[
                            (name.encode("ascii"), value.encode("utf-8"))
                            for name, value in self._connector.headers.items()
                        ],
                        max_message_size=MAX_MESSAGE_BYTES,
                        receive_buffer_size=RECEIVE_BUFFER_BYTES,
                    )
                    stream.established = True
                    task_status.started()
                    # If the starter was cancelled just now, `started` handed nothing over and this ends us here.
                    await trio.lowlevel.checkpoint()
                    life.shield = True
                    await self._serve(self._ws)
                    nursery.cancel_scope.cancel()
        except _BROKEN:
            # The library's reader died of a broken connection; `recv` and `send` report that.
            if not stream.established:
                raise
        finally:
            self._outbox.close()
            self._to_write.close()
            with trio.CancelScope(shield=True):
                # Does not wait for the peer: a checkpoint at most.
                await trio.aclose_forcefully(stream)
            self._closed.set()

    async def _serve(self, ws: WebSocketConnection) -> None:
        """Write until `close` is called, then do the closing handshake within its time limit."""
        with self._closing:
            await self._write(ws)
            # The connection broke. Refuse further sends at once, but stay until the owner closes us.
            self._to_write.close()
            await trio.sleep_forever()
        self._to_write.close()
        with trio.move_on_after(0 if self._abort else self._connector.close_timeout_s):
            await ws.aclose()

    async def _write(self, ws: WebSocketConnection) -> None:
        """Write what `send` hands over until the connection breaks."""
        async for outgoing in self._to_write:
            try:
                await ws.send_message(outgoing.text)
                outgoing.sent = True
            except (ConnectionClosed, ProtocolError):
                return
            finally:
                outgoing.done.set()


@attrs.define(eq=False)
class _Outgoing:
    text: str
    done: trio.Event = attrs.field(factory=trio.Event)
    sent: bool = False


class _HandshakeStream(trio.abc.Stream):
    """Passes everything through, but makes a failure before the end of the upgrade an error of its own.

    Left alone, the library ends its reader in these cases and waits for an answer that can no longer come.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._tcp = stream
        self._stream: trio.abc.Stream = stream
        self.established = False

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """BrokenResourceError if the server's certificate or protocol does not please.

        Cancellation: the handshake is half done; the stream is good for closing only.
        """
        tls = trio.SSLStream(self._tcp, context, server_hostname=host, https_compatible=True)
        self._stream = tls
        await tls.do_handshake()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream's; HandshakeError before the answer. Cancellation: how much was sent is unknown."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            if self.established:
                raise
            raise HandshakeError("the connection broke while the upgrade request was sent") from error

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream's. Cancellation: only ends the waiting."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the stream's; HandshakeError before the answer. Cancellation loses nothing."""
        # (`established` may become true while this waits)
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            if self.established:
                raise
            # The library itself closes the stream when what it reads is not HTTP.
            raise HandshakeError("the connection broke, or the answer to the upgrade request is not HTTP") from error
        if not data and not self.established:
            raise HandshakeError("the server closed the connection without answering the upgrade request")
        return data

    async def aclose(self) -> None:
        """As the stream's. Cancellation: closed all the same, without a goodbye."""
        await self._stream.aclose()


def _notice_vanished_peer(stream: trio.SocketStream, timeout_s: float) -> None:
    """Have the kernel break a connection to a peer that is gone without a word, idle or not."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        probe_s = max(1, round(timeout_s / 3))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(timeout_s * 1000)))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _host_header(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _resource(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _describe(error: BaseException) -> str:
    """The first message along the chain of causes (trio's own wrapper of a TLS failure has none)."""
    found: BaseException | None = error
    while found is not None:
        if str(found):
            return str(found)
        found = found.__cause__
    return type(error).__name__


def _describe_refusal(refused: ConnectionRejected) -> str:
    body = (refused.body or b"").decode("utf-8", "replace").strip()
    shown = f": {body[:_REFUSAL_BODY_CHARS]}" if body else ""
    return f"the server refused the WebSocket handshake with HTTP {refused.status_code}{shown}"
