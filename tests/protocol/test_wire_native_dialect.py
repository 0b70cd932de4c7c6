"""The flat dialect of ``/v1/duplex`` (contract section 4)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol.errors import LocalProtocolError, RemoteProtocolError
from duplex_protocol.native import NativeDialect
from tests.protocol.wire_kit import (
    ANSWER,
    CALL,
    CANCELLED,
    COMMITTED,
    CREATED,
    DELTA,
    DONE,
    SESSION,
    TEXT,
    run,
    session_created,
    snapshot,
    types,
)

PLAYBACK = {"generated_ms": 2400, "sent_ms": 2400, "played_ms": 2400, "committed_ms": 2400}


def shown(*events: e.Event) -> list[dict[str, Any]]:
    """The frames of some events."""
    return run(NativeDialect(), *events)


def test_a_native_session_cannot_be_resumed() -> None:
    dialect = NativeDialect()
    assert (dialect.name, dialect.supports_resume) == ("native", False)


def test_the_session_opens_with_one_event() -> None:
    (frame,) = shown(session_created())
    assert frame["type"] == "session.created"
    assert frame["session"]["id"] == SESSION
    assert types(shown(e.SessionUpdated(session=snapshot()))) == ["session.updated"]


def test_a_response_is_flat_and_has_no_item_events() -> None:
    created, delta, done = shown(CREATED, DELTA, DONE)
    assert created == {
        "type": "response.created",
        "session_id": SESSION,
        "response_id": "resp_01",
        "epoch": 0,
        "modalities": ["audio", "text"],
        "turn_id": 1,
    }
    assert delta == {
        "type": "response.output_audio.delta",
        "session_id": SESSION,
        "response_id": "resp_01",
        "epoch": 0,
        "text": "It is sunny",
        "audio": DELTA.audio,
        "format": "pcm16",
        "sample_rate_hz": 24000,
        "end_of_turn": False,
        "model_speak": True,
        "audio_duration_ms": 1000,
        "audio_text_marks": [{"text_chars": 11, "audio_end_ms": 1000}],
        "playback": {"generated_ms": 1000, "sent_ms": 1000, "played_ms": 0, "committed_ms": 0},
    }
    assert done == {
        "type": "response.done",
        "session_id": SESSION,
        "response_id": "resp_01",
        "epoch": 0,
        "committed": True,
        "playback": PLAYBACK,
    }


def test_only_audio_is_droppable() -> None:
    dialect = NativeDialect()
    groups = [group for event in (CREATED, DELTA, DONE) for group in dialect.project(event)]
    assert [group.droppable for group in groups] == [False, True, False]


def test_the_chat_lane_names_its_channels() -> None:
    assert shown(CREATED, attrs.evolve(DELTA, channels=1))[1]["channels"] == 1


def test_a_cancel_has_its_own_name() -> None:
    assert shown(CREATED, CANCELLED)[1] == {
        "type": "audio.cancelled",
        "session_id": SESSION,
        "response_id": "resp_01",
        "reason": "barge_in",
        "cancelled_epoch": 0,
        "epoch": 1,
        "committed_ms": 2400,
        "playback": PLAYBACK,
    }


def test_a_failed_response_says_so() -> None:
    done = shown(CREATED, attrs.evolve(DONE, status="failed", reason="chat_error", finish_reason="error"))[1]
    assert done["type"] == "response.done"
    assert (done["status"], done["status_details"]) == ("failed", {"type": "failed", "reason": "chat_error"})
    assert done["finish_reason"] == "error"


def test_text_and_speak_and_listen() -> None:
    speak = e.ResponseSpeak(session_id=SESSION, response_id="resp_01", item_id="item_resp_01", epoch=0)
    listen = e.ResponseListen(session_id=SESSION, epoch=0, reason="buffering", model_listen=False, buffering=True)
    _, spoken, text, listening = shown(CREATED, speak, speak, TEXT, listen)
    assert spoken == {
        "type": "response.speak",
        "session_id": SESSION,
        "response_id": "resp_01",
        "epoch": 0,
        "text": "",
        "end_of_turn": False,
        "model_speak": True,
    }
    assert text == {
        "type": "response.text.delta",
        "session_id": SESSION,
        "response_id": "resp_01",
        "epoch": 0,
        "delta": "Tomorrow looks",
    }
    assert listening == {
        "type": "response.listen",
        "session_id": SESSION,
        "epoch": 0,
        "reason": "buffering",
        "model_listen": False,
        "buffering": True,
    }


def test_commits_have_no_item_events() -> None:
    (frame,) = shown(attrs.evolve(COMMITTED, transcript="words", overlap_deferred=True))
    assert frame["type"] == "input.committed"
    named = {
        "session_id": SESSION,
        "turn_id": 1,
        "epoch": 0,
        "history_len": 1,
        "native_audio": True,
        "transcript": "words",
        "realtime_item_id": "item_9b2d",
        "overlap_deferred": True,
    }
    assert {key: frame[key] for key in named} == named


FLAT_EVENTS: list[tuple[e.Event, dict[str, Any]]] = [
    (
        e.InputCancelled(session_id=SESSION, reason="barge_in", epoch=3, text_chunks=1, audio_chunks=2),
        {
            "type": "input.cancelled",
            "session_id": SESSION,
            "reason": "barge_in",
            "epoch": 3,
            "cancelled": {"text_chunks": 1, "audio_chunks": 2},
        },
    ),
    (
        e.InputCleared(session_id=SESSION, epoch=3, drained_input_events=4, cancelled=True),
        {
            "type": "input_audio_buffer.cleared",
            "session_id": SESSION,
            "epoch": 3,
            "drained_input_events": 4,
            "cancelled": True,
        },
    ),
    (
        e.ItemDeleted(item_id="i"),
        {"type": "conversation.item.deleted", "item_id": "i", "deleted": True},
    ),
    (
        e.ItemTruncated(item_id="i", content_index=0, audio_end_ms=5),
        {
            "type": "conversation.item.truncated",
            "item_id": "i",
            "content_index": 0,
            "audio_end_ms": 5,
            "truncated": True,
        },
    ),
    (
        attrs.evolve(CALL, call_id=None),
        {
            "type": "function_call.done",
            "session_id": SESSION,
            "epoch": 0,
            "call_id": None,
            "name": "get_weather",
            "arguments": '{"city":"Hong Kong"}',
        },
    ),
    (
        e.TurnEvent(session_id=SESSION, event="timeout", turn_state="idle", epoch=0),
        {"type": "turn.event", "session_id": SESSION, "event": "timeout", "turn_state": "idle", "epoch": 0},
    ),
    (
        e.ErrorRaised(
            code="input_backpressure",
            message="slower",
            related_event_id="evt_1",
            retryable=True,
            session_id=SESSION,
            epoch=2,
        ),
        {
            "type": "error",
            "error": "slower",
            "code": "input_backpressure",
            "related_event_id": "evt_1",
            "session_id": SESSION,
            "epoch": 2,
            "retryable": True,
        },
    ),
]


@pytest.mark.parametrize(("event", "frame"), FLAT_EVENTS, ids=lambda value: type(value).__name__)
def test_flat_events(event: e.Event, frame: dict[str, Any]) -> None:
    assert shown(event) == [frame]


def test_an_item_and_its_flag() -> None:
    (frame,) = shown(e.ItemCreated(item=ANSWER, previous_item_id="p", predecessor_id="p"))
    assert (frame["type"], frame["created"], frame["item"]["id"]) == ("conversation.item.created", True, "item_resp_01")


def test_playback_and_overlap_are_not_wrapped() -> None:
    ack = e.PlaybackAcknowledged(
        session_id=SESSION,
        epoch=0,
        item_id=None,
        played_ms=0,
        committed_ms=0,
        truncate=False,
        playback=v.Playback(),
        history_committed=False,
    )
    decision = e.OverlapDecision(session_id=SESSION, epoch=0, policy="listen_only", action="drop", reason="x")
    acked, decided = shown(ack, decision)
    assert (acked["type"], acked["item_id"]) == ("playback.acknowledged", None)
    assert (decided["type"], decided["action"]) == ("overlap.decision", "drop")


def test_speech_events_exist_only_with_server_vad() -> None:
    for detected, expected in ((True, 2), (False, 0)):
        started = e.SpeechStarted(item_id="i", audio_start_ms=0, detected_by_server=detected)
        stopped = e.SpeechStopped(item_id="i", audio_end_ms=5, detected_by_server=detected)
        assert len(shown(started, stopped)) == expected


def test_a_clear_is_answered_once() -> None:
    cleared = e.OutputCleared(session_id=SESSION, response_id="resp_01", epoch=1)
    cancelled = attrs.evolve(CANCELLED, reason="output_audio_buffer_clear")
    assert types(shown(CREATED, cleared, cancelled)) == ["response.created", "audio.cancelled"]
    (idle,) = shown(attrs.evolve(cleared, response_id=None))
    assert (idle["type"], idle["response_id"], idle["reason"]) == ("audio.cancelled", None, "output_audio_buffer_clear")


def test_the_rules_of_a_response_hold_here_too() -> None:
    dialect = NativeDialect()
    with pytest.raises(LocalProtocolError):
        dialect.project(DELTA)
    run(dialect, CREATED, DONE)
    assert run(dialect, DONE, DELTA) == []


@pytest.mark.parametrize("flat", [True, False])
def test_errors_are_always_flat(flat: bool) -> None:
    error = RemoteProtocolError("bad_event", "no", param="session", event_id="evt_1")
    assert NativeDialect().handshake_error(error, flat=flat) == {
        "type": "error",
        "error": "no",
        "code": "bad_event",
        "related_event_id": "evt_1",
        "param": "session",
    }
