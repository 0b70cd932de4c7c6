"""Detach and resume at the hub (contract 15.2, 15.3; cases R1, R4)."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.errors import RemoteProtocolError
from tests.session.talk import Json, Reader, Talk, append, loud, talking
from trio_duplex.hub import ResumeRequest, ResyncNeeded
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions

LONG = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(20)])


def request(talk: Talk, **changes: object) -> ResumeRequest:
    fields: Json = {
        "session_id": talk.session.id,
        "resume_token": talk.events[0].get("resume_token", "rt_none"),
        "incarnation": 0,
        "last_received_server_event_seq": max(e.get("server_event_seq", 0) for e in talk.events),
        **changes,
    }
    return ResumeRequest(**fields)


async def resume(talk: Talk, **changes: object) -> Reader:
    _, attachment = talk.hub.resume(request(talk, **changes))
    reader = Reader(attachment)
    talk.nursery.start_soon(reader.run)
    return reader


async def test_resume_replays_exactly_what_was_missed(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 3)
        talk.session.detach(talk.reader.attachment)
        await trio.sleep(1)
        second = await resume(talk)
        await second.until("response.done")
        assert second.events[0]["type"] == "session.resumed"
        assert "server_event_seq" not in second.events[0]
        assert second.events[0]["attachment_generation"] == 2
        merged = [e for e in talk.events + second.events if "server_event_seq" in e]
        assert [e["server_event_seq"] for e in merged] == list(range(1, len(merged) + 1))
        assert len(second.of("response.output_audio.delta")) == 17


async def test_replay_repeats_ids_and_numbers(autojump_clock: trio.testing.MockClock) -> None:
    """O17."""
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio_transcript.delta", 3)
        talk.session.detach(talk.reader.attachment)
        second = await resume(talk, last_received_server_event_seq=2)
        await second.until("response.output_audio_transcript.delta", 3)
        assert second.events[1 : len(talk.events) - 1] == talk.events[2:]


async def test_superseded_socket_is_told_its_own_generation(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        second = await resume(talk)
        await talk.reader.ended.wait()
        assert talk.events[-1]["type"] == "session.replaced"
        assert talk.events[-1]["attachment_generation"] == 1
        assert talk.reader.attachment.close_reason == "session_replaced"
        talk.session.detach(talk.reader.attachment)
        assert talk.session.attachment is second.attachment, "an old socket's leaving detaches nobody"


async def test_token_is_rotated_and_the_loser_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """Two sockets race with the same token: the second gets invalid_resume_token."""
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        second = await resume(talk)
        await second.until("session.resumed")
        with pytest.raises(RemoteProtocolError) as caught:
            talk.hub.resume(request(talk, last_received_server_event_seq=2))
        assert caught.value.code == "invalid_resume_token"
        assert talk.session.attachment is second.attachment


async def test_old_token_works_once_more_if_the_client_was_never_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """R1: the socket dies between resumed and the first replayed event."""
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        talk.session.detach(talk.reader.attachment)
        _, attachment = talk.hub.resume(request(talk))
        talk.session.detach(attachment)
        third = await resume(talk)
        await third.until("session.resumed")
        assert third.attachment.generation == 3
        talk.session.tokens.confirm()
        talk.session.detach(third.attachment)
        with pytest.raises(RemoteProtocolError) as caught:
            talk.hub.resume(request(talk))
        assert caught.value.code == "invalid_resume_token"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"session_id": "nobody"}, "session_resume_expired"),
        ({"incarnation": 1}, "session_resume_conflict"),
        ({"resume_token": "rt_wrong"}, "invalid_resume_token"),
        ({"last_received_server_event_seq": 1000}, "session_resume_conflict"),
    ],
)
async def test_a_refused_resume_changes_nothing(
    changes: Json, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        with pytest.raises(RemoteProtocolError) as caught:
            talk.hub.resume(request(talk, **changes))
        assert caught.value.code == code
        assert talk.session.attachment is talk.reader.attachment
        second = await resume(talk)
        await second.until("session.resumed")


async def test_gap_needs_a_resync(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        talk.send("session.event_ack", server_event_seq=2)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ResyncNeeded) as caught:
            talk.hub.resume(request(talk, last_received_server_event_seq=1))
        assert b"journal_gap" in caught.value.frame
        assert b"server_event_seq" not in caught.value.frame


async def test_models_without_resume_refuse(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(resume=False)) as talk:
        await talk.reader.until("session.updated")
        with pytest.raises(RemoteProtocolError) as caught:
            talk.hub.resume(request(talk, resume_token="rt_any"))
        assert caught.value.code == "unsupported_session_resume"


async def test_speech_while_detached_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Detaching cancels nothing: the answer goes on and waits in the journal."""
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.session.detach(talk.reader.attachment)
        await trio.sleep(10)
        second = await resume(talk)
        await second.until("response.done")
        assert second.of("response.done")[0]["response"]["status"] == "completed"


async def test_overflow_tells_once_and_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    settings = SessionSettings(resume_replay_max_bytes_per_session=40_000)
    async with talking(LONG, settings=settings) as talk:
        talk.ask()
        await talk.reader.until("response.done")
        resyncs = talk.reader.of("session.resync_required")
        assert [e["reason"] for e in resyncs] == ["journal_overflow"]
        numbers = [e["server_event_seq"] for e in talk.events]
        assert numbers == list(range(1, len(numbers) + 1))
        with pytest.raises(ResyncNeeded):
            talk.hub.resume(request(talk, last_received_server_event_seq=3))


async def test_event_ack_bounds(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        await talk.reader.until("session.updated")
        talk.send("session.event_ack", server_event_seq=99, event_id="evt_a")
        error = await talk.reader.until("error")
        assert error["error"]["code"] == "invalid_event_ack"
        assert error["error"]["event_id"] == "evt_a"


async def test_back_pressure_refuses_whole_events(autojump_clock: trio.testing.MockClock) -> None:
    """24a: data over the bounds is refused and dropped whole; commands still get through."""
    settings = SessionSettings(max_pending_input_bytes_per_session=10_000)
    async with talking(LONG, settings=settings) as talk:
        await talk.reader.until("session.updated")
        for k in range(5):
            talk.send(append(loud(100), event_id=f"evt_{k}"))
        talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack")
        errors = talk.reader.of("error")
        assert [e["error"]["code"] for e in errors] == ["input_backpressure"] * 2
        assert [e["error"]["event_id"] for e in errors] == ["evt_3", "evt_4"]
        assert errors[0]["error"]["type"] == "rate_limit_error"
        assert talk.model.submitted_ms == 300
