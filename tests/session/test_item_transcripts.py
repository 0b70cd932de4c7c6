"""The words of user items with audio that a client creates: told once, kept beside what was typed (5, 10.3)."""

from __future__ import annotations

from typing import Any

import pybase64
import pytest
import trio

from tests.session.talk import Json, Talk, check_log, loud, talking
from trio_duplex.models.plugin import Traits, Turn, TurnTranscribed
from trio_duplex.testing import ScriptedOptions
from trio_duplex.testing.scripted_vad import ScriptedVad

HEARS = ScriptedOptions(transcripts=("by the model",), owns_turns=False)
DEAF = ScriptedOptions(transcripts=("",), owns_turns=False)
HELD = ScriptedOptions(traits=Traits(detects_speech=False, holds_manual_input=True), owns_turns=False)
UNITS = ScriptedOptions(traits=Traits(detects_speech=False, whole_units=True), owns_turns=False)
TURNS = ScriptedOptions(traits=Traits(detects_speech=False, turn_based=True), owns_turns=False)
ALL = pytest.mark.parametrize("options", [HEARS, HELD, UNITS, TURNS], ids=["hears", "held", "units", "turns"])
PLAIN: Json = {"turn_detection": None}
COMPLETED = "conversation.item.input_audio_transcription.completed"


def sound(**fields: Any) -> Json:
    return {"type": "input_audio", "audio": pybase64.b64encode(loud(640)).decode(), **fields}


TYPED: Json = {"type": "input_text", "text": "Look here:"}


def create(talk: Talk, *parts: Json) -> None:
    talk.send(
        "conversation.item.create", item={"id": "mine", "type": "message", "role": "user", "content": list(parts)}
    )


def kinds(talk: Talk) -> list[str]:
    return [
        e["type"].rpartition(".")[2]
        for e in talk.events
        if e.get("item_id") == "mine" or e.get("item", {}).get("id") == "mine"
    ]


def history(talk: Talk) -> list[str]:
    return [entry.text for entry in talk.session.conversation.history()]


@ALL
async def test_a_transcript_that_the_client_gives_is_told_once(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(options, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, TYPED, sound(transcript="from the client"))
        told = await talk.reader.until(COMPLETED)
        await talk.settled()
        assert (told["transcript"], told["content_index"]) == ("from the client", 1)
        assert kinds(talk) == ["added", "created", "committed", "completed", "done"]
        assert history(talk) == ["Look here: from the client"]
        check_log(talk.events)


async def test_a_transcript_that_the_model_knows_at_once_is_told(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HEARS, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, TYPED, sound())
        told = await talk.reader.until(COMPLETED)
        await talk.settled()
        assert (told["transcript"], told["content_index"]) == ("by the model", 1)
        assert kinds(talk) == ["added", "created", "committed", "completed", "done"]
        assert history(talk) == ["Look here: by the model"]


@pytest.mark.parametrize("typed", [True, False])
async def test_a_late_transcript_joins_the_item_and_leaves_the_rest(
    typed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(DEAF, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, *([TYPED] if typed else []), sound())
        await talk.reader.until("conversation.item.done")
        talk.model.hear(TurnTranscribed(turn=Turn(0, 640, "late words", item_id="mine")))
        told = await talk.reader.until(COMPLETED)
        assert (told["transcript"], told["content_index"]) == ("late words", int(typed))
        assert history(talk) == ["Look here: late words" if typed else "late words"]
        record = talk.session.conversation.get("mine")
        assert record is not None
        assert [part.type for part in record.item.content] == ["input_text"] * typed + ["input_audio"]
        # As it was sent: the audio is still in it.
        talk.send("conversation.item.retrieve", item_id="mine")
        shown = (await talk.reader.until("conversation.item.retrieved"))["item"]["content"]
        assert shown == [*([TYPED] if typed else []), sound()]


async def test_a_late_transcript_does_not_replace_the_one_that_was_told(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(DEAF, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, sound(transcript="from the client"))
        await talk.reader.until(COMPLETED)
        talk.model.hear(TurnTranscribed(turn=Turn(0, 640, "late words", item_id="mine")))
        await talk.settled()
        assert len(talk.reader.of(COMPLETED)) == 1
        assert history(talk) == ["from the client"]


@ALL
async def test_a_plain_view_item_is_added_without_the_words_that_follow(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    """Environment 8: LiveKit would keep them twice."""
    async with talking(options, config=PLAIN, view="plain") as talk:
        create(talk, TYPED, sound(transcript="from the client"))
        told = await talk.reader.until(COMPLETED)
        await talk.settled()
        assert told["transcript"] == "from the client"
        (added,) = talk.reader.of("conversation.item.added")
        assert [part.get("transcript") for part in added["item"]["content"]] == [None, None]
        talk.send("conversation.item.retrieve", item_id="mine")
        shown = (await talk.reader.until("conversation.item.retrieved"))["item"]["content"]
        assert [part.get("transcript") for part in shown] == [None, "from the client"]


async def test_under_the_servers_turn_detection_an_item_is_complete_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Contract 9.1: added, created, done; nothing was committed, so nothing is transcribed."""
    config = {"sample_rate_hz": 16_000, "turn_detection": {"type": "server_vad"}}
    async with talking(TURNS, config=config, scorer=ScriptedVad()) as talk:
        create(talk, sound(transcript="from the client"))
        await talk.settled()
        assert kinds(talk) == ["added", "created", "done"]


async def test_words_for_an_item_without_sound_change_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(DEAF, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, TYPED)
        talk.model.hear(TurnTranscribed(turn=Turn(0, 640, "late words", item_id="mine")))
        await talk.settled()
        assert history(talk) == ["Look here:"]
        assert not talk.reader.of(COMPLETED)
