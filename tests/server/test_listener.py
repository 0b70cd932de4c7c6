"""Binding, the connection cap, TLS, and the lifespan as the listener drives it (issue 2)."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import open_websocket_url

from tests.server.server_kit import converse, make_app, open_tcp, raw_client, read_to_end, upgrade_request
from trio_duplex.server.lifespan import LifespanFailed
from trio_duplex.server.listener import BoundAddress, ListenerOptions, ListenError, PortBusy, serve_asgi

PEM = Path(__file__).parent / "selfsigned_for_tests.pem"


async def test_a_busy_port_is_named_in_one_line(serve: Any) -> None:
    bound = await serve(make_app())
    with pytest.raises(PortBusy) as caught:
        await serve_asgi(make_app(), port=bound.port)
    text = str(caught.value)
    assert f"127.0.0.1:{bound.port}" in text
    assert "\n" not in text
    await converse(bound)


@pytest.mark.parametrize(("host", "names"), [("192.0.2.1", "192.0.2.1:0"), ("no-such-host.invalid", "no-such-host")])
async def test_an_unusable_address_is_named(host: str, names: str) -> None:
    with pytest.raises(ListenError, match=names):
        await serve_asgi(make_app(), host=host)


async def test_the_bound_address_is_the_real_one(serve: Any) -> None:
    bound = await serve(make_app(), host="localhost")
    assert bound.port > 0
    assert bound.url in (f"http://127.0.0.1:{bound.port}", f"http://[::1]:{bound.port}")
    assert bound.ws_url.startswith("ws://")
    await converse(bound)


async def test_accepted_sockets_carry_the_dead_peer_options(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    async def peek(sock: Any) -> None:
        await sock.accept()
        raw = sock._connection._socket
        for name in ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_NODELAY"):
            seen[name] = raw.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        seen["SO_KEEPALIVE"] = raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    options = ListenerOptions(user_timeout_s=3.5, keepalive_idle_s=7, keepalive_interval_s=4, keepalive_count=2)
    bound = await serve(make_app(peek=peek), options=options)
    async with raw_client(bound, "/peek") as client:
        with trio.fail_after(2):
            await client.until_close()
    assert seen == {
        "TCP_USER_TIMEOUT": 3500,
        "TCP_KEEPIDLE": 7,
        "TCP_KEEPINTVL": 4,
        "TCP_KEEPCNT": 2,
        "TCP_NODELAY": 1,
        "SO_KEEPALIVE": 1,
    }


async def test_connections_over_the_cap_are_refused_and_room_is_given_back(
    serve: Any, logs: list[dict[str, Any]]
) -> None:
    bound = await serve(make_app(), options=ListenerOptions(max_connections=2))
    async with raw_client(bound) as first:
        async with raw_client(bound):
            for _ in range(5):
                with trio.fail_after(1):
                    async with await open_tcp(bound) as stream:
                        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 503 ")
            await first.send_text("unaffected")
            with trio.fail_after(1):
                assert await first.next_text() == "unaffected"
        with trio.fail_after(3):
            while True:
                async with await open_tcp(bound) as stream:
                    try:
                        await stream.send_all(upgrade_request())
                        if (await stream.receive_some(4096)).startswith(b"HTTP/1.1 101 "):
                            break
                    except trio.BrokenResourceError:
                        pass
                await trio.sleep(0.01)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["connection_cap_reached"]
    assert warnings[0]["max_connections"] == 2


async def test_tls(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app(), options=ListenerOptions(certfile=PEM, keyfile=PEM))
    assert bound.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(PEM))
    with trio.fail_after(5):
        async with open_websocket_url(bound.ws_url + "/echo", ssl_context=context) as ws:
            await ws.send_message("hidden")
            assert await ws.get_message() == "hidden"
        # A client that speaks plain HTTP to it, or nothing, hurts nobody.
        for rubbish in (b"GET / HTTP/1.1\r\n\r\n", b""):
            async with await open_tcp(bound) as stream:
                await stream.send_all(rubbish)
        async with open_websocket_url(bound.ws_url + "/echo", ssl_context=context) as ws:
            await ws.send_message("again")
            assert await ws.get_message() == "again"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"certfile": PEM}, "key file"),
        ({"certfile": PEM, "keyfile": Path("/nowhere/key.pem")}, "/nowhere/key.pem"),
        ({"certfile": Path(__file__), "keyfile": Path(__file__)}, "test_listener.py"),
    ],
)
async def test_bad_tls_files_are_named(files: dict[str, Path], names: str) -> None:
    with pytest.raises(ListenError, match=names):
        await serve_asgi(make_app(), options=ListenerOptions(**files))


@attrs.define
class Diary:
    """An app's lifespan hooks that write down what happened."""

    lines: list[str] = attrs.field(factory=list)
    fail_startup: bool = False
    crash: trio.Event | None = None

    async def startup(self) -> None:
        self.lines.append("startup")
        if self.fail_startup:
            raise ValueError("the weights are missing")

    async def shutdown(self) -> None:
        self.lines.append("shutdown")

    async def background(self, task_status: trio.TaskStatus[None]) -> None:
        self.lines.append("background begins")
        task_status.started()
        try:
            if self.crash is None:
                await trio.sleep_forever()
            await self.crash.wait()
            raise ZeroDivisionError
        finally:
            self.lines.append("background ends")

    def app(self) -> Any:
        app = make_app()
        app.startup, app.shutdown, app.background = self.startup, self.shutdown, self.background
        return app


async def test_the_lifespan_encloses_all_connections() -> None:
    diary, shutdown = Diary(), trio.Event()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serve_asgi, diary.app(), shutdown=shutdown))
            assert diary.lines == ["startup", "background begins"]
            await converse(bound)
            shutdown.set()
    assert diary.lines == ["startup", "background begins", "shutdown", "background ends"]


async def test_a_failing_startup_is_raised_with_its_own_words_and_frees_the_port() -> None:
    diary = Diary(fail_startup=True)
    started = False

    class Status:
        def started(self, value: BoundAddress) -> None:
            nonlocal started
            started = True

    with pytest.raises(LifespanFailed, match="the weights are missing"):
        await serve_asgi(diary.app(), task_status=Status())  # type: ignore[arg-type]
    assert not started
    assert diary.lines == ["startup"]


async def test_a_crash_in_the_background_ends_the_server() -> None:
    diary = Diary(crash=trio.Event())
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True), trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serve_asgi, diary.app()))
            async with raw_client(bound):
                assert diary.crash is not None
                diary.crash.set()
                await trio.sleep_forever()


async def test_an_app_without_lifespan_is_served(serve: Any) -> None:
    async def tiny(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    bound = await serve(tiny)
    with trio.fail_after(2):
        async with await open_tcp(bound) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 204 ")


async def test_a_shutdown_during_a_long_startup_is_immediate_and_clean() -> None:
    loading, shutdown = trio.Event(), trio.Event()

    async def load_for_ever() -> None:
        loading.set()
        await trio.sleep_forever()

    app = make_app()
    app.startup = load_for_ever
    with trio.fail_after(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_asgi, app, shutdown=shutdown))
            await loading.wait()
            shutdown.set()
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serve_asgi, app, shutdown=shutdown))
        with pytest.raises(OSError):  # noqa: PT011  (refused: it has ended)
            await open_tcp(bound)
