"""The dialect of ``/v1/duplex``: native events as flat JSON, almost without translation (contract section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from duplex_protocol import events as e
from duplex_protocol import frames_session as s
from duplex_protocol import shapes
from duplex_protocol.client_events import decode_event
from duplex_protocol.commands import Command
from duplex_protocol.dialect import ConfigUpdate, Projected, SessionDefaults
from duplex_protocol.errors import LocalProtocolError, RemoteProtocolError
from duplex_protocol.frames_session import flat_error
from duplex_protocol.memory import Memory
from duplex_protocol.projection import RESPONSE_EVENTS, forget, moved, unnumbered
from duplex_protocol.session_object import parse_open, parse_update
from duplex_protocol.values import Json, SessionConfig


def _input_cleared(_: Memory, ev: e.InputCleared) -> Json:
    return {
        "type": "input_audio_buffer.cleared",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        "drained_input_events": ev.drained_input_events,
        "cancelled": ev.cancelled,
    }


def _input_cancelled(_: Memory, ev: e.InputCancelled) -> Json:
    return {
        "type": "input.cancelled",
        "session_id": ev.session_id,
        "reason": ev.reason,
        "epoch": ev.epoch,
        "cancelled": {"text_chunks": ev.text_chunks, "audio_chunks": ev.audio_chunks},
    }


def _item_created(_: Memory, ev: e.ItemCreated) -> Json:
    return {
        "type": "conversation.item.created",
        "previous_item_id": ev.previous_item_id,
        "item": shapes.item(ev.item, "duplex"),
        "created": True,
    }


def _item_deleted(_: Memory, ev: e.ItemDeleted) -> Json:
    return {"type": "conversation.item.deleted", "item_id": ev.item_id, "deleted": True}


def _item_truncated(_: Memory, ev: e.ItemTruncated) -> Json:
    return {
        "type": "conversation.item.truncated",
        "item_id": ev.item_id,
        "content_index": ev.content_index,
        "audio_end_ms": ev.audio_end_ms,
        "truncated": True,
    }


def _response_created(_: Memory, ev: e.ResponseCreated) -> Json:
    return {
        "type": "response.created",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "epoch": ev.epoch,
        "modalities": list(ev.modalities),
        "turn_id": ev.turn_id,
        **shapes.optional(metadata=ev.metadata, conversation=ev.conversation, prompt=ev.prompt),
    }


def _speak(m: Memory, ev: e.ResponseSpeak) -> Json | None:
    bracket = m.open[ev.response_id]
    if bracket.speak_sent:
        return None
    bracket.speak_sent = True
    return {
        "type": "response.speak",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "epoch": ev.epoch,
        "text": "",
        "end_of_turn": False,
        "model_speak": True,
    }


def _audio_delta(_: Memory, ev: e.AudioDelta) -> Json | None:
    if not ev.audio and not ev.text:
        return None
    frame: Json = {
        "type": "response.output_audio.delta",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "epoch": ev.epoch,
        "text": ev.text,
        "audio": ev.audio,
        "format": ev.format.encoding,
        "sample_rate_hz": ev.format.rate_hz,
        "end_of_turn": ev.end_of_turn,
        "model_speak": ev.model_speak,
        "audio_duration_ms": ev.audio_duration_ms,
        "audio_text_marks": [mark.as_wire() for mark in ev.marks],
        "playback": ev.playback.as_wire(),
    }
    return frame | shapes.optional(channels=ev.channels)


def _text_delta(_: Memory, ev: e.TextDelta) -> Json:
    return {
        "type": "response.text.delta",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "epoch": ev.epoch,
        "delta": ev.delta,
    }


def _listen(_: Memory, ev: e.ResponseListen) -> Json:
    frame: Json = {
        "type": "response.listen",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        "reason": ev.reason,
        "model_listen": ev.model_listen,
    }
    if ev.buffering:
        frame["buffering"] = True
    return frame | shapes.optional(response_id=ev.response_id)


def _output_cleared(m: Memory, ev: e.OutputCleared) -> Json | None:
    """``audio.cancelled`` answers a clear; the one of a response that is still open comes with its terminal."""
    if ev.response_id in m.open:
        return None
    return {
        "type": "audio.cancelled",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "reason": "output_audio_buffer_clear",
        "epoch": ev.epoch,
    }


def _error(_: Memory, ev: e.ErrorRaised) -> Json:
    return {
        "type": "error",
        "error": ev.message,
        "code": ev.code,
        **shapes.optional(
            related_event_id=ev.related_event_id,  # the top-level event_id is the server's own
            param=ev.param,
            session_id=ev.session_id,
            epoch=ev.epoch,
            response_id=ev.response_id,
            retryable=ev.retryable,
        ),
    }


def _speech(frame: Callable[[Memory, Any], Json]) -> Callable[[Memory, Any], Json | None]:
    """Speech events exist only while the server detects turns (contract 4.2)."""

    def build(m: Memory, ev: e.SpeechStarted | e.SpeechStopped) -> Json | None:
        return frame(m, ev) if ev.detected_by_server else None

    return build


def _done(_: Memory, ev: e.ResponseDone) -> Json:
    return shapes.native_response_done(ev)


Flat = Callable[[Memory, Any], Json | None]

FLAT: Final[dict[type[e.Event], Flat]] = {
    e.SessionCreated: s.session_created,
    e.SessionUpdated: s.session_updated,
    e.HeartbeatAck: s.heartbeat_ack,
    e.SessionClosed: s.session_closed,
    e.SessionExpired: s.session_expired,
    e.SessionResumed: s.session_resumed,
    e.SessionReplaced: s.session_replaced,
    e.ResyncRequired: s.resync_required,
    e.SpeechStarted: _speech(s.speech_started),
    e.SpeechStopped: _speech(s.speech_stopped),
    e.InputCommitted: lambda _, ev: shapes.native_input_committed(ev),
    e.InputTranscribed: s.transcribed,
    e.InputCleared: _input_cleared,
    e.InputCancelled: _input_cancelled,
    e.ItemCreated: _item_created,
    e.ItemDeleted: _item_deleted,
    e.ItemRetrieved: s.item_retrieved,
    e.ItemTruncated: _item_truncated,
    e.ResponseCreated: _response_created,
    e.ResponseSpeak: _speak,
    e.AudioDelta: _audio_delta,
    e.TextDelta: _text_delta,
    e.ResponseListen: _listen,
    e.ResponseDone: _done,
    e.OutputCleared: _output_cleared,
    e.FunctionCallDone: lambda _, ev: shapes.native_function_call(ev),
    e.PlaybackAcknowledged: lambda _, ev: s.native_playback_acknowledged(ev),
    e.OverlapDecision: s.overlap_decision,
    e.TurnEvent: lambda _, ev: s.native_turn_event(ev),
    e.RuntimeControl: s.runtime_control,
    e.ErrorRaised: _error,
}
"""Native event → its flat frame; None = nothing is sent."""

DROPPABLE: Final = frozenset({e.AudioDelta})


class NativeDialect:
    """One session's native dialect. It cannot be resumed: a lost socket ends the session."""

    name: Literal["realtime", "native"] = "native"
    supports_resume: bool = False

    def __init__(self) -> None:
        self._memory = Memory("duplex")

    def decode(self, event: Json) -> tuple[Command, ...]:
        """One parsed client event → its command. Raises :class:`RemoteProtocolError` with its ``event_id``."""
        return (decode_event(event, native=True),)

    def parse_open(self, session: Json, defaults: SessionDefaults) -> ConfigUpdate:
        """The opening configuration with this dialect's defaults (contract 4.1)."""
        return parse_open(session, defaults, flavour="native")

    def meet_update(self, session: Json) -> bool:
        """There is one view only."""
        return False

    def parse_update(self, session: Json, base: SessionConfig, defaults: SessionDefaults) -> ConfigUpdate:
        """A later update on top of ``base``."""
        return parse_update(session, base, defaults, flavour="native")

    def project(self, event: e.Event) -> list[Projected]:
        """One native event → at most one flat frame.

        Raises :class:`LocalProtocolError` for an unknown event type and for a move that a response cannot make.
        """
        build = FLAT.get(type(event))
        if build is None:
            raise LocalProtocolError(f"no flat form for {type(event).__name__}")
        move = RESPONSE_EVENTS.get(type(event))
        if move is not None and not moved(self._memory, event, move):
            return []
        frame = build(self._memory, event)
        if move == "finish":
            forget(self._memory, event)
        if frame is None:
            return []
        return [Projected((frame,), droppable=type(event) in DROPPABLE, numbered=not unnumbered(event))]

    def handshake_error(self, error: RemoteProtocolError, *, flat: bool) -> Json:
        """Errors of this dialect are always flat."""
        return flat_error(error)
