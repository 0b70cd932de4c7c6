"""Opening, using and closing a session over a scripted transport (contract section 21.4)."""

from __future__ import annotations

import pytest
import trio

from tests.client.client_kit import MemoryServer, closing, delta, done
from trio_duplex.client import (
    DuplexClient,
    DuplexConnectionError,
    DuplexProtocolError,
    DuplexSessionClosedError,
    SessionClosed,
)

URL = "ws://host/v1/realtime"


async def test_entering_opens_and_leaving_closes(autojump_clock):
    server = MemoryServer()

    async def serve():
        peer = await server.accept()
        assert peer.url == "ws://host/v1/realtime?duplex=1&model=org/m&autostart=0"
        update = await peer.open()
        assert update["session"]["model"] == "org/m"
        assert update["session"]["session_id"] == "wish"
        assert update["event_id"]
        await closing(peer)()
        await peer.closed_by_client.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient(URL, model="org/m", session_id="wish", connect=server.connect) as client:
            assert client.session_id == "sess_1"
            assert client.session_info["capabilities"]["chunk_period_ms"] == 1000
            assert client.resume_token == "rt_1"
            assert client.incarnation == 0
        with pytest.raises(DuplexSessionClosedError):
            await client.commit()
        await client.close()


async def test_conversation(autojump_clock):
    server = MemoryServer()
    pcm = bytes(range(200)) * 24  # 100 ms at 24 kHz

    async def serve():
        peer = await server.accept()
        await peer.open()
        appends = [await peer.take_type("input_audio_buffer.append") for _ in range(3)]
        assert [a["duration_ms"] for a in appends] == [100, 100, 50]
        assert [a["audio_end_ms"] for a in appends] == [100, 200, 250]
        assert appends[0]["format"] == "pcm16"
        assert appends[0]["sample_rate_hz"] == 16000
        commit = await peer.take_type("input_audio_buffer.commit")
        assert commit["response_create"] is False
        peer.push(
            {"type": "response.created", "response_id": "r1", "response": {"id": "r1"}},
            {"type": "response.speak", "response_id": "r1"},
            delta("r1", pcm),
            {"type": "response.output_audio_transcript.delta", "response_id": "r1", "delta": "It is "},
            delta("r1", pcm),
            {"type": "response.output_audio_transcript.delta", "response_id": "r1", "delta": "sunny"},
            done("r1"),
        )
        acks = [await peer.take_type("playback.ack") for _ in range(2)]
        assert [a["played_ms"] for a in acks] == [100, 200]
        assert [a["committed_ms"] for a in acks] == [100, 200]
        await closing(peer)()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient(URL, model="m", connect=server.connect) as client:
            before = trio.current_time()
            assert await client.stream_pcm(bytes(8000), chunk_ms=100) == 0
            assert trio.current_time() - before == pytest.approx(0.25)
            await client.commit(create_response=False)
            heard = []
            async for response in client.responses():
                assert response.decision == "speak"
                async for chunk in response.audio():
                    heard.append(chunk)
                    await client.ack_playback(response.played_ms, response_id=response.response_id)
                await response.wait()
                assert response.transcript == "It is sunny"
                assert response.done_event.raw["response"]["status"] == "completed"
                break
            assert heard == [pcm, pcm]


async def test_session_closed_is_delivered_then_iterators_end(autojump_clock):
    server = MemoryServer()
    seen = []

    async def consume(client, task_status):
        events = client.events()
        task_status.started()
        seen.extend([event async for event in events])

    async with trio.open_nursery() as nursery:

        async def serve():
            peer = await server.accept()
            await peer.open()
            await closing(peer)()

        nursery.start_soon(serve)
        async with DuplexClient(URL, model="m", connect=server.connect) as client:
            await nursery.start(consume, client)
    assert isinstance(seen[-1], SessionClosed)


async def test_refused_session(autojump_clock):
    server = MemoryServer()

    async def serve():
        peer = await server.accept()
        await peer.take_type("session.update")
        peer.push({"type": "error", "error": "ref_audio is required", "code": "ref_audio_required"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(DuplexProtocolError) as caught:
            async with DuplexClient(URL, model="m", connect=server.connect):
                pytest.fail("entered")
        assert caught.value.code == "ref_audio_required"
        assert server.peers[0].closed_by_client.is_set()
        assert server.peers[0].taken_now()[-1]["type"] == "session.close"


async def test_body_exception_leaves_as_itself_and_says_goodbye(autojump_clock):
    server = MemoryServer()

    async with trio.open_nursery() as nursery:

        async def serve():
            await (await server.accept()).open()

        nursery.start_soon(serve)
        before = trio.current_time()
        with pytest.raises(KeyError):
            async with DuplexClient(URL, model="m", connect=server.connect):
                raise KeyError("mine")
        assert trio.current_time() == before
        assert server.peers[0].taken_now()[-1]["type"] == "session.close"
        assert server.peers[0].closed_by_client.is_set()


async def test_silence_after_connect(autojump_clock):
    server = MemoryServer()
    with pytest.raises(TimeoutError) as caught:
        async with DuplexClient(URL, model="m", connect=server.connect, handshake_timeout_s=7):
            pytest.fail("entered")
    assert type(caught.value) is TimeoutError
    assert server.peers[0].closed_by_client.is_set()


async def test_connection_refused(autojump_clock):
    server = MemoryServer()
    server.refuse = [ConnectionRefusedError("nobody there")]
    with pytest.raises(DuplexConnectionError, match="nobody there"):
        async with DuplexClient(URL, model="m", connect=server.connect):
            pytest.fail("entered")


async def test_lost_without_resume(autojump_clock):
    server = MemoryServer()

    async def serve():
        peer = await server.accept()
        await peer.open()
        peer.push(delta("r1", b"ab"))
        peer.drop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient(URL, model="m", reconnect=None, connect=server.connect) as client:
            responses = client.responses()
            response = await anext(responses)
            await response.wait()
            assert response.done_event is None
            with pytest.raises(DuplexSessionClosedError, match="connection lost: the peer is gone"):
                await anext(responses)
            with pytest.raises(DuplexSessionClosedError):
                await client.wait_for("response.done", timeout_s=5)
