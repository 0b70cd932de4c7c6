"""The ASGI app: routes, the border around each endpoint, health, lifespan.  No conversation rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import orjson
import structlog
import trio

from trio_duplex.server.socket import ServerSocket, SocketGone, join_headers
from trio_duplex.server.tcp import EXTENSION
from trio_duplex.tracebacks import plain_traceback

__all__ = ["DuplexApp", "Endpoint", "HttpReply", "Refusal", "Visitor", "json_reply"]

Endpoint = Callable[[ServerSocket], Awaitable[None]]
Health = Callable[[], tuple[bool, Mapping[str, Any]]]
Page = Callable[[], "HttpReply"]
Post = Callable[[bytes, "Visitor"], "HttpReply"]

MAX_BODY_BYTES: Final = 64 * 1024
BODY_TIMEOUT_S: Final = 10.0

LOST_PROMISES: Final = (
    "a malformed handshake ends the whole process",
    "a client that stops reading blocks its session and the shutdown without limit",
    "a vanished peer is noticed after minutes, if at all",
    "permessage-deflate is accepted, and expands without limit",
    "there is no cap on connections and no time limit for slow handshakes",
    "apps are not told of a shutdown, so clients get no clean close",
    "close codes and reasons of clients are lost",
)
"""What a server loses when the app runs without ``serve_asgi`` (measured on hypercorn 0.18)."""

log = structlog.get_logger(__name__)


@attrs.frozen
class HttpReply:
    """One whole HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=dict)


class Visitor(Protocol):
    """What is known of a client before it is let in; a :class:`ServerSocket` is one."""

    @property
    def path(self) -> str:
        """Decoded path, without the query."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers, names in lower case."""

    @property
    def subprotocols(self) -> Sequence[str]:
        """Offered WebSocket sub-protocols."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The peer's host and port; None when it has none (a Unix socket)."""


@attrs.frozen
class _PageVisitor:
    path: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    client: tuple[str, int] | None
    subprotocols: Sequence[str] = ()


@attrs.frozen
class Refusal:
    """Why a client may not open a WebSocket or read a page: an HTTP status and a body that says what is missing."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = attrs.field(factory=dict)


def json_reply(status: int, value: object, headers: Mapping[str, str] | None = None) -> HttpReply:
    """``value`` as a JSON response."""
    return HttpReply(status, orjson.dumps(value), "application/json", headers or {})


def _error_body(code: str, message: str, **more: object) -> bytes:
    return orjson.dumps({"error": {"type": "invalid_request_error", "code": code, "message": message, **more}})


def _page_visitor(scope: Any) -> _PageVisitor:
    client = scope.get("client")
    return _PageVisitor(scope["path"], join_headers(scope["headers"]), (client[0], client[1]) if client else None)


def _no_models() -> object:
    return {"object": "list", "data": []}


async def _nothing() -> None:
    pass


@attrs.define(eq=False, kw_only=True)
class DuplexApp:
    """An ASGI app made of WebSocket endpoints and a few HTTP pages.

    - ``sockets``: path -> endpoint.  An endpoint gets the socket before ``accept`` and owns it until it returns; its
      crash is logged here, closes that socket with 1011, and hurts nobody else.
    - ``health``: (healthy, detail) for ``GET /health``: 200 or 503.
    - ``models``: the JSON of ``GET /v1/models``.
    - ``metrics``: the text of ``GET /metrics`` (Prometheus format); without it the path is unknown.
    - ``pages``: further GET paths. ``posts``: POST paths; each gets the body (at most 64 KiB, within ten seconds).
    - ``authorize``: asked before every upgrade of a known path, and before every page but ``/health``; a Refusal is
      sent as the HTTP answer.
    - ``startup``, ``shutdown``: awaited at the two ends of the lifespan.
    - ``background``: started (as by ``nursery.start``) after ``startup`` and cancelled after ``shutdown``; what must
      outlive connections lives there.  Its crash ends the server, and makes ``/health`` 503 under a stock server.
    - ``companion``: a measurement that runs beside it, for as long as the lifespan.
    """

    sockets: Mapping[str, Endpoint]
    health: Health
    models: Callable[[], object] = _no_models
    metrics: Callable[[], str] | None = None
    pages: Mapping[str, Page] = attrs.field(factory=dict)
    posts: Mapping[str, Post] = attrs.field(factory=dict)
    authorize: Callable[[Visitor], Refusal | None] | None = None
    startup: Callable[[], Awaitable[None]] = _nothing
    shutdown: Callable[[], Awaitable[None]] = _nothing
    background: Callable[..., Awaitable[None]] | None = None
    companion: Callable[[], Awaitable[None]] | None = None
    _warned: bool = attrs.field(default=False, init=False)
    _background_dead: bool = attrs.field(default=False, init=False)

    async def __call__(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """The ASGI entry.  Cancellation ends the endpoint or the lifespan it is running."""
        self._warn_if_bare(scope)
        kind = scope["type"]
        if kind == "websocket":
            await self._serve_socket(ServerSocket(scope, receive, send))
        elif kind == "http":
            await self._serve_http(scope, receive, send)
        elif kind == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            raise ValueError(f"unknown ASGI scope type {kind!r}")

    def _warn_if_bare(self, scope: Any) -> None:
        if not self._warned and EXTENSION not in (scope.get("extensions") or {}):
            self._warned = True
            log.warning("bare_asgi", lost=LOST_PROMISES, cure="start the server with trio-duplex serve or serve()")

    # -- WebSocket ----------------------------------------------------------------------------------------------

    async def _serve_socket(self, socket: ServerSocket) -> None:
        """Border: whatever an endpoint raises ends here, with its socket."""
        try:
            endpoint = self.sockets.get(socket.path)
            if endpoint is None:
                message = f"no WebSocket at {socket.path}; there is one at: {', '.join(sorted(self.sockets))}"
                await socket.reject(404, _error_body("unknown_path", message, paths=sorted(self.sockets)))
                return
            refusal = self.authorize(socket) if self.authorize is not None else None
            if refusal is not None:
                body = _error_body(refusal.code, refusal.message)
                await socket.reject(refusal.status, body, headers=refusal.headers)
                return
            if self._background_dead:
                await socket.reject(503, _error_body("unavailable", "the server's background task has ended"))
                return
            await endpoint(socket)
            await socket.close(1000)
        except* SocketGone:
            log.debug("client_gone", path=socket.path, peer=socket.client)
        except* Exception as errors:  # noqa: BLE001  (border)
            log.error("endpoint_crashed", path=socket.path, peer=socket.client, exception=plain_traceback(errors))
            await self._close_after_crash(socket)

    async def _close_after_crash(self, socket: ServerSocket) -> None:
        if socket.accepted:
            await socket.close(1011, "internal error")
        elif not socket.answered:
            await socket.reject(500, _error_body("internal_error", "the server failed before the upgrade"))

    # -- HTTP ---------------------------------------------------------------------------------------------------

    async def _serve_http(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        try:
            if scope["path"] in self.posts:
                reply = await self._post_reply(scope, receive)
            else:
                reply = self._reply(scope)
        except Exception as error:  # noqa: BLE001  (border)
            log.error("page_crashed", path=scope["path"], exception=plain_traceback(error))
            reply = HttpReply(500, _error_body("internal_error", "this page failed"))
        fields = {"content-type": reply.content_type, "content-length": str(len(reply.body)), **reply.headers}
        headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _reply(self, scope: Any) -> HttpReply:
        method, path = scope["method"], scope["path"]
        page = self._page(path)
        if page is None:
            if path in self.sockets:
                body = _error_body("upgrade_required", f"{path} speaks WebSocket; connect with ws:// or wss://")
                return HttpReply(426, body, headers={"upgrade": "websocket", "connection": "upgrade"})
            return HttpReply(404, _error_body("unknown_path", f"nothing at {path}", paths=self._paths()))
        if method not in ("GET", "HEAD"):
            body = _error_body("method_not_allowed", f"{path} answers GET only")
            return HttpReply(405, body, headers={"allow": "GET, HEAD"})
        if path != "/health" and (refused := self._refused(_page_visitor(scope))) is not None:
            return refused
        return page()

    def _refused(self, visitor: Visitor) -> HttpReply | None:
        refusal = self.authorize(visitor) if self.authorize is not None else None
        if refusal is None:
            return None
        return HttpReply(refusal.status, _error_body(refusal.code, refusal.message), headers=dict(refusal.headers))

    async def _post_reply(self, scope: Any, receive: Callable[[], Awaitable[Any]]) -> HttpReply:
        """Who asks is checked before a byte of the body is waited for. Cancellation: the request is dropped."""
        path, visitor = scope["path"], _page_visitor(scope)
        if scope["method"] != "POST":
            return HttpReply(
                405, _error_body("method_not_allowed", f"{path} answers POST only"), headers={"allow": "POST"}
            )
        refused = self._refused(visitor)
        if refused is not None:
            return attrs.evolve(refused, headers={**refused.headers, "connection": "close"})
        body = b""
        with trio.move_on_after(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    break
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    message_text = f"the body may have {MAX_BODY_BYTES} bytes"
                    return HttpReply(413, _error_body("body_too_large", message_text), headers={"connection": "close"})
                if not message.get("more_body", False):
                    return self.posts[path](body, visitor)
        return HttpReply(408, _error_body("body_timeout", "the body did not come"), headers={"connection": "close"})

    def _page(self, path: str) -> Page | None:
        if path == "/health":
            return self._health_page
        if path == "/v1/models":
            return lambda: json_reply(200, self.models())
        if path == "/metrics" and self.metrics is not None:
            return self._metrics_page
        return self.pages.get(path)

    def _paths(self) -> list[str]:
        known = {"/health", "/v1/models", *self.pages, *self.posts, *self.sockets}
        return sorted(known | {"/metrics"} if self.metrics is not None else known)

    def _health_page(self) -> HttpReply:
        healthy, detail = self.health()
        healthy = healthy and not self._background_dead
        return json_reply(200 if healthy else 503, {"healthy": healthy, **detail})

    def _metrics_page(self) -> HttpReply:
        text = self.metrics() if self.metrics is not None else ""
        return HttpReply(200, text.encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")

    # -- lifespan -----------------------------------------------------------------------------------------------

    async def _serve_lifespan(
        self,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        await receive()
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await self.startup()
                if self.companion is not None:
                    nursery.start_soon(self.companion)
                if self.background is not None:
                    await nursery.start(self._run_background, self.background)
            except Exception as error:  # noqa: BLE001  (border: ASGI wants a message, not an exception)
                failure = error
                nursery.cancel_scope.cancel()
            else:
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await self.shutdown()
                nursery.cancel_scope.cancel()
        if failure is None:
            await send({"type": "lifespan.shutdown.complete"})
        else:
            log.debug("startup_failed", exception=plain_traceback(failure))
            await send({"type": "lifespan.startup.failed", "message": str(failure) or type(failure).__name__})

    async def _run_background(
        self, background: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[Any]
    ) -> None:
        try:
            await background(task_status=task_status)
        finally:
            # Ended or crashed: either way no endpoint can be served any more.
            self._background_dead = True
