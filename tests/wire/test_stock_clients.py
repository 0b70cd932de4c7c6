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
from tests.wire.stack import Json, Stack, Wire, append, b64, open_stack, wave
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


async def test_null_means_absent(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.plain(EVERYTHING)
        await wire.send("conversation.item.create", item=USER_TEXT)
        await wire.send(
            "response.create", response={"instructions": None, "metadata": None, "tools": None, "conversation": None}
        )
        await wire.until("response.done")
        await say(wire)
        await wire.send("session.update", session={"type": "realtime", **EVERYTHING})  # pc: again, after audio
        await wire.until("session.updated", 2)
        assert not wire.of("error")


async def test_previous_item_ids(autojump_clock: trio.testing.MockClock) -> None:
    """Null only for the first item; root = at the beginning, echoed as null; a known id is meant."""
    async with open_stack() as stack:
        wire = await stack.plain({})
        placed: list[tuple[str, Json]] = [
            ("a", {}),
            ("b", {}),
            ("c", {"previous_item_id": "root"}),
            ("d", {"previous_item_id": "a"}),
            ("e", {"previous_item_id": None}),
        ]
        for name, where in placed:
            await wire.send("conversation.item.create", item={**USER_TEXT, "id": name}, **where)
        await wire.until("conversation.item.done", 5)
        shown = {e["item"]["id"]: e["previous_item_id"] for e in wire.of("conversation.item.added")}
        assert shown == {"a": None, "b": "a", "c": None, "d": "a", "e": "b"}
        await wire.send("response.create")
        await wire.until("response.done")
        assert [e.item_id for e in stack.model.requests[0].history] == ["c", "a", "d", "b", "e"]


async def test_ids_are_kept_and_added_follows_each_create(autojump_clock: trio.testing.MockClock) -> None:
    """lk waits for it 5 s, and replays its history after each reconnect."""
    items: list[Json] = [
        {**USER_TEXT, "id": "item_u"},
        {
            "id": "item_a",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi."}],
        },
        {"id": "item_s", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"id": "item_f", "type": "function_call", "call_id": "call_1", "name": "x", "arguments": "{}"},
        {"id": "item_o", "type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]
    async with open_stack() as stack:
        wire = await stack.plain({})
        for item in items:
            await wire.send("conversation.item.create", item=item)
        await wire.until("conversation.item.done", len(items))
        assert [e["item"]["id"] for e in wire.of("conversation.item.added")] == [i["id"] for i in items]
        check_all(wire)


async def test_truncate_before_and_after_cancel(autojump_clock: trio.testing.MockClock) -> None:
    """py truncates before response.cancel, js and pc after; rounding up beyond the audio is no error."""
    for first, second in (("truncate", "cancel"), ("cancel", "truncate")):
        async with open_stack(TALKS) as stack:
            wire = await answering(stack)
            item_id = wire.of("response.output_item.added")[0]["item"]["id"]
            for what in (first, second):
                if what == "cancel":
                    await wire.send("response.cancel")
                else:
                    await wire.send(
                        "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=100_000
                    )
            await wire.until("response.done")
            await wire.until("conversation.item.truncated")
            await wire.send("conversation.item.retrieve", item_id=item_id)
            await wire.until("conversation.item.retrieved")
            assert not wire.of("error")
            check_all(wire)


async def test_no_delta_after_the_terminal(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await answering(stack)
        await wire.send("response.cancel")
        await wire.until("response.done")
        await trio.sleep(10)
        await wire.settled()
        kinds = wire.types[wire.types.index("response.done") :]
        assert not [kind for kind in kinds if kind.endswith(".delta")]


async def test_a_client_that_names_no_turn_detection_is_answered_and_told_of_its_barge_in(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """pipecat's defaults: it names none, as OpenAI's own default is to find turns, and drops playback on the event."""
    async with open_stack(TALKS) as stack:
        wire = await answering(stack, {})
        for kind in ("session.created", "session.updated"):
            assert wire.of(kind)[0]["session"]["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
        assert len(wire.of("input_audio_buffer.speech_started")) == 1
        await say(wire)
        await wire.until("response.done")
        assert wire.of("response.done")[0]["response"]["status_details"]["reason"] == "turn_detected"
        assert len(wire.of("input_audio_buffer.speech_started")) == 2
        check_all(wire)


async def test_no_speech_started_while_turn_detection_is_null(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": None}}})
        await ask(wire)
        await wire.send("input_audio_buffer.commit")
        await wire.until("input_audio_buffer.committed")
        await wire.send("response.create")
        await wire.until("response.output_audio.delta", 2)
        await say(wire)
        await wire.settled()
        assert not wire.of("input_audio_buffer.speech_started")
        assert not wire.of("response.done")


@pytest.mark.parametrize(("turn_based", "interrupts"), [(False, True), (True, False)])
async def test_interrupt_response_is_echoed(
    turn_based: bool, interrupts: bool, autojump_clock: trio.testing.MockClock
) -> None:
    plugin = ProfilePlugin("chat_fallback") if turn_based else None
    async with open_stack(plugin or TALKS, scorer=ScriptedVad()) as stack:
        wire = await stack.plain(SERVER_VAD)
        shown = wire.of("session.updated")[0]["session"]["audio"]["input"]["turn_detection"]
        assert shown["interrupt_response"] is interrupts


async def test_a_function_call_is_announced_empty(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.plain(SEMANTIC)
        stack.model.hear(ToolCalled(call_id="call_1", name="get_weather", arguments="{}"))
        await wire.until("response.done")
        for kind in ("conversation.item.added", "conversation.item.created", "response.output_item.added"):
            item = wire.of(kind)[0]["item"]
            assert (item["status"], item["arguments"], item["name"]) == ("in_progress", "", "get_weather")
        for kind in ("conversation.item.done", "response.output_item.done"):
            item = wire.of(kind)[0]["item"]
            assert (item["status"], item["arguments"]) == ("completed", "{}")


async def test_response_create_after_a_tool_result_gives_no_error(autojump_clock: trio.testing.MockClock) -> None:
    """Whether the model goes on by itself or not: one answer."""
    async with open_stack(ScriptedOptions()) as stack:
        wire = await stack.plain(SEMANTIC)
        stack.model.hear(ToolCalled(call_id="call_1", name="get_weather", arguments="{}"))
        await wire.until("response.done")
        await wire.send(
            "conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "24"}
        )
        await wire.send("response.create")
        await wire.until("response.done", 2)
        await trio.sleep(5)
        await wire.settled()
        assert not wire.of("error")
        assert len(wire.of("response.created")) == 2


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
async def test_g711_has_openais_names(name: str, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.plain(
            {
                "audio": {
                    "input": {"format": {"type": name}, "turn_detection": {"type": "semantic_vad"}},
                    "output": {"format": {"type": name}},
                }
            }
        )
        audio = wire.of("session.updated")[0]["session"]["audio"]
        assert audio["input"]["format"] == {"type": name}
        assert audio["output"]["format"] == {"type": name}
        loud, silent = (b"\x20\xa0" * 4, b"\xff" * 8) if name == "audio/pcmu" else (b"\x10\x90" * 4, b"\xd5" * 8)
        square = b"".join(bytes([byte]) * 16 for byte in loud[:2])
        await wire.send("input_audio_buffer.append", audio=b64(square * 100))
        await wire.send("input_audio_buffer.append", audio=b64(silent * 640))
        await wire.until("response.done")
        total = sum(len(pybase64.b64decode(e["delta"])) for e in wire.of("response.output_audio.delta"))
        assert total == pytest.approx(4000 * 8, abs=16), "8 kHz, one byte a sample"
        check_all(wire)


async def test_long_audio_is_cut_into_small_events(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions(script=lambda _: [Piece("A very long piece.", 30_000)])) as stack:
        wire = await stack.plain(SEMANTIC)
        await ask(wire)
        await wire.until("response.done")
        assert len(wire.of("response.output_audio.delta")) > 1
        total = sum(len(pybase64.b64decode(e["delta"])) for e in wire.of("response.output_audio.delta"))
        assert total == 30 * 48_000
        check_all(wire)


async def test_reference_audio_never_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.connect(view="openai", model="m")
        await wire.until("session.created")
        await wire.send("session.update", session={"ref_audio": "data:audio/wav;base64," + "A" * 2_000_000})
        await wire.until("session.updated")
        check_all(wire)


async def test_a_stock_client_comes_back_by_url(autojump_clock: trio.testing.MockClock) -> None:
    """The additive members are enough to resume; what was missed comes after session.created."""
    async with open_stack(TALKS) as stack:
        wire = await answering(stack)
        session = wire.of("session.created")[0]["session"]
        last = wire.events[-1]["server_event_seq"]
        wire.socket.drop()
        again = await stack.connect(
            model="m",
            session_id=session["id"],
            resume_token=session["resume_token"],
            incarnation=session["incarnation"],
            last_received_server_event_seq=last,
        )
        await again.until("response.done")
        assert again.types[0] == "session.created"
        assert again.events[0]["session"]["id"] == session["id"]
        assert again.events[0]["session"]["resume_token"] != session["resume_token"]
        assert again.events[1]["server_event_seq"] == last + 1
        for event in again.events:
            check_event(event)


async def test_a_silent_wave_is_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    """pc sends silence all the time: no event comes of it."""
    async with open_stack(TALKS) as stack:
        wire = await stack.plain(SEMANTIC)
        for _ in range(20):
            await wire.send("input_audio_buffer.append", audio=b64(wave(100, 0, 24_000)))
        await wire.settled()
        assert set(wire.types) == {"session.created", "session.updated", "session.heartbeat_ack"}
