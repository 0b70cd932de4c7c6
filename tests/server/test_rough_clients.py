"""What clients do to an open connection: reset, stall, overfill, break the protocol (cases H2-H6, D1, D4)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio
from wsproto.events import CloseConnection, Pong, TextMessage

from tests.server.server_kit import (
    UNREADABLE,
    Recorder,
    converse,
    make_app,
    masked_frame,
    raw_client,
    receive_for_ever,
    send_unreadable,
)
from trio_duplex.server.guards import WEBSOCKET_MAX_MESSAGE_BYTES, MessageBuffer
from trio_duplex.server.listener import ListenerOptions
from trio_duplex.server.socket import ServerSocket, SocketGone
from trio_duplex.server.tcp import TimeLimits

LINGER = TimeLimits(close_wait_s=0.3)


async def test_a_client_that_never_reads_stalls_only_itself_and_abort_frees_it_at_once(serve: Any, quiet: Any) -> None:
    stuck = Recorder(send_unreadable)
    bound = await serve(make_app(stuck=stuck))
    async with raw_client(bound, "/stuck", receive_buffer=4096):
        await stuck.started.wait()
        for _ in range(3):
            await converse(bound)
        assert not stuck.ended.is_set()
        assert stuck.socket is not None
        with trio.fail_after(0.5):
            stuck.socket.abort()
            await stuck.ended.wait()
        assert stuck.gone is not None
        assert not stuck.completed
    await converse(bound)


async def test_h3_a_blocked_send_can_be_cancelled_and_costs_the_connection(serve: Any, quiet: Any) -> None:
    async def send_with_deadline(sock: ServerSocket) -> None:
        with trio.move_on_after(0.2) as limit:
            await sock.send(b"x" * 16_000_000)
        assert limit.cancelled_caught
        # A cut frame can never be completed: the client must not see anything after it.
        with pytest.raises(SocketGone):
            await sock.send("more")

    endpoint = Recorder(send_with_deadline)
    bound = await serve(make_app(deadline=endpoint))
    async with raw_client(bound, "/deadline", receive_buffer=4096) as client:
        with trio.fail_after(2):
            await endpoint.ended.wait()
            assert await client.until_close() is None
    assert endpoint.completed


async def test_a_send_cancelled_before_its_first_byte_leaves_the_connection_usable(serve: Any, quiet: Any) -> None:
    async def cancelled_send(sock: ServerSocket) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await sock.send("never sent")
        await sock.send("first")
        await receive_for_ever(sock)

    bound = await serve(make_app(cancelled=Recorder(cancelled_send)))
    async with raw_client(bound, "/cancelled") as client:
        with trio.fail_after(2):
            assert await client.next_text() == "first"


async def test_a_reader_that_takes_drips_is_given_up(serve: Any, logs: list[dict[str, Any]]) -> None:
    stuck = Recorder(send_unreadable)
    options = ListenerOptions(limits=TimeLimits(send_s=0.4), user_timeout_s=60)
    bound = await serve(make_app(stuck=stuck), options=options)
    async with raw_client(bound, "/stuck", receive_buffer=4096) as client:
        with trio.fail_after(3):
            while not stuck.ended.is_set():
                with trio.move_on_after(0.02):
                    await stuck.ended.wait()
                await client.stream.receive_some(10)
    assert stuck.gone is not None
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["connection_stalled"]


async def test_a_zero_window_is_ended_by_the_user_timeout(serve: Any) -> None:
    stuck = Recorder(send_unreadable)
    options = ListenerOptions(limits=TimeLimits(send_s=60), user_timeout_s=1)
    bound = await serve(make_app(stuck=stuck), options=options)
    async with raw_client(bound, "/stuck", receive_buffer=4096):
        with trio.fail_after(8):
            await stuck.ended.wait()
    assert stuck.gone is not None


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_client_that_leaves_in_the_middle_of_an_answer_ends_only_its_own_socket(
    serve: Any, quiet: Any, how: str
) -> None:
    async def stream_for_ever(sock: ServerSocket) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_for_ever, sock)
            while True:
                await sock.send("audio" * 1000)

    class GoneFromNursery(Recorder):
        async def __call__(self, sock: ServerSocket) -> None:
            try:
                await super().__call__(sock)
            except* SocketGone as group:
                self.gone = group.exceptions[0]  # type: ignore[assignment]
                raise

    endpoint = GoneFromNursery(stream_for_ever)
    bound = await serve(make_app(stream=endpoint))
    async with raw_client(bound) as bystander:
        async with raw_client(bound, "/stream") as client:
            with trio.fail_after(2):
                await client.next_text()
                if how == "reset":
                    client.reset()
                else:
                    await client.stream.aclose()
                await endpoint.ended.wait()
        assert endpoint.gone is not None
        await bystander.send_text("alive")
        with trio.fail_after(2):
            assert await bystander.next_text() == "alive"


async def test_a_hundred_rude_disconnects_log_nothing(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app())
    for number in range(100):
        async with raw_client(bound) as client:
            await client.stream.send_all(masked_frame(b"x" * 500)[: number * 5 + 1])
            client.reset()
    await converse(bound)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x02hi", 1002),
        (masked_frame(b"\xff\xfe"), 1007),
        (b"\xc1\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
    ],
    ids=["unmasked", "bad UTF-8", "reserved bit", "unknown opcode"],
)
async def test_d4_a_protocol_error_gets_a_close_frame_and_the_app_its_code(
    serve: Any, quiet: Any, frame: bytes, code: int
) -> None:
    endpoint = Recorder(receive_for_ever)
    bound = await serve(make_app(any=endpoint))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(2):
            await client.stream.send_all(frame)
            close = await client.until_close()
            assert close is not None
            assert close.code == code
            await endpoint.ended.wait()
    assert endpoint.gone is not None
    assert endpoint.gone.code == code
    await converse(bound)


async def test_a_message_of_the_limit_passes_and_one_byte_more_is_refused(serve: Any, quiet: Any) -> None:
    endpoint = Recorder(receive_for_ever)
    bound = await serve(make_app(any=endpoint), options=ListenerOptions(limits=LINGER))
    async with raw_client(bound) as client:
        with trio.fail_after(20):
            await client.stream.send_all(masked_frame(b"x" * WEBSOCKET_MAX_MESSAGE_BYTES, opcode=2))
            assert await client.next_text() == f"{WEBSOCKET_MAX_MESSAGE_BYTES} bytes"
    async with raw_client(bound, "/any") as client, trio.open_nursery() as nursery:
        with trio.fail_after(20):
            nursery.start_soon(_send_regardless, client, masked_frame(b"x" * (WEBSOCKET_MAX_MESSAGE_BYTES + 1)))
            close = await client.until_close()
            assert close is not None
            assert close.code == 1009
            await endpoint.ended.wait()
    assert endpoint.gone is not None
    assert endpoint.gone.code == 1009
    await converse(bound)


async def _send_regardless(client: Any, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await client.stream.send_all(data)


@pytest.mark.parametrize("size", [1_001, 60_000, 70_000])
async def test_a_whole_message_over_a_small_limit_is_refused_too(serve: Any, quiet: Any, size: int) -> None:
    received: list[str | bytes] = []

    async def hear(sock: ServerSocket) -> None:
        while True:
            received.append(await sock.receive())

    endpoint = Recorder(hear)
    bound = await serve(make_app(any=endpoint), options=ListenerOptions(limits=LINGER, max_message_bytes=1_000))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(5):
            await client.stream.send_all(masked_frame(b"x" * 1_000) + masked_frame(b"x" * size))
            close = await client.until_close()
            await endpoint.ended.wait()
    assert close is not None
    assert close.code == 1009
    assert received == ["x" * 1_000]


async def test_an_endless_message_is_ended_within_the_close_wait(serve: Any, quiet: Any) -> None:
    limits = ListenerOptions(limits=LINGER, max_message_bytes=100_000)
    bound = await serve(make_app(), options=limits)
    async with raw_client(bound) as client:
        with trio.fail_after(5):
            try:
                await client.stream.send_all(b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0")
                while True:
                    await client.stream.send_all(b"x" * 65536)
            except trio.BrokenResourceError:
                pass
    await converse(bound)


def test_the_message_buffer_counts_utf8_bytes_and_stores_nothing_over_its_limit() -> None:
    buffer = MessageBuffer(10)
    buffer.extend(TextMessage(data="ää", message_finished=False))
    buffer.extend(TextMessage(data="ö", message_finished=False))
    with pytest.raises(Exception) as caught:  # noqa: PT011  (hypercorn's own exception has no other base)
        buffer.extend(TextMessage(data="€€", message_finished=True))
    assert type(caught.value).__name__ == "FrameTooLargeError"
    assert buffer.to_message() == {"type": "websocket.receive", "text": "ääö", "bytes": None}
    buffer.clear()
    buffer.extend(TextMessage(data="x" * 10))
    assert buffer.to_message()["text"] == "x" * 10


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4321, "had to go"), (1001, "")])
async def test_h2_the_endpoint_learns_the_clients_close_code(serve: Any, quiet: Any, code: int, reason: str) -> None:
    endpoint = Recorder(receive_for_ever)
    bound = await serve(make_app(any=endpoint))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(2):
            await client.close(code, reason)
            echoed = await client.until_close()
            await endpoint.ended.wait()
    assert echoed is not None
    assert echoed.code == code
    assert endpoint.gone is not None
    assert (endpoint.gone.code, endpoint.gone.reason) == (code, reason)


async def test_the_last_events_and_the_close_frame_survive_a_client_that_still_talks(serve: Any, quiet: Any) -> None:
    async def farewell(sock: ServerSocket) -> None:
        await sock.receive()
        for number in range(50):
            await sock.send(f"last words {number}")
        await sock.close(1000, "done")

    bound = await serve(make_app(farewell=Recorder(farewell)))
    async with raw_client(bound, "/farewell") as client, trio.open_nursery() as nursery:
        poured = trio.Event()

        async def pour() -> None:
            # Two megabytes reach the server after it has said goodbye.
            await client.stream.send_all(masked_frame(b"hello") + masked_frame(b"a" * 40_000) * 50)
            poured.set()

        nursery.start_soon(pour)
        with trio.fail_after(5):
            for number in range(50):
                assert await client.next_text() == f"last words {number}"
            close = await client.next_event()
        assert isinstance(close, CloseConnection)
        assert (close.code, close.reason) == (1000, "done")
        with trio.fail_after(1):
            await poured.wait()
            await client.answer_close(close)
            assert await client.rest() == b""


async def test_an_endpoint_that_stops_receiving_and_returns_does_not_leak_its_connection(serve: Any) -> None:
    async def deaf(sock: ServerSocket) -> None:
        await released.wait()

    released = trio.Event()
    bound = await serve(make_app(deaf=Recorder(deaf)), options=ListenerOptions(limits=LINGER, max_connections=1))
    async with raw_client(bound, "/deaf") as client:
        # More messages than the queue of ten holds: the server's read loop is waiting when the endpoint ends.
        await client.stream.send_all(masked_frame(b"hello") * 40)
        released.set()
        with trio.fail_after(2):
            close = await client.until_close()
            assert close is not None
            assert close.code == 1000
            await client.rest()
    with trio.fail_after(2):
        await _until_admitted(bound)


async def test_an_asgi_app_that_returns_with_a_full_queue_does_not_leak_its_connection(serve: Any) -> None:
    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await released.wait()

    released = trio.Event()
    bound = await serve(deaf, options=ListenerOptions(limits=TimeLimits(close_wait_s=30), max_connections=1))
    async with raw_client(bound) as client:
        await client.stream.send_all(masked_frame(b"hello") * 40)
        released.set()
        with trio.fail_after(2):
            close = await client.until_close()
            assert close is not None
            assert close.code == 1011
            await client.answer_close(close)
            await client.rest()
    with trio.fail_after(2):
        await _until_admitted(bound)


async def _until_admitted(bound: Any) -> None:
    """With a cap of one, only a connection that is really gone leaves room."""
    while True:
        try:
            async with raw_client(bound) as client:
                if client.status == 101:
                    return
        except (OSError, trio.BrokenResourceError, AssertionError):
            pass
        await trio.sleep(0.02)


async def test_h4_pings_are_answered_while_the_endpoint_waits(serve: Any, quiet: Any) -> None:
    bound = await serve(make_app())
    async with raw_client(bound) as client:
        await client.ping()
        with trio.fail_after(2):
            assert isinstance(await client.next_event(), Pong)


async def test_a_ping_to_a_blocked_writer_does_not_stop_the_reading(serve: Any, quiet: Any) -> None:
    """What a slow reader says behind its pings, a cancel perhaps, is heard while its answer still waits (24a)."""
    heard: list[str | bytes] = []

    async def talk(sock: ServerSocket) -> None:
        def take(message: str | bytes) -> bool:
            heard.append(message)
            if message == "last":
                everything.set()
            return True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_unreadable, sock)
            await sock.receive_each(take)

    everything = trio.Event()
    bound = await serve(make_app(talk=Recorder(talk)))
    async with raw_client(bound, "/talk", receive_buffer=4096) as client:
        with trio.fail_after(1):
            for number in range(500):
                await client.stream.send_all(masked_frame(f"{number}".encode(), 9))
            await client.send_text("last")
            await everything.wait()
        assert heard == ["last"]
        with trio.fail_after(10):
            # Of those that waited the newest needs an answer (RFC 6455, 5.5.3), behind the frame that was under way.
            size, event = 0, await client.next_event()
            while not isinstance(event, Pong) or event.payload != b"499":
                size += len(event.data) if isinstance(event, TextMessage) else 0
                event = await client.next_event()
                assert isinstance(event, TextMessage | Pong)
        assert size == UNREADABLE


async def test_a_full_queue_holds_back_the_client_and_loses_nothing(serve: Any, quiet: Any) -> None:
    async def late(sock: ServerSocket) -> None:
        await released.wait()
        for number in range(2000):
            assert await sock.receive() == f"{number:>3000}"
        await sock.send("all")
        await receive_for_ever(sock)

    released = trio.Event()
    bound = await serve(make_app(late=Recorder(late)))
    async with raw_client(bound, "/late") as client, trio.open_nursery() as nursery:
        sent = 0

        async def pour() -> None:
            nonlocal sent
            for number in range(2000):
                await client.stream.send_all(masked_frame(f"{number:>3000}".encode()))
                sent += 1
            assert released.is_set()

        nursery.start_soon(pour)
        with trio.fail_after(10):
            while sent < 20:
                await trio.lowlevel.checkpoint()
            released.set()
            assert await client.next_text() == "all"
