"""Routes, borders and health of the ASGI app (cases D1, H6, L2, U4; issue 2)."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
import structlog
import trio

from tests.server.server_kit import Recorder, converse, make_app, raw_client, receive_for_ever
from trio_duplex.server.app import HttpReply
from trio_duplex.server.socket import ServerSocket, SocketGone


async def fetch(bound: Any, path: str, method: str = "GET") -> httpx.Response:
    with trio.fail_after(5):
        async with httpx.AsyncClient(base_url=bound.url) as client:
            return await client.request(method, path)


async def test_health_is_200_or_503_with_its_detail(serve: Any, quiet: Any) -> None:
    healthy = True
    app = make_app()
    app.health = lambda: (healthy, {"sessions": 3})
    bound = await serve(app)
    reply = await fetch(bound, "/health")
    assert (reply.status_code, reply.json()) == (200, {"healthy": True, "sessions": 3})
    healthy = False
    reply = await fetch(bound, "/health")
    assert (reply.status_code, reply.json()) == (503, {"healthy": False, "sessions": 3})


async def test_models_metrics_and_further_pages(serve: Any, quiet: Any) -> None:
    app = make_app()
    app.models = lambda: {"object": "list", "data": [{"id": "demo"}]}
    app.metrics = lambda: "up 1\n"
    app.pages = {"/": lambda: HttpReply(200, b"<p>talk</p>", "text/html")}
    bound = await serve(app)
    assert (await fetch(bound, "/v1/models")).json()["data"] == [{"id": "demo"}]
    metrics = await fetch(bound, "/metrics")
    assert metrics.text == "up 1\n"
    assert metrics.headers["content-type"].startswith("text/plain")
    assert (await fetch(bound, "/")).headers["content-type"] == "text/html"
    head = await fetch(bound, "/health", "HEAD")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_path"),
        ("GET", "/metrics", 404, "unknown_path"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/echo", 426, "upgrade_required"),
    ],
)
async def test_wrong_requests_are_told_what_is_wrong(
    serve: Any, quiet: Any, method: str, path: str, status: int, code: str
) -> None:
    bound = await serve(make_app())
    reply = await fetch(bound, path, method)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["code"] == code
    assert path in error["message"]
    if status == 405:
        assert reply.headers["allow"] == "GET, HEAD"


async def test_a_page_that_crashes_is_a_500_and_the_server_lives(serve: Any, logs: list[dict[str, Any]]) -> None:
    app = make_app()
    app.models = lambda: 1 / 0
    bound = await serve(app)
    reply = await fetch(bound, "/v1/models")
    assert reply.status_code == 500
    assert b"ZeroDivision" not in reply.content
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["page_crashed"]
    await converse(bound)


async def test_h6_a_crashing_endpoint_closes_its_socket_with_1011_and_hurts_nobody(
    serve: Any, logs: list[dict[str, Any]]
) -> None:
    async def crash(sock: ServerSocket) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_for_ever, sock)
            await sock.send("so far so good")
            raise KeyError("a bug")

    bound = await serve(make_app(crash=Recorder(crash)))
    async with raw_client(bound) as bystander:
        async with raw_client(bound, "/crash") as client:
            with trio.fail_after(3):
                assert await client.next_text() == "so far so good"
                close = await client.until_close()
                assert close is not None
                assert close.code == 1011
                await client.answer_close(close)
                assert await client.rest() == b""
        await bystander.send_text("unharmed")
        with trio.fail_after(3):
            assert await bystander.next_text() == "unharmed"
    crashes = [entry for entry in logs if entry["log_level"] in ("error", "warning")]
    assert [entry["event"] for entry in crashes] == ["endpoint_crashed"]
    assert "KeyError: 'a bug'" in crashes[0]["exception"]


async def test_no_local_variable_of_a_crashed_endpoint_is_printed(
    serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def crash(sock: ServerSocket) -> None:
        spoken = await sock.receive()
        raise KeyError(f"{len(spoken)} characters")

    before = structlog.get_config()
    structlog.reset_defaults()  # a host application that never configured logging
    try:
        bound = await serve(make_app(crash=Recorder(crash)))
        async with raw_client(bound, "/crash", b"Authorization: Bearer sesame\r\n") as client:
            await client.send_text("a private matter")
            with trio.fail_after(3):
                await client.until_close()
    finally:
        structlog.configure(**before)
    printed = capsys.readouterr().out
    assert "16 characters" in printed
    assert "raise KeyError" in printed
    assert "sesame" not in printed
    assert "private" not in printed


async def test_a_crash_before_the_accept_is_an_http_500(serve: Any, logs: list[dict[str, Any]]) -> None:
    async def crash(sock: ServerSocket) -> None:
        raise ValueError("before the upgrade")

    bound = await serve(make_app(crash=crash))
    with trio.fail_after(2):
        async with raw_client(bound, "/crash") as client:
            assert client.status == 500
            body = client.after_head + await client.rest()
    assert orjson.loads(body)["error"]["code"] == "internal_error"
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["endpoint_crashed"]


async def test_an_endpoint_that_returns_closes_with_1000(serve: Any, quiet: Any) -> None:
    async def brief(sock: ServerSocket) -> None:
        await sock.accept()
        await sock.send("bye")

    bound = await serve(make_app(brief=brief))
    async with raw_client(bound, "/brief") as client:
        with trio.fail_after(2):
            assert await client.next_text() == "bye"
            close = await client.until_close()
    assert close is not None
    assert close.code == 1000


async def test_socket_gone_in_a_nursery_is_no_crash(serve: Any, quiet: Any) -> None:
    async def two_tasks(sock: ServerSocket) -> None:
        await sock.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_for_ever, sock)

    bound = await serve(make_app(two=two_tasks))
    async with raw_client(bound, "/two") as client:
        await client.close()
        with trio.fail_after(2):
            await client.until_close()
    await converse(bound)


async def test_what_an_endpoint_sees_of_the_request(serve: Any, quiet: Any) -> None:
    seen: dict[str, Any] = {}

    async def look(sock: ServerSocket) -> None:
        seen.update(path=sock.path, query=sock.query, headers=dict(sock.headers), client=sock.client)
        seen.update(subprotocols=tuple(sock.subprotocols), guarded=sock.guarded)
        await sock.accept()

    app = make_app()
    app.sockets = {**app.sockets, "/v1/réal time": look}
    bound = await serve(app)
    path = "/v1/r%C3%A9al%20time?model=a%2Bb&duplex=&x=1&x=2&bad=%FF"
    extra = b"X-Thing: one\r\nX-Thing: two\r\nSec-WebSocket-Protocol: realtime, key.1\r\n"
    async with raw_client(bound, path, extra) as client:
        assert client.status == 101
        local = client.stream.socket.getsockname()
    assert seen["path"] == "/v1/réal time"
    assert seen["query"] == {"model": "a+b", "duplex": "", "x": "2", "bad": "\ufffd"}
    assert seen["headers"]["x-thing"] == "one, two"
    assert seen["subprotocols"] == ("realtime", "key.1")
    assert seen["client"] == local
    assert seen["guarded"] is True


class FakeAsgi:
    """A scope and the two callables of an ASGI server that knows nothing of us (stock hypercorn's manners)."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.scope = {"type": "websocket", "path": "/x", "headers": [], "query_string": b"", "extensions": {}}
        self.sent: list[dict[str, Any]] = []
        self._in, self._out = trio.open_memory_channel[dict[str, Any]](100)
        for event in ({"type": "websocket.connect"}, *events):
            self._in.send_nowait(event)

    async def receive(self) -> dict[str, Any]:
        return await self._out.receive()

    async def send(self, event: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(event)  # swallowed without error even after the client has gone

    def socket(self) -> ServerSocket:
        return ServerSocket(self.scope, self.receive, self.send)

    def done(self) -> None:
        self._in.close()
        self._out.close()


async def test_on_a_stock_server_sends_fail_once_the_disconnect_was_seen(logs: list[dict[str, Any]]) -> None:
    asgi = FakeAsgi({"type": "websocket.receive", "text": "hi"}, {"type": "websocket.disconnect", "code": 1006})
    sock = asgi.socket()
    await sock.accept()
    await sock.send(b"caf\xc3\xa9")
    assert asgi.sent[-1] == {"type": "websocket.send", "text": "café"}
    assert await sock.receive() == "hi"
    for _ in range(2):
        with pytest.raises(SocketGone) as gone:
            await sock.receive()
        assert gone.value.code == 1006
    with pytest.raises(SocketGone):
        await sock.send("into the void")
    await sock.close()
    assert len(asgi.sent) == 2
    sock.abort()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["abort_unsupported"]
    asgi.done()


async def test_on_a_stock_server_close_wakes_the_receiver(autojump_clock: trio.testing.MockClock) -> None:
    asgi = FakeAsgi()
    sock = asgi.socket()
    await sock.accept()
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:

            async def receiver() -> None:
                with pytest.raises(SocketGone) as gone:
                    await sock.receive()
                assert (gone.value.code, gone.value.reason) == (4001, "enough")

            nursery.start_soon(receiver)
            await trio.testing.wait_all_tasks_blocked()
            await sock.close(4001, "enough")
    assert asgi.sent[-1] == {"type": "websocket.close", "code": 4001, "reason": "enough"}
    with pytest.raises(SocketGone):
        await sock.send("late")
    asgi.done()


async def test_a_cancelled_receive_loses_nothing_and_only_one_task_may_receive() -> None:
    asgi = FakeAsgi()
    sock = asgi.socket()
    await sock.accept()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sock.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await sock.receive()
        nursery.cancel_scope.cancel()
    asgi._in.send_nowait({"type": "websocket.receive", "text": "kept"})
    assert await sock.receive() == "kept"
    asgi.done()


async def test_a_long_close_reason_is_cut_at_a_character() -> None:
    asgi = FakeAsgi()
    sock = asgi.socket()
    await sock.accept()
    await sock.close(1000, "é" * 100)
    assert asgi.sent[-1]["reason"] == "é" * 61
    asgi.done()


async def test_the_socket_is_used_in_order() -> None:
    asgi = FakeAsgi()
    sock = asgi.socket()
    with pytest.raises(RuntimeError):
        await sock.receive()
    with pytest.raises(RuntimeError):
        await sock.send("too early")
    await sock.accept()
    with pytest.raises(RuntimeError):
        await sock.accept()
    with pytest.raises(RuntimeError):
        await sock.reject(400, b"")
    asgi.done()
