"""Bad and odd handshakes hurt only the connection they come on (cases H1, H7, D6, U1; environment 2.2)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.server.server_kit import converse, make_app, masked_frame, open_tcp, raw_client, read_to_end, upgrade_request
from trio_duplex.server.app import Refusal
from trio_duplex.server.guards import GuardedHttp1, choose_subprotocol
from trio_duplex.server.listener import ListenerOptions
from trio_duplex.server.socket import ServerSocket
from trio_duplex.server.tcp import TimeLimits

MALFORMED = {
    "stray byte": upgrade_request() + b"x",
    "early frame": upgrade_request() + masked_frame(b"too early"),
    "request twice": upgrade_request() + upgrade_request(),
    "body": upgrade_request(headers=b"Content-Length: 5\r\n") + b"hello",
    "chunked": upgrade_request(headers=b"Transfer-Encoding: chunked\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
    "non-ASCII sub-protocol": upgrade_request(headers=b"Sec-WebSocket-Protocol: caf\xe9\r\n"),
    "non-ASCII extension": upgrade_request(headers=b"Sec-WebSocket-Extensions: caf\xe9\r\n"),
}

ODD = {
    "HTTP/1.0": upgrade_request().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no key": upgrade_request().replace(b"Sec-WebSocket-Key", b"X-Key"),
    "version 8": upgrade_request().replace(b"Version: 13", b"Version: 8"),
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "huge head": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bad percent path": upgrade_request("/%ff%00%"),
}


@pytest.mark.parametrize("name", [*MALFORMED, *ODD])
async def test_h1_h7_malformed_handshake_hurts_only_itself(serve: Any, quiet: Any, name: str) -> None:
    bound = await serve(make_app())
    request = {**MALFORMED, **ODD}[name]
    async with raw_client(bound) as bystander:
        with trio.fail_after(3):
            async with await open_tcp(bound) as stream:
                await stream.send_all(request)
                answer = await read_to_end(stream)
        if name in MALFORMED:
            assert answer.startswith(b"HTTP/1.1 400 ")
        assert b" 101 " not in answer.split(b"\r\n")[0]
        await bystander.send_text("still here")
        with trio.fail_after(3):
            assert await bystander.next_text() == "still here"
    await converse(bound)


async def test_every_cut_of_a_handshake_hurts_only_itself(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app())
    request = upgrade_request() + masked_frame(b"hello")
    for cut in range(0, len(request), 7):
        async with await open_tcp(bound) as stream:
            await stream.send_all(request[:cut])
    await converse(bound)


async def test_an_exception_in_the_protocol_layer_ends_one_connection_with_one_warning(
    serve: Any, logs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GuardedHttp1._create_stream

    async def sometimes_broken(self: GuardedHttp1, request: Any) -> None:
        if request.target == b"/broken":
            raise ValueError("a fault nobody foresaw")
        await original(self, request)

    monkeypatch.setattr(GuardedHttp1, "_create_stream", sometimes_broken)
    bound = await serve(make_app())
    with trio.fail_after(3):
        async with await open_tcp(bound) as stream:
            await stream.send_all(upgrade_request("/broken"))
            assert (await read_to_end(stream)).startswith(b"HTTP/1.1 400 ")
    await converse(bound)
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["connection_failed"]


async def test_a_head_that_drips_is_cut_off(serve: Any, logs: list[dict[str, Any]]) -> None:
    bound = await serve(make_app(), options=ListenerOptions(limits=TimeLimits(head_s=0.3)))
    with trio.fail_after(3):
        async with await open_tcp(bound) as stream:
            try:
                await stream.send_all(b"GET /echo HTTP/1.1\r\n")
                while True:
                    await stream.send_all(b"X: y\r\n")
                    await trio.sleep(0.02)
            except trio.BrokenResourceError:
                pass
    await converse(bound)
    assert [(e["event"], e["stage"]) for e in logs if e["log_level"] == "warning"] == [("connection_timed_out", "head")]


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["silent", "after a response"])
async def test_a_connection_that_never_upgrades_is_closed(serve: Any, first: bytes) -> None:
    bound = await serve(make_app(), options=ListenerOptions(limits=TimeLimits(head_s=0.3)))
    with trio.fail_after(3):
        async with await open_tcp(bound) as stream:
            if first:
                await stream.send_all(first)
            answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 200 ") if first else answer == b""


async def test_a_page_nobody_reads_is_given_up(serve: Any) -> None:
    app = make_app()
    app.metrics = lambda: "m" * 30_000_000
    bound = await serve(app, options=ListenerOptions(limits=TimeLimits(request_s=0.3)))
    with trio.fail_after(5):
        async with await open_tcp(bound, receive_buffer=4096) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            # A later byte can only be refused once the server has reset the connection.
            try:
                while True:
                    await stream.send_all(b"\r\n")
                    await trio.sleep(0.02)
            except trio.BrokenResourceError:
                pass
    await converse(bound)


async def test_d6_an_endpoint_that_never_accepts_is_bounded(serve: Any) -> None:
    ended = trio.Event()

    async def undecided(sock: ServerSocket) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    bound = await serve(make_app(undecided=undecided), options=ListenerOptions(limits=TimeLimits(upgrade_s=0.3)))
    with trio.fail_after(3):
        async with await open_tcp(bound) as stream:
            await stream.send_all(upgrade_request("/undecided"))
            assert await read_to_end(stream) == b""
        await ended.wait()


async def test_deflate_is_refused_and_the_connection_works(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app())
    offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    async with raw_client(bound, headers=offer) as client:
        assert client.status == 101
        assert client.header("sec-websocket-extensions") is None
        await client.send_text("plain" * 1000)
        with trio.fail_after(3):
            assert await client.next_text() == "plain" * 1000


@pytest.mark.parametrize(
    ("offer", "chosen"),
    [
        (b"", None),
        (b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.k\r\n", "realtime"),
        (b"Sec-WebSocket-Protocol: other\r\n", None),
        (b"Sec-WebSocket-Protocol: other\r\nSec-WebSocket-Protocol: realtime\r\n", "realtime"),
    ],
)
async def test_only_an_offered_sub_protocol_is_chosen(serve: Any, quiet: Any, offer: bytes, chosen: str | None) -> None:
    bound = await serve(make_app())
    async with raw_client(bound, headers=offer) as client:
        assert client.status == 101
        assert client.header("sec-websocket-protocol") == chosen


def test_choose_subprotocol_prefers_our_order_and_never_invents() -> None:
    assert choose_subprotocol(["b", "a"], ["a", "b"]) == "a"
    assert choose_subprotocol(["c"], ["a", "b"]) is None
    assert choose_subprotocol([], ["a"]) is None


async def test_a_refused_client_gets_status_and_body_and_tcp_ends(serve: Any, quiet: Any) -> None:
    reached = False

    async def guarded(sock: ServerSocket) -> None:
        nonlocal reached
        reached = True

    def authorize(sock: ServerSocket) -> Refusal | None:
        if sock.headers.get("authorization") == "Bearer right":
            return None
        return Refusal(401, "missing_key", "send Authorization: Bearer <key>", {"www-authenticate": "Bearer"})

    app = make_app(guarded=guarded)
    app.authorize = authorize
    bound = await serve(app)
    for headers in (b"", b"Authorization: Bearer wrong\r\n"):
        with trio.fail_after(1):
            async with raw_client(bound, "/guarded", headers) as client:
                body = client.after_head + await client.rest()
        assert client.status == 401
        assert client.header("www-authenticate") == "Bearer"
        assert b'"code":"missing_key"' in body
        assert b"Authorization: Bearer" in body
    assert not reached
    async with raw_client(bound, "/echo", b"Authorization: Bearer right\r\n") as client:
        assert client.status == 101


async def test_an_unknown_path_says_which_paths_there_are(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app())
    with trio.fail_after(1):
        async with await open_tcp(bound) as stream:
            await stream.send_all(upgrade_request("/v1/realtim"))
            answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"/echo" in answer
    assert b"/v1/realtim;" in answer


async def test_d6_tcp_ends_within_a_second_of_a_refused_handshake_even_if_the_client_stays(serve: Any) -> None:
    bound = await serve(make_app())
    for request in (upgrade_request("/nowhere"), ODD["no key"], MALFORMED["body"]):
        async with await open_tcp(bound) as stream:
            await stream.send_all(request)
            with trio.fail_after(1):
                await read_to_end(stream)
