"""``receive_each`` and ``send_all``: what a session's connection uses instead of one message at a time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
import trio.testing
from wsproto.events import CloseConnection

from tests.server.server_kit import UNREADABLE, Recorder, converse, make_app, masked_frame, raw_client
from trio_duplex.server.socket import ServerSocket, SocketGone


async def test_queued_messages_come_first_and_in_order(serve: Any) -> None:
    found: list[str | bytes] = []
    go_on = trio.Event()

    async def endpoint(socket: ServerSocket) -> None:
        found.append(await socket.receive())
        await go_on.wait()

        def take(message: str | bytes) -> bool:
            found.append(message)
            return len(found) < 40

        await socket.receive_each(take)
        await socket.send("enough")

    bound = await serve(make_app(any=Recorder(endpoint)))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(5):
            # More than the queue holds, with a fragmented and a binary one among them.
            for number in range(20):
                await client.send_text(f"{number}")
            await trio.testing.wait_all_tasks_blocked(0.05)
            go_on.set()
            await client.stream.send_all(masked_frame(b"2", fin=False) + masked_frame(b"0", 0) + masked_frame(b"21", 2))
            for number in range(22, 60):
                await client.send_text(f"{number}")
            assert await client.next_text() == "enough"
    texts = [message if isinstance(message, str) else message.decode() for message in found]
    assert texts == [str(number) for number in range(40)]
    assert isinstance(found[21], bytes)


async def test_what_take_raises_is_the_endpoints_and_hurts_nobody_else(serve: Any) -> None:
    def broken(message: str | bytes) -> bool:
        raise ZeroDivisionError

    async def endpoint(socket: ServerSocket) -> None:
        with pytest.raises(ZeroDivisionError):
            await socket.receive_each(broken)
        await socket.close(1011, "broken")

    bound = await serve(make_app(any=Recorder(endpoint)))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(5):
            await client.send_text("a")
            await client.send_text("b")
            close = await client.next_event()
    assert isinstance(close, CloseConnection)
    assert close.code == 1011
    await converse(bound)


async def test_the_end_is_told_by_receive_each(serve: Any) -> None:
    endpoint = Recorder(lambda socket: socket.receive_each(lambda message: True))
    bound = await serve(make_app(any=endpoint))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(5):
            await client.send_text("a")
            await client.close(4000, "had to go")
            await client.until_close()
            await endpoint.ended.wait()
    assert endpoint.gone is not None
    assert (endpoint.gone.code, endpoint.gone.reason) == (4000, "had to go")


async def test_messages_sent_together_arrive_one_by_one(serve: Any) -> None:
    texts = ["", "a" * 125, "b" * 126, "é" * 40_000, "last"]

    async def endpoint(socket: ServerSocket) -> None:
        await socket.send_all([text.encode() for text in texts], 5)
        await socket.receive()

    bound = await serve(make_app(any=Recorder(endpoint)))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(5):
            assert [await client.next_text() for _ in texts] == texts


async def test_a_peer_that_takes_nothing_ends_the_sending_in_time(serve: Any, quiet: Any) -> None:
    slow: list[BaseException] = []

    async def endpoint(socket: ServerSocket) -> None:
        await socket.receive()
        began = trio.current_time()
        try:
            await socket.send_all([b"x" * UNREADABLE], 0.3)
        except trio.TooSlowError as error:
            slow.append(error)
        assert 0.25 < trio.current_time() - began < 3
        with pytest.raises(SocketGone):  # a part of the frame was out: nothing can follow it
            await socket.send_all([b"y"], 1)

    endpoint_ = Recorder(endpoint)
    bound = await serve(make_app(any=endpoint_))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(10):
            await client.send_text("go")
            await endpoint_.ended.wait()
    assert slow
    await converse(bound)


async def test_a_flood_of_small_messages_leaves_the_others_their_turns(serve: Any) -> None:
    turns: list[int] = []
    count = 0

    def take(message: str | bytes) -> bool:
        nonlocal count
        count += 1
        return count < 5_000

    async def endpoint(socket: ServerSocket) -> None:
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                while True:
                    turns.append(count)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(look)
            await socket.receive_each(take)
            nursery.cancel_scope.cancel()
        await socket.send("enough")

    bound = await serve(make_app(any=Recorder(endpoint)))
    async with raw_client(bound, "/any") as client:
        with trio.fail_after(10):
            await client.stream.send_all(masked_frame(b"") * 5_000)
            assert await client.next_text() == "enough"
    # Between two turns of one task another one may have two: one before and one after it in their rounds.
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 2
