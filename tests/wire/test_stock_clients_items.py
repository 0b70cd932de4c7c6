"""What stock OpenAI clients need of items, playback and audio, row by row, in the plain view."""

from __future__ import annotations

import pybase64
import pytest
import trio

from tests.protocol.test_wire_openai_types import check_event
from tests.wire.stack import Json, b64, open_stack, wave
from tests.wire.test_stock_clients import (
    EVERYTHING,
    SEMANTIC,
    SERVER_VAD,
    TALKS,
    USER_TEXT,
    answering,
    ask,
    check_all,
    say,
)
from trio_duplex.models.plugin import ToolCalled
from trio_duplex.testing import Piece, ScriptedOptions
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.scripted_vad import ScriptedVad


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
