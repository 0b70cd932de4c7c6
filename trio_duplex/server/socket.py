"""One WebSocket as the server's upper layers see it: a small interface, and its ASGI implementation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl

import structlog
import trio

from trio_duplex.server.tcp import EXTENSION, Connection

__all__ = ["ServerSocket", "SocketGone", "SocketLike", "join_headers", "payload_bytes"]

log = structlog.get_logger(__name__)


class SocketGone(Exception):
    """The WebSocket has ended, by either side.

    ``code`` and ``reason``: the Close frame's under our listener (1006 when there was none); always 1006 and no
    reason under stock hypercorn.  Do not read an intention out of them (case R4).
    """

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"WebSocket ended with code {code}")
        self.code = code
        self.reason = reason


@runtime_checkable
class SocketLike(Protocol):
    """What a session's socket task needs; in-memory sockets implement it too."""

    @property
    def path(self) -> str:
        """Decoded path of the request, without the query."""

    @property
    def query(self) -> dict[str, str]:
        """Decoded query parameters; of a repeated name the last value."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers, names in lower case; repeated ones joined by ``", "``."""

    @property
    def subprotocols(self) -> Sequence[str]:
        """Offered sub-protocols, in the client's order."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The peer's host and port."""

    @property
    def going_away(self) -> trio.Event:
        """Set when the server begins to shut down: say goodbye and close with 1001."""

    async def accept(self, subprotocol: str | None = None) -> str | None:
        """Complete the handshake; the sub-protocol is chosen only if it was offered, and returned if so.

        Cancellation: accepted or not, the socket is good for closing only.
        """

    async def reject(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Answer the handshake with an HTTP error instead. Cancellation: the answer may be cut short."""

    async def receive(self) -> str | bytes:
        """The next message; SocketGone at the end, of the peer's or our own making. Cancellation loses no message."""

    async def receive_each(self, take: Callable[[str | bytes], bool]) -> None:
        """Give each message to ``take`` as it comes, until that returns False; SocketGone at the end.

        Cancellation: ``take`` is not called again.
        """

    async def send(self, message: str | bytes) -> None:
        """Send one text message, as str or as UTF-8 bytes; SocketGone when the peer is known to have left.

        Cancellation: it may have gone out or not; then only :meth:`abort` follows.
        """

    async def send_all(self, messages: list[bytes], timeout_s: float) -> None:
        """Send text messages, UTF-8 bytes; a checkpoint only where it has to wait. TooSlowError after ``timeout_s``."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the WebSocket politely: Close frame, and a bounded wait for the peer's.

        Cancellation: the Close frame may not have gone out.
        """

    def abort(self) -> None:
        """End the connection at once, whatever is blocked on it."""


class ServerSocket:
    """A ``SocketLike`` over one ASGI WebSocket connection.

    Somebody must always be in ``receive``: it is the only way to notice that the client left, and after ten unread
    messages the server stops reading, answering pings included.  One task receives; any number may send.

    Served by ``serve_asgi`` the promises below hold.  Under a stock ASGI server ``send`` and ``close`` may block
    without being cancellable (hypercorn shields them), ``abort`` does nothing, and ``going_away`` is never set.
    """

    def __init__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.path: str = scope["path"]
        self.query: dict[str, str] = dict(
            parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, errors="replace")
        )
        self.headers: Mapping[str, str] = MappingProxyType(join_headers(scope["headers"]))
        self.subprotocols: tuple[str, ...] = tuple(scope.get("subprotocols") or ())
        client = scope.get("client")
        self.client: tuple[str, int] | None = (client[0], client[1]) if client else None
        extensions = scope.get("extensions") or {}
        connection = extensions.get(EXTENSION, {}).get("connection")
        self._connection: Connection | None = connection
        self.going_away: trio.Event = connection.going_away if connection is not None else trio.Event()
        self._can_answer = "websocket.http.response" in extensions
        self._receive = receive
        self._send = send
        self._state = "connecting"
        self._gone: SocketGone | None = None
        self._closed_with: tuple[int, str] | None = None
        self._busy = False
        self._waiting: trio.CancelScope | None = None
        self._accepted = False

    @property
    def accepted(self) -> bool:
        """True once the handshake was completed."""
        return self._accepted

    @property
    def answered(self) -> bool:
        """True once the handshake was completed or refused."""
        return self._state != "connecting"

    @property
    def guarded(self) -> bool:
        """True when our own listener serves this connection, so that all promises hold."""
        return self._connection is not None

    async def accept(self, subprotocol: str | None = None) -> str | None:
        """Complete the handshake.

        ``subprotocol`` is chosen only if the client offered it, and returned if it was chosen.  Raises SocketGone
        when the client has left already.  Cancellation: the handshake may or may not have been answered.
        """
        self._expect("connecting")
        await self._await_connect()
        chosen = subprotocol if subprotocol in self.subprotocols else None
        self._state = "open"
        self._accepted = True
        await self._push({"type": "websocket.accept", "subprotocol": chosen})
        return chosen

    async def reject(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Answer the handshake with an HTTP error; the connection closes when the endpoint returns.

        Does nothing when the client has left.  Cancellation: the answer may be cut, the connection then ends.
        """
        self._expect("connecting")
        self._state = "closed"
        try:
            await self._await_connect()
            if not self._can_answer:
                await self._push({"type": "websocket.close", "code": 1008})
                return
            fields = {
                "content-type": content_type,
                "content-length": str(len(body)),
                "connection": "close",
                **headers,
            }
            encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields.items()]
            await self._push({"type": "websocket.http.response.start", "status": status, "headers": encoded})
            await self._push({"type": "websocket.http.response.body", "body": body})
        except SocketGone:
            pass

    async def receive(self) -> str | bytes:
        """The next message: str for a text frame, bytes for a binary one.

        Raises SocketGone when the WebSocket has ended, again at each call.  Cancellation loses no message.
        """
        if self._gone is not None:
            raise self._gone
        if not self._accepted:
            raise RuntimeError("accept the socket first")
        if self._busy:
            raise trio.BusyResourceError("another task is receiving from this socket")
        self._busy = True
        try:
            event = await (self._receive() if self._connection is not None else self._receive_wakeably())
        finally:
            self._busy = False
        if self._gone is not None:  # close() has finished meanwhile
            raise self._gone
        if event["type"] == "websocket.receive":
            text: str | None = event.get("text")
            return event["bytes"] if text is None else text
        raise self._end(event.get("code", 1006), event.get("reason") or "")

    async def receive_each(self, take: Callable[[str | bytes], bool]) -> None:
        """Give each message to ``take``, a plain function, until it returns False; what comes then is not read.

        Under our listener ``take`` is called where the message was read, without another task's turn between. Raises
        what ``take`` raises, and SocketGone when the WebSocket has ended. Cancellation: ``take`` is not called again.
        """
        websocket = self._connection.websocket if self._connection is not None else None
        if websocket is None or self._gone is not None or self._busy:
            while take(await self.receive()):
                pass
            return
        failure: Exception | None = None

        def sink(message: str | bytes) -> None:
            nonlocal failure
            try:
                if take(message):
                    return
            except Exception as error:  # noqa: BLE001  (border of the reading task; the one that waits below raises it)
                failure = error
            websocket.pass_to(_nothing)
            scope.cancel()

        with trio.CancelScope() as scope:
            try:
                for message in self._queued():
                    sink(message)
                    if scope.cancel_called:
                        break
                else:
                    websocket.pass_to(sink)
                await self.receive()
            finally:
                websocket.pass_to(_nothing)
        if failure is not None:
            raise failure

    def _queued(self) -> list[str | bytes]:
        """The messages that were not received yet."""
        found: list[str | bytes] = []
        queue = self._connection.queued if self._connection is not None else None
        if queue is not None:
            with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                while True:
                    event = queue.receive_nowait()
                    found.append(event["bytes"] if event.get("text") is None else event["text"])
        return found

    async def send_all(self, messages: list[bytes], timeout_s: float) -> None:
        """Send text messages, each given as its UTF-8 encoding; under our listener in one write.

        A checkpoint only where it has to wait for the peer, ``timeout_s`` at most: then ``trio.TooSlowError``. Raises
        SocketGone. Cancellation: as :meth:`send`; which of the messages were sent is not known.
        """
        if self._gone is not None:
            raise self._gone
        self._expect("open")
        websocket = self._connection.websocket if self._connection is not None else None
        if websocket is not None:
            try:
                await websocket.send_texts(messages, timeout_s)
            except OSError:
                raise self._end(1006, "") from None
            return
        with trio.fail_after(timeout_s):
            for message in messages:
                await self._push({"type": "websocket.send", "text": message.decode("utf-8")})

    async def send(self, message: str | bytes) -> None:
        """Send one text message; bytes are taken as its UTF-8 encoding and go out without another copy.

        Raises SocketGone once the end is known, here or in ``receive``; sending to a peer that has vanished without
        a trace raises nothing until the kernel gives up.  Cancellation: either nothing was sent and the socket
        lives, or part of the frame was out and the connection is aborted.
        """
        if self._gone is not None:
            raise self._gone
        self._expect("open")
        if isinstance(message, bytes) and self._connection is not None and self._connection.websocket is not None:
            await trio.lowlevel.checkpoint()
            await self.send_all([message], math.inf)
            return
        text = message if isinstance(message, str) else message.decode("utf-8")
        await self._push({"type": "websocket.send", "text": text})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a Close frame with ``code`` and ``reason`` (cut to 123 bytes); nothing if it has ended already.

        Returns when the client has answered, or after the listener's ``close_wait_s``; from then on ``receive``,
        also one that is waiting, raises SocketGone.  What the client still sends is dropped.  Before ``accept`` this
        is a plain 403.  Cancellation: the frame is sent whole, or not at all and the connection ends without.
        """
        if self._closed_with is not None or self._gone is not None:
            return
        self._closed_with = (code, reason)
        self._state = "closed"
        short = reason.encode("utf-8")[:123].decode("utf-8", "ignore")
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": short})
        except OSError:
            log.debug("close_after_end", code=code)
        finally:
            self._end(code, reason)
            if self._waiting is not None:
                self._waiting.cancel()

    def abort(self) -> None:
        """Reset the TCP connection now.  Blocked sends and receives end with SocketGone.

        Without our listener there is no way to do this: it is logged and nothing happens.
        """
        if self._connection is None:
            log.warning("abort_unsupported", reason="not served by serve_asgi", peer=self.client)
            return
        self._connection.abort()

    async def _await_connect(self) -> None:
        event = await self._receive()
        if event["type"] != "websocket.connect":
            raise self._end(event.get("code", 1006), "")

    async def _receive_wakeably(self) -> Any:
        """Receive in a scope that ``close`` can cancel: a stock server goes on waiting for the client's answer."""
        with trio.CancelScope() as self._waiting:
            return await self._receive()
        return None

    async def _push(self, event: dict[str, Any]) -> None:
        try:
            await self._send(event)
        except OSError:
            raise self._end(1006, "") from None

    def _end(self, code: int, reason: str) -> SocketGone:
        if self._gone is None:
            self._gone = SocketGone(*(self._closed_with or (code, reason)))
        self._state = "closed"
        return self._gone

    def _expect(self, state: str) -> None:
        if self._gone is not None:
            raise self._gone
        if self._closed_with is not None:
            raise SocketGone(*self._closed_with)
        if self._state != state:
            raise RuntimeError(f"the socket is {self._state}, not {state}")


def payload_bytes(message: str | bytes) -> int:
    """Size of a message; text that is all ASCII need not be encoded to know it."""
    return len(message) if not isinstance(message, str) or message.isascii() else len(message.encode())


def _nothing(_: str | bytes) -> None:
    """Nobody listens any more."""


def join_headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """ASGI headers as a mapping: names in lower case, repeated ones joined by ``", "``."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
