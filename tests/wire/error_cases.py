"""Events that are refused, and the states in which they are: the table behind test_error_codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from duplex_protocol.profiles import ProfileName
from tests.wire.stack import AUTO, Json, Stack, Wire, append, b64
from trio_duplex.models.plugin import ModelFailed, ToolCalled, Traits
from trio_duplex.session.core import Session
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.scripted_vad import ScriptedVad

REF = "data:audio/wav;base64,UklGRg=="
HANGS = ScriptedOptions(script=lambda _: [Piece("Well, "), Hang()])
HELD = Traits(detects_speech=False, holds_manual_input=True)
MANUAL: Json = {}
NATIVE_MC: Json = {"ref_audio": REF, "extra_body": {"native_duplex": True}}
USER_TEXT: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
ACK = '{"type":"playback.ack","event_id":"evt_1",'
VAD: Json = {"turn_detection": {"type": "server_vad"}}

Before = Callable[[Stack, Wire], Awaitable[None]]


def fingerprint(session: Session) -> object:
    """What a refused event must leave alone."""
    buffer = session.input
    return (
        session.snapshot(),
        [(e.item_id, e.role, e.text) for e in session.conversation.history()],
        session.conversation.tail_id,
        (buffer.appends, buffer.audio_ms, buffer.item_id, buffer.speech_ms, list(buffer.text)),
        (session.unanswered is None, session.deferred is None, session.waiting is None),
        (session.clock_ms, session.overlap_ms, session.held_samples, session.audio_appended),
        session.turn_state,
        [(r.id, r.status, r.ledger.snapshot()) for r in session.responses.values()],
    )


async def nothing(stack: Stack, wire: Wire) -> None:
    """An open session."""


async def heard(stack: Stack, wire: Wire) -> None:
    await wire.send(append(320))
    await wire.settled()


async def committed(stack: Stack, wire: Wire) -> None:
    await heard(stack, wire)
    await wire.send("input_audio_buffer.commit")
    await wire.until("input_audio_buffer.committed")


async def hanging(stack: Stack, wire: Wire) -> None:
    """An answer that said something and then goes no further."""
    await committed(stack, wire)
    await wire.send("response.create")
    await wire.until("response.output_audio_transcript.delta")
    await wire.settled()


async def answered(stack: Stack, wire: Wire) -> None:
    await committed(stack, wire)
    await wire.send("response.create")
    await wire.until("rate_limits.updated")


async def answered_and_asked_again(stack: Stack, wire: Wire) -> None:
    await answered(stack, wire)
    await wire.send(append(1000))
    await wire.send("input_audio_buffer.commit")
    await wire.until("input_audio_buffer.committed", 2)


async def with_item(stack: Stack, wire: Wire) -> None:
    await wire.send("conversation.item.create", item={**USER_TEXT, "id": "item_mine"})
    await wire.until("conversation.item.done")


async def called(stack: Stack, wire: Wire) -> None:
    stack.model.hear(ToolCalled(call_id="call_1", name="get", arguments="{}"))
    await wire.until("response.done")


async def called_often(stack: Stack, wire: Wire) -> None:
    for number in range(9):
        stack.model.hear(ToolCalled(call_id=f"call_{number}", name="get", arguments="{}"))
    await wire.until("response.done", 9)
    for number in range(8):
        output = {"type": "function_call_output", "call_id": f"call_{number}", "output": "1"}
        await wire.send("conversation.item.create", item=output)
    await wire.settled()


async def lost(stack: Stack, wire: Wire) -> None:
    await heard(stack, wire)
    stack.model.hear(ModelFailed(code="runtime_append_failed", message="lost", loses_input=True))
    await wire.until("error")


async def draining(stack: Stack, wire: Wire) -> None:
    await hanging(stack, wire)
    await wire.send("session.close", drain="sent", drain_timeout_s=100)
    await trio.testing.wait_all_tasks_blocked()


@attrs.frozen(kw_only=True)
class Case:
    """One event that is refused. ``spoils``: contract 6 lets this one lose buffered input."""

    code: str
    event: Json | str
    param: str | None = None
    before: Before = nothing
    opening: Json = attrs.field(factory=lambda: MANUAL)
    options: ScriptedOptions | ProfileName = HANGS
    scorer: ScriptedVad | None = None
    native: bool = False
    spoils: bool = False
    raw: str | None = None


def item_event(**fields: Any) -> Json:
    return {"type": "conversation.item.create", "item": fields}


def output(**fields: Any) -> Json:
    return item_event(type="function_call_output", **fields)


def update(**session: Any) -> Json:
    return {"type": "session.update", "session": session}


def ack(**fields: Any) -> Json:
    return {"type": "playback.ack", **fields}


CASES: list[Case] = [
    Case(code="invalid_json", event="", raw='{"event_id": "evt_1", "type": '),
    Case(code="invalid_json", event="", raw="\x00"),
    Case(code="bad_event", event="", raw="[1]"),
    Case(code="bad_event", event="", raw='"text"'),
    Case(code="bad_event", event="", raw='{"event_id": "evt_1"}', param="type"),
    Case(code="bad_event", event={"type": ""}, param="type"),
    Case(code="bad_event", event={"type": 3}, param="type"),
    Case(code="bad_event", event={"type": "input_audio_buffer.append"}, param="audio"),
    Case(code="bad_event", event={"type": "input_audio_buffer.append", "audio": ""}, param="audio"),
    Case(code="bad_event", event={"type": "input_audio_buffer.append", "audio": 3}, param="audio"),
    Case(code="bad_event", event=append(sample_rate_hz=7_999), param="sample_rate_hz"),
    Case(code="bad_event", event=append(sample_rate_hz=True), param="sample_rate_hz"),
    Case(code="bad_event", event=append(is_speech="yes"), param="is_speech"),
    Case(code="bad_event", event={"type": "turn.signal"}, param="event"),
    Case(code="bad_event", event={"type": "turn.signal", "event": "x", "payload": 1}, param="payload"),
    Case(code="bad_event", event={"type": "input.text.append"}, param="text"),
    Case(code="bad_event", event={"type": "conversation.item.create"}, param="item"),
    Case(code="bad_event", event=item_event(type="message", role="user", content=[]), param="item.content"),
    Case(code="bad_event", event={"type": "response.create", "response": []}, param="response"),
    Case(code="bad_event", event=ack(played_ms="1"), param="played_ms"),
    Case(code="bad_event", event="", raw=ACK + '"played_ms":-1e999}', param="played_ms"),
    Case(
        code="bad_event",
        event="",
        raw='{"type":"session.update","event_id":"evt_1","session":{"temperature":1e999}}',
        param="temperature",
    ),
    Case(code="bad_event", event="", raw=ACK + '"played_ms":NaN}', param="played_ms"),
    Case(
        code="bad_event",
        event={"type": "conversation.item.truncate", "item_id": "item_mine", "audio_end_ms": 1},
        param="item_id",
        before=with_item,
    ),
    Case(
        code="bad_event",
        event={"type": "conversation.item.truncate", "item_id": "item_mine"},
        param="audio_end_ms",
        before=with_item,
    ),
    Case(code="unknown_event", event={"type": "session.dance"}, param="type"),
    Case(code="bad_audio", event={"type": "input_audio_buffer.append", "audio": "@@@"}, param="audio"),
    Case(code="bad_audio", event={"type": "input_audio_buffer.append", "audio": b64(b"abc")}, param="audio"),
    Case(
        code="bad_audio",
        event=item_event(type="message", role="user", content=[{"type": "input_audio", "audio": "@@"}]),
        param="item.content.audio",
    ),
    Case(code="unsupported_audio_format", event=append(format="mp3"), param="format"),
    Case(code="unsupported_audio_format", event=update(input_audio_format="mp3"), param="audio.input.format"),
    Case(code="unsupported_audio_format", event=update(sample_rate_hz=1), param="audio.input.format"),
    Case(
        code="unsupported_audio_format",
        event={"type": "response.create", "response": {"output_audio_format": "mp3"}},
        param="response.output_audio_format",
        before=committed,
    ),
    Case(
        code="unsupported_response_modality",
        event={"type": "response.create", "response": {"modalities": ["smell"]}},
        param="response.modalities",
        before=committed,
    ),
    Case(code="unsupported_response_modality", event=update(modalities=[]), param="modalities"),
    Case(
        code="unsupported_turn_detection",
        event=update(turn_detection={"type": "semantic_vad"}),
        param="turn_detection",
    ),
    Case(
        code="unsupported_turn_detection",
        event=update(turn_detection={"type": "server_vad", "eagerness": "low"}),
        param="turn_detection",
    ),
    Case(code="unsupported_turn_detection", event=update(overlap_policy="barge_in_on_speech"), param="turn_detection"),
    Case(
        code="unsupported_turn_detection",
        event=update(**VAD),
        param="turn_detection",
        options=ScriptedOptions(barge_in=False),
    ),
    Case(
        code="server_vad_requires_native_duplex",
        event=update(turn_detection={"type": "server_vad", "interrupt_response": True}),
        param="turn_detection",
        options="qwen3_omni",
    ),
    Case(
        code="server_vad_manual_commit_unsupported",
        event="input_audio_buffer.commit",
        opening=VAD,
        options="qwen3_omni",
        scorer=ScriptedVad(),
    ),
    Case(
        code="server_vad_initialization_failed",
        event=update(**VAD),
        param="turn_detection",
        options=ScriptedOptions(traits=HELD, owns_turns=False),
        scorer=ScriptedVad(unavailable=True),
    ),
    Case(
        code="server_vad_inference_failed",
        event=append(320, rate_hz=24_000),
        opening=VAD,
        options="qwen3_omni",
        scorer=ScriptedVad(fails=True),
        spoils=True,
    ),
    Case(code="input_audio_buffer_empty", event="input_audio_buffer.commit"),
    Case(code="native_text_append_unsupported", event={"type": "input.text.append", "text": "hi"}),
    Case(code="invalid_video_frames", event=append(video_frames=["AAAA"]), param="video_frames"),
    Case(
        code="invalid_input_modality",
        event=append(video_frames=["/9j/4AAQSkZJRg=="]),
        param="video_frames",
        options="qwen3_omni",
    ),
    Case(
        code="input_backpressure", event=append(), options=ScriptedOptions(overloaded=True), opening=AUTO, spoils=True
    ),
    Case(code="commit_aborted", event="input_audio_buffer.commit", before=lost, spoils=True),
    Case(code="missing_item_id", event="conversation.item.retrieve", param="item_id"),
    Case(code="missing_item_id", event={"type": "conversation.item.delete", "item_id": None}, param="item_id"),
    Case(code="item_not_found", event={"type": "conversation.item.retrieve", "item_id": "item_x"}, param="item_id"),
    Case(code="item_not_found", event={"type": "conversation.item.delete", "item_id": "item_x"}, param="item_id"),
    Case(
        code="item_not_found",
        event={"type": "conversation.item.truncate", "item_id": "item_x", "audio_end_ms": 0},
        param="item_id",
    ),
    Case(code="item_exists", event=item_event(**USER_TEXT, id="item_mine"), param="item.id", before=with_item),
    Case(code="invalid_function_call_output", event=output(call_id="x", output="1"), param="item.call_id"),
    Case(code="invalid_function_call_output", event=output(output="1"), param="item.call_id"),
    Case(
        code="invalid_function_call_output",
        event=output(call_id="call_1", output=3),
        param="item.output",
        before=called,
    ),
    Case(code="function_response_backlog", event=output(call_id="call_8", output="1"), before=called_often),
    Case(
        code="runtime_append_failed",
        event=output(call_id="call_1", output="1"),
        before=called,
        options=ScriptedOptions(refuses_tool_outputs=True),
    ),
    Case(code="response_already_active", event="response.create", before=hanging),
    Case(code="response_create_without_input", event="response.create"),
    Case(code="response_not_active", event="response.cancel"),
    Case(code="response_not_active", event="response.cancel", before=heard),
    Case(code="response_not_active", event={"type": "response.cancel", "response_id": "resp_x"}, before=hanging),
    Case(code="response_not_active", event="response.cancel", before=answered, options=ScriptedOptions()),
    *(
        Case(
            code="unsupported_native_response_options",
            event={"type": "response.create", "response": {key: value}},
            param=f"response.{key}",
            before=committed,
        )
        for key, value in (
            ("instructions", "x"),
            ("voice", "x"),
            ("temperature", 0.5),
            ("max_output_tokens", 5),
            ("tools", []),
            ("tool_choice", "auto"),
        )
    ),
    Case(code="barge_in_unsupported", event="barge_in", options=attrs.evolve(HANGS, barge_in=False), before=hanging),
    Case(
        code="barge_in_unsupported",
        event={"type": "turn.signal", "event": "barge_in"},
        options=attrs.evolve(HANGS, barge_in=False),
        before=hanging,
    ),
    Case(
        code="playback_item_mismatch",
        event=ack(response_id="resp_a", item_id="item_resp_b", played_ms=1),
        param="item_id",
        before=hanging,
    ),
    Case(code="playback_item_not_found", event=ack(response_id="resp_x"), param="response_id"),
    Case(code="playback_item_not_found", event=ack(item_id="something"), param="item_id"),
    Case(
        code="playback_ack_too_late",
        event=ack(response_id="@first", played_ms=100),
        opening={"playback_commit_policy": "ack_only"},
        before=answered_and_asked_again,
        options=ScriptedOptions(),
    ),
    Case(code="model_update_unsupported", event=update(model="other"), param="session.model"),
    Case(
        code="voice_update_after_audio_unsupported",
        event=update(voice="another"),
        param="session.voice",
        before=answered,
        options=ScriptedOptions(),
    ),
    Case(code="ref_audio_update_unsupported", event=update(ref_audio=REF), param="session.ref_audio"),
    Case(
        code="native_duplex_mode_update_unsupported",
        event=update(extra_body={"native_duplex": False}),
        param="session.extra_body.native_duplex",
        opening=NATIVE_MC,
        options="minicpmo_4_5",
    ),
    Case(
        code="instructions_update_unsupported",
        event=update(instructions="x"),
        param="instructions",
        opening=NATIVE_MC,
        options="minicpmo_4_5",
    ),
    Case(
        code="sliding_window_update_unsupported",
        event=update(extra_body={"sliding_window_mode": "basic"}),
        param="extra_body.sliding_window_mode",
        opening=NATIVE_MC,
        options="minicpmo_4_5",
    ),
    Case(
        code="invalid_sliding_window_config",
        event=update(extra_body={"sliding_window_mode": "wide"}),
        param="extra_body.sliding_window_mode",
        opening=NATIVE_MC,
        options="minicpmo_4_5",
    ),
    Case(
        code="persona_update_unsupported",
        event=update(instructions="x"),
        param="instructions",
        options="personaplex",
    ),
    Case(code="voice_update_unsupported", event=update(voice="NATM1.pt"), param="voice", options="personaplex"),
    Case(
        code="invalid_duplex_runtime_config",
        event=update(extra_body={"nvc_x": 1}),
        param="extra_body.nvc_x",
        opening=AUTO,
        options="nemotron_voicechat",
    ),
    Case(
        code="unsupported_nemotron_duplex_mode",
        event=update(extra_body={"auto_response": False}),
        param="extra_body.auto_response",
        opening=AUTO,
        options="nemotron_voicechat",
    ),
    Case(code="invalid_request_error", event=update(instructions=3), param="instructions"),
    Case(
        code="invalid_request_error",
        event=update(extra_body={"native_duplex": "yes"}),
        param="extra_body.native_duplex",
    ),
    Case(code="invalid_request_error", event=update(idle_timeout_s=-1, tools="x"), param="tools"),
    Case(code="unsupported_session_resume", event={"type": "session.resume"}),
    Case(code="session_exists", event="session.create", native=True),
    Case(code="invalid_event_ack", event="session.event_ack", param="server_event_seq"),
    Case(
        code="invalid_event_ack",
        event={"type": "session.event_ack", "server_event_seq": -1},
        param="server_event_seq",
    ),
    Case(
        code="invalid_event_ack",
        event={"type": "session.event_ack", "server_event_seq": 99},
        param="server_event_seq",
    ),
    Case(code="session_closed", event=append(), before=draining),
]  # fmt: skip


def inner(event: Json) -> Json:
    """The error's members in one shape, flat or not."""
    if isinstance(event["error"], dict):
        return event["error"]  # type: ignore[no-any-return]
    return {**event, "message": event["error"], "event_id": event.get("related_event_id")}
