"""The reader: events(), wait_for, acknowledgements, deduplication, junk (contract 21.4)."""

from __future__ import annotations

import gc

import pytest
import trio

from tests.client.client_kit import MemoryServer, closing, session
from trio_duplex.client import (
    DuplexClient,
    DuplexConnectionError,
    DuplexProtocolError,
    DuplexSessionClosedError,
    SessionUpdated,
)


def numbered(seq, kind="x", **fields):
    return {"type": kind, "server_event_seq": seq} | fields


async def test_every_consumer_has_its_own_buffer_from_now_on(autojump_clock):
    async with session() as (client, peer, _):
        early = client.events()
        peer.push({"type": "a"})
        await client.wait_for("a", timeout_s=1)
        late = aiter(client)
        peer.push({"type": "b"}, {"type": "session.closed"})
        assert [event.type async for event in early] == ["a", "b", "session.closed"]
        assert [event.type async for event in late] == ["b", "session.closed"]
        assert [event.type async for event in client.events()] == []


async def test_a_slow_consumer_loses_the_oldest(autojump_clock):
    async with session() as (client, peer, _):
        slow = client.events()
        for n in range(1500):
            peer.push({"type": "x", "n": n})
        peer.push({"type": "last"})
        await client.wait_for("last", timeout_s=5)
        assert client.statistics().events_dropped == 1501 - 1024
        assert (await anext(slow)).raw["n"] == 1501 - 1024


async def test_a_dropped_iterator_takes_its_buffer_along(autojump_clock):
    async with session() as (client, peer, _):
        for n in range(10):
            events = client.events()
            peer.push({"type": "x", "n": n})
            async for event in events:
                assert event.raw["n"] == n
                break
        del events
        gc.collect()
        assert client._buffers() == []


async def test_iterators_are_no_generators(autojump_clock):
    async with session() as (client, _, _):
        for iterator in (client.events(), client.responses(), aiter(client)):
            assert not hasattr(iterator, "aclose")


async def test_junk_is_ignored(autojump_clock):
    async with session() as (client, peer, _):
        events = client.events()
        peer.push(b"\x00\x01binary", "", "{", "[]", "null", "7", '"x"', "{}", '{"type": 5}', '{"type": "x", "y": NaN}')
        peer.push({"type": "fine"})
        assert (await anext(events)).type == "fine"
        assert client.statistics().frames_ignored == 10


async def test_unknown_events_arrive_untyped(autojump_clock):
    async with session() as (client, peer, _):
        events = client.events()
        peer.push({"type": "weather.report", "sky": "blue"})
        event = await anext(events)
        assert (event.type, event.raw) == ("weather.report", {"type": "weather.report", "sky": "blue"})


async def test_duplicates_are_dropped(autojump_clock):
    async with session() as (client, peer, _):
        events = client.events()
        peer.push(numbered(2), numbered(2), numbered(1), numbered(4), numbered(3), {"type": "unnumbered"}, numbered(5))
        seen = [(await anext(events)).server_event_seq for _ in range(4)]
        assert seen == [2, 4, None, 5]
        assert client.statistics().duplicates_dropped == 3


async def test_numbered_events_are_acknowledged_cumulatively(autojump_clock):
    async with session() as (_client, peer, _):
        ack = await peer.take_type("session.event_ack")
        assert ack == {"type": "session.event_ack", "server_event_seq": 1}
        peer.push(*[numbered(n) for n in range(2, 502)])
        await trio.sleep(1)
        acks = [message["server_event_seq"] for message in peer.taken_now()]
        assert acks == sorted(set(acks))
        assert acks[-1] == 501
        assert len(acks) < 20
        peer.push({"type": "unnumbered"})
        await trio.sleep(1)
        assert peer.taken_now() == []


async def test_ack_follows_dispatch_at_once(autojump_clock):
    async with session() as (_client, peer, _):
        await trio.sleep(1)
        peer.taken_now()
        before = trio.current_time()
        peer.push(numbered(9))
        assert (await peer.take())["server_event_seq"] == 9
        assert trio.current_time() == before


async def test_heartbeats(autojump_clock):
    async with session(heartbeat_interval_s=10) as (_client, peer, _):
        started = trio.current_time()
        for n in (1, 2, 3):
            await peer.take_type("session.heartbeat")
            assert trio.current_time() == started + 10 * n
    async with session(heartbeat_interval_s=None) as (_client, peer, _):
        await trio.sleep(1000)
        assert {message["type"] for message in peer.taken_now()} <= {"session.event_ack"}


async def test_no_heartbeat_before_the_session(autojump_clock):
    server = MemoryServer()
    with pytest.raises(TimeoutError):
        async with DuplexClient(
            "ws://h", model="m", connect=server.connect, heartbeat_interval_s=0.1, handshake_timeout_s=5
        ):
            pytest.fail("entered")
    assert [m["type"] for m in server.peers[0].taken_now()] == ["session.update", "session.close"]


async def test_session_info_follows_updates(autojump_clock):
    async with session() as (client, peer, _):
        peer.push({"type": "session.updated", "session": {"id": "sess_1", "temperature": 0.1}})
        event = await client.wait_for("session.updated", timeout_s=1)
        assert isinstance(event, SessionUpdated)
        assert client.session_info["temperature"] == 0.1


async def test_wait_for_takes_the_next_of_several_types(autojump_clock):
    async with session() as (client, peer, _), trio.open_nursery() as nursery:

        async def later():
            await trio.sleep(1)
            peer.push({"type": "x"}, {"type": "b"}, {"type": "a"})

        nursery.start_soon(later)
        assert (await client.wait_for("a", "b", timeout_s=5)).type == "b"


async def test_wait_for_times_out(autojump_clock):
    async with session() as (client, _, _):
        before = trio.current_time()
        with pytest.raises(TimeoutError) as caught:
            await client.wait_for("never", timeout_s=30)
        assert type(caught.value) is TimeoutError
        assert trio.current_time() == before + 30
        with pytest.raises(ValueError, match="at least one"):
            await client.wait_for(timeout_s=1)


async def test_wait_for_raises_an_earlier_error_unless_asked_for(autojump_clock):
    async with session() as (client, peer, _):
        error = {"type": "error", "error": {"code": "bad_event", "message": "no"}}

        async def soon(*events):
            await trio.sleep(0.1)
            peer.push(*events)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(soon, error, {"type": "a"})
            with pytest.raises(DuplexProtocolError, match="bad_event: no"):
                await client.wait_for("a", timeout_s=5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(soon, error, {"type": "a"})
            assert (await client.wait_for("a", "error", timeout_s=5)).type == "error"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"type": "session.closed", "reason": "timeout"}, "closed"),
        ({"type": "session.expired", "reason": "disconnect_grace_expired"}, "expired: disconnect_grace_expired"),
    ],
)
async def test_waiting_past_the_end(autojump_clock, last, reason):
    async with session() as (client, peer, _):
        peer.push(last)
        with pytest.raises(DuplexSessionClosedError) as caught:
            await client.wait_for("never", timeout_s=5)
        assert caught.value.reason == reason
        with pytest.raises(DuplexSessionClosedError):
            await client.send({"type": "response.create"})
        with pytest.raises(DuplexSessionClosedError):
            await client.append_audio(bytes(2))


async def test_closed_after_an_error_says_why(autojump_clock):
    async with session() as (client, peer, _):
        events = client.events()
        peer.push({"type": "error", "error": {"code": "native_kv_replica_lost", "message": "gone"}})
        peer.push({"type": "session.closed", "reason": "native_kv_replica_lost"})
        assert [event.type async for event in events] == ["error", "session.closed"]
        with pytest.raises(DuplexSessionClosedError, match="native_kv_replica_lost: gone"):
            await client.clear_input()


async def test_send_stamps_a_copy(autojump_clock):
    async with session() as (client, peer, _):
        event = {"type": "conversation.item.retrieve", "item_id": "i"}
        event_id = await client.send(event)
        assert event == {"type": "conversation.item.retrieve", "item_id": "i"}
        assert await peer.take_type("conversation.item.retrieve") == event | {"event_id": event_id}
        assert await client.send(event | {"event_id": "mine"}) == "mine"
        with pytest.raises(TypeError):
            await client.send({"type": "x", "bad": object()})


async def test_commands_on_the_wire(autojump_clock):
    async with session() as (client, peer, _):
        await trio.sleep(1)
        peer.taken_now()
        await client.commit()
        await client.commit(final=False, create_response=True)
        await client.cancel_response()
        await client.cancel_response("r1")
        await client.clear_input()
        await client.ack_playback(1850.9, response_id="r1", item_id="item_r1", committed_ms=1000)
        await client.ack_playback(-3)
        sent = peer.taken_now()
        for message in sent:
            assert message.pop("event_id")
        assert sent == [
            {"type": "input_audio_buffer.commit", "final": True},
            {"type": "input_audio_buffer.commit", "final": False, "response_create": True},
            {"type": "response.cancel"},
            {"type": "response.cancel", "response_id": "r1"},
            {"type": "input_audio_buffer.clear"},
            {
                "type": "playback.ack",
                "played_ms": 1850,
                "committed_ms": 1000,
                "response_id": "r1",
                "item_id": "item_r1",
            },
            {"type": "playback.ack", "played_ms": 0, "committed_ms": 0},
        ]


async def test_before_entering_and_entering_twice(autojump_clock):
    server = MemoryServer()
    client = DuplexClient("ws://h", model="m", connect=server.connect)
    with pytest.raises(DuplexConnectionError, match="not connected"):
        await client.clear_input()

    async def serve():
        peer = await server.accept()
        await peer.open()
        await closing(peer)()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with client:
            pass
        with pytest.raises(RuntimeError, match="once"):
            async with client:
                pytest.fail("entered")


async def test_a_bug_in_a_transport_is_loud(autojump_clock):
    """D7: an exception nobody foresaw must not die in the background."""

    async def converse():
        async with session() as (_, peer, _server):
            peer.client_reads.receive = lambda: 1 / 0
            peer.push({"type": "x"})
            await trio.sleep_forever()

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await converse()
