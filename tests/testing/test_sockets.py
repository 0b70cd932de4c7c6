"""Sockets in memory behave as sockets: order, back-pressure, closing; and each fault does what it says, on time."""

from __future__ import annotations

import pytest
import trio

from trio_duplex.server.socket import SocketGone, SocketLike
from trio_duplex.testing import Faults, MemoryNetwork


async def flood(socket: SocketLike) -> None:
    """An endpoint that sends twenty messages of about 100 bytes and stays."""
    await socket.accept()
    for number in range(20):
        await socket.send(b'{"type":"t","n":%d,"pad":"%s"}' % (number, b"x" * 70))
    await trio.sleep_forever()


async def echo(socket: SocketLike) -> None:
    await socket.accept()
    while True:
        await socket.send(await socket.receive())


async def test_the_servers_end_is_a_socket(autojump_clock: trio.testing.MockClock) -> None:
    kinds = []

    async def endpoint(socket: SocketLike) -> None:
        kinds.append((isinstance(socket, SocketLike), socket.path, socket.query))
        await socket.accept()

    async with trio.open_nursery() as nursery:
        await MemoryNetwork(endpoint, nursery).connect("ws://memory/v1/realtime?model=a&b=")
    assert kinds == [(True, "/v1/realtime", {"model": "a", "b": ""})]


async def test_messages_keep_their_order_and_both_ends_see_the_close(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[SocketGone] = []

    async def endpoint(socket: SocketLike) -> None:
        try:
            await echo(socket)
        except SocketGone as gone:
            seen.append(gone)
            raise

    async with trio.open_nursery() as nursery:
        client = await MemoryNetwork(endpoint, nursery).connect()
        for number in range(5):
            await client.send({"type": "t", "n": number})
        assert [(await client.receive())["n"] for _ in range(5)] == [0, 1, 2, 3, 4]
        client.close(4001, "bye")
        await trio.testing.wait_all_tasks_blocked()
    assert (seen[0].code, seen[0].reason) == (4001, "bye")
    assert client.ended is not None


async def test_a_refused_handshake(autojump_clock: trio.testing.MockClock) -> None:
    async def endpoint(socket: SocketLike) -> None:
        await socket.reject(401, b"no key")

    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectionRefusedError, match="HTTP 401: no key"):
            await MemoryNetwork(endpoint, nursery).connect()


async def _read_all(network: MemoryNetwork) -> tuple[list[int], SocketGone | None]:
    client = await network.connect()
    with trio.move_on_after(500):
        try:
            while True:
                await client.receive()
        except SocketGone as gone:
            return [e["n"] for e in client.received], gone
    return [e["n"] for e in client.received], None


async def test_drop_at_byte_n(autojump_clock: trio.testing.MockClock) -> None:
    """The message that byte 1000 lies in is lost, the ones before are whole, and both sides see 1006."""
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(flood, nursery, faults=[Faults(drop_received_at=1_000)])
        numbers, gone = await _read_all(network)
        size = len(b'{"type":"t","n":1,"pad":""}') + 70 + 4
        assert numbers == list(range(1_000 // size))
        assert gone is not None
        assert gone.code == 1006
        assert (await _again(network))[1] is None, "the next connection has no fault"
        nursery.cancel_scope.cancel()


async def _again(network: MemoryNetwork) -> tuple[list[int], SocketGone | None]:
    return await _read_all(network)


async def test_stall(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(flood, nursery, faults=[Faults(stall_received_at=500, stall_s=30)])
        begun = trio.current_time()
        client = await network.connect()
        while len(client.received) < 20:
            await client.receive()
        assert trio.current_time() - begun == pytest.approx(30)
        nursery.cancel_scope.cancel()


async def test_a_slow_reader_holds_its_sender_back(autojump_clock: trio.testing.MockClock) -> None:
    """100 bytes/s and 500 bytes of buffer: the sender has to wait, and is cancellable while it waits."""
    finished: list[float] = []

    async def endpoint(socket: SocketLike) -> None:
        await socket.accept()
        with trio.move_on_after(5) as scope:
            for _ in range(20):
                await socket.send(b'{"type":"t","n":0,"pad":"%s"}' % (b"x" * 70))
        assert scope.cancelled_caught
        finished.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(endpoint, nursery, faults=[Faults(reads_per_s=100, buffer_bytes=500)])
        begun = trio.current_time()
        numbers, _ = await _read_all(network)
    assert finished[0] - begun == pytest.approx(5)
    assert 5 <= len(numbers) < 20


async def test_a_twin_connection_gets_the_first_message_too(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(echo, nursery, faults=[Faults(twin=True)])
        client = await network.connect()
        await client.send({"type": "first"})
        await client.send({"type": "second"})
        twin = network.sockets[1]
        assert (await twin.receive())["type"] == "first"
        assert [(await client.receive())["type"] for _ in range(2)] == ["first", "second"]
        await trio.testing.wait_all_tasks_blocked()
        assert twin.received == [{"type": "first"}]
        nursery.cancel_scope.cancel()


async def test_a_cancelled_send_sends_nothing_and_a_cancelled_receive_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        client = await MemoryNetwork(echo, nursery).connect()
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.send({"type": "never"})
        with trio.move_on_after(1):
            await client.receive()
        await client.send({"type": "kept"})
        assert await client.receive() == {"type": "kept"}
        assert client.sent == [{"type": "kept"}]
        nursery.cancel_scope.cancel()
