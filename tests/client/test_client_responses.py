"""`responses()` and `ResponseHandle` (contract 21.3)."""

from __future__ import annotations

import pytest
import trio

from tests.client.client_kit import delta, done, session
from trio_duplex.client import AudioFormat, DuplexProtocolError, DuplexSessionClosedError, SessionConfig

ERROR = {"type": "error", "error": {"code": "c", "message": "m", "event_id": "evt_x"}}


def made(response_id):
    return {"type": "response.created", "response": {"id": response_id}}


def said(response_id, text):
    return {"type": "response.output_audio_transcript.delta", "response_id": response_id, "delta": text}


async def test_delivered_once_at_first_output_with_decision_still_open(autojump_clock):
    async with session() as (client, peer, _):
        responses = client.responses()
        peer.push(made("r1"))
        with trio.move_on_after(1) as scope:
            await anext(responses)
        assert scope.cancelled_caught, "response.created alone is no output"
        peer.push(said("r1", "a"))
        handle = await anext(responses)
        assert (handle.response_id, handle.decision, handle.finished) == ("r1", None, False)
        assert handle.created_event.response_id == "r1"
        peer.push({"type": "response.speak", "response_id": "r1"}, said("r1", "b"), done("r1"), made("r2"), done("r2"))
        await handle.wait(5)
        assert (handle.decision, handle.transcript, handle.finished) == ("speak", "ab", True)
        assert handle.done_event.status == "completed"
        silent = await anext(responses)
        assert (silent.response_id, silent.decision) == ("r2", "speak")
        assert silent.finished


async def test_done_without_speak_means_speak(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(delta("r1", b"aa"))
        handle = await anext(client.responses())
        assert handle.decision is None
        peer.push(done("r1", "cancelled"))
        await handle.wait()
        assert (handle.decision, handle.done_event.status) == ("speak", "cancelled")


async def test_text_response(autojump_clock):
    async with session() as (client, peer, _):
        peer.push({"type": "response.output_text.delta", "response_id": "r", "delta": "Tomorrow "})
        handle = await anext(client.responses())
        peer.push({"type": "response.output_text.delta", "response_id": "r", "delta": "rain"}, done("r"))
        await handle.wait()
        assert (handle.text, handle.transcript) == ("Tomorrow rain", "")


async def test_listen_with_id_finishes_the_handle_and_the_later_done_is_ignored(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(made("r1"), {"type": "response.listen", "response_id": "r1"}, done("r1"), made("r2"), done("r2"))
        responses = client.responses()
        listening = await anext(responses)
        assert (listening.response_id, listening.decision, listening.finished) == ("r1", "listen", True)
        assert listening.done_event is None
        assert (await anext(responses)).response_id == "r2"


async def test_listen_after_speaking_keeps_speak(autojump_clock):
    async with session() as (client, peer, _):
        peer.push({"type": "response.speak", "response_id": "r1"}, {"type": "response.listen", "response_id": "r1"})
        handle = await anext(client.responses())
        await handle.wait()
        assert handle.decision == "speak"


@pytest.mark.parametrize("listen_id", [None, "unknown"])
async def test_listen_without_known_id_is_a_finished_handle_of_its_own(autojump_clock, listen_id):
    async with session() as (client, peer, _):
        event = {"type": "response.listen"} | ({} if listen_id is None else {"response_id": listen_id})
        follow_up = [] if listen_id is None else [done(listen_id)]
        peer.push(said("r1", "a"), event, *follow_up, said("r1", "b"), done("r1"), made("r2"), done("r2"))
        responses = client.responses()
        speaking, listening, last = [await anext(responses) for _ in range(3)]
        assert (listening.decision, listening.finished, listening.response_id) == ("listen", True, listen_id)
        assert [chunk async for chunk in listening.audio()] == []
        await speaking.wait()
        assert speaking.transcript == "ab"
        assert last.response_id == "r2"


async def test_audio_ends_with_the_response_and_played_ms_follows_what_is_taken(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(delta("r", bytes(4800)), delta("r", bytes(2400)), delta("r", b"", delta="!bad!"), done("r"))
        handle = await anext(client.responses())
        await handle.wait()
        assert handle.played_ms == 0
        seen = [(len(chunk), handle.played_ms) async for chunk in handle.audio()]
        assert seen == [(4800, 100), (2400, 150)]


@pytest.mark.parametrize(
    ("fields", "ms"),
    [
        ({"sample_rate_hz": 48000}, 50),
        ({"format": "pcm_f32le"}, 50),
        ({"format": "g711_ulaw", "sample_rate_hz": 8000}, 600),
        ({"format": None, "sample_rate_hz": None}, 50),
    ],
)
async def test_played_ms_uses_the_deltas_own_format(autojump_clock, fields, ms):
    config = SessionConfig(output_audio=AudioFormat("pcm_f32le", 24000))
    async with session(config=config) as (client, peer, _):
        peer.push(delta("r", bytes(4800), **fields), done("r"))
        handle = await anext(client.responses())
        await anext(handle.audio())
        assert handle.played_ms == ms


async def test_played_ms_does_not_drift(autojump_clock):
    async with session() as (client, peer, _):
        # 100 chunks of 441 samples at 22.05 kHz are 2 s; 100 of 1000 samples at 24 kHz 4166.67 ms
        peer.push(*[delta("r", bytes(882), sample_rate_hz=22050) for _ in range(100)])
        peer.push(*[delta("r", bytes(2000)) for _ in range(100)], done("r"))
        handle = await anext(client.responses())
        async for _ in handle.audio():
            pass
        assert handle.played_ms == 6166


async def test_unread_audio_is_bounded_and_hurts_nobody(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(*[delta("r", n.to_bytes(2, "little")) for n in range(3000)], done("r"), said("q", "x"), done("q"))
        responses = client.responses()
        handle, other = await anext(responses), await anext(responses)
        await other.wait()
        chunks = [int.from_bytes(chunk, "little") async for chunk in handle.audio()]
        assert chunks == list(range(3000 - 1024, 3000))
        assert handle.dropped_chunks == 3000 - 1024


async def test_wait_times_out_with_the_builtin_error(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(said("r", "a"))
        handle = await anext(client.responses())
        with pytest.raises(TimeoutError) as caught:
            await handle.wait(3)
        assert type(caught.value) is TimeoutError


async def test_session_end_finishes_open_handles(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(delta("r", b"aa"))
        handle = await anext(client.responses())
        peer.push({"type": "session.closed", "reason": "timeout"})
        assert [chunk async for chunk in handle.audio()] == [b"aa"]
        await handle.wait()
        assert handle.done_event is None
        assert [response async for response in client.responses()] == []


async def test_session_expiry_is_raised(autojump_clock):
    async with session() as (client, peer, _):
        peer.push({"type": "session.expired", "reason": "idle_ttl_expired"})
        with pytest.raises(DuplexSessionClosedError, match="expired: idle_ttl_expired"):
            await anext(client.responses())


async def test_error_is_raised_and_iteration_goes_on(autojump_clock):
    """P5: an error names its call, and nothing else suffers."""
    async with session() as (client, peer, _):
        first = await client.send({"type": "response.create"})
        second = await client.send({"type": "response.create"})
        sent = [await peer.take_type("response.create") for _ in range(2)]
        assert [event["event_id"] for event in sent] == [first, second]
        assert first != second
        peer.push(
            {"type": "response.speak", "response_id": "r1"},
            {"type": "error", "error": {"code": "conversation_already_has_active_response", "event_id": second}},
            said("r1", "still here"),
            done("r1"),
        )
        responses = client.responses()
        handle = await anext(responses)
        with pytest.raises(DuplexProtocolError) as caught:
            await anext(responses)
        assert caught.value.event_id == second
        assert caught.value.code == "conversation_already_has_active_response"
        await handle.wait(1)
        assert handle.transcript == "still here"
        await client.clear_input()
        peer.push(said("r2", "next"), done("r2"))
        async for response in client.responses():
            assert response.response_id == "r2"
            break


async def test_breaking_off_keeps_the_place(autojump_clock):
    async with session() as (client, peer, _):
        for name in ("r1", "r2", "r3"):
            peer.push(said(name, name), done(name))
        seen = []
        for _ in range(3):
            async for response in client.responses():
                seen.append(response.response_id)
                break
        assert seen == ["r1", "r2", "r3"]


async def test_one_consumer_at_a_time(autojump_clock):
    async with session() as (client, peer, _), trio.open_nursery() as nursery:
        nursery.start_soon(anext, client.responses())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="one consumer"):
            await anext(client.responses())
        peer.push(said("r", "a"))


async def test_cancelled_waits_lose_nothing(autojump_clock):
    async with session() as (client, peer, _):
        responses = client.responses()
        for _ in range(3):
            with trio.move_on_after(0.1):
                await anext(responses)
        peer.push(delta("r", b"aa"), delta("r", b"bb"), done("r"))
        handle = await anext(responses)
        audio = handle.audio()
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(audio)
        assert scope.cancelled_caught
        assert [chunk async for chunk in handle.audio()] == [b"aa", b"bb"]


async def test_late_events_of_a_finished_response_are_ignored(autojump_clock):
    async with session() as (client, peer, _):
        peer.push(said("r", "a"), done("r", "cancelled"), said("r", "late"), delta("r", b"aa"), done("r"))
        peer.push(said("next", "x"), done("next"))
        responses = client.responses()
        first, second = await anext(responses), await anext(responses)
        assert (first.transcript, second.response_id) == ("a", "next")


async def test_endless_responses_stay_bounded(autojump_clock):
    async with session() as (client, peer, _):
        for n in range(3000):
            peer.push(made(f"r{n}"))
        peer.push(said("r0", "reborn"))
        await client.wait_for("response.output_audio_transcript.delta", timeout_s=5)
        assert len(client._tracker._open) <= 1024
        assert len(client._tracker._received) <= 1024
        assert len(client._tracker._finished) <= 1024
