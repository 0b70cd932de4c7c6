# ruff: noqa: N802 - tests of a case carry its id
"""Limits, video frames, drains, turn signals (contract 4.2, 16.3, 18, 22, 24a)."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.commands import CloseSession
from duplex_protocol.errors import RemoteProtocolError
from tests.session.talk import AUTO, Json, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Hang, Piece, ScriptedOptions

JPEG = "/9j/AAAAAAAA"
SIX = ScriptedOptions(script=lambda _: [Piece(f"w{k} ") for k in range(6)])


async def test_commits_are_reserved_at_admission(autojump_clock: trio.testing.MockClock) -> None:
    """Four may wait; the fifth is refused with its id; nothing of it happens; room comes back."""
    held = ScriptedOptions(traits=Traits(detects_speech=False, holds_manual_input=True), owns_turns=False)
    async with talking(held, config={}) as talk:
        for k in range(6):
            talk.send(append(loud(100)))
            talk.send("input_audio_buffer.commit", event_id=f"evt_{k}")
        await talk.settled()
        errors = [e["error"] for e in talk.reader.of("error")]
        assert [(e["code"], e["event_id"]) for e in errors] == [
            ("input_backpressure", "evt_4"),
            ("input_backpressure", "evt_5"),
        ]
        assert len(talk.reader.of("input_audio_buffer.committed")) == 4
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed", 5)


async def test_bytes_are_bounded_and_commands_get_through(autojump_clock: trio.testing.MockClock) -> None:
    settings = SessionSettings(max_pending_input_bytes_per_session=10_000)
    async with talking(SIX, config=AUTO, settings=settings) as talk:
        for _ in range(5):
            talk.send(append(quiet(100)))
        for command in ("session.heartbeat", "input.cancel", "output_audio_buffer.clear"):
            talk.send(command)
        await talk.reader.until("output_audio_buffer.cleared")
        assert {e["error"]["code"] for e in talk.reader.of("error")} == {"input_backpressure"}
        assert {e["error"]["type"] for e in talk.reader.of("error")} == {"rate_limit_error"}
        assert len(talk.reader.of("error")) == 2
        assert talk.session.epoch.number == 1


async def test_an_overloaded_model_refuses_the_append(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(overloaded=True)) as talk:
        talk.send(append(loud(100), event_id="evt_o"))
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("input_backpressure", "evt_o")
        assert talk.session.input.empty


# --- video (18) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("video", "frames"), [("used", [(JPEG, JPEG)]), ("ignored", [])])
async def test_frames_go_to_models_that_look(
    video: str, frames: list[object], autojump_clock: trio.testing.MockClock
) -> None:
    options = ScriptedOptions(traits=Traits(video=video))  # type: ignore[arg-type]
    async with talking(options) as talk:
        talk.send(append(loud(100), video_frames=[JPEG, None, JPEG]))
        await talk.settled()
        assert talk.model.frames == frames
        assert not talk.reader.of("error")


async def test_frames_are_refused_before_any_effect(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(traits=Traits(video="refused"))) as talk:
        talk.send(append(loud(100), video_frames=[JPEG], event_id="evt_f"))
        error = await talk.error()
        assert (error["code"], error["param"], error["event_id"]) == (
            "invalid_input_modality",
            "video_frames",
            "evt_f",
        )
        assert talk.model.submitted_ms == 0
        assert talk.session.input.empty


# --- drain (T6) ---------------------------------------------------------------------------------------------------


async def test_T6_drain_waits_for_the_farewell(autojump_clock: trio.testing.MockClock) -> None:
    """response.create, then close: the audio is complete before closed."""
    async with talking(SIX, config={}) as talk:
        talk.say(900)
        talk.send("input_audio_buffer.commit")
        talk.send("response.create")
        talk.session.post(CloseSession(drain="sent"))
        await talk.reader.ended.wait()
        assert talk.reader.of("response.done")[0]["response"]["status"] == "completed"
        assert len(talk.reader.of("response.output_audio.delta")) == 6
        assert talk.events[-1]["type"] == "session.closed"
        assert talk.events[-1]["reason"] == "session_close"
        check_log(talk.events)


async def test_T6_drain_until_played(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SIX) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        talk.session.post(CloseSession(drain="played", drain_timeout_s=60))
        await talk.reader.until("response.done")
        await trio.sleep(5)
        assert not talk.session.ended.is_set()
        talk.send("playback.ack", response_id=created["response_id"], played_ms=1200)
        await talk.reader.ended.wait()


async def test_T6_drain_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("a "), Hang()])) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        begun = trio.current_time()
        talk.session.post(CloseSession(drain="sent", drain_timeout_s=3))
        await talk.reader.ended.wait()
        assert trio.current_time() - begun == pytest.approx(3, abs=0.1)
        assert talk.reader.of("response.done")[0]["response"]["status_details"]["reason"] == "session_close"


async def test_T6_a_draining_session_takes_no_new_work(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SIX) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.session.post(CloseSession(drain="sent"))
        await trio.sleep(0.1)
        for command in talk.session.dialect.decode(append(loud(20))):
            with pytest.raises(RemoteProtocolError, match="closing"):
                talk.session.post(command)
        talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack")
        talk.send("session.close")
        await talk.reader.ended.wait()
        assert talk.reader.of("response.done")[0]["response"]["status"] == "cancelled", "a plain close ends a drain"


# --- turn signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["user_started", "assistant_done", "whatever"])
async def test_turn_signals_do_nothing(word: str, autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.send({"type": "turn.signal", "event": word, "payload": {"a": 1}})
        event: Json = (await talk.reader.until("duplex.turn.event"))["event"]
        assert event["event"] == word
        assert talk.session.epoch.number == 0


@pytest.mark.parametrize(("word", "reason"), [("timeout", "timeout"), ("close", "session_close")])
async def test_turn_signals_that_end_the_session(
    word: str, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking() as talk:
        talk.send({"type": "turn.signal", "event": word})
        await talk.reader.ended.wait()
        assert talk.events[-1]["reason"] == reason
