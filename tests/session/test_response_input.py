"""``response.create`` with ``input``: an answer on a context of its own, beside the conversation (OpenAI; case U8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pybase64
import pytest
import trio

from tests.session.talk import Json, Talk, check_log, loud, talking
from trio_duplex.models.plugin import HistoryEntry, ResponseRequest, Traits
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.scripted_model import Step


def spoken(_: ResponseRequest) -> Sequence[Step]:
    return [Piece("Yes.")]


CHAT = ScriptedOptions(
    owns_turns=False, script=spoken, traits=Traits(detects_speech=False, turn_based=True, own_context=True)
)
DEMO = ScriptedOptions(script=spoken, owns_turns=False, traits=Traits(own_context=True))
CANNOT = ScriptedOptions(script=spoken, owns_turns=False)
CAN = pytest.mark.parametrize("options", [CHAT, DEMO], ids=["chat", "native"])


def message(*content: Json, role: str = "user", **fields: Any) -> Json:
    return {"type": "message", "role": role, "content": list(content), **fields}


def text(words: str, kind: str = "input_text") -> Json:
    return {"type": kind, "text": words}


def stored(talk: Talk, words: str, item_id: str, role: str = "user") -> None:
    kind = "output_text" if role == "assistant" else "input_text"
    talk.send("conversation.item.create", item=message(text(words, kind), role=role, id=item_id))


def ask(talk: Talk, given: Any, **response: Any) -> None:
    talk.send("response.create", response={"input": given, **response}, event_id="evt_r")


def heard(talk: Talk) -> list[tuple[str, str]]:
    """What the newest request knows."""
    return [(entry.role, entry.text) for entry in talk.model.requests[-1].history]


@CAN
@pytest.mark.parametrize("conversation", ["none", "auto", None])
async def test_the_answer_knows_its_own_context_only(
    options: ScriptedOptions, conversation: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(options, config={}) as talk:
        stored(talk, "What is kept.", "kept")
        given = [
            message(text("Be a judge."), role="system"),
            message(text("Was it good?")),
            message(text("It was.", "output_text"), role="assistant"),
            message(text("Really?")),
        ]
        ask(talk, given, **({"conversation": conversation} if conversation else {}))
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert heard(talk) == [
            ("system", "Be a judge."),
            ("user", "Was it good?"),
            ("assistant", "It was."),
            ("user", "Really?"),
        ]
        assert not talk.model.requests[-1].turns
        await talk.settled()
        # Nothing of the context became part of the conversation; the answer does unless it is out of band.
        items = [item for item in talk.session.conversation._order if item != "kept"]
        assert len(items) == (0 if conversation == "none" else 1)
        check_log(talk.events)


@CAN
async def test_an_empty_context_is_one_too(options: ScriptedOptions, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options, config={}) as talk:
        stored(talk, "What is kept.", "kept")
        ask(talk, [])
        await talk.reader.until("response.done")
        assert heard(talk) == []


@CAN
async def test_null_is_as_if_it_was_not_there(options: ScriptedOptions, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options, config={}) as talk:
        stored(talk, "What is kept.", "kept")
        ask(talk, None)
        await talk.reader.until("response.done")
        assert heard(talk) == [("user", "What is kept.")]


@CAN
async def test_references_bring_items_of_the_conversation_along(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(options, config={}) as talk:
        stored(talk, "First.", "one")
        stored(talk, "Second.", "two", role="assistant")
        stored(talk, "Third.", "three")
        reference = [{"type": "item_reference", "id": one} for one in ("three", "one")]
        ask(talk, [*reference, message(text("Last."))], conversation="none")
        await talk.reader.until("response.done")
        assert heard(talk) == [("user", "Third."), ("user", "First."), ("user", "Last.")]


@CAN
async def test_waiting_input_keeps_waiting(options: ScriptedOptions, autojump_clock: trio.testing.MockClock) -> None:
    """The context replaces the conversation for this one: what is committed there is still unanswered."""
    async with talking(options, config={}) as talk:
        stored(talk, "What waits.", "waits")
        ask(talk, [message(text("Beside."))], conversation="none")
        await talk.reader.until("response.done")
        talk.send("response.create")
        await talk.reader.until("response.done", 2)
        assert heard(talk) == [("user", "What waits.")]


async def test_sound_of_a_context_reaches_a_model_that_hears_turns(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(CHAT, config={"sample_rate_hz": 16_000}) as talk:
        pcm = loud(200)
        part = {"type": "input_audio", "audio": pybase64.b64encode(pcm).decode()}
        ask(talk, [message(text("Listen:"), part)], conversation="none")
        await talk.reader.until("response.done")
        (entry,) = talk.model.requests[-1].history
        assert (entry.role, entry.text) == ("user", "Listen:")
        assert entry.wav is not None
        assert np.array_equal(np.frombuffer(entry.wav[44:], "<i2"), np.frombuffer(pcm, "<i2"))


async def test_a_model_that_reads_contexts_takes_the_words_of_sound(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(DEMO, config={}) as talk:
        part = {"type": "input_audio", "audio": pybase64.b64encode(loud(200)).decode()}
        ask(talk, [message({**part, "transcript": "said so"})])
        await talk.reader.until("response.done")
        assert heard(talk) == [("user", "said so")]
        ask(talk, [message(part)])
        error = await talk.error()
        assert (error["code"], error["param"]) == ("invalid_input_modality", "response.input")


@CAN
async def test_a_tools_output_comes_with_its_call(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(options, config={}) as talk:
        call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'}
        output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
        ask(talk, [message(text("How is it?")), call, output], conversation="none")
        await talk.reader.until("response.done")
        history = talk.model.requests[-1].history
        assert history[1] == HistoryEntry("", "tool", "sunny", "call_1", name="weather", arguments='{"city":"Rome"}')


BAD: list[tuple[Any, str]] = [
    ("text", "bad_event"),
    ({"type": "message"}, "bad_event"),
    (["text"], "bad_event"),
    ([{"type": "nonsense"}], "bad_event"),
    ([message()], "bad_event"),
    ([message({"type": "input_image", "image_url": "x"})], "invalid_input_modality"),
    ([message({"type": "input_audio", "audio": "@@@"})], "bad_audio"),
    ([message({"type": "input_audio", "audio": "AAAA", "format": "mp3"})], "unsupported_audio_format"),
    ([{"type": "item_reference", "id": "nobody"}], "item_not_found"),
    ([{"type": "item_reference"}], "bad_event"),
    ([{"type": "item_reference", "id": 7}], "bad_event"),
    ([message(text("fine")), {"type": "function_call_output", "call_id": "c"}], "invalid_function_call_output"),
]


@CAN
@pytest.mark.parametrize(("given", "code"), BAD, ids=str)
async def test_a_wrong_context_is_refused_whole(
    options: ScriptedOptions, given: Any, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(options, config={}) as talk:
        stored(talk, "What waits.", "waits")
        ask(talk, given)
        error = await talk.error()
        assert (error["code"], error["param"], error["event_id"]) == (code, "response.input", "evt_r")
        await talk.settled()
        assert not talk.reader.of("response.created")
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert heard(talk) == [("user", "What waits.")]


@pytest.mark.parametrize("view", ["duplex", "plain"])
@pytest.mark.parametrize("given", [[], [message(text("Beside."))], [{"type": "item_reference", "id": "waits"}]])
async def test_a_model_that_cannot_says_so(given: Any, view: str, autojump_clock: trio.testing.MockClock) -> None:
    """Never silently another answer than the one that was asked for."""
    async with talking(CANNOT, config={}, view=view) as talk:
        stored(talk, "What waits.", "waits")
        ask(talk, given)
        error = await talk.error()
        assert (error["code"], error["param"], error["event_id"]) == (
            "unsupported_native_response_options",
            "response.input",
            "evt_r",
        )
        await talk.settled()
        assert not talk.reader.of("response.created")


@CAN
async def test_one_answer_at_a_time(options: ScriptedOptions, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(attrs.evolve(options, script=lambda _: [Hang()]), config={}) as talk:
        stored(talk, "A question.", "q")
        talk.send("response.create")
        await talk.reader.until("response.created")
        ask(talk, [message(text("Beside."))], conversation="none")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("response_already_active", "evt_r")
