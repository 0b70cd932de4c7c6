# ruff: noqa: N802 - tests of a case carry its id
"""``session.update`` after the opening (contract 17), in the seed's view and in the plain one (25)."""

from __future__ import annotations

import pytest
import trio

from tests.session.talk import AUTO, Json, Talk, append, loud, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.testing import Piece, ScriptedOptions

SHORT = ScriptedOptions(script=lambda _: [Piece("One "), Piece("two.")])


def update(talk: Talk, session: Json, **fields: object) -> None:
    talk.send("session.update", session=session, **fields)


async def answered(talk: Talk) -> None:
    talk.ask()
    await talk.reader.until("response.done")


@pytest.mark.parametrize(
    ("session", "code"),
    [
        ({"model": "another"}, "model_update_unsupported"),
        ({"ref_audio": "data:audio/wav;base64,AAAA"}, "ref_audio_update_unsupported"),
        ({"extra_body": {"native_duplex": "yes"}}, "invalid_request_error"),
        ({"input_audio_format": "mp3"}, "unsupported_audio_format"),
        ({"sample_rate_hz": 7}, "unsupported_audio_format"),
        ({"turn_detection": {"type": "semantic_vad"}}, "unsupported_turn_detection"),
        ({"turn_detection": {"type": "server_vad", "interrupt_response": False}}, "unsupported_turn_detection"),
        ({"overlap_policy": "barge_in_on_speech"}, "unsupported_turn_detection"),
        ({"modalities": ["smell"]}, "unsupported_response_modality"),
    ],
)
async def test_refused_updates_change_nothing(session: Json, code: str, autojump_clock: trio.testing.MockClock) -> None:
    """Atomic: a good field beside the bad one is not taken either; the error carries the event's id."""
    async with talking(SHORT) as talk:
        before = talk.session.config
        update(talk, {"temperature": 0.1, **session}, event_id="evt_u")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == (code, "evt_u")
        assert talk.session.config == before
        assert len(talk.reader.of("session.updated")) == 1
        await answered(talk)


async def test_voice_until_the_first_audio(autojump_clock: trio.testing.MockClock) -> None:
    """The same value is fine at any time."""
    async with talking(SHORT) as talk:
        update(talk, {"voice": "a"})
        await talk.reader.until("session.updated", 2)
        await answered(talk)
        update(talk, {"voice": "a"})
        await talk.reader.until("session.updated", 3)
        update(talk, {"voice": "b"})
        assert (await talk.error())["code"] == "voice_update_after_audio_unsupported"


async def test_unchanged_values_are_fine(autojump_clock: trio.testing.MockClock) -> None:
    config = {**AUTO, "ref_audio": "data:audio/wav;base64,AAAA", "instructions": "x"}
    async with talking(SHORT, config=config) as talk:
        await answered(talk)
        update(talk, {"model": "scripted", **config})
        await talk.reader.until("session.updated", 2)
        assert not talk.reader.of("error")


async def test_what_may_change_and_what_null_does(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        update(talk, {"temperature": 0.3, "speed": 1.2, "overlap_short_ack_ms": 100, "extra_body": {"mine": 1}})
        update(talk, {"temperature": None, "extra_body": {"other": 2, "mine": None}})
        session = (await talk.reader.until("session.updated", 3))["session"]
        assert session["temperature"] is None
        assert session["speed"] == 1.2
        assert session["overlap_short_ack_ms"] == 100
        assert session["extra_body"] == {"auto_response": True, "other": 2}


async def test_idle_timeout_and_id_are_ignored(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config={**AUTO, "idle_timeout_s": 50}) as talk:
        update(talk, {"idle_timeout_s": 5, "session_id": "other", "id": "other", "object": "x", "type": "realtime"})
        await talk.reader.until("session.updated", 2)
        assert talk.session.config.idle_timeout_s == 50
        assert talk.reader.of("session.updated")[-1]["session"]["id"] == talk.session.id


async def test_updates_wait_for_earlier_appends(autojump_clock: trio.testing.MockClock) -> None:
    """Earlier ones keep the old format, later ones get the new."""
    async with talking(ScriptedOptions(owns_turns=False)) as talk:
        talk.send(append(loud(100, 16_000)))
        update(talk, {"input_audio_format": "pcm16", "sample_rate_hz": 8000})
        talk.send(append(loud(100, 8_000)))
        await talk.settled()
        assert talk.session.clock_ms == 200
        assert talk.model.submitted_ms == pytest.approx(200, abs=5)


async def test_new_settings_reach_the_model(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        update(talk, {"temperature": 0.9})
        await talk.reader.until("session.updated", 2)
        assert talk.model.config.temperature == 0.9


async def test_switching_to_auto_response_stops_holding(autojump_clock: trio.testing.MockClock) -> None:
    held = ScriptedOptions(traits=Traits(detects_speech=False, holds_manual_input=True), owns_turns=False)
    async with talking(held, config={}) as talk:
        talk.say(320)
        await talk.settled()
        assert talk.model.submitted_ms == 0
        update(talk, AUTO)
        talk.say(320)
        await talk.settled()
        assert talk.model.submitted_ms == 640, "what was held goes first"


# --- plain view ---------------------------------------------------------------------------------------------------


async def test_plain_first_update_counts_as_opening(autojump_clock: trio.testing.MockClock) -> None:
    """Any voice, any model name, instructions, formats; until the first audio or item."""
    async with talking(SHORT, config={}, view="plain") as talk:
        for session in (
            {"model": "gpt-realtime", "voice": "marin", "instructions": "x", "speed": 1.0, "tools": []},
            {"instructions": "y", "tracing": "auto", "max_output_tokens": "inf", "tool_choice": "auto"},
            {"voice": "ash", "ref_audio": "data:audio/wav;base64,AAAA"},
        ):
            update(talk, {"type": "realtime", **session})
        await talk.reader.until("session.updated", 4)
        assert not talk.reader.of("error")
        assert talk.session.config.voice == "ash"
        assert talk.session.config.instructions == "y"
        assert talk.session.config.model == "scripted"


async def test_plain_after_audio_the_same_again_is_fine(autojump_clock: trio.testing.MockClock) -> None:
    """pipecat sends its whole configuration again with its first text context."""
    config = {"type": "realtime", "model": "gpt-realtime-2.1", "voice": "marin", "instructions": "x"}
    async with talking(SHORT, config=config, view="plain") as talk:
        talk.send("conversation.item.create", item=_text())
        talk.send("response.create")
        await talk.reader.until("response.done")
        update(talk, config)
        await talk.reader.until("session.updated", 2)
        update(talk, {"voice": "ash"})
        assert (await talk.error())["code"] == "voice_update_after_audio_unsupported"


async def test_plain_response_create_needs_no_input_and_takes_any_option(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As few errors as possible: stock clients send null options and instructions for one response."""
    async with talking(SHORT, config={}, view="plain") as talk:
        options = {"instructions": "greet", "metadata": {"client_event_id": "r_1"}, "tool_choice": None}
        talk.send("response.create", response=options)
        created = await talk.reader.until("response.created")
        assert created["response"]["metadata"]["client_event_id"] == "r_1"
        await talk.reader.until("response.done")
        assert talk.model.requests[0].instructions == "greet"


async def test_P6_plain_cancel_of_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config={}, view="plain") as talk:
        talk.send("response.cancel", event_id="evt_p")
        error = await talk.error()
        assert error["code"] == "response_cancel_not_active"
        assert error["event_id"] == "evt_p"


async def test_plain_truncate_beyond_the_audio(autojump_clock: trio.testing.MockClock) -> None:
    """T1: clamped; the session goes on."""
    async with talking(SHORT, config={}, view="plain") as talk:
        talk.send("conversation.item.create", item=_text())
        talk.send("response.create")
        created = (await talk.reader.until("response.created"))["response"]["id"]
        await talk.reader.until("response.done")
        for ms in (485, 4000, 4000):
            talk.send("conversation.item.truncate", item_id=f"item_{created}", content_index=0, audio_end_ms=ms)
        await talk.reader.until("conversation.item.truncated", 3)
        assert not talk.reader.of("error")
        assert [e.text for e in talk.session.conversation.history() if e.role == "assistant"] == ["One two."]


def _text() -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
