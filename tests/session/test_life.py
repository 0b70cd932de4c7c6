"""The life of a session: opening, the terminal sequence, closing, timers, admission (contract 5.1, 7, 13, 15.4, 16)."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from tests.session.talk import AUTO, Json, Reader, append, check_log, loud, quiet, talking
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Fail, Hang, Piece, ScriptedOptions

TERMINAL = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "rate_limits.updated",
]


async def test_created_is_first_and_updated_follows(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        await talk.reader.until("session.updated")
        assert talk.reader.types[:2] == ["session.created", "session.updated"]
        created = talk.events[0]
        assert created["server_event_seq"] == 1
        assert created["resume_token"]
        assert created["attachment_generation"] == 1
        assert created["session"]["epoch"] == 0


async def test_a_turn_gives_the_exact_sequence(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("One "), Piece("two.")])) as talk:
        talk.ask()
        await talk.reader.until("rate_limits.updated")
        kinds = [k for k in talk.reader.types[2:] if k != "response.listen"]
        delta = ["response.output_audio.delta", "response.output_audio_transcript.delta"]
        assert kinds == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "conversation.item.added",
            "conversation.item.created",
            "input_audio_buffer.committed",
            "conversation.item.input_audio_transcription.completed",
            "conversation.item.done",
            "response.created",
            "conversation.item.added",
            "conversation.item.created",
            "response.output_item.added",
            "response.content_part.added",
            "response.speak",
            *delta,
            *delta,
            *TERMINAL,
        ]
        check_log(talk.events)
        done = talk.reader.of("response.done")[0]["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["transcript"] == "One two."


async def test_audio_is_paced_in_real_time(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("a", 300), Piece("b", 300)])) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        first = trio.current_time()
        await talk.reader.until("response.done")
        assert trio.current_time() - first == pytest.approx(0.6, abs=0.01)


async def test_cumulative_durations_and_ledger(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.ask()
        done = await talk.reader.until("response.done")
        metas = [e["metadata"] for e in talk.reader.of("response.output_audio.delta")]
        assert [m["audio_duration_ms"] for m in metas] == [200, 400, 600, 800, 1000]
        assert [m["playback"]["sent_ms"] for m in metas] == [200, 400, 600, 800, 1000]
        marks = metas[-1]["audio_text_marks"]
        assert marks == sorted(marks, key=lambda m: (m["audio_end_ms"], m["text_chars"]))
        assert done["response"]["metadata"]["playback"]["generated_ms"] == 1000


async def test_close_cancels_with_the_full_terminal_then_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("One "), Hang()])) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.send("session.close")
        await talk.reader.ended.wait()
        kinds = talk.reader.types
        assert kinds[-len(TERMINAL) - 1 :] == [*TERMINAL, "session.closed"]
        response = talk.reader.of("response.done")[0]["response"]
        assert response["status"] == "cancelled"
        assert response["status_details"] == {"type": "cancelled", "reason": "session_close"}
        assert talk.events[-1]["reason"] == "session_close"
        assert talk.model.closed
        check_log(talk.events)


async def test_closed_means_reopenable(autojump_clock: trio.testing.MockClock) -> None:
    """O16: whoever saw session.closed may reopen at once, also with the same id and one slot only."""
    async with talking(config={**AUTO, "session_id": "mine"}, settings=SessionSettings(max_sessions=1)) as talk:
        talk.send("session.close")
        await talk.reader.until("session.closed")
        dialect = RealtimeDialect()
        update = dialect.parse_open({**AUTO, "session_id": "mine"}, talk.hub.plugin.defaults)
        again = await talk.hub.open_session(dialect, update)
        assert again.incarnation == 1


async def test_commands_after_close_are_discarded(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.send("session.close")
        talk.send("session.heartbeat")
        await talk.reader.ended.wait()
        assert talk.reader.types[-1] == "session.closed"
        assert not talk.reader.of("session.heartbeat_ack")
        (command,) = talk.session.dialect.decode({"type": "session.heartbeat"})
        with pytest.raises(RemoteProtocolError, match="closing"):
            talk.session.post(command)


async def test_close_preempts_waiting_appends(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        for _ in range(50):
            talk.send(append(loud(20)))
        talk.send("session.close")
        await talk.reader.ended.wait()
        assert talk.model.submitted_ms < 1000


async def test_busy_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """L7, L8: the N+1th session is refused, it never waits."""
    async with talking(settings=SessionSettings(max_sessions=1)) as talk:
        dialect = RealtimeDialect()
        before = trio.current_time()
        with pytest.raises(RemoteProtocolError) as caught:
            await talk.hub.open_session(dialect, dialect.parse_open({}, talk.hub.plugin.defaults))
        assert caught.value.code == "duplex_session_busy"
        assert caught.value.error_class == "rate_limit_error"
        assert caught.value.retryable is True
        assert "max_sessions=1" in caught.value.message
        assert trio.current_time() == before


async def test_engine_without_slot_is_resource_exhausted(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(slots=1)) as talk:
        dialect = RealtimeDialect()
        with pytest.raises(RemoteProtocolError) as caught:
            await talk.hub.open_session(dialect, dialect.parse_open({}, talk.hub.plugin.defaults))
        assert caught.value.code == "resource_exhausted"
        assert talk.hub.statistics().sessions == 1


async def test_live_id_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={**AUTO, "session_id": "mine"}) as talk:
        dialect = RealtimeDialect()
        with pytest.raises(RemoteProtocolError) as caught:
            await talk.hub.open_session(dialect, dialect.parse_open({"session_id": "mine"}, talk.hub.plugin.defaults))
        assert caught.value.code == "session_exists"


async def test_idle_receive_timeout_closes(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={**AUTO, "idle_timeout_s": 20}) as talk:
        await talk.reader.until("session.closed")
        assert trio.current_time() == pytest.approx(20, abs=0.1)
        assert talk.events[-1]["reason"] == "timeout"


async def test_messages_reset_the_idle_timer(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={**AUTO, "idle_timeout_s": 20}) as talk:
        await trio.sleep(15)
        talk.send("session.event_ack", server_event_seq=1)
        await talk.reader.until("session.closed")
        assert trio.current_time() == pytest.approx(35, abs=0.1)


async def test_lease_expires_without_activity(autojump_clock: trio.testing.MockClock) -> None:
    """session.event_ack is a client message but no lease activity."""
    async with talking(settings=SessionSettings(idle_ttl_s=60)) as talk:
        for _ in range(4):
            await trio.sleep(14)
            talk.send("session.event_ack", server_event_seq=1)
        await talk.reader.until("session.expired")
        assert trio.current_time() == pytest.approx(60, abs=0.1)
        assert talk.events[-1]["reason"] == "idle_ttl_expired"


async def test_heartbeats_keep_the_lease(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(settings=SessionSettings(idle_ttl_s=60)) as talk:
        for _ in range(5):
            await trio.sleep(50)
            talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack", 5)
        assert not talk.session.ended.is_set()


async def test_grace_expires_after_detach(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        await talk.reader.until("session.updated")
        talk.session.detach(talk.reader.attachment)
        await talk.session.ended.wait()
        assert trio.current_time() == pytest.approx(30, abs=0.1)
        assert talk.session.close_reason == "disconnect_grace_expired"
        assert talk.hub.statistics().sessions == 0


async def test_without_resume_a_lost_socket_ends_the_session(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(resume=False)) as talk:
        created = await talk.reader.until("session.created")
        assert "resume_token" not in created
        talk.session.detach(talk.reader.attachment)
        await talk.session.ended.wait()
        assert trio.current_time() < 1
        assert talk.session.close_reason == "disconnect"


async def test_a_failed_answer_is_told_and_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("One "), Fail("response_error")])) as talk:
        talk.ask()
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"] == {"type": "failed", "reason": "response_error"}
        assert talk.reader.of("error")[0]["error"]["code"] == "response_error"
        talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack")
        check_log(talk.events)


async def test_a_crash_ends_one_session_only(autojump_clock: trio.testing.MockClock) -> None:
    """D2, contract 24.6: the other session of the hub does not notice."""

    def broken(request: object) -> list[Piece]:
        raise ZeroDivisionError("a bug in the model")

    async with talking(ScriptedOptions(script=broken)) as talk:
        dialect = RealtimeDialect()
        other = await talk.hub.open_session(dialect, dialect.parse_open({}, talk.hub.plugin.defaults))
        reader = Reader(other.attach(0))
        talk.nursery.start_soon(reader.run)
        talk.ask()
        await talk.reader.ended.wait()
        assert talk.events[-1]["reason"] == "internal_error"
        assert talk.reader.of("error")[-1]["error"]["code"] == "internal_error"
        check_log(talk.events)
        assert not other.ended.is_set()
        assert reader.types == ["session.created", "session.updated"]
        assert talk.hub.statistics().sessions == 1


async def test_a_dead_output_stream_is_fatal(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("One "), Hang()])) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.model.break_results()
        await talk.reader.ended.wait()
        assert talk.reader.of("error")[0]["error"]["code"] == "runtime_data_plane_stream_failed"
        assert talk.reader.of("response.done")[0]["response"]["status"] == "failed"
        assert talk.events[-1]["reason"] == "runtime_data_plane_stream_failed"
        check_log(talk.events)


async def test_hub_stop_says_goodbye_to_everyone(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("One "), Hang()])) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.hub.stop()
        await talk.reader.ended.wait()
        assert talk.events[-1]["reason"] == "server_shutdown"
        assert talk.reader.of("response.done")[0]["response"]["status"] == "cancelled"


async def test_cancelling_the_hub_still_gives_slots_back(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        model = talk.model
        await talk.reader.until("session.updated")
    assert model.closed
    assert model.plugin.open_slots == model.plugin.options.slots


@pytest.mark.parametrize("event", [append(quiet(32)), {"type": "session.heartbeat"}])
async def test_silence_makes_no_response(event: Json, autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        for _ in range(40):
            talk.send(event)
        await trio.sleep(5)
        assert not talk.reader.of("response.created")
        assert not talk.reader.of("input_audio_buffer.speech_started")


async def test_L2_slots_return_and_health_says_when_nobody_can_be_admitted(  # noqa: N802
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Twenty times the pool, one after the other; while it is full, health says that one more would be refused."""
    async with talking(ScriptedOptions(slots=4), settings=SessionSettings(max_sessions=4)) as talk:
        plugin = talk.model.plugin
        others: list[Session] = []

        async def open_one() -> Session:
            dialect = RealtimeDialect()
            return await talk.hub.open_session(dialect, dialect.parse_open({}, talk.hub.plugin.defaults))

        for _ in range(27):
            while talk.hub.health()[1]["admits"]:
                others.append(await open_one())
            assert talk.hub.health()[0], "a full server is well"
            assert plugin.open_slots == 0
            with pytest.raises(RemoteProtocolError, match="capacity"):
                await open_one()
            for session in others:
                session.request_end("session_close")
                await session.ended.wait()
            others.clear()
            assert talk.hub.health()[1]["admits"]
        assert plugin.open_slots == 3
        assert talk.hub.statistics().opened == 1 + 27 * 3
