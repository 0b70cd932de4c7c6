"""What stock OpenAI clients need of the server, row by row, through the whole stack in the plain view.

Rows about the listener (pings, sub-protocol on the wire) are tested in tests/server.
"""

from __future__ import annotations

from typing import Any

import orjson
import pybase64
import pytest
import trio

from duplex_protocol.catalogue import SERVER_EVENTS
from tests.protocol.test_wire_openai_types import check_event, models
from tests.wire.stack import Json, Stack, Wire, append, open_stack
from trio_duplex.models.plugin import ToolCalled, TurnTranscribed
from trio_duplex.testing import Piece, ScriptedOptions
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.scripted_vad import ScriptedVad

LONG = [Piece(f"word{k} ", 200) for k in range(20)]
TALKS = ScriptedOptions(script=lambda _: LONG)
SEMANTIC: Json = {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}
SERVER_VAD: Json = {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
DUPLEX_ONLY = {name for name, row in SERVER_EVENTS.items() if row.tier == 3}
USER_TEXT: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}


async def say(wire: Wire, ms: int = 400) -> None:
    """As microphones of stock clients do: 24 kHz PCM16, nothing named."""
    await wire.send(append(ms, rate_hz=24_000))


async def hush(wire: Wire, ms: int = 640) -> None:
    await wire.send(append(ms, 0, rate_hz=24_000))


async def ask(wire: Wire) -> None:
    await say(wire)
    await hush(wire)


async def answering(stack: Stack, session: Json | None = None) -> Wire:
    """A session in the middle of a spoken answer."""
    wire = await stack.plain(SEMANTIC if session is None else session)
    await ask(wire)
    await wire.until("response.output_audio_transcript.delta", 3)
    return wire


def check_all(wire: Wire) -> None:
    """Every event received is one of OpenAI's, whole and strict, under 1 MiB, with an id."""
    for event in wire.events:
        check_event(event)
        assert event["event_id"]
        assert len(orjson.dumps(event)) < 1_048_576


async def test_a_conversation_with_everything_in_it_is_openais(autojump_clock: trio.testing.MockClock) -> None:
    """Done when 6: barge-in, tool call, truncate and error, no unknown event."""
    async with open_stack(TALKS) as stack:
        wire = await answering(stack)
        stack.model.hear(ToolCalled(call_id="call_1", name="get_weather", arguments='{"city":"Rome"}'))
        await wire.until("response.function_call_arguments.done")
        await say(wire)  # barge-in
        await wire.until("response.done", 2)
        cancelled = wire.of("response.done")[-1]["response"]
        await wire.send(
            "conversation.item.truncate", item_id=cancelled["output"][0]["id"], content_index=0, audio_end_ms=450
        )
        await wire.until("conversation.item.truncated")
        await wire.send("response.cancel", event_id="evt_c1")
        await wire.error()
        await wire.send(
            "conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "24"}
        )
        await wire.send("conversation.item.create", item=USER_TEXT)
        await hush(wire)
        await wire.until("response.done", 3)
        await wire.send("conversation.item.retrieve", item_id=cancelled["output"][0]["id"])
        await wire.until("conversation.item.retrieved")
        await wire.send("input_audio_buffer.commit")
        await wire.send("input_audio_buffer.clear")
        await wire.send("output_audio_buffer.clear")
        await wire.until("output_audio_buffer.cleared")
        check_all(wire)
        assert set(wire.types) >= {
            "session.created",
            "session.updated",
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.input_audio_transcription.completed",
            "response.function_call_arguments.done",
            "conversation.item.truncated",
            "conversation.item.retrieved",
            "error",
        }
        assert set(wire.types) <= set(models())
        assert not set(wire.types) & DUPLEX_ONLY


async def test_created_at_once_when_the_url_names_a_model(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.connect(model="gpt-realtime")
        assert (await wire.until("session.created"))["session"]["type"] == "realtime"
        assert not wire.socket.sent


@pytest.mark.parametrize("first", ["{", "[]", '{"type": "nonsense", "event_id": "evt_1"}'])
async def test_every_event_has_an_id_errors_too(first: str, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.connect(model="m")
        await wire.send_raw(first)
        await wire.until("error")
        check_all(wire)


async def test_the_default_is_24_khz_both_ways(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await answering(stack)
        audio = wire.of("session.created")[0]["session"]["audio"]
        pcm = {"type": "audio/pcm", "rate": 24_000}
        assert audio["input"]["format"] == pcm
        assert audio["output"]["format"] == pcm
        assert stack.model.submitted_ms == pytest.approx(1040, abs=2), "the client's 24 kHz were taken as such"


@pytest.mark.parametrize("name", ["nemotron_voicechat", "personaplex"])
async def test_output_is_always_24_khz_of_whole_samples(name: Any, autojump_clock: trio.testing.MockClock) -> None:
    """Also of a model that speaks at 22.05 kHz."""
    pieces = tuple(Piece(f"w{k} ") for k in range(25))
    async with open_stack(ProfilePlugin(name, pieces)) as stack:
        wire = await stack.plain(SEMANTIC)
        await say(wire)
        for _ in range(30):
            await hush(wire, 100)
        await wire.until("response.done")
        sizes = [len(pybase64.b64decode(e["delta"])) for e in wire.of("response.output_audio.delta")]
        assert all(size % 2 == 0 for size in sizes)
        assert sum(sizes) / 2 == pytest.approx(25 * 80 * 24, abs=24)


async def test_metadata_is_strings_and_the_clients_own(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.plain({})
        await wire.send("conversation.item.create", item=USER_TEXT)
        await wire.send("response.create", response={"metadata": {"client_event_id": "evt_7", "n": 3}})
        done = await wire.until("response.done")
        created = wire.of("response.created")[0]
        for event in (created, done):
            assert event["response"]["metadata"] == {"client_event_id": "evt_7", "n": "3"}


@pytest.mark.parametrize("how", ["response.cancel", "output_audio_buffer.clear", "input.cancel", "speech", "barge_in"])
async def test_status_words_after_a_cancel(how: str, autojump_clock: trio.testing.MockClock) -> None:
    """Items incomplete; reasons are OpenAI's."""
    async with open_stack(TALKS) as stack:
        wire = await answering(stack)
        await (say(wire) if how == "speech" else wire.send(how))
        response = (await wire.until("response.done"))["response"]
        assert response["status"] == "cancelled"
        by_client = how in ("response.cancel", "output_audio_buffer.clear")
        assert response["status_details"]["reason"] == ("client_cancelled" if by_client else "turn_detected")
        assert [item["status"] for item in response["output"]] == ["incomplete"]
        check_all(wire)


async def test_transcription_has_usage_and_its_item_no_transcript_yet(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_stack() as stack:
        wire = await stack.plain(SEMANTIC)
        await ask(wire)
        done = await wire.until("conversation.item.input_audio_transcription.completed")
        assert done["transcript"] == "hello"
        assert done["usage"]["type"] == "duration"
        assert done["usage"]["seconds"] > 0
        added = next(e for e in wire.of("conversation.item.added") if e["item"]["id"] == done["item_id"])
        assert added["item"]["content"][0]["transcript"] is None


async def test_a_late_transcript_comes_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions(transcripts=("",))) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": None}}})
        await say(wire)
        await wire.send("input_audio_buffer.commit")
        committed = await wire.until("input_audio_buffer.committed")
        turn = stack.model._turn()
        turn.item_id, turn.transcript = committed["item_id"], "late words"
        stack.model.hear(TurnTranscribed(turn=turn))
        done = await wire.until("conversation.item.input_audio_transcription.completed")
        assert done["transcript"] == "late words"
        check_all(wire)


async def test_openais_codes(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.plain(SEMANTIC)
        item = {**USER_TEXT, "id": "item_mine"}
        await wire.send("conversation.item.create", item=item)
        tries: list[tuple[Json, str]] = [
            ({"type": "response.cancel"}, "response_cancel_not_active"),
            ({"type": "conversation.item.retrieve", "item_id": "item_x"}, "item_retrieve_invalid_item_id"),
            ({"type": "conversation.item.delete", "item_id": "item_x"}, "item_delete_invalid_item_id"),
            (
                {"type": "conversation.item.truncate", "item_id": "item_x", "content_index": 0, "audio_end_ms": 0},
                "item_truncate_invalid_item_id",
            ),
            ({"type": "conversation.item.create", "item": item}, "item_create_duplicate_item_id"),
            ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
        ]
        for count, (event, code) in enumerate(tries, 1):
            await wire.send({**event, "event_id": f"evt_{count}"})
            error = await wire.error(count)
            assert (error["code"], error["event_id"]) == (code, f"evt_{count}")
            if code == "response_cancel_not_active":
                assert error["message"].startswith("Cancellation failed: ")
        await wire.send("response.create")
        await wire.until("response.created")
        await wire.send("response.create", event_id="evt_again")
        error = await wire.error(len(tries) + 1)
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "evt_again")
        check_all(wire)


EVERYTHING: Json = {
    "instructions": "You are kind.",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "noise_reduction": None,
            "turn_detection": {"type": "semantic_vad", "create_response": True, "interrupt_response": True},
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin", "speed": 1.0},
    },
    "max_output_tokens": "inf",
    "tools": [],
    "tool_choice": "auto",
    "tracing": "auto",
}


@pytest.mark.parametrize("turn_based", [False, True])
async def test_the_first_update_may_set_everything(turn_based: bool, autojump_clock: trio.testing.MockClock) -> None:
    """And the same again later, tracing or instructions in a second one, gives no error either."""
    plugin = ProfilePlugin("chat_fallback") if turn_based else None
    async with open_stack(plugin or TALKS, scorer=ScriptedVad()) as stack:
        wire = await stack.plain(EVERYTHING)
        for update in (
            EVERYTHING,
            {"tracing": None},
            {"instructions": "You are kind."},
            {"tracing": {"group_id": "x"}},
        ):
            await wire.send("session.update", session={"type": "realtime", **update})
        await wire.until("session.updated", 5)
        session = wire.of("session.updated")[0]["session"]
        assert session["instructions"] == "You are kind."
        assert session["audio"]["output"]["voice"] == "marin"
        assert session["audio"]["input"]["transcription"] == {"model": "gpt-4o-mini-transcribe"}
        check_all(wire)


@pytest.mark.parametrize("turn_based", [False, True])
@pytest.mark.parametrize("eagerness", [None, "low", "medium", "high", "auto"])
async def test_semantic_vad_is_taken_and_speech_is_answered(
    turn_based: bool, eagerness: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    detection: Json = {"type": "semantic_vad", **({"eagerness": eagerness} if eagerness else {})}
    plugin = ProfilePlugin("chat_fallback") if turn_based else None
    async with open_stack(plugin or ScriptedOptions(), scorer=ScriptedVad()) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": detection}}})
        shown = wire.of("session.updated")[0]["session"]["audio"]["input"]["turn_detection"]
        assert shown == {
            **detection,
            "interrupt_response": not turn_based,
            "create_response": True,
        }
        for _ in range(10):
            await say(wire, 40)
        for _ in range(40):
            await hush(wire, 40)
        done = await wire.until("response.done")
        assert done["response"]["status"] == "completed"
        check_all(wire)
