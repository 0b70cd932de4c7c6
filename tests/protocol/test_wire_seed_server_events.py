"""Every server example of the seed equals what the duplex view projects, up to ids, numbers and free text.

The examples stand here as JSON in the wire's own key order; ``…`` is any text, a ``…`` key allows further members.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from tests.protocol.test_wire_session_object import SEED_OPENING
from tests.protocol.wire_kit import (
    ANSWER,
    CALL,
    CANCELLED,
    COMMITTED,
    CREATED,
    DEFAULTS,
    DELTA,
    DONE,
    SESSION,
    TEXT,
    matches,
    run,
    session_created,
    snapshot,
    types,
)

USER = '{"id": "item_9b2d", "…": "…"}'
OPEN_ITEM = (
    '{"id": "item_resp_01", "object": "realtime.item", "type": "message", "role": "assistant",'
    ' "status": "in_progress", "content": []}'
)
FINAL_ITEM = (
    '{"id": "item_resp_01", "object": "realtime.item", "type": "message", "role": "assistant",'
    ' "status": "completed", "content": [{"type": "output_audio", "transcript": "It is sunny, 24 degrees."}]}'
)
AT = '"response_id": "resp_01", "item_id": "item_resp_01", "output_index": 0, "content_index": 0'
CALL_ITEM = (
    '{"id": "item_fc_01", "object": "realtime.item", "type": "function_call", "status": "completed",'
    ' "name": "get_weather", "call_id": "call_7d1f", "arguments": "{\\"city\\":\\"Hong Kong\\"}"}'
)
CALL_AT = '"response_id": "resp_fc_01", "item_id": "item_fc_01", "output_index": 0, "call_id": "call_7d1f"'

SESSION_OBJECT = """{
    "object": "realtime.session", "type": "realtime", "id": "sess_demo_01", "model": "openbmb/MiniCPM-o-4_5",
    "state": "open", "turn_state": "idle", "epoch": 0, "turn_id": 0,
    "active_request_id": null, "active_response_id": null, "active_response_turn_id": null,
    "modalities": ["audio", "text"], "output_modalities": ["audio", "text"],
    "instructions": "You are a concise voice assistant.", "voice": null,
    "response_format": "pcm16", "input_audio_format": "pcm16", "output_audio_format": "pcm16",
    "audio": {
        "input": {"format": {"type": "audio/pcm", "rate": 16000}, "sample_rate_hz": 16000},
        "output": {"format": {"type": "audio/pcm", "rate": 24000}}
    },
    "temperature": 0.7, "max_tokens": null, "speed": null, "idle_timeout_s": 300.0,
    "overlap_policy": "listen_only", "overlap_short_ack_ms": 700, "overlap_barge_in_ms": 1200,
    "overlap_silence_rms": 0.003, "playback_commit_policy": "ack_only",
    "turn_detection": null, "input_audio_transcription": null, "tracing": null,
    "playback": {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0},
    "capabilities": {"…": "…"}
}"""

SHOWN_WHEN_SET = frozenset({"session.ref_audio", "session.extra_body"})
"""Tier 2 members that the seed lists beside its example."""
COMMIT_EXTRA = frozenset({"event.native_audio", "event.item_id"})
"""Members of ``input.committed`` from the contract (4.3, 23.1) that the seed's example leaves out."""


def duplex(*events: e.Event) -> list[dict[str, Any]]:
    """The frames of some events in a fresh duplex view."""
    return run(RealtimeDialect("duplex"), *events)


def only(shown: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one frame of a type."""
    (frame,) = [frame for frame in shown if frame["type"] == kind]
    return frame


def expect(example: str, actual: dict[str, Any], extra: frozenset[str] = frozenset()) -> None:
    """Compare with an example in JSON."""
    matches(json.loads(example), actual, extra)


def test_session_created_then_updated() -> None:
    config = RealtimeDialect().parse_open(SEED_OPENING, DEFAULTS).config
    created, updated = duplex(session_created(config))
    expect(
        '{"type": "session.created", "incarnation": 0, "attachment_generation": 1, "resume_token": "rt_…",'
        f' "session": {SESSION_OBJECT}}}',
        created,
        SHOWN_WHEN_SET,
    )
    assert updated == {"type": "session.updated", "session": created["session"]}
    named = {
        "implementation_level": "model_native_duplex",
        "supports_input_append": True,
        "supports_barge_in": True,
        "supports_session_resume": True,
        "supports_session_lease": True,
        "supports_multi_session": True,
        "chunk_period_ms": 1000,
        "input_modes": ["append_audio_chunk"],
        "signal_sources": ["model_native", "client_event", "server_policy"],
        "target_barge_in_latency_ms": None,
    }
    capabilities = created["session"]["capabilities"]
    assert {key: capabilities[key] for key in named} == named


def test_an_autostarted_session_is_not_updated_and_one_without_resume_has_no_token() -> None:
    assert types(duplex(session_created(by_update=False))) == ["session.created"]
    (created,) = duplex(attrs.evolve(session_created(by_update=False), resume_token=None))
    assert list(created) == ["type", "incarnation", "attachment_generation", "session"]


ONE_TO_ONE: list[tuple[e.Event, str]] = [
    (e.HeartbeatAck(session_id=SESSION), '{"type": "session.heartbeat_ack", "session_id": "sess_demo_01"}'),
    (
        e.SessionClosed(session_id=SESSION, reason="session_close"),
        '{"type": "session.closed", "session_id": "sess_demo_01", "reason": "session_close"}',
    ),
    (
        e.SessionResumed(session_id=SESSION, incarnation=0, attachment_generation=2, resume_token="rt_a71e"),
        '{"type": "session.resumed", "session_id": "sess_demo_01", "incarnation": 0, "attachment_generation": 2,'
        ' "resume_token": "rt_a71e"}',
    ),
    (
        e.SessionReplaced(session_id=SESSION, attachment_generation=1),
        '{"type": "session.replaced", "session_id": "sess_demo_01", "attachment_generation": 1}',
    ),
    (
        e.SessionExpired(session_id=SESSION, incarnation=0, reason="disconnect_grace_expired"),
        '{"type": "session.expired", "session_id": "sess_demo_01", "incarnation": 0,'
        ' "reason": "disconnect_grace_expired"}',
    ),
    (
        e.ResyncRequired(session_id=SESSION, reason="journal_gap"),
        '{"type": "session.resync_required", "session_id": "sess_demo_01", "reason": "journal_gap"}',
    ),
    (
        e.SpeechStarted(item_id="item_9b2d", audio_start_ms=1040, detected_by_server=False),
        '{"type": "input_audio_buffer.speech_started", "audio_start_ms": 1040, "item_id": "item_9b2d"}',
    ),
    (
        e.SpeechStopped(item_id="item_9b2d", audio_end_ms=2860, detected_by_server=False),
        '{"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 2860, "item_id": "item_9b2d"}',
    ),
    (e.InputCleared(session_id=SESSION, epoch=0), '{"type": "input_audio_buffer.cleared"}'),
    (
        e.InputCancelled(session_id=SESSION, reason="barge_in", epoch=1),
        '{"type": "input_audio_buffer.cleared"}',
    ),
    (
        e.ItemDeleted(item_id="item_9b2d"),
        '{"type": "conversation.item.deleted", "item_id": "item_9b2d",'
        ' "event": {"type": "conversation.item.deleted", "item_id": "item_9b2d"}}',
    ),
    (e.ItemRetrieved(item=ANSWER), f'{{"type": "conversation.item.retrieved", "item": {FINAL_ITEM}}}'),
    (
        e.ItemTruncated(item_id="item_resp_01", content_index=0, audio_end_ms=1850),
        '{"type": "conversation.item.truncated", "item_id": "item_resp_01", "content_index": 0,'
        ' "audio_end_ms": 1850, "event": {"…": "…"}}',
    ),
    (
        e.ResponseListen(session_id=SESSION, epoch=0, reason="model_listen"),
        '{"type": "response.listen", "session_id": "sess_demo_01", "epoch": 0,'
        ' "response": {"object": "realtime.response", "status": "listening", "metadata":'
        ' {"type": "response.listen", "session_id": "sess_demo_01", "epoch": 0, "reason": "model_listen"}}}',
    ),
    (
        e.OutputCleared(session_id=SESSION, response_id="resp_01", epoch=1),
        '{"type": "output_audio_buffer.cleared", "response_id": "resp_01"}',
    ),
    (
        attrs.evolve(CALL, call_id=None, name=None, arguments="{"),
        '{"type": "duplex.function_call.done", "event": {"type": "function_call.done", "session_id": "sess_demo_01",'
        ' "epoch": 0, "call_id": null, "name": null, "arguments": "{"}}',
    ),
    (
        e.PlaybackAcknowledged(
            session_id=SESSION,
            epoch=0,
            item_id="item_resp_01",
            played_ms=1000,
            committed_ms=1000,
            truncate=False,
            playback=v.Playback(2400, 2400, 1000, 1000),
            history_committed=False,
        ),
        '{"type": "playback.acknowledged", "event": {"type": "playback.acknowledged", "session_id": "sess_demo_01",'
        ' "epoch": 0, "item_id": "item_resp_01", "played_ms": 1000, "committed_ms": 1000, "truncate": false,'
        ' "playback": {"generated_ms": 2400, "sent_ms": 2400, "played_ms": 1000, "committed_ms": 1000},'
        ' "history_committed": false}}',
    ),
    (
        e.OverlapDecision(
            session_id=SESSION,
            epoch=0,
            policy="listen_only",
            action="listen",
            reason="long_overlap_speech",
            overlap_ms=1400,
            buffer_audio=True,
            defer_runtime_append=True,
            force_listen=True,
        ),
        '{"type": "overlap.decision", "session_id": "sess_demo_01", "epoch": 0, "policy": "listen_only",'
        ' "action": "listen", "reason": "long_overlap_speech", "overlap_ms": 1400, "buffer_audio": true,'
        ' "defer_runtime_append": true, "force_listen": true}',
    ),
    (
        e.OverlapDecision(
            session_id=SESSION,
            epoch=0,
            policy="barge_in_on_speech",
            action="barge_in",
            reason="server_vad_utterance_active",
        ),
        '{"type": "overlap.decision", "session_id": "sess_demo_01", "epoch": 0, "policy": "barge_in_on_speech",'
        ' "action": "barge_in", "reason": "server_vad_utterance_active"}',
    ),
    (
        e.RuntimeControl(session_id=SESSION, epoch=1, result={"ok": True}),
        '{"type": "runtime.control", "session_id": "sess_demo_01", "epoch": 1, "result": {"…": "…"}}',
    ),
    (
        e.ErrorRaised(
            code="input_audio_buffer_empty",
            message="commit needs audio",
            related_event_id="evt_0060",
            session_id=SESSION,
        ),
        '{"type": "error", "error": {"type": "invalid_request_error", "code": "input_audio_buffer_empty",'
        ' "message": "…", "event_id": "evt_0060"}}',
    ),
    (
        e.ErrorRaised(
            code="unsupported_turn_detection", message="no", param="turn_detection", related_event_id="evt_0001"
        ),
        '{"type": "error", "error": {"type": "invalid_request_error", "code": "unsupported_turn_detection",'
        ' "message": "…", "event_id": "evt_0001", "param": "turn_detection"}}',
    ),
    (
        e.ErrorRaised(code="runtime_append_failed", message="stale epoch: expected 1, got 0"),
        '{"type": "error", "error": {"type": "server_error", "code": "runtime_append_failed",'
        ' "message": "stale epoch: expected 1, got 0"}}',
    ),
    (
        e.ErrorRaised(code="duplex_session_busy", message="full"),
        '{"type": "error", "error": {"type": "rate_limit_error", "code": "duplex_session_busy", "message": "…"}}',
    ),
]


@pytest.mark.parametrize(("event", "example"), ONE_TO_ONE, ids=lambda value: type(value).__name__)
def test_one_native_event_one_wire_event(event: e.Event, example: str) -> None:
    (frame,) = duplex(event)
    expect(example, frame)


def test_the_commit_fan_out() -> None:
    added, created, committed, transcribed, done = duplex(COMMITTED)
    expect(
        '{"type": "conversation.item.added", "previous_item_id": null, "item": {"id": "item_9b2d",'
        ' "object": "realtime.item", "type": "message", "role": "user", "status": "completed",'
        ' "content": [{"type": "input_audio", "transcript": "what is the weather today"}]}}',
        added,
    )
    expect(f'{{"type": "conversation.item.created", "previous_item_id": null, "item": {USER}}}', created)
    expect(
        '{"type": "input_audio_buffer.committed", "previous_item_id": null, "item_id": "item_9b2d", "event":'
        ' {"type": "input.committed", "session_id": "sess_demo_01", "turn_id": 1, "epoch": 0, "history_len": 1,'
        ' "message": {"role": "user", "content": [{"type": "audio_url", "audio_url":'
        ' {"url": "native-duplex:input-audio"}}]}, "realtime_item_id": "item_9b2d"}}',
        committed,
        COMMIT_EXTRA,
    )
    expect(
        '{"type": "conversation.item.input_audio_transcription.completed", "item_id": "item_9b2d",'
        ' "content_index": 0, "transcript": "what is the weather today"}',
        transcribed,
    )
    expect(
        '{"type": "conversation.item.done", "previous_item_id": null,'
        ' "item": {"id": "item_9b2d", "status": "completed", "…": "…"}}',
        done,
    )


def test_a_deferred_commit() -> None:
    deferred = attrs.evolve(
        COMMITTED,
        item=v.Item(id="item_c044", content=(v.ContentPart("input_audio", transcript=None),)),
        previous_item_id="item_9b2d",
        turn_id=2,
        history_len=3,
        response_create_deferred=True,
    )
    shown = duplex(deferred)
    assert types(shown)[2:] == ["input_audio_buffer.committed", "conversation.item.done"]
    frame = only(shown, "input_audio_buffer.committed")
    assert (frame["previous_item_id"], frame["item_id"]) == ("item_9b2d", "item_c044")
    named = {"type": "input.committed", "turn_id": 2, "history_len": 3, "response_create_deferred": True}
    assert {key: frame["event"][key] for key in named} == named


RESPONSE_EXAMPLES: dict[str, str] = {
    "response.created": '{"type": "response.created", "response_id": "resp_01", "response": {"id": "resp_01",'
    ' "object": "realtime.response", "status": "in_progress", "status_details": null, "output": [],'
    ' "modalities": ["audio", "text"], "metadata": {"duplex_event": {"type": "response.created",'
    ' "session_id": "sess_demo_01", "response_id": "resp_01", "epoch": 0, "turn_id": 1}}}}',
    "conversation.item.added": '{"type": "conversation.item.added", "previous_item_id": "item_9b2d",'
    f' "item": {OPEN_ITEM}}}',
    "conversation.item.created": '{"type": "conversation.item.created", "previous_item_id": "item_9b2d",'
    f' "item": {OPEN_ITEM}}}',
    "response.output_item.added": '{"type": "response.output_item.added", "response_id": "resp_01",'
    f' "output_index": 0, "item": {OPEN_ITEM}}}',
    "response.content_part.added": f'{{"type": "response.content_part.added", {AT},'
    ' "part": {"type": "audio", "transcript": ""}}',
    "response.speak": f'{{"type": "response.speak", {AT},'
    ' "metadata": {"session_id": "sess_demo_01", "epoch": 0, "model_speak": true}}',
    "response.output_audio.delta": f'{{"type": "response.output_audio.delta", {AT}, "delta": "…", "format": "pcm16",'
    ' "sample_rate_hz": 24000, "metadata": {"session_id": "sess_demo_01", "epoch": 0, "model_speak": true,'
    ' "end_of_turn": false, "audio_duration_ms": 1000,'
    ' "audio_text_marks": [{"text_chars": 11, "audio_end_ms": 1000}],'
    ' "playback": {"generated_ms": 1000, "sent_ms": 1000, "played_ms": 0, "committed_ms": 0}}}',
    "response.output_audio_transcript.delta": f'{{"type": "response.output_audio_transcript.delta", {AT},'
    ' "delta": "It is sunny"}',
    "response.output_audio.done": f'{{"type": "response.output_audio.done", {AT}}}',
    "response.output_audio_transcript.done": f'{{"type": "response.output_audio_transcript.done", {AT},'
    ' "transcript": "It is sunny, 24 degrees."}',
    "response.content_part.done": f'{{"type": "response.content_part.done", {AT},'
    ' "part": {"type": "audio", "transcript": "It is sunny, 24 degrees."}}',
    "response.output_item.done": '{"type": "response.output_item.done", "response_id": "resp_01", "output_index": 0,'
    f' "item": {FINAL_ITEM}}}',
    "conversation.item.done": '{"type": "conversation.item.done", "previous_item_id": "item_9b2d",'
    ' "item": {"id": "item_resp_01", "status": "completed", "…": "…"}}',
    "response.done": '{"type": "response.done", "response_id": "resp_01", "response": {"id": "resp_01",'
    ' "object": "realtime.response", "status": "completed", "status_details": null,'
    f' "output": [{FINAL_ITEM}], "metadata": {{"type": "response.done", "session_id": "sess_demo_01",'
    ' "response_id": "resp_01", "epoch": 0, "committed": true,'
    ' "playback": {"generated_ms": 2400, "sent_ms": 2400, "played_ms": 2400, "committed_ms": 2400}}}}',
    "rate_limits.updated": '{"type": "rate_limits.updated", "rate_limits": []}',
}


def test_a_whole_response_in_the_seeds_order() -> None:
    shown = duplex(CREATED, DELTA, DONE)
    assert types(shown) == list(RESPONSE_EXAMPLES)
    for frame in shown:
        if frame["type"] == "response.output_audio.delta":
            assert frame["delta"] == DELTA.audio
            frame = {**frame, "delta": "base64 is made when the frame is encoded"}
        expect(RESPONSE_EXAMPLES[frame["type"]], frame)


def test_a_cancelled_response() -> None:
    frame = only(duplex(CREATED, DELTA, CANCELLED), "response.done")
    expect(
        '{"type": "response.done", "response_id": "resp_01", "response": {"id": "resp_01",'
        ' "object": "realtime.response", "status": "cancelled",'
        ' "status_details": {"type": "cancelled", "reason": "barge_in"},'
        ' "output": [{"id": "item_resp_01", "status": "cancelled", "…": "…"}], "metadata": {"…": "…"}}}',
        frame,
    )


def test_text_events() -> None:
    done = attrs.evolve(DONE, had_audio=False, transcript="", text="Tomorrow looks cloudy.")
    shown = duplex(attrs.evolve(CREATED, modalities=("text",)), TEXT, done)
    expect(
        f'{{"type": "response.output_text.delta", {AT}, "delta": "Tomorrow looks"}}',
        only(shown, "response.output_text.delta"),
    )
    expect(
        f'{{"type": "response.output_text.done", {AT}, "text": "Tomorrow looks cloudy."}}',
        only(shown, "response.output_text.done"),
    )


def test_a_function_call() -> None:
    shown = duplex(CALL)
    expect(
        '{"type": "response.output_item.added", "response_id": "resp_fc_01", "output_index": 0,'
        f' "item": {CALL_ITEM}}}',
        only(shown, "response.output_item.added"),
    )
    expect(
        f'{{"type": "response.function_call_arguments.delta", {CALL_AT}, "delta": "{{\\"city\\":\\"Hong Kong\\"}}"}}',
        only(shown, "response.function_call_arguments.delta"),
    )
    expect(
        f'{{"type": "response.function_call_arguments.done", {CALL_AT},'
        ' "arguments": "{\\"city\\":\\"Hong Kong\\"}"}',
        only(shown, "response.function_call_arguments.done"),
    )


def test_a_handshake_error_is_flat() -> None:
    error = RemoteProtocolError("session_resume_expired", "Unknown or expired duplex session: sess_demo_01")
    expect(
        '{"type": "error", "error": "Unknown or expired duplex session: sess_demo_01",'
        ' "code": "session_resume_expired"}',
        RealtimeDialect().handshake_error(error, flat=True),
    )


def test_session_updated_alone() -> None:
    (frame,) = duplex(e.SessionUpdated(session=snapshot()))
    expect(
        '{"type": "session.updated", "session": {"object": "realtime.session", "id": "sess_demo_01", "…": "…"}}', frame
    )
