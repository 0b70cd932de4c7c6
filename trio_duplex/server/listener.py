"""The listening socket and the life of the server around it: bind, accept, bounded shutdown."""

from __future__ import annotations

import errno
import math
import socket as stdlib_socket
import ssl
import traceback
from pathlib import Path
from typing import Any, Final, cast

import attrs
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio.worker_context import WorkerContext

from trio_duplex.server.guards import WEBSOCKET_MAX_MESSAGE_BYTES
from trio_duplex.server.lifespan import AsgiApp, Lifespan, LifespanFailed
from trio_duplex.server.tcp import EXTENSION, Connection, TimeLimits, abort_socket

__all__ = ["BoundAddress", "ListenError", "ListenerOptions", "PortBusy", "serve_asgi"]

log = structlog.get_logger(__name__)

_WARNING_PAUSE_S: Final = 10.0
_OVER_CAP: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


class ListenError(Exception):
    """The server cannot listen; the text is one line fit for the user."""


class PortBusy(ListenError):
    """Another process listens on that address."""


@attrs.frozen
class BoundAddress:
    """Where the server really listens; ``port`` is the one the system chose when 0 was asked for."""

    host: str
    port: int
    url: str
    """``http://host:port`` or ``https://host:port``."""

    @property
    def ws_url(self) -> str:
        """The same with the scheme ``ws`` or ``wss``."""
        return "ws" + self.url.removeprefix("http")


@attrs.frozen(kw_only=True)
class ListenerOptions:
    """How the listener treats connections.  Times in seconds."""

    limits: TimeLimits = attrs.field(factory=TimeLimits)
    max_connections: int = 1000
    """Simultaneous TCP connections; one more is answered 503 and closed."""
    backlog: int = 512
    user_timeout_s: float = 10.0
    """TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged, or a zero window shut (Linux)."""
    keepalive_idle_s: int = 5
    keepalive_interval_s: int = 2
    keepalive_count: int = 3
    """An idle connection to a vanished peer ends after about idle + interval * count."""
    grace_s: float = 5.0
    """After the shutdown event: time for apps to say goodbye before their connections are reset."""
    unwind_s: float = 2.0
    """After the reset: time for apps to unwind before they are cancelled."""
    lifespan_stop_s: float = 30.0
    max_message_bytes: int = WEBSOCKET_MAX_MESSAGE_BYTES
    """One WebSocket message; a bigger one is refused with close code 1009."""
    max_head_bytes: int = 16 * 1024
    certfile: Path | None = None
    keyfile: Path | None = None


async def serve_asgi(
    app: AsgiApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    options: ListenerOptions | None = None,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI app over HTTP/1.1 and WebSocket until ``shutdown`` is set.

    ``task_status.started`` gives the BoundAddress once connections are accepted, after the app's lifespan startup.
    With port 0 the system chooses one.  A shutdown during the startup cancels it and is a normal end.

    Shutdown: accepting stops, idle connections close, and every app sees ``going_away`` (the same event) and has
    ``grace_s`` to finish; then the remaining connections are reset, after ``unwind_s`` their apps are cancelled, and
    last the app's lifespan ends.  No client can make this take longer.

    Raises PortBusy or ListenError when the address or the TLS files cannot be used, LifespanFailed when the app
    cannot start, and what the app's lifespan task raises.  Cancellation ends everything at once: connections are
    reset, apps are cancelled, nothing is shielded.
    """
    options = options or ListenerOptions()
    going_away = trio.Event() if shutdown is None else shutdown
    tls = _tls_context(options)
    listening = await _listen(host, port, options)
    bound = _bound_address(listening, tls is not None)
    plain = trio.SocketListener(listening)
    accepted = plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)
    lifespan = Lifespan(app, {EXTENSION: {"going_away": going_away}})
    failure: LifespanFailed | None = None
    ready = False
    async with accepted, trio.open_nursery() as lifespan_nursery:
        failure = await _start_unless(going_away, lifespan_nursery, lifespan)
        if failure is None:
            room = _Room(app, lifespan.state, options, going_away)
            async with trio.open_nursery() as handlers:
                async with trio.open_nursery() as door:
                    door.start_soon(room.admit_all, accepted, handlers)
                    log.info("listening", url=bound.url)
                    task_status.started(bound)
                    ready = True
                    await going_away.wait()
                    door.cancel_scope.cancel()
                await room.empty_within_bounds(handlers)
            await lifespan.stop(options.lifespan_stop_s)
        lifespan_nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    # Shut down before it was ready: whoever waits for the start sees a server that has ended already.
    if not ready:
        task_status.started(bound)


async def _start_unless(going_away: trio.Event, nursery: trio.Nursery, lifespan: Lifespan) -> LifespanFailed | None:
    """Start the app, which may take minutes; a shutdown meanwhile cancels ``nursery``."""
    async with trio.open_nursery() as racing:

        async def give_up() -> None:
            await going_away.wait()
            nursery.cancel_scope.cancel()

        racing.start_soon(give_up)
        failure: LifespanFailed | None = await nursery.start(lifespan.run)
        racing.cancel_scope.cancel()
    return failure


class _Room:
    """The live connections: admits them up to the cap, and empties itself in bounded time."""

    def __init__(self, app: AsgiApp, state: dict[str, Any], options: ListenerOptions, going_away: trio.Event) -> None:
        self._app = ASGIWrapper(cast("Any", app))
        self._state = state
        self._options = options
        self._going_away = going_away
        self._config = _hypercorn_config(options)
        self._context = WorkerContext(None)
        self._live: set[Connection] = set()
        self._silent_until = -math.inf
        self._lot = trio.lowlevel.ParkingLot()

    async def admit_all(
        self,
        listener: trio.SocketListener | trio.SSLListener[trio.SocketStream],
        handlers: trio.Nursery,
    ) -> None:
        """Accept until cancelled; each connection runs in ``handlers``."""
        # trio's loop survives a process that is out of file descriptors: it logs and tries again.
        await trio.serve_listeners(self._handle, [listener], handler_nursery=handlers)

    async def _handle(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        if len(self._live) >= self._options.max_connections:
            await self._turn_away(stream)
            return
        connection = Connection(stream, self._options.limits, self._going_away)
        self._live.add(connection)
        try:
            await connection.run(self._app, self._config, self._context, self._state)
        finally:
            self._live.discard(connection)
            if not self._live:
                self._lot.unpark_all()

    async def _turn_away(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        if trio.current_time() >= self._silent_until:  # not one warning per refused connection
            self._silent_until = trio.current_time() + _WARNING_PAUSE_S
            log.warning("connection_cap_reached", max_connections=self._options.max_connections)
        if isinstance(stream, trio.SocketStream):
            with trio.move_on_after(1):
                try:
                    await stream.send_all(_OVER_CAP)
                    await stream.aclose()
                except trio.BrokenResourceError:
                    pass
        else:
            abort_socket(stream.transport_stream.socket)

    async def empty_within_bounds(self, handlers: trio.Nursery) -> None:
        """Let the connections end, then reset them, then cancel them."""
        await self._context.terminated.set()
        for connection in list(self._live):
            if connection.idle:
                connection.abort()
        if await self._emptied_within(self._options.grace_s):
            return
        log.warning("connections_reset_at_shutdown", count=len(self._live))
        for connection in list(self._live):
            connection.abort()
        if not await self._emptied_within(self._options.unwind_s):
            log.warning("apps_cancelled_at_shutdown", count=len(self._live))
        handlers.cancel_scope.cancel()

    async def _emptied_within(self, limit_s: float) -> bool:
        with trio.move_on_after(limit_s):
            while self._live:
                await self._lot.park()
        return not self._live


async def _listen(host: str, port: int, options: ListenerOptions) -> trio.socket.SocketType:
    where = f"{host}:{port}"
    try:
        candidates = await trio.socket.getaddrinfo(
            host or None, port, type=stdlib_socket.SOCK_STREAM, flags=stdlib_socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {where}: the host name is not known ({error})") from None
    problem: OSError | None = None
    for family, kind, protocol, _, address in candidates:
        sock = trio.socket.socket(family, kind, protocol)
        try:
            _set_options(sock, options)
            await sock.bind(address)
            sock.listen(options.backlog)
        except OSError as error:
            sock.close()
            problem = problem or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    if problem is not None and problem.errno == errno.EADDRINUSE:
        raise PortBusy(
            f"cannot listen on {where}: the port is in use by another program; choose another, or 0 for any free one"
        )
    reason = problem.strerror if problem is not None else "no usable address"
    raise ListenError(f"cannot listen on {where}: {reason}")


def _set_options(sock: trio.socket.SocketType, options: ListenerOptions) -> None:
    """Options of the listening socket are inherited by every accepted one.

    Traps: by default a vanished peer is noticed after about 15 minutes, an idle one never; TCP_USER_TIMEOUT bounds
    unacknowledged bytes and a shut window, keepalive bounds silence.
    """
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
    sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_USER_TIMEOUT": int(options.user_timeout_s * 1000),
        "TCP_KEEPIDLE": options.keepalive_idle_s,
        "TCP_KEEPINTVL": options.keepalive_interval_s,
        "TCP_KEEPCNT": options.keepalive_count,
    }
    for name, value in wanted.items():
        if hasattr(stdlib_socket, name):  # not every system has all four
            sock.setsockopt(stdlib_socket.IPPROTO_TCP, getattr(stdlib_socket, name), value)


def _bound_address(sock: trio.socket.SocketType, tls: bool) -> BoundAddress:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return BoundAddress(host, port, f"{'https' if tls else 'http'}://{shown}:{port}")


def _tls_context(options: ListenerOptions) -> ssl.SSLContext | None:
    if options.certfile is None and options.keyfile is None:
        return None
    if options.certfile is None or options.keyfile is None:
        raise ListenError("TLS needs both a certificate file and a key file")
    for path in (options.certfile, options.keyfile):
        if not path.is_file():
            raise ListenError(f"TLS file {path} does not exist")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(options.certfile, options.keyfile)
    except ssl.SSLError as error:
        raise ListenError(f"TLS files {options.certfile}, {options.keyfile}: {error.reason or error}") from None
    return context


class _StructuredLogger(Logger):
    """hypercorn's few log lines (an app that raised, mostly), as structured ones."""

    async def access(self, *args: Any) -> None:
        """No access log: request lines may carry keys. There is no checkpoint."""

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:
        """An app raised through its ASGI border. There is no checkpoint."""
        log.error("asgi_app_failed", note=message, exception=traceback.format_exc())


def _hypercorn_config(options: ListenerOptions) -> Config:
    config = Config()
    config.errorlog = None
    config.accesslog = None
    config.logger_class = _StructuredLogger
    config.include_server_header = False
    config.websocket_max_message_size = options.max_message_bytes
    config.h11_max_incomplete_size = options.max_head_bytes
    return config
