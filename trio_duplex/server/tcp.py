"""One TCP connection of our listener: its exception border, its time limits, its writes, its abrupt end.

This takes the place of hypercorn's ``TCPServer``, whose ``send`` runs inside a shielded cancel scope: one client that
stopped reading made a session, the shutdown and even a cancelled nursery hang for ever.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket as stdlib_socket
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import structlog
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as TransportEvent
from hypercorn.trio.task_group import _handle as run_asgi_app
from hypercorn.typing import ConnectionState as LifespanState
from hypercorn.utils import parse_socket_addr

from trio_duplex.server.guards import DROP_QUEUED, GuardedHttp1, GuardedWebSocket
from trio_duplex.tracebacks import plain_traceback

if TYPE_CHECKING:
    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import AppWrapper

__all__ = ["EXTENSION", "Connection", "TimeLimits", "abort_socket"]

EXTENSION: Final = "trio_duplex"
"""Key in ``scope["extensions"]`` under which an app served by our listener finds its ``Connection``."""

_READ_BYTES: Final = 65536

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class TimeLimits:
    """How long a connection may stay in each stage before it is aborted; seconds."""

    head_s: float = 10.0
    """To complete a request head (TLS handshake included), counted from the connect or from the last response."""
    request_s: float = 30.0
    """From a plain HTTP request's head to the end of its response."""
    upgrade_s: float = 150.0
    """From an upgrade request to the app's accept; a session may wait 120 s there for the model to warm up."""
    send_s: float = 15.0
    """For one write: a peer that takes its bytes by drips is as gone as one that takes none."""
    close_wait_s: float = 2.0
    """For the peer's answer to our Close frame."""


def abort_socket(sock: trio.socket.SocketType) -> None:
    """Reset the connection now, from any trio task, without a checkpoint; tasks blocked on it wake with an error."""
    with contextlib.suppress(OSError):  # already closed
        sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class _AppTasks:
    """What hypercorn's protocol uses to start ASGI apps and to feed them.

    Traps: the stock queue of 10 events is never closed, so (a) the read loop stayed blocked for ever on the full queue
    of an app that had ended, and (b) a disconnect could block behind it.  Here the queue closes from both ends: after
    the app's end events are dropped, and after a disconnect the app drains the queue and then gets the disconnect, as
    often as it asks.
    """

    def __init__(self, nursery: trio.Nursery, connection: Connection) -> None:
        self._nursery = nursery
        self._connection = connection

    def spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        self._nursery.start_soon(function, *args)

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Any,
        send: Callable[[Any], Awaitable[None]],
    ) -> Callable[[Any], Awaitable[None]]:
        """Start ``app``; returns the function that feeds it.

        Cancellation: ``app`` may have begun; the nursery ends it.
        """
        scope["extensions"][EXTENSION] = {"connection": self._connection}
        sender, receiver = trio.open_memory_channel[Any](config.max_app_queue_size)
        self._connection.queued = receiver
        last: dict[str, Any] = {"type": f"{scope['type']}.disconnect"}

        async def receive() -> Any:
            try:
                return await receiver.receive()
            except trio.EndOfChannel:
                return last

        async def app_then_close(*args: Any) -> None:
            with receiver:
                await app(*args)

        async def put(event: Any) -> None:
            if event["type"] == last["type"]:
                last.update(event)
                sender.close()
                return
            if event is DROP_QUEUED:
                with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                    while True:
                        receiver.receive_nowait()
                return
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                try:
                    sender.send_nowait(event)
                except trio.WouldBlock:
                    await sender.send(event)

        self._nursery.start_soon(
            run_asgi_app,
            cast("Any", app_then_close),
            config,
            scope,
            receive,
            send,
            trio.to_thread.run_sync,
            trio.from_thread.run,
        )
        return put


class Connection:
    """An accepted TCP (or TLS) connection and everything that runs for it.

    ``run`` is its whole life; ``abort`` ends it from outside at once.  Seen by apps: ``peer`` (host, port), ``stage``
    and ``going_away``, the event that the listener sets when it begins to shut down.
    """

    def __init__(
        self,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        limits: TimeLimits,
        going_away: trio.Event,
    ) -> None:
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self.peer: tuple[str, int] | None = None
        self.going_away = going_away
        self._stream = stream
        self._socket = transport.socket
        self._limits = limits
        self._scope = trio.CancelScope()
        self._send_lock = trio.Lock()
        self._protocol: GuardedHttp1 | None = None
        self._plain = not isinstance(stream, trio.SSLStream) and os.name == "posix"
        self.websocket: GuardedWebSocket | None = None
        self.queued: trio.MemoryReceiveChannel[Any] | None = None
        """What the app has not received yet."""
        self._sent_bytes = 0
        self._aborted = False
        self._enter_stage("head", limits.head_s)

    # -- what the layers above call -----------------------------------------------------------------------------

    @property
    def close_wait_s(self) -> float:
        """How long to wait for the peer's answer to our Close frame."""
        return self._limits.close_wait_s

    @property
    def idle(self) -> bool:
        """True while no request is in progress."""
        return self.stage == "head"

    @property
    def writing(self) -> bool:
        """Whether a write waits for the peer."""
        return self._send_lock.locked()

    async def until_written(self) -> None:
        """Wait until the writes that are under way are out. Cancellation: nothing happens."""
        async with self._send_lock:
            pass

    def abort(self) -> None:
        """Reset the connection at once.  A running app sees a disconnect; nobody is cancelled.  Idempotent."""
        if not self._aborted:
            self._aborted = True
            abort_socket(self._socket)

    def note_request(self) -> None:
        """A request head is complete."""
        self._enter_stage("request", self._limits.request_s)

    def note_upgrading(self) -> None:
        """The request asks for a WebSocket."""
        self._enter_stage("upgrade", self._limits.upgrade_s)

    def note_websocket(self, websocket: GuardedWebSocket) -> None:
        """The WebSocket was accepted: from here on its session keeps the time."""
        self.websocket = websocket
        self._enter_stage("websocket", float("inf"))

    def _enter_stage(self, stage: str, limit_s: float) -> None:
        self.stage = stage
        self._scope.deadline = trio.current_time() + limit_s

    # -- life ---------------------------------------------------------------------------------------------------

    async def run(self, app: AppWrapper, config: Config, context: WorkerContext, state: dict[str, Any]) -> None:
        """Serve this connection until it ends; nothing but cancellation comes out.

        Trap: seven malformed handshakes raised out of the stock handler and ended the server process with exit
        status 0.  This is the border for each connection: one warning, and the others never notice.

        Cancellation aborts the connection, unless a response was complete.
        """
        try:
            with self._scope:
                await self._serve(app, config, context, state)
            if self._scope.cancelled_caught:
                log.warning("connection_timed_out", stage=self.stage, peer=self.peer)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("connection_broken", stage=self.stage, peer=self.peer)
        except* Exception as errors:  # noqa: BLE001  (border)
            log.warning("connection_failed", stage=self.stage, peer=self.peer, exception=plain_traceback(errors))
            await self._apologise()
        finally:
            # Graceful ends have closed it already; for all others the peer must not wait.
            self.abort()

    async def _serve(self, app: AppWrapper, config: Config, context: WorkerContext, state: dict[str, Any]) -> None:
        self.peer = parse_socket_addr(self._socket.family, self._socket.getpeername())
        server = parse_socket_addr(self._socket.family, self._socket.getsockname())
        tls = isinstance(self._stream, trio.SSLStream)
        if isinstance(self._stream, trio.SSLStream):
            await self._stream.do_handshake()
        async with trio.open_nursery() as nursery:
            self._protocol = GuardedHttp1(
                app,
                config,
                context,
                _AppTasks(nursery, self),
                LifespanState(cast("Any", state)),
                tls,
                self.peer,
                server,
                self._take,
                link=self,
                note_request=self.note_request,
            )
            await self._read(self._protocol)
        await self._finish()

    async def _read(self, protocol: GuardedHttp1) -> None:
        while True:
            try:
                data = await self._receive_some()
            except (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
                break
            if not data:
                break
            await protocol.handle(RawData(data))
        await protocol.handle(Closed())

    async def _receive_some(self) -> bytes:
        """What came, b"" at the end. Cancellation: nothing is lost."""
        if not self._plain:
            return bytes(await self._stream.receive_some(_READ_BYTES))
        # Trio's own way first tries to read, which fails nearly always: a client's next message comes later.
        while self._socket.fileno() >= 0:
            await trio.lowlevel.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._socket.fileno(), _READ_BYTES)
        return b""

    async def _take(self, event: TransportEvent) -> None:
        """The protocol's way out: bytes, the wish to close, or news about idleness."""
        if isinstance(event, RawData):
            await self.write(event.data)
        elif isinstance(event, Closed):
            await self._finish()
            await self._tell_closed()
        elif isinstance(event, Updated) and event.idle:
            self._enter_stage("head", self._limits.head_s)

    async def write(self, data: bytes) -> None:
        """Send all of ``data``; whole writes of several tasks never mix.  A dead peer is reported as closed.

        Cancellation: when nothing of ``data`` was taken yet, nothing is sent and the connection lives; when a part
        is out the frame can never be completed, so the connection is aborted.
        """
        await trio.lowlevel.checkpoint()
        await self.write_out(data)

    async def write_out(self, data: bytes, timeout_s: float = math.inf) -> None:
        """As :meth:`write`, with a checkpoint only where it has to wait for the peer.

        Waits at most ``timeout_s``: then ``trio.TooSlowError``, and the connection is as after a cancellation.
        """
        sent = 0
        if self._plain and not self._send_lock.locked():
            try:
                sent = os.write(self._socket.fileno(), data)
            except BlockingIOError:
                pass
            except OSError:
                await self._tell_closed()
                return
            self._sent_bytes += sent
            if sent == len(data):
                return
            self._send_lock.acquire_nowait()
            with trio.fail_after(timeout_s):
                await self._write_rest(data, sent)
        else:
            with trio.fail_after(timeout_s):
                await self._send_lock.acquire()
                await self._write_rest(data, sent)

    async def _write_rest(self, data: bytes, sent: int) -> None:
        """Send what the kernel did not take at once, and let go of the lock, which the caller has taken."""
        try:
            with trio.move_on_after(self._limits.send_s) as limit:
                await self._write_all(data, sent)
            if not limit.cancelled_caught:
                return
            log.warning("connection_stalled", stage=self.stage, peer=self.peer)
            self.abort()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._send_lock.release()
        await self._tell_closed()

    async def _write_all(self, data: bytes, sent: int) -> None:
        complete = False
        try:
            if isinstance(self._stream, trio.SSLStream):
                sent = 1  # an interrupted TLS record cannot be resumed
                await self._stream.send_all(data)
            else:
                view = memoryview(data)
                while sent < len(data):
                    count = await self._socket.send(view[sent:])
                    sent += count
                    self._sent_bytes += count
            complete = True
        finally:
            if sent and not complete:
                self.abort()

    async def _tell_closed(self) -> None:
        if self._protocol is not None:
            await self._protocol.handle(Closed())

    async def _finish(self) -> None:
        """Close politely what can be closed politely; bounded, because TLS wants to send its goodbye."""
        with (
            trio.move_on_after(self._limits.close_wait_s),
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError),
        ):
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
            await self._stream.aclose()

    async def _apologise(self) -> None:
        """A connection that failed before anything was sent still gets an HTTP answer, if that costs no waiting."""
        if self._sent_bytes or isinstance(self._stream, trio.SSLStream):
            return
        with contextlib.suppress(OSError, trio.ClosedResourceError, trio.BrokenResourceError), trio.move_on_after(1):
            await self._socket.send(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            await self._finish()
