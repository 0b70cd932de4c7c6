# ruff: noqa: N802 - tests of a case carry its id
"""Items: audio parts, places in the chain, deletion, tool results, out-of-band answers (contract 7.2, 10.3, 19)."""

from __future__ import annotations

from typing import Any

import pybase64
import pytest
import trio

from tests.session.talk import AUTO, Json, Talk, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import ModelFailed, ToolCalled, Traits
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.scripted_vad import ScriptedVad

LONG = [Piece(f"word{k} ") for k in range(40)]
HELD = ScriptedOptions(traits=Traits(detects_speech=False, holds_manual_input=True), owns_turns=False)
TURNS = ScriptedOptions(traits=Traits(detects_speech=False, turn_based=True), owns_turns=False)


def text_item(text: str = "Hello.", **fields: Any) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def audio_item(*pcm: bytes, **fields: Any) -> Json:
    parts = [{"type": "input_audio", "audio": pybase64.b64encode(one).decode()} for one in pcm]
    return {"type": "message", "role": "user", "content": parts, **fields}


def create(talk: Talk, item: Json, **fields: Any) -> None:
    talk.send("conversation.item.create", item=item, **fields)


def of_item(talk: Talk, item_id: str) -> list[str]:
    return [
        e["type"].removeprefix("conversation.").removeprefix("input_audio_buffer.")
        for e in talk.events
        if e.get("item_id") == item_id or e.get("item", {}).get("id") == item_id
    ]


# --- audio parts (10.3) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [ScriptedOptions(), HELD, TURNS], ids=["hears", "held", "turns"])
async def test_audio_item_is_an_append_and_a_commit(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    """Added and created at once, committed and done when stored; no response by itself."""
    async with talking(options, config={"sample_rate_hz": 16_000}) as talk:
        create(talk, audio_item(loud(640), id="mine"))
        committed = await talk.reader.until("input_audio_buffer.committed")
        await talk.settled()
        assert committed["item_id"] == "mine"
        assert of_item(talk, "mine")[:2] == ["item.added", "item.created"]
        assert [k for k in of_item(talk, "mine") if k != "item.input_audio_transcription.completed"] == [
            "item.added",
            "item.created",
            "committed",
            "item.done",
        ]
        await trio.sleep(5)
        assert not talk.reader.of("response.created")
        talk.send("response.create")
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        check_log(talk.events)


async def test_non_speech_parts_are_skipped(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        create(talk, audio_item(quiet(500), loud(640), quiet(500)))
        await talk.reader.until("input_audio_buffer.committed")
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert len(talk.model.requests[0].turns[0].audio) == 16 * 640  # type: ignore[arg-type]


async def test_an_item_of_silence_is_finished_without_a_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        create(talk, audio_item(quiet(500), id="mine"))
        event = (await talk.reader.until("input_audio_buffer.committed"))["event"]
        assert event["empty"] is True
        await talk.settled()
        assert of_item(talk, "mine")[-1] == "item.done"
        talk.send("response.create")
        assert (await talk.error())["code"] == "response_create_without_input"


async def test_audio_item_leaves_the_open_input_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        talk.send(append(loud(320)))
        create(talk, audio_item(loud(640)))
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed", 2)
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert [len(turn.audio) // 16 for turn in talk.model.requests[0].turns] == [640, 320]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"audio": "@@@"}, "bad_audio", "item.content.audio"),
        ({"audio": "AA=="}, "bad_audio", "item.content.audio"),
        ({"audio": "AAAA", "format": "mp3"}, "unsupported_audio_format", "item.content.audio"),
    ],
)
async def test_bad_item_audio_has_no_effect(
    part: Json, code: str, param: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A6."""
    async with talking(HELD, config={}) as talk:
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", **part}]}
        create(talk, item, event_id="evt_b")
        error = await talk.error()
        assert (error["code"], error.get("param"), error["event_id"]) == (code, param, "evt_b")
        assert not talk.reader.of("conversation.item.added")


async def test_turn_based_vad_wants_the_sessions_format(autojump_clock: trio.testing.MockClock) -> None:
    """9.1: else bad_audio; stored without ``committed``."""
    config = {"turn_detection": {"type": "server_vad"}, "sample_rate_hz": 16_000}
    async with talking(TURNS, config=config, scorer=ScriptedVad()) as talk:
        item = audio_item(loud(320, 24_000))
        item["content"][0]["sample_rate_hz"] = 24_000
        create(talk, item)
        error = await talk.error()
        assert (error["code"], error["param"]) == ("bad_audio", "item.content.audio")
        create(talk, audio_item(loud(320), id="mine"))
        await talk.settled()
        assert of_item(talk, "mine") == ["item.added", "item.created", "item.done"]
        assert talk.session.conversation.history()[0].wav is not None


# --- places (7.2) -------------------------------------------------------------------------------------------------


def chain(talk: Talk, kind: str = "added") -> list[tuple[str, str | None]]:
    return [(e["item"]["id"], e["previous_item_id"]) for e in talk.reader.of(f"conversation.item.{kind}")]


async def test_the_chain_is_insertion_order(autojump_clock: trio.testing.MockClock) -> None:
    """Seed's view: the client's word verbatim in added; done reports the predecessor; deletes close the gap."""
    async with talking() as talk:
        create(talk, text_item(id="a"))
        create(talk, text_item(id="b"))
        create(talk, text_item(id="c"), previous_item_id="a")
        create(talk, text_item(id="d"), previous_item_id="nowhere")
        create(talk, text_item(id="e"), previous_item_id="root")
        await talk.settled()
        assert chain(talk) == [("a", None), ("b", "a"), ("c", "a"), ("d", "nowhere"), ("e", "root")]
        assert chain(talk, "done") == [("a", None), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")]
        for gone in ("e", "b"):
            talk.send("conversation.item.delete", item_id=gone)
        create(talk, text_item(id="f"))
        await talk.settled()
        assert chain(talk)[-1] == ("f", "d")


async def test_plain_view_means_the_place(autojump_clock: trio.testing.MockClock) -> None:
    """environment 8: root is the beginning and reads null; a known id is what the item comes after."""
    async with talking(config={}, view="plain") as talk:
        create(talk, text_item("A", id="a"))
        create(talk, text_item("B", id="b"))
        create(talk, text_item("C", id="c"), previous_item_id="a")
        create(talk, text_item("D", id="d"), previous_item_id="root")
        await trio.sleep(0.1)
        assert chain(talk) == [("a", None), ("b", "a"), ("c", "a"), ("d", None)]
        assert [e.text for e in talk.session.conversation.history()] == ["D", "A", "C", "B"]


async def test_client_ids_are_kept_and_not_used_twice(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        create(talk, text_item(id="a"))
        create(talk, text_item(id="a"), event_id="evt_twice")
        error = await talk.error()
        assert error["event_id"] == "evt_twice"
        assert len(chain(talk)) == 1


async def test_C9_text_never_interrupts_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    """One rule: item.create never interrupts; response.create while speaking is refused, a cancel first does it."""
    async with talking(ScriptedOptions(script=lambda _: LONG), config=AUTO) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 2)
        create(talk, text_item("Stop, please."))
        talk.send("response.create")
        assert (await talk.error())["code"] == "response_already_active"
        await talk.reader.until("response.output_audio.delta", 5)
        assert talk.session.epoch.number == 0
        talk.send("response.cancel")
        await talk.reader.until("response.done")
        create(talk, text_item("Stop, please."))
        talk.send("response.create")
        await talk.reader.until("response.created", 2)


@pytest.mark.parametrize("kind", ["retrieve", "delete"])
async def test_missing_and_unknown_items(kind: str, autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.send(f"conversation.item.{kind}")
        assert (await talk.error())["code"] == "missing_item_id"
        talk.send(f"conversation.item.{kind}", item_id="nobody")
        assert (await talk.error(2))["code"] == "item_not_found"


async def test_deleted_input_is_not_answered(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        for _ in range(2):
            talk.say(900)
            talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed", 2)
        first, second = (e["item_id"] for e in talk.reader.of("input_audio_buffer.committed"))
        talk.send("conversation.item.delete", item_id=first)
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert [turn.item_id for turn in talk.model.requests[0].turns] == [second]
        talk.say(900)
        talk.send("input_audio_buffer.commit")
        third = (await talk.reader.until("input_audio_buffer.committed", 3))["item_id"]
        talk.send("conversation.item.delete", item_id=third)
        talk.send("response.create")
        assert (await talk.error())["code"] == "response_create_without_input"


async def test_deleting_the_answer_that_is_being_spoken(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: LONG[:6]), config=AUTO) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        talk.send("conversation.item.delete", item_id=f"item_{created['response_id']}")
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert [e.role for e in talk.session.conversation.history()] == ["user"]
        talk.send("playback.ack", response_id=created["response_id"], played_ms=100)
        await talk.reader.until("playback.acknowledged")
        assert [e.role for e in talk.session.conversation.history()] == ["user"]


# --- tool calls (19) ----------------------------------------------------------------------------------------------


def output(call_id: Any = "call_1", text: Any = "24") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def calls(*ids: str) -> list[ToolCalled]:
    return [ToolCalled(call_id=one, name="get_weather", arguments="{}") for one in ids]


async def test_F1_tool_result_then_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    """The result reaches the model before it is stored; a response.create afterwards gives an answer."""
    async with talking(config={}) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("rate_limits.updated")
        create(talk, {**output(), "id": "result"})
        await talk.reader.until("conversation.item.done", 2)
        assert of_item(talk, "result") == ["item.added", "item.created", "item.done"]
        assert talk.model.tool_outputs == [("call_1", "24")]
        talk.send("response.create")
        await talk.reader.until("response.done", 2)
        assert [(e.role, e.text) for e in talk.model.requests[0].history] == [("tool", "24")]
        check_log(talk.events)


async def test_response_create_after_a_tool_result_is_never_an_error(autojump_clock: trio.testing.MockClock) -> None:
    """environment 8: stock clients always send one, also when the model went on by itself."""
    from trio_duplex.models.plugin import Turn, TurnEnded

    async with talking(ScriptedOptions(script=lambda _: [Piece("a "), Hang()]), config=AUTO) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        create(talk, output())
        await talk.settled()
        talk.model.hear(TurnEnded(turn=Turn(0, 10, "x")))
        await talk.reader.until("response.output_audio.delta")
        talk.send("response.create")
        await talk.settled()
        assert not talk.reader.of("error")
        talk.send("response.create")
        assert (await talk.error())["code"] == "response_already_active"


class WaitsToBeAsked:
    """A model that does nothing with a tool's result by itself."""

    def __init__(self, model: object) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        if name == "take_tool_output":
            raise AttributeError(name)
        return getattr(self._model, name)


async def test_a_tool_result_during_another_answer_is_answered_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A model that does not go on by itself: the response.create is no error, and it is not forgotten either."""
    options = ScriptedOptions(script=lambda r: [Piece(f"after {len(r.history)} "), Piece("b", 500)])
    async with talking(options, config=AUTO) as talk:
        talk.session.model = WaitsToBeAsked(talk.model)  # type: ignore[assignment]
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        create(talk, output())
        talk.send("response.create")
        await talk.reader.until("response.done", 3)
        assert not talk.reader.of("error")
        assert [e.role for e in talk.model.requests[1].history] == ["user", "assistant", "tool"]
        check_log(talk.events)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (output("call_unknown"), "item.call_id"),
        ({"type": "function_call_output", "output": "x"}, "item.call_id"),
        (output("call_1", 7), "item.output"),
    ],
)
async def test_bad_tool_results(item: Json, param: str, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={}) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        create(talk, item, event_id="evt_c")
        error = await talk.error()
        assert (error["code"], error["param"], error["event_id"]) == ("invalid_function_call_output", param, "evt_c")
        assert talk.model.tool_outputs == []


async def test_a_call_is_answered_once(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={}) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        create(talk, output())
        create(talk, output())
        error = await talk.error()
        assert (error["code"], error["param"]) == ("invalid_function_call_output", "item.output")


async def test_a_failed_hand_over_may_be_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(refuses_tool_outputs=True), config={}) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        create(talk, output())
        assert (await talk.error())["code"] == "runtime_append_failed"
        assert len(chain(talk)) == 1
        create(talk, output())
        assert (await talk.error(2))["code"] == "runtime_append_failed"


async def test_eight_results_may_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={}) as talk:
        talk.model.hear(*calls(*(f"call_{k}" for k in range(10))))
        await talk.reader.until("response.done", 10)
        for k in range(9):
            create(talk, output(f"call_{k}"))
        assert (await talk.error())["code"] == "function_response_backlog"
        talk.send("response.create")
        await talk.reader.until("response.done", 11)
        create(talk, output("call_9"))
        await talk.settled()
        assert len(talk.reader.of("error")) == 1


async def test_calls_of_a_cancelled_turn_stay_answerable(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(config={}) as talk:
        talk.model.hear(*calls("call_1"))
        await talk.reader.until("response.done")
        talk.send("input.cancel")
        create(talk, output())
        await talk.settled()
        assert not talk.reader.of("error")
        assert talk.session.stale_calls == {"call_1"}


async def test_F4_malformed_call(autojump_clock: trio.testing.MockClock) -> None:
    """The raw fallback, no half-open item; bad JSON fails the active answer, the session lives."""
    async with talking(ScriptedOptions(script=lambda _: [Piece("a "), Hang()]), config=AUTO) as talk:
        talk.model.hear(ToolCalled(call_id=None, name=None, arguments="{"))
        await talk.reader.until("duplex.function_call.done")
        assert not talk.reader.of("conversation.item.added")
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.model.hear(ModelFailed(code="nemotron_function_call_parse_error", message="bad", fails_response=True))
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"]["reason"] == "nemotron_function_call_parse_error"
        assert [e["error"]["code"] for e in talk.reader.of("error")] == ["nemotron_function_call_parse_error"]
        await talk.settled()
        check_log(talk.events)


# --- beside the conversation (12.4) -------------------------------------------------------------------------------


async def test_out_of_band_answers_are_not_remembered(autojump_clock: trio.testing.MockClock) -> None:
    """Metadata comes back; committed input keeps waiting for its own answer."""
    async with talking(HELD, config={"metadata": {"app": "x"}}) as talk:
        talk.say(900)
        talk.send("input_audio_buffer.commit")
        talk.send("response.create", response={"conversation": "none", "metadata": {"topic": "summary"}})
        created = await talk.reader.until("response.created")
        assert created["response"]["metadata"]["topic"] == "summary"
        assert "app" not in created["response"]["metadata"]
        done = await talk.reader.until("response.done")
        assert done["response"]["metadata"]["committed"] is False
        talk.send("response.create")
        second = await talk.reader.until("response.created", 2)
        assert second["response"]["metadata"]["app"] == "x"
        await talk.reader.until("response.done", 2)
        assert [len(r.turns) for r in talk.model.requests] == [0, 1]
        assert [e.role for e in talk.session.conversation.history()] == ["user", "assistant"]
        item = f"item_{created['response_id']}"
        talk.send("conversation.item.retrieve", item_id=item)
        assert (await talk.error())["code"] == "item_not_found"


@pytest.mark.parametrize(
    "option",
    [
        {"instructions": "x"},
        {"voice": "x"},
        {"audio": {"output": {"voice": "x"}}},
        {"temperature": 1},
        {"max_output_tokens": 4},
        {"tools": []},
        {"tool_choice": "auto"},
    ],
)
async def test_native_lane_refuses_options_it_cannot_change(
    option: Json, autojump_clock: trio.testing.MockClock
) -> None:
    """U8: refused, never ignored; checked before anything else (12.4)."""
    async with talking(config={}) as talk:
        talk.send("response.create", response=option, event_id="evt_o")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("unsupported_native_response_options", "evt_o")


async def test_order_of_checks(autojump_clock: trio.testing.MockClock) -> None:
    """Format, options, already active, no input."""
    async with talking(ScriptedOptions(script=lambda _: LONG), config={}) as talk:
        talk.send("response.create", response={"output_audio_format": "mp3", "voice": "x"})
        assert (await talk.error())["code"] == "unsupported_audio_format"
        talk.send("response.create", response={"voice": "x"})
        assert (await talk.error(2))["code"] == "unsupported_native_response_options"
        talk.send("response.create")
        assert (await talk.error(3))["code"] == "response_create_without_input"
        create(talk, text_item())
        talk.send("response.create")
        talk.send("response.create", response={"voice": "x"})
        assert (await talk.error(4))["code"] == "unsupported_native_response_options"
        talk.send("response.create")
        assert (await talk.error(5))["code"] == "response_already_active"


async def test_one_responses_format_is_gone_with_it(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("a ")]), config={}) as talk:
        for options in ({"output_audio_format": "g711_ulaw"}, {"modalities": ["text"]}, {}):
            create(talk, text_item())
            talk.send("response.create", response=options)
            await talk.reader.until("response.done", len(talk.reader.of("response.done")) + 1)
        formats = [(e["format"], e["sample_rate_hz"]) for e in talk.reader.of("response.output_audio.delta")]
        assert formats == [("g711_ulaw", 8000), ("pcm16", 24_000)]
        assert talk.reader.of("response.output_text.done")[0]["text"] == "a "
