"""The WebSocket transport against honest, dead and lying servers on 127.0.0.1 (real clock)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed, serve_websocket

from tests.client.client_kit import SocketPeer, created, delta, done, socket_server, tcp_server
from trio_duplex.client import (
    DuplexClient,
    DuplexConnectionError,
    DuplexProtocolError,
    DuplexSessionClosedError,
    ReconnectPolicy,
    WebSocketConnector,
)

pytestmark = pytest.mark.realtime

LIMIT_S = 10


def open_sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


@pytest.fixture
async def nothing_left():
    """No socket and no task beyond those of before."""
    sockets, tasks = open_sockets(), trio.lowlevel.current_statistics().tasks_living
    yield
    with trio.fail_after(5):
        # Nothing signals the end of a socket.
        while open_sockets() > sockets or trio.lowlevel.current_statistics().tasks_living > tasks:  # noqa: ASYNC110
            await trio.sleep(0.005)


async def upgrade(stream: trio.SocketStream) -> None:
    """Answer the upgrade request by hand, so that the test owns every byte after it."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some(65536)
    key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
    digest = hashlib.sha1(key.split(b":")[1].strip() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    accept = base64.b64encode(digest)
    await stream.send_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def text_frame(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 65536
    head = struct.pack("!BB", 0x81, len(data)) if len(data) < 126 else struct.pack("!BBH", 0x81, 126, len(data))
    return head + data


def created_frame() -> bytes:
    return text_frame(json.dumps(created()))


async def drain(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass


async def test_conversation_over_a_socket(nothing_left):
    async def serve(peer):
        assert peer.path == "/v1/realtime?duplex=1&model=m&autostart=0"
        assert peer.headers[b"authorization"] == b"Bearer key"
        await peer.open()
        await peer.take_type("input_audio_buffer.append")
        big = bytes(300_000)
        await peer.push(delta("r1", big, server_event_seq=2), done("r1", server_event_seq=3))
        acked, closed = 0, False
        while acked != 3 or not closed:
            message = await peer.take()
            acked = message.get("server_event_seq", acked)
            closed = closed or message["type"] == "session.close"
        await peer.push({"type": "session.closed", "reason": "session_close"})

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url:
            connector = WebSocketConnector(headers={"Authorization": "Bearer key"})
            async with DuplexClient(url, model="m", connect=connector) as client:
                await client.append_audio(bytes(640))
                async for response in client.responses():
                    assert sum([len(chunk) async for chunk in response.audio()]) == 300_000
                    break
            assert client.statistics().resumes == 0


@pytest.mark.parametrize("status", [401, 403, 503])
async def test_refused_upgrade_names_status_and_body(nothing_left, status):
    async def refuse(request):
        await request.reject(status, body=b"no key, no service")

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve_websocket, refuse, "127.0.0.1", 0, None))
            with pytest.raises(DuplexConnectionError, match=f"HTTP {status}: no key, no service"):
                async with DuplexClient(f"ws://127.0.0.1:{server.port}", model="m"):
                    pytest.fail("entered")
            nursery.cancel_scope.cancel()


async def test_nobody_listens(nothing_left):
    with trio.fail_after(LIMIT_S):
        with pytest.raises(DuplexConnectionError, match="cannot connect"):
            async with DuplexClient("ws://127.0.0.1:9", model="m"):
                pytest.fail("entered")


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"\x16\x03\x01\x00\xff"],
)
async def test_the_answer_to_the_upgrade_is_no_upgrade(nothing_left, answer):
    async def lie(stream):
        await stream.receive_some(65536)
        await stream.send_all(answer)

    with trio.fail_after(LIMIT_S):
        async with tcp_server(lie) as url:
            with pytest.raises(DuplexConnectionError):
                async with DuplexClient(url, model="m", handshake_timeout_s=5):
                    pytest.fail("entered")


@pytest.mark.parametrize("upgraded", [False, True])
async def test_silence_after_connect(nothing_left, upgraded):
    async def silent(stream):
        if upgraded:
            await upgrade(stream)
        await drain(stream)

    with trio.fail_after(LIMIT_S):
        async with tcp_server(silent) as url:
            with pytest.raises(TimeoutError):
                async with DuplexClient(url, model="m", handshake_timeout_s=0.3):
                    pytest.fail("entered")


async def test_refused_session_leaves_nothing(nothing_left):
    """C12: a refused first configuration must not leak the socket."""

    async def serve(peer):
        await peer.take_type("session.update")
        await peer.push({"type": "error", "error": "capacity reached", "code": "duplex_session_busy"})
        await peer.ws.aclose()

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url:
            with pytest.raises(DuplexProtocolError) as caught:
                async with DuplexClient(url, model="m"):
                    pytest.fail("entered")
            assert caught.value.code == "duplex_session_busy"


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"", id="no close frame"),
        pytest.param(struct.pack("!BBH", 0x81, 126, 5000) + b'{"type":', id="half a frame"),
        pytest.param(struct.pack("!BB", 0x81, 2) + b"\xff\xff", id="not UTF-8"),
        pytest.param(struct.pack("!BB", 0x8B, 0), id="unknown opcode"),
        pytest.param(struct.pack("!BB", 0x88, 2) + struct.pack("!H", 1000), id="close frame without session.closed"),
        pytest.param(struct.pack("!BBQ", 0x81, 127, 2**62), id="absurd length"),
    ],
)
async def test_the_server_breaks_off(nothing_left, tail):
    async def break_off(stream):
        await upgrade(stream)
        await stream.receive_some(65536)
        await stream.send_all(created_frame() + tail)
        await stream.send_eof()
        await drain(stream)

    with trio.fail_after(LIMIT_S):
        async with tcp_server(break_off) as url:
            async with DuplexClient(url, model="m", reconnect=None) as client:
                with pytest.raises(DuplexSessionClosedError, match="connection lost"):
                    async for _ in client.events():
                        pass
                with pytest.raises(DuplexSessionClosedError):
                    await client.clear_input()
                before = trio.current_time()
            assert trio.current_time() - before < 1.5


async def test_dead_peer_does_not_hold_up_close(nothing_left):
    """D4: the peer keeps the TCP connection but never answers anything again."""

    async def play_dead(stream):
        await upgrade(stream)
        await stream.receive_some(65536)
        await stream.send_all(created_frame())
        await trio.sleep_forever()

    with trio.fail_after(LIMIT_S):
        async with tcp_server(play_dead) as url, DuplexClient(url, model="m") as client:
            before = trio.current_time()
            await client.close()
            assert trio.current_time() - before < 2


async def test_peer_that_stops_reading_does_not_hold_up_cancellation_or_close(nothing_left):
    async def play_dead(stream):
        await upgrade(stream)
        await stream.receive_some(65536)
        await stream.send_all(created_frame())
        await trio.sleep_forever()

    with trio.fail_after(LIMIT_S):
        async with tcp_server(play_dead) as url:
            async with DuplexClient(url, model="m") as client:
                with trio.move_on_after(0.5) as scope:
                    while True:
                        await client.append_audio(bytes(1_000_000))
                assert scope.cancelled_caught
                before = trio.current_time()
            assert trio.current_time() - before < 2


async def test_alive_but_slow_server_is_waited_for(nothing_left):
    async def serve(peer):
        await peer.open()
        await peer.take_type("session.close")
        await trio.sleep(2.2)
        await peer.push({"type": "session.closed", "reason": "session_close"})
        await peer.take_type("never")

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url, DuplexClient(url, model="m") as client:
            events = client.events()
            await client.close()
            assert [e.type async for e in events] == ["session.closed"]


async def test_cancelled_send_leaves_no_half_frame(nothing_left):
    """A send that is cancelled while the socket is full is completed or never started: the stream stays readable."""
    kinds = []

    async def serve(peer):
        await peer.open()
        await trio.sleep(0.4)
        try:
            while True:
                kinds.append((await peer.take())["type"])
        except ConnectionClosed:
            pass

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url, DuplexClient(url, model="m") as client:
            for _ in range(4):
                with trio.move_on_after(0.05):
                    while True:
                        await client.append_audio(bytes(400_000))
            await client.clear_input()
            await client.close(timeout_s=2)
    assert kinds.count("input_audio_buffer.clear") == 1
    assert kinds[-1] == "session.close"


async def test_resume_over_a_socket(nothing_left):
    visits = []

    async def serve(peer):
        visits.append(peer)
        if len(visits) == 1:
            await peer.open()
            await peer.push({"type": "a", "server_event_seq": 2})
            await trio.aclose_forcefully(peer.stream())
            return
        request = await peer.take_type("session.resume")
        assert request["last_received_server_event_seq"] == 2
        await peer.push(
            {"type": "session.resumed", "session_id": "sess_1", "incarnation": 0, "resume_token": "rt_2"},
            {"type": "b", "server_event_seq": 3},
        )
        await peer.take_type("session.close")
        await peer.push({"type": "session.closed", "reason": "session_close"})

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url:
            policy = ReconnectPolicy(backoff_s=(0.01, 0.02))
            async with DuplexClient(url, model="m", reconnect=policy) as client:
                await client.wait_for("b", timeout_s=5)
                assert client.resume_token == "rt_2"


async def test_cancelled_while_connecting(nothing_left):
    async def silent(stream):
        await drain(stream)

    with trio.fail_after(LIMIT_S):
        async with tcp_server(silent) as url:
            with trio.move_on_after(0.1) as scope:
                async with DuplexClient(url, model="m"):
                    pytest.fail("entered")
            assert scope.cancelled_caught


async def test_cancelled_inside_says_goodbye(nothing_left):
    got_goodbye = trio.Event()

    async def serve(peer):
        await peer.open()
        await peer.take_type("session.close")
        got_goodbye.set()

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url:
            with trio.move_on_after(0.2) as scope:
                async with DuplexClient(url, model="m"):
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            await got_goodbye.wait()


class CancelAtAnyStep(trio.abc.Instrument):
    """Cancels a scope before the n-th step of any task."""

    def __init__(self, scope, step):
        self.scope, self.step, self.steps = scope, step, 0

    def before_task_step(self, task):
        if self.steps == self.step:
            self.scope.cancel()
        self.steps += 1


async def test_cancelled_at_any_moment_of_any_task(nothing_left):
    """The hand-over of the connecting task included: no socket stays, no shielded task hangs."""

    async def serve(peer):
        await peer.open()
        await peer.push({"type": "hello", "server_event_seq": 2})
        await peer.take_type("session.close")
        await peer.push({"type": "session.closed", "reason": "session_close"})

    with trio.fail_after(60):
        async with socket_server(serve) as url:
            connector = WebSocketConnector(close_timeout_s=0.05)
            step = 0
            while True:
                with trio.fail_after(5), trio.CancelScope() as scope:
                    instrument = CancelAtAnyStep(scope, step)
                    trio.lowlevel.add_instrument(instrument)
                    try:
                        async with DuplexClient(url, model="m", connect=connector) as client:
                            await client.wait_for("hello", timeout_s=1)
                    except TimeoutError:
                        pass  # "hello" came before the waiting began
                    finally:
                        trio.lowlevel.remove_instrument(instrument)
                if instrument.steps <= step:
                    break
                step += 1
    assert step > 30


async def test_tls(nothing_left):
    pem = Path(__file__).parents[1] / "server" / "selfsigned_for_tests.pem"
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(pem)

    async def serve(request):
        peer = SocketPeer(await request.accept(), request.path, request.headers)
        await peer.open()
        await peer.take_type("session.close")
        await peer.push({"type": "session.closed", "reason": "session_close"})

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve_websocket, serve, "127.0.0.1", 0, server_side))
            url = f"wss://127.0.0.1:{server.port}"
            with pytest.raises(DuplexConnectionError, match="certificate"):
                async with DuplexClient(url, model="m"):
                    pytest.fail("entered")
            trusting = ssl.create_default_context()
            trusting.check_hostname = False
            trusting.verify_mode = ssl.CERT_NONE
            async with DuplexClient(url, model="m", connect=WebSocketConnector(ssl_context=trusting)) as client:
                assert client.session_id == "sess_1"
            nursery.cancel_scope.cancel()


async def test_tls_to_a_server_without_tls(nothing_left):
    async def chat(stream):
        await stream.receive_some(65536)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with trio.fail_after(LIMIT_S):
        async with tcp_server(chat) as url:
            with pytest.raises(DuplexConnectionError):
                async with DuplexClient(url.replace("ws:", "wss:"), model="m"):
                    pytest.fail("entered")


async def test_frames_over_the_limit_end_the_connection(nothing_left, monkeypatch):
    monkeypatch.setattr("trio_duplex.client.transport.MAX_MESSAGE_BYTES", 10_000)

    async def serve(peer):
        await peer.open()
        await peer.push({"type": "x", "pad": "y" * 20_000})
        await peer.take_type("never")

    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url, DuplexClient(url, model="m", reconnect=None) as client:
            with pytest.raises(DuplexSessionClosedError, match="1009"):
                async for _ in client.events():
                    pass
