"""Automatic resume after a lost connection (contract 21.4 "Resume", section 15)."""

from __future__ import annotations

import pytest
import trio

from tests.client.client_kit import MemoryServer, closing, delta, done, session
from trio_duplex.client import (
    ConnectionResumed,
    DuplexClient,
    DuplexConnectionError,
    DuplexSessionClosedError,
    ReconnectPolicy,
    SessionResumed,
)

RESUMED = {"type": "session.resumed", "session_id": "sess_1", "incarnation": 0, "resume_token": "rt_2"}


def highest(_low, high):
    return high


POLICY = ReconnectPolicy(uniform=highest)


def numbered(seq, kind="x", **fields):
    return {"type": kind, "server_event_seq": seq} | fields


async def test_resume_replays_once_and_refreshes_credentials(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        peer.push(numbered(2), numbered(3))
        assert [(await anext(events)).server_event_seq for _ in range(2)] == [2, 3]
        before = trio.current_time()
        peer.drop()
        second = await server.accept()
        assert trio.current_time() == before + 0.5
        request = await second.take()
        assert request == {
            "type": "session.resume",
            "session_id": "sess_1",
            "incarnation": 0,
            "resume_token": "rt_1",
            "last_received_server_event_seq": 3,
        }
        assert second.url == peer.url
        assert "autostart=0" in second.url
        second.push(RESUMED | {"incarnation": 1, "attachment_generation": 2}, numbered(3), numbered(4, "new"))
        seen = [await anext(events) for _ in range(3)]
        assert [type(event) for event in seen[:2]] == [ConnectionResumed, SessionResumed]
        assert seen[0].attempt == 1
        assert seen[2].type == "new"
        assert (client.resume_token, client.incarnation, client.session_id) == ("rt_2", 1, "sess_1")
        assert client.session_info["capabilities"]["supports_session_resume"]
        assert client.statistics().resumes == 1
        assert client.statistics().duplicates_dropped == 1
        assert (await second.take_type("session.event_ack"))["server_event_seq"] == 4
        await client.clear_input()
        await second.take_type("input_audio_buffer.clear")
        assert peer.closed_by_client.is_set()


async def test_a_response_goes_on_across_the_gap(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        peer.push(delta("r", b"aa", server_event_seq=2))
        handle = await anext(client.responses())
        peer.drop()
        second = await server.accept()
        second.push(RESUMED, delta("r", b"bb", server_event_seq=3), done("r", server_event_seq=4))
        assert [chunk async for chunk in handle.audio()] == [b"aa", b"bb"]
        assert handle.done_event is not None


async def test_events_before_resumed_are_kept_and_follow_it(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        peer.drop()
        second = await server.accept()
        second.push("no json", numbered(2, "early"), b"binary", RESUMED, numbered(3, "late"))
        assert [(await anext(events)).type for _ in range(4)] == [
            "connection.resumed",
            "session.resumed",
            "early",
            "late",
        ]


async def test_resume_from_number_zero_when_nothing_was_numbered(autojump_clock):
    server = MemoryServer()

    async def serve():
        peer = await server.accept()
        await peer.open(seq=None)
        peer.drop()
        second = await server.accept()
        assert (await second.take())["last_received_server_event_seq"] == 0
        second.push(RESUMED)
        await closing(second)()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient("ws://h", model="m", connect=server.connect) as client:
            await client.wait_for("session.resumed", timeout_s=5)


async def test_attempts_back_off_and_give_up(autojump_clock):
    async with session(reconnect=ReconnectPolicy(max_attempts=5, uniform=highest)) as (client, peer, server):
        start = trio.current_time()
        server.refuse = [OSError("no route")] * 5
        server.attempted_at.clear()
        events = client.events()
        peer.drop()
        with pytest.raises(DuplexSessionClosedError, match=r"connection lost: the peer is gone; .*no route"):
            await anext(events)
        assert [at - start for at in server.attempted_at] == [0.5, 1.5, 3.5, 7.5, 11.5]
        assert trio.current_time() == start + 11.5


async def test_each_failed_attempt_is_tried_again(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        server.refuse = [ConnectionRefusedError("down")]
        peer.drop()
        half = await server.accept()
        await half.take_type("session.resume")
        half.drop()  # the resume dies half-way
        refused = await server.accept()
        refused.push({"type": "error", "error": {"code": "runtime_resume_failed", "message": "busy"}})
        silent = await server.accept()
        last = await server.accept()
        last.push(RESUMED)
        event = await anext(events)
        assert event.attempt == 5
        assert refused.closed_by_client.is_set()
        assert silent.closed_by_client.is_set()
        await client.clear_input()


async def test_silence_of_the_resumed_server_has_the_handshake_timeout(autojump_clock):
    async with session(reconnect=ReconnectPolicy(max_attempts=1, uniform=highest), handshake_timeout_s=9) as (
        client,
        peer,
        server,
    ):
        start = trio.current_time()
        events = client.events()
        peer.drop()
        with pytest.raises(DuplexSessionClosedError, match="timed out"):
            await anext(events)
        assert trio.current_time() == start + 0.5 + 9
        assert server.peers[1].closed_by_client.is_set()


@pytest.mark.parametrize(
    "code",
    [
        "invalid_session_resume",
        "session_resume_expired",
        "unsupported_session_resume",
        "invalid_resume_token",
        "session_resume_conflict",
    ],
)
@pytest.mark.parametrize("flat", [True, False])
async def test_fatal_refusals_end_at_once(autojump_clock, code, flat):
    async with session(reconnect=POLICY) as (client, peer, server):
        responses = client.responses()
        peer.push(delta("r", b"aa"))
        handle = await anext(responses)
        peer.drop()
        second = await server.accept()
        refusal = {"error": "sorry", "code": code} if flat else {"error": {"code": code, "message": "sorry"}}
        second.push({"type": "error"} | refusal)
        with pytest.raises(DuplexSessionClosedError, match=f"connection lost: .*{code}"):
            await anext(responses)
        assert handle.finished
        assert handle.done_event is None
        assert len(server.peers) == 2
        assert second.closed_by_client.is_set()
        second.broken = True


async def test_resync_required_as_the_answer_ends_at_once(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        peer.drop()
        second = await server.accept()
        second.push({"type": "session.resync_required", "session_id": "sess_1", "reason": "journal_gap"})
        with pytest.raises(DuplexSessionClosedError, match="journal_gap"):
            await anext(events)
        assert len(server.peers) == 2
        second.broken = True


async def test_resync_required_in_a_live_session_forgets_the_token(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        peer.push({"type": "session.resync_required", "reason": "journal_overflow"})
        assert (await anext(events)).type == "session.resync_required"
        assert client.resume_token is None
        await client.clear_input()
        peer.drop()
        with pytest.raises(DuplexSessionClosedError, match="connection lost: the peer is gone"):
            await anext(events)
        assert len(server.peers) == 1


async def test_no_policy_or_no_token_means_no_resume(autojump_clock):
    async with session(reconnect=None) as (client, peer, server):
        events = client.events()
        peer.drop()
        with pytest.raises(DuplexSessionClosedError, match="connection lost: the peer is gone"):
            await anext(events)
        assert len(server.peers) == 1
    server = MemoryServer()

    async def serve():
        peer = await server.accept()
        await peer.open(resume_token=None)
        peer.drop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient("ws://h", model="m", connect=server.connect) as client:
            with pytest.raises(DuplexSessionClosedError, match="connection lost"):
                await client.wait_for("x", timeout_s=5)
    assert len(server.peers) == 1


async def test_nothing_is_queued_while_the_link_is_down(autojump_clock):
    async with session(reconnect=POLICY, heartbeat_interval_s=0.1) as (client, peer, server):
        peer.drop()
        await trio.sleep(0.2)
        with pytest.raises(DuplexConnectionError, match="being resumed"):
            await client.clear_input()
        with pytest.raises(DuplexConnectionError):
            await client.append_audio(bytes(3200))
        second = await server.accept()
        assert (await second.take())["type"] == "session.resume"
        second.push(RESUMED)
        await client.wait_for("session.resumed", timeout_s=1)
        await client.append_audio(bytes(3200))
        append = await second.take_type("input_audio_buffer.append")
        assert append["audio_end_ms"] == 100, "a chunk that was never sent must not move the position"


async def test_token_rotates_through_many_resumes(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        current, token = peer, "rt_1"
        for n in range(2, 12):
            current.drop()
            current = await server.accept()
            assert (await current.take_type("session.resume"))["resume_token"] == token
            token = f"rt_{n}"
            current.push(RESUMED | {"resume_token": token})
            resumed = await anext(events)
            assert resumed.attempt == 1, "a success starts the counting afresh"
            await anext(events)
        assert client.statistics().resumes == 10


async def test_closing_during_the_gap_is_quiet_and_quick(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, _):
        events = client.events()
        peer.drop()
        await trio.sleep(0.1)
        before = trio.current_time()
        await client.close()
        assert trio.current_time() == before
        assert [event async for event in events] == []
        with pytest.raises(DuplexSessionClosedError):
            await client.clear_input()


async def test_closing_while_the_resume_is_under_way(autojump_clock):
    async with session(reconnect=POLICY) as (client, peer, server):
        events = client.events()
        peer.drop()
        second = await server.accept()
        await second.take_type("session.resume")
        await client.close()
        assert second.closed_by_client.is_set()
        assert [event async for event in events] == []
        second.broken = True
