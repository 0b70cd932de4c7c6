"""Every way out: close, exceptions, cancellation at every step (contract 21.4; cases C12, D4)."""

from __future__ import annotations

import pytest
import trio

from tests.client.client_kit import MemoryServer, closing, delta, done, session
from trio_duplex.client import DuplexClient, DuplexSessionClosedError


async def test_close_waits_for_session_closed(autojump_clock):
    async with session() as (client, peer, _), trio.open_nursery() as nursery:

        async def slow_server():
            await peer.take_type("session.close")
            await trio.sleep(15)
            peer.push({"type": "goodbye"}, {"type": "session.closed"})

        nursery.start_soon(slow_server)
        events = client.events()
        before = trio.current_time()
        await client.close()
        assert trio.current_time() == before + 15
        assert [event.type async for event in events] == ["goodbye", "session.closed"]
        assert peer.closed_by_client.is_set()


@pytest.mark.parametrize("timeout_s", [20.0, 3.0])
async def test_close_timeout_ends_quietly(autojump_clock, timeout_s):
    async with session() as (client, peer, _):
        events = client.events()
        before = trio.current_time()
        await (client.close() if timeout_s == 20.0 else client.close(timeout_s=timeout_s))
        assert trio.current_time() == before + timeout_s
        assert [event async for event in events] == []
        assert peer.closed_by_client.is_set()


async def test_close_is_idempotent_and_concurrent(autojump_clock):
    async with session() as (client, peer, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(closing(peer))
            for _ in range(3):
                nursery.start_soon(client.close)
        await client.close()
        assert [m["type"] for m in peer.taken_now()].count("session.close") == 0


async def test_close_of_a_dead_transport_is_quiet(autojump_clock):
    for reconnect in (None, ...):
        options = {} if reconnect is ... else {"reconnect": None}
        async with session(**options) as (client, peer, _):
            peer.drop()
            before = trio.current_time()
            await client.close()
            assert trio.current_time() == before


async def test_close_when_the_connection_breaks_meanwhile(autojump_clock):
    async with session() as (client, peer, server), trio.open_nursery() as nursery:

        async def break_off():
            await peer.take_type("session.close")
            peer.drop()

        nursery.start_soon(break_off)
        events = client.events()
        await client.close()
        assert [event async for event in events] == []
        assert len(server.peers) == 1, "a closing client does not resume"


async def test_expiry_while_closing_is_expected(autojump_clock):
    async with session() as (client, peer, _), trio.open_nursery() as nursery:

        async def expire():
            await peer.take_type("session.close")
            peer.push({"type": "session.expired", "reason": "idle_ttl_expired"})

        nursery.start_soon(expire)
        events = client.events()
        await client.close()
        assert [event.type async for event in events] == ["session.expired"]


async def test_any_object_with_send_recv_and_close_is_a_transport(autojump_clock):
    class Duck:
        def __init__(self):
            self.to_client, self.from_server = trio.open_memory_channel(10)
            self.closed = False

        async def send(self, text):
            if "session.update" in text:
                await self.to_client.send('{"type": "session.created", "session": {"id": "d"}}')

        async def recv(self):
            return await self.from_server.receive()

        async def close(self):
            self.closed = True
            self.to_client.close()

    duck = Duck()

    async def connect(url):
        return duck

    before = trio.current_time()
    async with DuplexClient("ws://h", model="m", connect=connect) as client:
        assert client.session_id == "d"
    assert duck.closed
    assert trio.current_time() == before + 20
    duck.from_server.close()


async def test_a_transport_that_hangs_in_close_is_left_behind(autojump_clock):
    server = MemoryServer()

    async def connect(url):
        transport = await server.connect(url)
        transport.close = trio.sleep_forever
        return transport

    async with trio.open_nursery() as nursery:

        async def serve():
            peer = await server.accept()
            await peer.open()

        nursery.start_soon(serve)
        before = trio.current_time()
        with pytest.raises(KeyError):
            async with DuplexClient("ws://h", model="m", connect=connect):
                raise KeyError
        assert trio.current_time() <= before + 2


async def test_a_transport_that_hangs_in_send_does_not_hold_up_leaving(autojump_clock):
    server = MemoryServer()

    async def connect(url):
        transport = await server.connect(url)
        send = transport.send

        async def sticky(text):
            if "session.update" in text:
                await send(text)
            else:
                await trio.sleep_forever()

        transport.send = sticky
        return transport

    async with trio.open_nursery() as nursery:

        async def serve():
            await (await server.accept()).open()

        nursery.start_soon(serve)
        before = trio.current_time()
        with trio.move_on_after(1):
            async with DuplexClient("ws://h", model="m", connect=connect) as client:
                await client.clear_input()
        assert trio.current_time() <= before + 1 + 2


class MyError(Exception):
    pass


async def leave_with(error: BaseException) -> None:
    server = MemoryServer()

    async def serve():
        await (await server.accept()).open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.CancelScope() as scope:
            async with DuplexClient("ws://h", model="m", connect=server.connect):
                raise error
        assert not scope.cancelled_caught


@pytest.mark.parametrize("error", [MyError("x"), KeyboardInterrupt(), DuplexSessionClosedError("z")])
async def test_exceptions_leave_as_they_are(autojump_clock, error):
    """(The test's own nursery wraps them once.)"""
    with pytest.raises(BaseExceptionGroup) as caught:
        await leave_with(error)
    assert caught.value.exceptions == (error,)


async def test_a_group_of_the_callers_own_stays_a_group(autojump_clock):
    for inner in ([MyError("a")], [MyError("a"), MyError("b")]):
        with pytest.raises(BaseExceptionGroup) as caught:
            await leave_with(ExceptionGroup("mine", inner))
        (left,) = caught.value.exceptions
        assert isinstance(left, ExceptionGroup)
        assert left.message == "mine"
        assert list(left.exceptions) == inner


async def test_documented_errors_need_no_except_star(autojump_clock):
    async def serve(server):
        peer = await server.accept()
        await peer.open(resume_token=None)
        peer.drop()

    server = MemoryServer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, server)
        seen_all = False
        try:
            async with DuplexClient("ws://h", model="m", connect=server.connect) as client:
                async for _ in client:
                    pass
        except DuplexSessionClosedError:
            seen_all = True
        assert seen_all


async def test_session_ended_while_opening(autojump_clock):
    for last in ({"type": "session.closed", "reason": "x"}, None):
        server = MemoryServer()

        async def serve(server=server, last=last):
            peer = await server.accept()
            await peer.take_type("session.update")
            if last is None:
                peer.drop()
            else:
                peer.push(last)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with pytest.raises(DuplexSessionClosedError):
                async with DuplexClient("ws://h", model="m", connect=server.connect):
                    pytest.fail("entered")
        assert server.peers[0].closed_by_client.is_set()
        assert len(server.peers) == 1


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope just before the n-th step of one task."""

    def __init__(self, task, scope, step):
        self.task, self.scope, self.step, self.steps = task, scope, step, 0

    def before_task_step(self, task):
        if task is self.task:
            if self.steps == self.step:
                self.scope.cancel()
            self.steps += 1


async def converse(server: MemoryServer) -> None:
    async def serve():
        peer = await server.accept()
        await peer.open()
        await peer.take_type("input_audio_buffer.commit")
        peer.push(*[delta("r", b"aa", server_event_seq=n) for n in range(2, 5)])
        await peer.take_type("playback.ack")
        peer.drop()
        second = await server.accept()
        second.push({"type": "session.resumed", "session_id": "sess_1", "resume_token": "rt_2"}, done("r"))
        await closing(second)()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient("ws://h", model="m", connect=server.connect) as client:
            await client.stream_pcm(bytes(12800), chunk_ms=100)
            await client.commit()
            async for response in client.responses():
                audio = response.audio()
                await anext(audio)
                await client.ack_playback(response.played_ms, response_id=response.response_id)
                await response.wait(60)
                break


async def test_cancelling_the_caller_at_every_step_leaves_nothing_behind(autojump_clock):
    step = 0
    reached_end = False
    while not reached_end:
        server = MemoryServer()
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        with trio.CancelScope() as scope:
            instrument = CancelAtStep(trio.lowlevel.current_task(), scope, step)
            trio.lowlevel.add_instrument(instrument)
            try:
                await converse(server)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        assert trio.lowlevel.current_statistics().tasks_living == tasks_before
        for peer in server.peers:
            assert peer.closed_by_client.is_set()
        if scope.cancel_called and server.peers and not server.peers[-1].broken:
            sent = [m["type"] for m in server.peers[-1].taken_now()]
            assert sent.count("session.close") <= 1
        reached_end = instrument.steps < step
        step += 1
    assert step > 20
