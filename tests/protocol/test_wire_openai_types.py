"""P1, P2: a scripted plain-view conversation parses completely into the official SDK's own types.

The SDK's models accept further members, so each object's members are checked against its model's fields as well.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import attrs
import pytest

from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol import wire
from duplex_protocol.realtime import RealtimeDialect
from tests.protocol.test_wire_session_object import LIVEKIT_OPENING
from tests.protocol.wire_kit import (
    CALL,
    CANCELLED,
    COMMITTED,
    CREATED,
    DEFAULTS,
    DELTA,
    DONE,
    SESSION,
    TEXT,
    run,
    session_created,
    snapshot,
)

realtime = pytest.importorskip("openai.types.realtime", reason="the official SDK is not installed")

ADDITIVE = frozenset({"server_event_seq"})
SESSION_ADDITIVE = frozenset({"id", "object", "incarnation", "resume_token"})
"""Members beyond OpenAI's types that stock clients were seen to ignore (contract 25)."""


def models() -> dict[str, type]:
    """Each server event type of the SDK with its model."""
    union = get_args(realtime.RealtimeServerEvent)[0]
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)}


def item_model(item: dict[str, Any]) -> type:
    """The SDK's model of an item."""
    if item["type"] == "function_call":
        return realtime.RealtimeConversationItemFunctionCall
    if item["type"] == "function_call_output":
        return realtime.RealtimeConversationItemFunctionCallOutput
    return {
        "user": realtime.RealtimeConversationItemUserMessage,
        "assistant": realtime.RealtimeConversationItemAssistantMessage,
        "system": realtime.RealtimeConversationItemSystemMessage,
    }[item["role"]]


def check(model: Any, value: dict[str, Any], additive: frozenset[str] = frozenset()) -> None:
    """Strictly validate one object, and refuse members that its model does not have."""
    model.model_validate(value, strict=True)
    assert set(value) <= set(model.model_fields) | additive, (value.get("type"), set(value) - set(model.model_fields))


def check_event(frame: dict[str, Any]) -> None:
    """Validate one server event with everything inside it."""
    check(models()[frame["type"]], frame, ADDITIVE)
    if "session" in frame:
        check(realtime.RealtimeSessionCreateRequest, frame["session"], SESSION_ADDITIVE)
        audio = frame["session"]["audio"]
        check(realtime.RealtimeAudioConfigInput, audio["input"])
        check(realtime.RealtimeAudioConfigOutput, audio["output"])
    response = frame.get("response", {})
    if response:
        check(realtime.RealtimeResponse, response)
        if response["status_details"]:
            check(realtime.RealtimeResponseStatus, response["status_details"])
        assert all(isinstance(value, str) for value in (response["metadata"] or {}).values())
    for item in [*([frame["item"]] if "item" in frame else []), *response.get("output", [])]:
        check(item_model(item), item)
    if "error" in frame:
        check(realtime.RealtimeError, frame["error"])


def wired(dialect: RealtimeDialect, *events: e.Event) -> list[dict[str, Any]]:
    """The events as a client reads them."""
    return [
        json.loads(wire.encode(frame, event_id=f"event_{number:032x}", server_event_seq=number))
        for number, frame in enumerate(run(dialect, *events), 1)
    ]


def scripted(dialect: RealtimeDialect) -> list[e.Event]:
    """A conversation with barge-in, tool call, truncate, retrieve, delete and errors."""
    config = dialect.parse_open({}, DEFAULTS).config
    config = dialect.parse_update(LIVEKIT_OPENING, config, DEFAULTS).config
    server_vad = {
        "audio": {"input": {"turn_detection": {"type": "server_vad"}, "noise_reduction": {"type": "far_field"}}}
    }
    other = dialect.parse_update(server_vad, config, DEFAULTS).config
    text_item = v.Item(id="item_t", content=(v.ContentPart("input_text", text="hello"),))
    system = v.Item(id="item_s", role="system", content=(v.ContentPart("input_text", text="be kind"),))
    old = v.Item(id="item_o", role="assistant", content=(v.ContentPart("output_text", text="hi"),))
    output = v.Item(id="item_f", type="function_call_output", role=None, call_id="call_7d1f", output="24")
    silence = v.Item(id="item_q", content=(v.ContentPart("input_audio", transcript="", is_speech=False),))
    second = {"response_id": "resp_02", "item_id": "item_resp_02"}
    answer = attrs.evolve(CANCELLED.item, id="item_resp_02")
    text_answer = v.Item(
        id="item_resp_03", role="assistant", content=(v.ContentPart("output_text", text="Tomorrow looks"),)
    )
    third = {"response_id": "resp_03", "item_id": "item_resp_03"}
    return [
        session_created(config, by_update=False),
        e.SessionUpdated(session=snapshot(config)),
        e.SessionUpdated(session=snapshot(other)),
        *(
            e.ItemCreated(item=item, previous_item_id=None, predecessor_id=None)
            for item in (text_item, system, old, output)
        ),
        e.SpeechStarted(item_id="item_9b2d", audio_start_ms=40),
        e.SpeechStopped(item_id="item_9b2d", audio_end_ms=2000),
        COMMITTED,
        attrs.evolve(CREATED, metadata={"client_event_id": "response_create_1"}),
        DELTA,
        attrs.evolve(DONE, metadata={"client_event_id": "response_create_1"}),
        attrs.evolve(CREATED, **second),
        attrs.evolve(DELTA, **second),
        attrs.evolve(CANCELLED, response_id="resp_02", item=answer),
        attrs.evolve(CREATED, **third, modalities=("text",)),
        attrs.evolve(TEXT, **third),
        attrs.evolve(
            DONE,
            response_id="resp_03",
            item=text_answer,
            had_audio=False,
            transcript="",
            text="Tomorrow looks",
            finish_reason="length",
            modalities=("text",),
        ),
        attrs.evolve(CREATED, response_id="resp_04", item_id="item_resp_04"),
        attrs.evolve(
            DONE,
            response_id="resp_04",
            status="failed",
            reason="chat_error",
            had_audio=False,
            transcript="",
            item=v.Item(id="item_resp_04", role="assistant", status="failed"),
        ),
        CALL,
        attrs.evolve(COMMITTED, item=silence, empty=True, no_response=True, is_speech=False),
        e.InputTranscribed(item_id="item_q", transcript="late", audio_ms=10),
        e.ItemRetrieved(item=answer),
        e.ItemTruncated(item_id="item_resp_02", content_index=0, audio_end_ms=900),
        e.ItemDeleted(item_id="item_t"),
        e.InputCleared(session_id=SESSION, epoch=0),
        e.InputCancelled(session_id=SESSION, reason="barge_in", epoch=2),
        e.OutputCleared(session_id=SESSION, response_id="resp_02", epoch=2),
        e.OutputCleared(session_id=SESSION, response_id=None, epoch=2),
        e.ErrorRaised(code="response_not_active", message="nothing to cancel", related_event_id="evt_1"),
        e.ErrorRaised(code="input_backpressure", message="slow", retryable=True, param="audio", epoch=1),
    ]


def test_a_whole_conversation_is_openais() -> None:
    dialect = RealtimeDialect("plain")
    shown = wired(dialect, *scripted(dialect))
    for frame in shown:
        check_event(frame)
    assert {frame["type"] for frame in shown} >= {
        "session.created",
        "session.updated",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.retrieved",
        "conversation.item.truncated",
        "conversation.item.deleted",
        "conversation.item.input_audio_transcription.completed",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "input_audio_buffer.cleared",
        "output_audio_buffer.cleared",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.done",
        "rate_limits.updated",
        "error",
    }


def test_a_resume_by_url_is_openais_too() -> None:
    dialect = RealtimeDialect("plain")
    wired(dialect, session_created(dialect.parse_open({}, DEFAULTS).config, by_update=False))
    resumed = e.SessionResumed(
        session_id=SESSION, incarnation=0, attachment_generation=2, resume_token="rt", by_query=True
    )
    (frame,) = wired(dialect, resumed)
    check_event(frame)


def test_p1_the_duplex_view_uses_the_current_names_only() -> None:
    """Every Tier 1 and 2 event name of the duplex view exists in the SDK; no beta name is sent."""
    from duplex_protocol.catalogue import SERVER_EVENTS

    known = set(models())
    for name, row in SERVER_EVENTS.items():
        assert (name in known) == (row.tier != 3), name
    assert not {"response.audio.delta", "response.audio_transcript.delta", "response.text.delta"} & set(SERVER_EVENTS)


def test_the_check_can_fail() -> None:
    """The duplex view's shapes are caught by this file's checks, so passing them means something."""
    dialect = RealtimeDialect("duplex")
    caught = 0
    for frame in wired(dialect, session_created(), COMMITTED, CREATED, DELTA, CANCELLED):
        try:
            check_event(frame)
        except (AssertionError, ValueError, KeyError):
            caught += 1
    assert caught >= 8


CLIENT_EVENTS_OF_OPENAI = [
    ({"type": "session.update", "session": LIVEKIT_OPENING}, True),
    ({"type": "input_audio_buffer.append", "audio": "AAA="}, True),
    ({"type": "input_audio_buffer.commit"}, True),
    ({"type": "input_audio_buffer.clear"}, True),
    (
        {
            "type": "conversation.item.create",
            "previous_item_id": "root",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        },
        True,
    ),
    ({"type": "conversation.item.retrieve", "item_id": "i"}, True),
    ({"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 12}, True),
    ({"type": "conversation.item.delete", "item_id": "i"}, True),
    ({"type": "response.create", "response": {"instructions": None, "metadata": {"a": "b"}}}, True),
    ({"type": "response.cancel"}, True),
    ({"type": "output_audio_buffer.clear"}, True),
]


def test_p2_each_of_openais_client_events_is_understood() -> None:
    union = get_args(realtime.RealtimeClientEvent)[0]
    names = {get_args(model.model_fields["type"].annotation)[0] for model in get_args(union)}
    assert names == {event["type"] for event, _ in CLIENT_EVENTS_OF_OPENAI}
    for event, _ in CLIENT_EVENTS_OF_OPENAI:
        (command,) = RealtimeDialect("plain").decode({"event_id": "evt_1", **event})
        assert command.event_id == "evt_1"
