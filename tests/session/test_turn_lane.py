"""Turn-based models without server VAD: text and audio in one message, always answerable (contract 10.2, 12.4)."""

from __future__ import annotations

from typing import Any

import attrs
import pybase64
import pytest
import trio

from tests.session.talk import AUTO, Json, Talk, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.testing import Fail, Hang, Piece, ScriptedOptions

LONG = [Piece(f"word{k} ") for k in range(40)]
TURNS = Traits(detects_speech=False, turn_based=True)
RATE: Json = {"sample_rate_hz": 16_000}


def chat(script: Any = None, **fields: Any) -> ScriptedOptions:
    return ScriptedOptions(
        traits=TURNS, owns_turns=False, script=script or (lambda _: [Piece("One "), Piece("two.")]), **fields
    )


def commit(talk: Talk, **fields: Any) -> None:
    talk.send("input_audio_buffer.commit", **fields)


async def test_text_and_audio_form_one_message(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(), config=RATE) as talk:
        talk.send("input.text.append", text="  and ")
        talk.send("input.text.append", text="tomorrow? ")
        talk.send(append(loud(320)))
        commit(talk)
        event = await talk.reader.until("input_audio_buffer.committed")
        inner = event["event"]
        assert inner["native_audio"] is False
        text, audio = inner["message"]["content"]
        assert text == {"type": "text", "text": "and tomorrow?"}
        wav = pybase64.b64decode(audio["audio_url"]["url"].removeprefix("data:audio/wav;base64,"))
        assert len(wav) == 44 + 2 * 5120
        await trio.sleep(5)
        assert not talk.reader.of("response.created"), "only stored"
        (entry,) = talk.session.conversation.history()
        assert entry.text == "and tomorrow?"
        assert entry.wav == wav
        item = talk.reader.of("conversation.item.added")[0]["item"]
        assert [part["type"] for part in item["content"]] == ["input_text", "input_audio"]


async def test_text_alone_and_auto_response(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(), config={**AUTO, **RATE}) as talk:
        talk.send("input.text.append", text="hello")
        commit(talk)
        await talk.reader.until("response.done")
        assert not talk.reader.of("input_audio_buffer.speech_started")
        assert talk.model.requests[0].history[0].text == "hello"
        check_log(talk.events)


async def test_nothing_to_commit_is_an_empty_commit_without_item(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(), config=RATE) as talk:
        commit(talk)
        event = (await talk.reader.until("input_audio_buffer.committed"))["event"]
        assert event["empty"] is True
        talk.send("input.text.append", text="   ")
        commit(talk)
        await talk.reader.until("input_audio_buffer.committed", 2)
        assert not talk.reader.of("conversation.item.added")
        assert talk.session.turn_id == 0


async def test_silence_declaration(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(), config={**AUTO, **RATE}) as talk:
        talk.send(append(loud(320)))
        commit(talk, is_speech=False)
        event = (await talk.reader.until("input_audio_buffer.committed"))["event"]
        assert event["is_speech"] is False
        await talk.reader.until("response.listen")
        assert not talk.reader.of("response.created")


async def test_response_create_always_runs_on_the_stored_history(autojump_clock: trio.testing.MockClock) -> None:
    """Also with no new input; all per-response options are allowed here and hold for one response only."""
    async with talking(chat(), config={**RATE, "instructions": "session"}) as talk:
        options = {
            "instructions": "one sentence",
            "temperature": 0.6,
            "max_output_tokens": 20,
            "voice": "x",
            "metadata": {"trace": "turn-3"},
        }
        talk.send("response.create", response=options)
        created = await talk.reader.until("response.created")
        assert created["response"]["metadata"]["trace"] == "turn-3"
        await talk.reader.until("response.done")
        talk.send("response.create")
        await talk.reader.until("response.done", 2)
        first, second = talk.model.requests
        assert first.instructions == "one sentence"
        assert first.options["temperature"] == 0.6
        assert second.instructions == "session"
        assert second.options == {}


@pytest.mark.parametrize("end", ["response.cancel", "fail"])
async def test_overrides_are_gone_after_cancel_and_failure(end: str, autojump_clock: trio.testing.MockClock) -> None:
    script = (lambda _: [Piece("a "), Fail("chat_error")]) if end == "fail" else (lambda _: [Piece("a "), Hang()])
    async with talking(chat(script), config={**RATE, "instructions": "session"}) as talk:
        talk.send("response.create", response={"instructions": "once", "modalities": ["text"]})
        await talk.reader.until("response.output_text.delta")
        if end != "fail":
            talk.send(end)
        await talk.reader.until("response.done")
        talk.send("response.create")
        await talk.reader.until("response.output_audio.delta")
        assert talk.model.requests[1].instructions == "session"


async def test_a_new_answering_commit_replaces_the_running_answer(autojump_clock: trio.testing.MockClock) -> None:
    """Reason ``new_response``; one terminal each."""
    async with talking(chat(lambda _: LONG), config=RATE) as talk:
        for _ in range(2):
            talk.send("input.text.append", text="hello")
            commit(talk, response_create=True)
            await talk.reader.until("response.output_audio.delta", 2)
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "new_response"}
        await talk.reader.until("response.created", 2)
        assert talk.session.epoch.number == 1
        check_log(talk.events)


async def test_a_storing_commit_disturbs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(lambda _: LONG), config=RATE) as talk:
        talk.send("response.create")
        await talk.reader.until("response.output_audio.delta")
        talk.send(append(loud(900)))
        commit(talk)
        await talk.reader.until("input_audio_buffer.committed")
        await talk.reader.until("response.output_audio.delta", 5)
        assert not talk.reader.of("overlap.decision"), "the overlap policy belongs to the native lane"
        assert talk.session.epoch.number == 0


async def test_response_create_while_one_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(lambda _: LONG), config=RATE) as talk:
        talk.send("response.create")
        await talk.reader.until("response.output_audio.delta")
        talk.send("response.create", event_id="evt_2")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("response_already_active", "evt_2")


async def test_native_dialect_without_options_replaces(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(lambda _: LONG), config=RATE, view="native") as talk:
        talk.send("response.create")
        await talk.reader.until("response.output_audio.delta")
        talk.send("response.create", response={"metadata": {}})
        assert (await talk.reader.until("error"))["code"] == "response_already_active"
        talk.send("response.create")
        cancelled = await talk.reader.until("audio.cancelled")
        assert cancelled["reason"] == "new_response"
        await talk.reader.until("response.created", 2)


async def test_a_failed_answer_gets_its_terminal(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(lambda _: [Piece("a "), Fail("response_error")]), config=RATE) as talk:
        talk.send("response.create")
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "failed"
        assert (await talk.error())["code"] == "response_error"
        check_log(talk.events)


async def test_text_is_for_this_lane_only(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.send("input.text.append", text="x", event_id="evt_t")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("native_text_append_unsupported", "evt_t")


async def test_clear_counts_and_forgets(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(chat(), config=RATE, view="native") as talk:
        talk.send("input.text.append", text="x")
        talk.send(append(loud(320)))
        talk.send(append(quiet(320)))
        talk.send("input.cancel")
        cancelled = await talk.reader.until("input.cancelled")
        assert cancelled["cancelled"] == {"text_chunks": 1, "audio_chunks": 2}
        assert cancelled["epoch"] == 1
        assert talk.session.held_samples == 0


async def test_held_audio_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """16.3: what the session keeps in memory counts, committed or not; the refused append has no effect."""
    settings = {"max_pending_input_bytes_per_session": 40_000}
    from trio_duplex.session.settings import SessionSettings

    async with talking(chat(), config=RATE, settings=SessionSettings(**settings)) as talk:
        talk.send(append(loud(1000)))
        talk.send(append(loud(500), event_id="evt_big"))
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("input_backpressure", "evt_big")
        assert talk.session.held_samples == 16_000
        talk.send("input_audio_buffer.clear")
        talk.send(append(loud(1000)))
        await talk.settled()
        assert len(talk.reader.of("error")) == 1


async def test_text_requires_complete_audio(autojump_clock: trio.testing.MockClock) -> None:
    """14.3: all of the text or none."""
    options = attrs.evolve(chat(), traits=attrs.evolve(TURNS, text_needs_all_audio=True))
    async with talking(options, config={**RATE, "playback_commit_policy": "ack_only"}) as talk:
        talk.send("response.create")
        done = await talk.reader.until("response.done")
        for at, remembered in ((399, []), (400, ["One two."])):
            talk.send("playback.ack", response_id=done["response_id"], played_ms=at)
            await talk.settled()
            assert [e.text for e in talk.session.conversation.history()] == remembered
