"""Each error code, provoked through the whole stack: class, param, event_id, the socket, and that nothing changed.

The vocabulary is :data:`duplex_protocol.errors.ERRORS`; ``test_every_code_has_a_case`` keeps this file whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from duplex_protocol.errors import ERRORS, error_row
from duplex_protocol.profiles import ProfileName
from tests.wire.stack import AUTO, Json, Stack, Wire, append, b64, open_stack
from trio_duplex.models.plugin import ModelFailed, ToolCalled, Traits
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Fail, Hang, Piece, ScriptedOptions, ScriptedPlugin, ScriptedSession
from trio_duplex.testing.profiles import ProfilePlugin
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
        event=update(extra_body={"native_duplex": True}),
        param="session.extra_body.native_duplex",
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


def case_id(case: Case) -> str:
    kind = case.event["type"] if isinstance(case.event, dict) else case.event
    return f"{case.code}-{kind}-{case.param}"


def plugin_of(case: Case) -> ScriptedPlugin:
    return ProfilePlugin(case.options) if isinstance(case.options, str) else ScriptedPlugin(case.options)


def inner(event: Json) -> Json:
    """The error's members in one shape, flat or not."""
    if isinstance(event["error"], dict):
        return event["error"]  # type: ignore[no-any-return]
    return {**event, "message": event["error"], "event_id": event.get("related_event_id")}


@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_a_refused_event_changes_nothing(case: Case, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(plugin_of(case), scorer=case.scorer) as stack:
        wire = await (stack.native(case.opening) if case.native else stack.duplex(case.opening))
        await case.before(stack, wire)
        await wire.settled()
        before, errors, seen = fingerprint(stack.session), len(wire.of("error")), len(wire.events)
        if case.raw is not None:
            await wire.send_raw(case.raw)
        else:
            event = {"type": case.event} if isinstance(case.event, str) else dict(case.event)
            if event.get("response_id") == "@first":
                event["response_id"] = wire.of("response.created")[0]["response_id"]
            await wire.send({**event, "event_id": "evt_1"})
        error = inner(await wire.until("error", errors + 1))
        assert error["code"] == case.code
        assert error["message"]
        assert error.get("param") == case.param
        if case.raw is None or "evt_1" in case.raw:
            assert error["event_id"] == "evt_1"
        if not case.native:
            assert error["type"] == error_row(case.code).error_class
            assert error.get("retryable") == error_row(case.code).retryable
        await wire.settled()  # the socket is open and the session lives
        if not case.spoils:
            assert [e["type"] for e in wire.events[seen:]] == ["error", "session.heartbeat_ack"]
            assert fingerprint(stack.session) == before


# --- handshake stage: one error, then close 1000; nothing is left -----------------------------------------------------


@attrs.frozen(kw_only=True)
class Opening:
    """A connection that is refused. ``flat`` is the form (contract 6.1); ``stays``: the client may try again."""

    code: str
    first: Json | str | None = None
    flat: bool = True
    param: str | None = None
    query: Json = attrs.field(factory=lambda: {"duplex": 1})
    path: str = "/v1/realtime"
    options: ScriptedOptions | ProfileName = ScriptedOptions()
    stays: bool = False
    live: bool = False
    headers: dict[str, str] = attrs.field(factory=dict)


def opening(**session: Any) -> Json:
    return {"type": "session.update", "event_id": "evt_1", "session": session}


RESUME: Json = {"type": "session.resume", "session_id": "sess_1", "incarnation": 0, "resume_token": "@token"}
OPENINGS: list[Opening] = [
    Opening(code="config_timeout"),
    Opening(code="config_timeout", path="/v1/duplex"),
    Opening(code="invalid_json", first="{"),
    Opening(code="invalid_json", first="{", path="/v1/duplex"),
    Opening(code="bad_event", first="[]"),
    Opening(code="bad_event", first={"type": "session.heartbeat"}, query={"autostart": 0}),
    Opening(code="bad_event", first={"type": "session.heartbeat"}, query={"resume": 1}),
    Opening(code="bad_event", first={"type": "session.update"}, path="/v1/duplex"),
    Opening(code="event_too_large", first='{"type":"session.update","x":"' + "x" * 15_728_640 + '"}', stays=True),
    Opening(code="unsupported", query={"duplex": 0}),
    Opening(code="beta_api_shape_disabled", headers={"openai-beta": "realtime=v1"}, flat=False),
    Opening(code="model_not_found", first=opening(model="other"), flat=False, param="session.model"),
    Opening(code="session_exists", first=opening(session_id="sess_1"), flat=False, live=True,
            param="session.session_id"),
    Opening(code="resource_exhausted", first=opening(), flat=False, options=ScriptedOptions(slots=0)),
    Opening(code="unsupported_audio_format", first=opening(input_audio_format="mp3"), flat=False, stays=True,
            param="audio.input.format"),
    Opening(code="unsupported_turn_detection", first=opening(turn_detection={"type": "x"}), flat=False, stays=True,
            param="turn_detection"),
    Opening(code="invalid_request_error", first=opening(voice=3), flat=False, param="voice"),
    Opening(code="server_vad_initialization_failed", first=opening(**VAD), flat=False, param="turn_detection",
            options=ScriptedOptions(traits=HELD, owns_turns=False)),
    Opening(code="server_vad_requires_native_duplex", flat=False, options="qwen3_omni", param="turn_detection",
            first=opening(turn_detection={"type": "server_vad", "interrupt_response": True})),
    Opening(code="ref_audio_required", first=opening(extra_body={"native_duplex": True}), flat=False,
            options="minicpmo_4_5", param="ref_audio"),
    Opening(code="unsupported_ref_audio_path", first=opening(ref_audio="/x"), flat=False, options="minicpmo_4_5",
            param="ref_audio"),
    Opening(code="unsupported_nemotron_duplex_mode", first=opening(), flat=False, options="nemotron_voicechat",
            param="extra_body.auto_response"),
    Opening(code="invalid_duplex_runtime_config", first=opening(voice="x"), flat=False, options="personaplex",
            param="voice"),
    Opening(code="runtime_native_stage_role_required", first=opening(extra_body={"native_duplex": True}), flat=False,
            options="chat_fallback", param="extra_body.native_duplex"),
    Opening(code="invalid_session_resume", first={**RESUME, "session_id": ""}, param="session_id"),
    Opening(code="invalid_session_resume", first={**RESUME, "resume_token": None}, param="resume_token"),
    Opening(code="invalid_session_resume", first={**RESUME, "incarnation": True}, param="incarnation"),
    Opening(code="invalid_session_resume", first={**RESUME, "last_received_server_event_seq": -1},
            param="last_received_server_event_seq"),
    Opening(code="invalid_session_resume", query={"duplex": 1, "session_id": "sess_1", "resume_token": "x",
            "incarnation": "one"}, param="incarnation"),
    Opening(code="session_resume_expired", first={**RESUME, "session_id": "sess_unknown"}),
    Opening(code="session_resume_conflict", first={**RESUME, "incarnation": 3}, live=True),
    Opening(code="session_resume_conflict", first={**RESUME, "last_received_server_event_seq": 99}, live=True),
    Opening(code="invalid_resume_token", first={**RESUME, "resume_token": "rt_guess"}, live=True),
    Opening(code="unsupported_session_resume", first=RESUME, live=True, options=ScriptedOptions(resume=False)),
    Opening(code="unsupported_session_resume", first=RESUME, path="/v1/duplex"),
]  # fmt: skip


@pytest.mark.parametrize("case", OPENINGS, ids=lambda case: f"{case.code}-{case.path[4:]}-{case.param}")
async def test_a_refused_opening(case: Opening, autojump_clock: trio.testing.MockClock) -> None:
    plugin = ProfilePlugin(case.options) if isinstance(case.options, str) else ScriptedPlugin(case.options)
    async with open_stack(plugin) as stack:
        live = await stack.duplex({"session_id": "sess_1"}) if case.live else None
        token = live.of("session.created")[0].get("resume_token", "rt_none") if live else "rt_none"
        before = fingerprint(stack.session) if live else None
        slots, opened = plugin.open_slots, stack.hub.statistics().opened
        stack.headers = case.headers
        wire = await stack.connect(case.path, **case.query)
        first = case.first
        if isinstance(first, dict):
            first = {k: token if v == "@token" else v for k, v in first.items()}
            await wire.send(first)
        elif first is not None:
            await wire.send_raw(first)
        event = await wire.until("error")
        assert event["event_id"]
        assert "server_event_seq" not in event
        assert isinstance(event["error"], str) is case.flat
        error = inner(event)
        assert error["code"] == case.code
        assert error.get("param") == case.param
        assert error.get("retryable") == error_row(case.code).retryable
        if not case.flat:
            assert error["type"] == error_row(case.code).error_class
            assert error.get("event_id") == ("evt_1" if case.first else None)
        if case.stays:
            await wire.send("session.update", session={})
            await wire.until("session.updated")
            return
        assert (await wire.over()).code == 1000
        assert wire.types == ["error"]
        assert (plugin.open_slots, stack.hub.statistics().opened) == (slots, opened)
        if live is not None:
            await live.settled()
            assert fingerprint(stack.session) == before


async def test_duplex_session_busy(autojump_clock: trio.testing.MockClock) -> None:
    """L7, L8: told at once, with a retry hint; the others do not notice."""
    async with open_stack(settings=SessionSettings(max_sessions=1)) as stack:
        first = await stack.duplex()
        begun = trio.current_time()
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session={}, event_id="evt_1")
        error = await wire.error()
        assert error["code"] == "duplex_session_busy"
        assert (error["type"], error["event_id"], error["retryable"]) == ("rate_limit_error", "evt_1", True)
        assert trio.current_time() == begun
        assert (await wire.over()).code == 1000
        await first.settled()


async def test_runtime_open_failed(autojump_clock: trio.testing.MockClock) -> None:
    class Broken(ScriptedPlugin):
        async def open(self, config: Any, context: Any) -> ScriptedSession:
            raise ValueError("no")

    async with open_stack(Broken()) as stack:
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session={}, event_id="evt_1")
        error = await wire.error()
        assert (error["code"], error["type"], error["event_id"]) == ("runtime_open_failed", "server_error", "evt_1")
        assert (await wire.over()).code == 1000
        assert stack.hub.statistics().sessions == 0


async def test_commits_that_wait(autojump_clock: trio.testing.MockClock) -> None:
    """input_backpressure by turns: the fifth commit that waits behind a slow append is dropped whole."""
    async with open_stack(ProfilePlugin("qwen3_omni"), scorer=ScriptedVad(delay_s=1)) as stack:
        wire = await stack.duplex(VAD)
        for _ in range(6):
            await wire.send(append(320, rate_hz=24_000))
            await wire.send("input_audio_buffer.commit", event_id="evt_c")
        error = await wire.error()
        assert (error["code"], error["type"], error["retryable"]) == ("input_backpressure", "rate_limit_error", True)


# --- what the engine says ---------------------------------------------------------------------------------------------

SAID_BY_THE_ENGINE = [
    "runtime_append_failed",
    "runtime_signal_failed",
    "runtime_abort_failed",
    "runtime_touch_failed",
    "runtime_touch_unsupported",
    "runtime_close_failed",
    "response_error",
    "chat_error",
    "nemotron_function_call_parse_error",
    "runtime_data_plane_text_without_audio",
    "native_duplex_prefill_failed",
    "engine_error",
    "stale_fence",
    "failed_precondition",
    "not_found",
    "invalid_argument",
    "invalid_capability",
    "timeout",
    "duplex_error",
]
FATAL = ["runtime_append_task_failed", "runtime_data_plane_stream_failed", "native_kv_replica_lost", "unknown_session"]


@pytest.mark.parametrize("code", SAID_BY_THE_ENGINE)
async def test_an_engine_error_ends_the_answer_only(code: str, autojump_clock: trio.testing.MockClock) -> None:
    """The error, then the failed terminal; the session goes on with the next turn."""
    scripts = iter([[Piece("Well, "), Fail(code)], [Piece("Again.")]])
    async with open_stack(ScriptedOptions(script=lambda _: next(scripts))) as stack:
        wire = await stack.duplex(MANUAL)
        await committed(stack, wire)
        await wire.send("response.create")
        done = await wire.until("response.done")
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == (code, error_row(code).error_class)
        assert wire.types.index("error") < wire.types.index("response.done")
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"] == {"type": "failed", "reason": code}
        await heard(stack, wire)
        await wire.send("input_audio_buffer.commit", response_create=True)
        again = await wire.until("response.done", 2)
        assert again["response"]["status"] == "completed"


@pytest.mark.parametrize("code", SAID_BY_THE_ENGINE)
async def test_an_engine_error_without_an_answer_is_only_told(
    code: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_stack() as stack:
        wire = await stack.duplex()
        stack.model.hear(ModelFailed(code=code, message="so"))
        error = await wire.error()
        assert (error["code"], error["type"], error["message"]) == (code, error_row(code).error_class, "so")
        await wire.settled()
        assert stack.session.state == "open"


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("speaking", [True, False])
async def test_a_fatal_error_is_followed_by_closed(
    code: str, speaking: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Error, answer failed, session.closed with the code as the reason, close 1000; the slot is free."""
    async with open_stack(HANGS) as stack:
        wire = await stack.duplex(MANUAL)
        if speaking:
            await hanging(stack, wire)
        if code == "runtime_data_plane_stream_failed":
            stack.model.break_results()
        else:
            stack.model.hear(ModelFailed(code=code, message="so", fatal=True))
        gone = await wire.over()
        kinds = [k for k in wire.types if k in ("error", "response.done", "session.closed")]
        assert kinds == ["error", *(["response.done"] if speaking else []), "session.closed"]
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == (code, error_row(code).error_class)
        if speaking:
            assert wire.of("response.done")[0]["response"]["status"] == "failed"
        assert wire.events[-1]["reason"] == code
        assert gone.code == 1000
        assert stack.hub.statistics().sessions == 0
        assert error_row(code).session_ends


async def test_internal_error_ends_one_session(autojump_clock: trio.testing.MockClock) -> None:
    class Crashing(ScriptedSession):
        def end_turn(self) -> Any:
            raise ZeroDivisionError

    class Plugin(ScriptedPlugin):
        async def open(self, config: Any, context: Any) -> ScriptedSession:
            session = await super().open(config, context)
            crashing = len(self.sessions) == 2
            return Crashing(self, config, context) if crashing else session

    async with open_stack(Plugin()) as stack:
        other = await stack.duplex()
        wire = await stack.duplex(MANUAL)
        await wire.send(append(320))
        await wire.send("input_audio_buffer.commit", event_id="evt_1")
        await wire.over()
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == ("internal_error", "server_error")
        assert wire.events[-1]["type"] == "session.closed"
        assert wire.events[-1]["reason"] == "internal_error"
        await other.settled()


NOT_PROVOKED = {
    "invalid_session_config": "a later engine's word for what invalid_duplex_runtime_config says here",
    "session_update_aborted": "appends are applied before the update that follows them; none can fail beside it",
    "realtime_input_failed": "reading is one pure function that raises typed refusals only (fuzzed)",
    "runtime_open_unsupported": "an engine's word; this server's plugins refuse by OpenRefused",
    "runtime_contract_invalid": "server and engine are one process and one version",
    "runtime_native_runner_kv_required": "deployments are checked at start, not at the opening",
    "runtime_resume_failed": "there is no engine lease beside the session's own",
    "runtime_resume_unsupported": "there is no engine lease beside the session's own",
    "multi_api_duplex_unsupported": "one process serves; there are no API workers",
    "text_only_turn_unsupported": "a model that cannot answer in text says so with invalid_input_modality",
}
"""Codes of the vocabulary that nothing in this server says, with the reason."""


def test_every_code_has_a_case() -> None:
    named = {
        *(case.code for case in CASES),
        *(case.code for case in OPENINGS),
        *SAID_BY_THE_ENGINE,
        *FATAL,
        "duplex_session_busy",
        "runtime_open_failed",
        "internal_error",
    }
    assert named | set(NOT_PROVOKED) == set(ERRORS)
    assert not named & set(NOT_PROVOKED)
