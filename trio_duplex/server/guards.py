"""The guards around hypercorn's HTTP/1.1 and WebSocket layers, one class or function per measured trap.

hypercorn 0.18 is kept for what it does well: HTTP/1.1 through h11, the WebSocket handshake and the ASGI state machine.
The classes here override the few methods in which a badly behaving peer hurt more than its own connection.  Nothing
in hypercorn is patched: other users of hypercorn in the same process keep the stock behaviour.

The TCP level (connection border, writes that can be cancelled, time limits, abort) is in ``tcp.py``.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO, StringIO
from typing import Any, Final, Protocol, cast

import trio
from h11 import Connection as H11Connection
from h11 import Request as H11Request
from hypercorn.events import Event as TransportEvent
from hypercorn.events import RawData
from hypercorn.protocol.events import Body, Data, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WebsocketBuffer, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from trio_duplex.server.frames import TextFrames, text_frames

__all__ = [
    "DROP_QUEUED",
    "SWITCH_INTERVAL_S",
    "WEBSOCKET_MAX_MESSAGE_BYTES",
    "ClientGone",
    "GuardedHttp1",
    "GuardedWebSocket",
    "Link",
    "MessageBuffer",
    "choose_subprotocol",
    "handshake_fault",
    "quicken_thread_switches",
]

WEBSOCKET_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Above the 15 MiB at which a session answers ``event_too_large`` itself (contract 1.2), so that rule can apply."""

SWITCH_INTERVAL_S: Final = 0.0005
"""Interpreter switch interval for a process with a model thread."""

DROP_QUEUED: Final = {"type": "trio_duplex.drop_queued"}
"""Not for the app: whoever feeds it forgets what the app has not received yet, so that the read loop can go on."""


def quicken_thread_switches() -> None:
    """Let waiting threads have the interpreter after 0.5 ms instead of 5 ms; for the command's entry point only.

    Trap: beside a thread busy in Python code a wake-up of the event loop took 5 ms, 45 us with this setting.  It is
    process-wide, so a library must not choose it for its host.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def choose_subprotocol(offered: Sequence[str], supported: Iterable[str]) -> str | None:
    """The first of ``supported`` that the client offered, or None.

    Trap: hypercorn raises in the middle of the handshake when an app picks a sub-protocol that was not offered, and
    browsers drop a connection on which an unasked one is chosen.
    """
    return next((name for name in supported if name in offered), None)


def handshake_fault(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Why this upgrade request must be refused with 400, or None.

    Trap: a non-ASCII byte in ``Sec-WebSocket-Protocol`` or ``-Extensions`` raised UnicodeDecodeError, and a request
    body was taken for early WebSocket data; each ended the whole stock server.
    """
    for name, value in headers:
        name = name.lower()
        if name.startswith(b"sec-websocket-") and not value.isascii():
            return f"{name.decode('ascii')} holds a non-ASCII byte"
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            return "an upgrade request cannot have a body"
    return None


class ClientGone(ConnectionResetError):
    """A send on a WebSocket that has ended (ASGI asks for an OSError here; stock hypercorn says nothing)."""


class Link(Protocol):
    """What the WebSocket layer needs from the TCP connection under it."""

    @property
    def close_wait_s(self) -> float:
        """How long to wait for the peer's answer to our Close frame."""

    def note_upgrading(self) -> None:
        """The request head is complete and asks for a WebSocket."""

    def note_websocket(self, websocket: GuardedWebSocket) -> None:
        """The WebSocket was accepted: no more time limits of the HTTP kind."""

    @property
    def writing(self) -> bool:
        """Whether a write is under way, or waits for its turn."""

    async def until_written(self) -> None:
        """Wait for those. Cancellation: nothing happens."""

    async def write_out(self, data: bytes, timeout_s: float) -> None:
        """Send all of it; a checkpoint only where it has to wait, TooSlowError when that takes too long.

        Cancellation: see ``tcp.Connection.write``.
        """


class MessageBuffer(WebsocketBuffer):
    """Collects one message's pieces and refuses a piece *before* storing it.

    Traps: the stock buffer counts characters of text, not bytes, and writes first and looks afterwards, so a client
    that went on sending one endless message made it grow without bound.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._first: str | bytes | None = None

    def extend(self, event: Message[Any]) -> None:
        """Add a piece; FrameTooLargeError when the message would pass the limit."""
        data = event.data
        size = len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)
        if self.length + size > self.max_length:
            raise FrameTooLargeError
        self.length += size
        if self._first is None:
            self._first = data if isinstance(data, str) else bytes(data)
            return
        if self.value is None:
            # Growing by parts is the rare case; a buffer object keeps many tiny fragments cheap.
            self.value = StringIO() if isinstance(self._first, str) else BytesIO()
            self.value.write(self._first)  # type: ignore[arg-type]
        self.value.write(data)

    def clear(self) -> None:
        """Forget the message."""
        super().clear()
        self._first = None

    def to_message(self) -> dict[str, Any]:
        """The ASGI event for the finished message."""
        whole = self._first if self.value is None else self.value.getvalue()
        is_text = isinstance(whole, str)
        return {
            "type": "websocket.receive",
            "text": whole if is_text else None,
            "bytes": None if is_text else whole,
        }


class GuardedWebSocket(WSStream):
    """hypercorn's WebSocket stream without these traps.

    - *Deflate*: stock hypercorn accepts permessage-deflate whenever it is offered, and 400 KB of it grew the process
      by 197 MB.  Here the offer is not seen, which is a lawful refusal: the connection works uncompressed.
    - *Early data and odd handshakes* (the seven malformed ones): answered with 400 and closed, and the app's late
      ``accept`` becomes a ``ClientGone`` instead of a protocol error.
    - *Refused handshakes* closed nothing: now the TCP connection ends with the refusal.
    - *Close codes*: the app is told the peer's real code and reason, not always 1006.
    - *Protocol errors* (bad UTF-8, reserved bits, unmasked frames) dropped TCP without a Close frame: it is sent now.
    - *Oversized messages*: after 1009 nothing more is stored, the app learns of it at once, and TCP ends.
    - *Close lost to a reset*: closing TCP while the client's audio is still arriving makes the kernel answer with a
      reset, which can destroy the last events.  After a Close frame we read on, bounded, until the peer has answered.
    """

    def __init__(self, *args: Any, link: Link) -> None:
        super().__init__(*args)
        self._link = link
        self.buffer = MessageBuffer(self.config.websocket_max_message_size)
        self._peer_done = trio.Event()
        self._dropping = False
        self._deaf = False
        self._gone: tuple[int, str] | None = None
        self._ping: Ping | None = None
        self._texts = TextFrames(self.config.websocket_max_message_size)
        self._sink: Callable[[str | bytes], None] | None = None

    async def handle(self, event: Event) -> None:
        """Take one protocol event.  Cancellation may leave it half handled: the connection is being torn down."""
        if self.closed:
            return
        if isinstance(event, Request):
            await self._handle_request(event)
        elif isinstance(event, StreamClosed):
            self.closed = True
            self._peer_done.set()
            ended_by_us = self.state in (ASGIWebsocketState.CLOSED, ASGIWebsocketState.HTTPCLOSED)
            await self._tell_app(CloseReason.NORMAL_CLOSURE if ended_by_us else CloseReason.ABNORMAL_CLOSURE, "")
        elif not isinstance(event, (Body, Data)) or self._deaf:
            return
        elif self.handshake.accepted:
            await self.take_bytes(event.data)
        elif event.data:
            await self._refuse(400)

    @property
    def takes_frames(self) -> bool:
        """The handshake is done, the end is not: whatever comes on the connection is frames."""
        return self.state is ASGIWebsocketState.CONNECTED

    def pass_to(self, sink: Callable[[str | bytes], None] | None) -> None:
        """From now on give messages to ``sink`` as they come, instead of to the app's queue; None: to the queue again.

        The queue must be empty. ``sink`` does not raise.
        """
        self._sink = sink

    async def take_bytes(self, data: bytes) -> None:
        """Take frames as they came on the connection. Cancellation: as :meth:`handle`.

        Where several came at once the other tasks have their turn between them: one client's flood costs nobody the
        beat, and a session that takes one message a turn is not overrun (contract 16.3).
        """
        first = True
        for part in self._texts.feed(data):
            if not first:
                await trio.lowlevel.checkpoint()
            first = False
            if self.closed or self._deaf:
                return
            if isinstance(part, bytes):
                self.connection.receive_data(part)
                await self._handle_events()
            elif not self._dropping:
                await self._pass_on(part)

    async def _pass_on(self, message: str | bytes) -> None:
        if self._sink is not None:
            self._sink(message)
            return
        is_text = isinstance(message, str)
        event = {
            "type": "websocket.receive",
            "text": message if is_text else None,
            "bytes": None if is_text else message,
        }
        await cast("Any", self.app_put)(event)

    async def _handle_request(self, event: Request) -> None:
        if handshake_fault(event.headers) is not None:
            await self._refuse(400)
            return
        self._link.note_upgrading()
        visible = [(name, value) for name, value in event.headers if name.lower() != b"sec-websocket-extensions"]
        await super().handle(
            Request(event.stream_id, visible, event.http_version, event.method, event.raw_path, event.state)
        )
        if self.closed:  # hypercorn refused it: 400 or 404 is out, but TCP would stay open
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _refuse(self, status: int) -> None:
        """Answer with a bare HTTP error, unless the app's own answer is under way, and close TCP."""
        self._deaf = True
        if self.state != ASGIWebsocketState.HANDSHAKE:
            return
        self.state = ASGIWebsocketState.HTTPCLOSED
        await self._tell_app(CloseReason.PROTOCOL_ERROR, "bad handshake")
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await self.send(Response(self.stream_id, headers, status))
        await self.send(EndBody(self.stream_id))
        await self.send(StreamClosed(self.stream_id))

    async def _tell_app(self, code: int, reason: str) -> None:
        if self._gone is None:
            self._gone = (int(code), reason)
        if self.app_put is not None:
            await self.app_put({"type": "websocket.disconnect", "code": self._gone[0], "reason": self._gone[1]})

    async def app_send(self, message: Any) -> None:
        """Take one event from the app; None = the app has ended.

        A close returns when the peer has answered, or after ``close_wait_s``.  Raises ClientGone for anything but a
        close once the WebSocket has ended.  Cancellation: see ``tcp.Connection.write``; while waiting for the peer's
        Close frame it simply stops waiting.
        """
        if message is None:
            await self._app_ended()
            return
        kind = message["type"]
        if self.closed or self._gone is not None:
            if kind != "websocket.close":
                raise ClientGone(f"{kind}: the WebSocket has ended")
        elif kind == "websocket.close":
            self._dropping = True
            if self.app_put is not None:
                await self.app_put(DROP_QUEUED)
            await super().app_send(message)
            await self._finish()
        else:
            if kind == "websocket.accept":
                self._link.note_websocket(self)
            await super().app_send(message)
            if kind == "websocket.send":
                self._check_sent()

    async def send_texts(self, payloads: list[bytes], timeout_s: float) -> None:
        """Send text messages, each as its UTF-8 encoding, in one write; a checkpoint only where it has to wait.

        Raises ClientGone, TooSlowError. Cancellation: see ``tcp.Connection.write``.
        """
        if self.closed or self._gone is not None or self.state != ASGIWebsocketState.CONNECTED:
            raise ClientGone("the WebSocket has ended")
        await self._link.write_out(text_frames(payloads), timeout_s)
        self._check_sent()

    def _check_sent(self) -> None:
        if self.closed:
            raise ClientGone("the connection ended during the send")

    async def _app_ended(self) -> None:
        self._dropping = True
        if self.closed:
            return
        if self.state == ASGIWebsocketState.HANDSHAKE:
            await self._send_error_response(500)
        elif self.state == ASGIWebsocketState.CONNECTED:
            await self._send_wsproto_event(CloseConnection(code=CloseReason.INTERNAL_ERROR))
        await self._finish()

    async def _finish(self) -> None:
        """After our last word: wait for the peer's, bounded, and close TCP."""
        if self.handshake.accepted:
            with trio.move_on_after(self._link.close_wait_s):
                await self._peer_done.wait()
        if not self.closed:
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                if self._dropping:
                    continue
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    await self._end_by_fault(CloseReason.MESSAGE_TOO_BIG, "message too big")
                    continue
                if event.message_finished:
                    message = self.buffer.to_message()
                    self.buffer.clear()
                    await self._pass_on(message["bytes"] if message["text"] is None else message["text"])
            elif isinstance(event, Ping):
                await self._answer_ping(event)
            elif isinstance(event, CloseConnection):
                await self._handle_close(event)
                return

    async def _answer_ping(self, ping: Ping) -> None:
        """Trap: a pong that waits behind a slow reader's frame kept what the client said next from being read (24a).

        The newest of the waiting pings is answered when that frame is out, which is enough (RFC 6455, 5.5.3).
        """
        if self._ping is None and not self._link.writing:
            await self._pong(ping)
            return
        if self._ping is None:
            self.task_group.spawn(self._answer_later)
        self._ping = ping

    async def _answer_later(self) -> None:
        """Cancellation: no pong; the connection ends."""
        await self._link.until_written()
        ping, self._ping = self._ping, None
        if ping is not None and not self.closed:
            await self._pong(ping)

    async def _pong(self, ping: Ping) -> None:
        """Without a checkpoint before the write, in which another one could begin. Cancellation: as a write's."""
        with contextlib.suppress(LocalProtocolError):  # our Close frame is out
            await self._link.write_out(self.connection.send(ping.response()), math.inf)

    async def _handle_close(self, event: CloseConnection) -> None:
        state = self.connection.state
        if state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            # wsproto could not parse what came; nothing after it can be trusted.
            self._deaf = True
            await self._end_by_fault(event.code, event.reason or "")
            return
        if self._gone is None:
            self._gone = (int(event.code), event.reason or "")
        if state == ConnectionState.REMOTE_CLOSING:
            await self._send_wsproto_event(event.response())
        self._peer_done.set()
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _end_by_fault(self, code: int, reason: str) -> None:
        """Say why, tell the app, and drop whatever else arrives; the app's end then closes TCP."""
        self._dropping = True
        self.buffer.clear()
        first = self._gone is None and self.state == ASGIWebsocketState.CONNECTED
        self.state = ASGIWebsocketState.CLOSED
        await self._tell_app(code, reason)
        if first:
            await self._send_wsproto_event(CloseConnection(code=code, reason=reason[:60]))


class GuardedHttp1(H11Protocol):
    """hypercorn's HTTP/1.1 protocol, creating ``GuardedWebSocket`` and staying on HTTP/1.1.

    HTTP/2 is not offered: several WebSockets would share one TCP connection, and then one client that stops reading,
    or one ``abort()``, is no longer the affair of one session.  A prior-knowledge HTTP/2 preface gets a 4xx answer
    and an ``Upgrade: h2c`` offer is ignored, both lawful.
    """

    def __init__(self, *args: Any, link: Link, note_request: Callable[[], None]) -> None:
        super().__init__(*args)
        self._link = link
        self._note_request = note_request

    async def handle(self, event: TransportEvent) -> None:
        """Take what came on the connection; frames go to the WebSocket without a way round through h11's shape.

        Cancellation may leave it half handled: the connection is being torn down.
        """
        stream = self.stream
        if isinstance(event, RawData) and isinstance(stream, GuardedWebSocket) and stream.takes_frames:
            await stream.take_bytes(event.data)
            return
        await super().handle(event)

    async def _check_protocol(self, event: H11Request) -> None:
        """Stay on HTTP/1.1 whatever the request asks for."""

    async def _create_stream(self, request: H11Request) -> None:
        self._note_request()
        arguments = (
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        if _asks_for_websocket(request):
            self.stream = GuardedWebSocket(*arguments, link=self._link)
            self.connection = H11WSConnection(cast("H11Connection", self.connection))
        else:
            self.stream = HTTPStream(*arguments)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1


def _asks_for_websocket(request: H11Request) -> bool:
    headers: dict[bytes, bytes] = {}
    for name, value in request.headers:
        headers[name] = headers[name] + b"," + value if name in headers else value
    tokens = {token.strip().lower() for token in headers.get(b"connection", b"").split(b",")}
    upgrade = headers.get(b"upgrade", b"").strip().lower()
    return request.method.upper() == b"GET" and b"upgrade" in tokens and upgrade == b"websocket"
