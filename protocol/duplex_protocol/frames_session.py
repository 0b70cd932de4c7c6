"""Builders of realtime frames around a conversation: session, input, items, playback, errors.

One function per wire event, ``(memory, native event) -> frame``. Which of them run for a native event, in which order
and under which condition, is the table in :mod:`duplex_protocol.projection`; here is only what a frame looks like.
"""

from __future__ import annotations

from typing import Final

from duplex_protocol import commands as c
from duplex_protocol import events as e
from duplex_protocol import shapes
from duplex_protocol.errors import RemoteProtocolError, error_row
from duplex_protocol.memory import Memory
from duplex_protocol.session_echo import render_session
from duplex_protocol.shapes import View, item_frame
from duplex_protocol.values import Json

PLAIN_CODES: Final[dict[str, str]] = {
    "response_not_active": "response_cancel_not_active",
    "response_already_active": "conversation_already_has_active_response",
    "item_not_found": "item_retrieve_invalid_item_id",
    "item_exists": "item_create_duplicate_item_id",
    "input_audio_buffer_empty": "input_audio_buffer_commit_empty",
}
"""Our error codes → OpenAI's where stock clients look at them (plain view only)."""

PLAIN_ITEM_CODES: Final[dict[type[c.Command], str]] = {
    c.RetrieveItem: "item_retrieve_invalid_item_id",
    c.DeleteItem: "item_delete_invalid_item_id",
    c.TruncateItem: "item_truncate_invalid_item_id",
}
"""What ``item_not_found`` becomes when the refused command is known."""


def envelope(
    view: View,
    code: str,
    message: str,
    *,
    param: str | None,
    event_id: str | None,
    retryable: bool | None,
    cause: type[c.Command] | None = None,
) -> Json:
    """The ``error`` event; in the plain view with OpenAI's codes and no extra member."""
    error: Json = {"type": error_row(code).error_class, "code": code, "message": message}
    if view == "plain":
        plain_code = PLAIN_CODES.get(code, code)
        if code == "item_not_found" and cause is not None:
            plain_code = PLAIN_ITEM_CODES.get(cause, plain_code)
        if code == "response_not_active":
            error["message"] = f"Cancellation failed: {message}"
        error["code"] = plain_code
    error |= shapes.optional(event_id=event_id, param=param)
    if retryable is not None and view == "duplex":
        error["retryable"] = retryable
    return {"type": "error", "error": error}


def flat_error(error: RemoteProtocolError) -> Json:
    """The flat form of an error (contract 6.1): handshake stage and native dialect."""
    frame: Json = {"type": "error", "error": error.message, "code": error.code}
    return frame | shapes.optional(related_event_id=error.event_id, param=error.param, retryable=error.retryable)


# --- session ----------------------------------------------------------------------------------------------------------


def session_created(m: Memory, ev: e.SessionCreated) -> Json:
    m.snapshot = ev.session
    session = render_session(ev.session, m.view)
    if m.plain:
        session |= shapes.optional(incarnation=ev.incarnation, resume_token=ev.resume_token)
        return {"type": "session.created", "session": session}
    frame: Json = {
        "type": "session.created",
        "incarnation": ev.incarnation,
        "attachment_generation": ev.attachment_generation,
    }
    return frame | shapes.optional(resume_token=ev.resume_token) | {"session": session}


def session_updated(m: Memory, ev: e.SessionCreated | e.SessionUpdated) -> Json:
    m.snapshot = ev.session
    return {"type": "session.updated", "session": render_session(ev.session, m.view)}


def heartbeat_ack(_: Memory, ev: e.HeartbeatAck) -> Json:
    return {"type": "session.heartbeat_ack", "session_id": ev.session_id}


def session_closed(m: Memory, ev: e.SessionClosed) -> Json:
    frame: Json = {"type": "session.closed", "session_id": ev.session_id, "reason": ev.reason}
    return frame if m.plain else frame | shapes.deadlines(ev.deadlines)


def session_expired(_: Memory, ev: e.SessionExpired) -> Json:
    frame: Json = {
        "type": "session.expired",
        "session_id": ev.session_id,
        "incarnation": ev.incarnation,
        "reason": ev.reason,
    }
    return frame | shapes.deadlines(ev.deadlines)


def session_resumed(_: Memory, ev: e.SessionResumed) -> Json:
    return {
        "type": "session.resumed",
        "session_id": ev.session_id,
        "incarnation": ev.incarnation,
        "attachment_generation": ev.attachment_generation,
        "resume_token": ev.resume_token,
    }


def session_created_again(m: Memory, ev: e.SessionResumed) -> Json:
    """The plain view's answer to a resume by URL: its clients wait for ``session.created`` on every socket."""
    session: Json = {"id": ev.session_id} if m.snapshot is None else render_session(m.snapshot, "plain")
    return {
        "type": "session.created",
        "session": session | {"incarnation": ev.incarnation, "resume_token": ev.resume_token},
    }


def session_replaced(_: Memory, ev: e.SessionReplaced) -> Json:
    return {
        "type": "session.replaced",
        "session_id": ev.session_id,
        "attachment_generation": ev.attachment_generation,
    }


def resync_required(_: Memory, ev: e.ResyncRequired) -> Json:
    return {"type": "session.resync_required", "session_id": ev.session_id, "reason": ev.reason}


# --- input ------------------------------------------------------------------------------------------------------------


def speech_started(_: Memory, ev: e.SpeechStarted) -> Json:
    return {
        "type": "input_audio_buffer.speech_started",
        "audio_start_ms": ev.audio_start_ms,
        "item_id": ev.item_id,
    }


def speech_stopped(_: Memory, ev: e.SpeechStopped) -> Json:
    return {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": ev.audio_end_ms, "item_id": ev.item_id}


def transcript_of(ev: e.InputCommitted) -> tuple[int, str] | None:
    """``(content_index, transcript)`` of the first audio part with words."""
    for index, part in enumerate(ev.item.content):
        if part.type == "input_audio" and part.transcript:
            return index, part.transcript
    return None


def _committed_item(m: Memory, ev: e.InputCommitted) -> Json:
    if m.plain and transcript_of(ev) is not None:
        return shapes.untranscribed(ev.item)
    return shapes.item(ev.item, m.view)


def committed_added(m: Memory, ev: e.InputCommitted) -> Json:
    return item_frame("conversation.item.added", ev.previous_item_id, _committed_item(m, ev))


def committed_created(m: Memory, ev: e.InputCommitted) -> Json:
    return item_frame("conversation.item.created", ev.previous_item_id, _committed_item(m, ev))


def committed(m: Memory, ev: e.InputCommitted) -> Json:
    frame: Json = {
        "type": "input_audio_buffer.committed",
        "previous_item_id": ev.previous_item_id,
        "item_id": ev.item.id or None,
    }
    if not m.plain:
        frame["event"] = shapes.native_input_committed(ev)
    return frame


def transcription_completed(m: Memory, ev: e.InputCommitted) -> Json:
    """The words that a commit knows already."""
    index, transcript = transcript_of(ev) or (0, "")
    return transcribed(
        m, e.InputTranscribed(item_id=ev.item.id, transcript=transcript, content_index=index, audio_ms=ev.audio_ms)
    )


def transcribed(m: Memory, ev: e.InputTranscribed) -> Json:
    frame: Json = {
        "type": "conversation.item.input_audio_transcription.completed",
        "item_id": ev.item_id,
        "content_index": ev.content_index,
        "transcript": ev.transcript,
    }
    if m.plain:
        frame["usage"] = {"type": "duration", "seconds": ev.audio_ms / 1000}
    return frame


def committed_done(m: Memory, ev: e.InputCommitted) -> Json:
    return item_frame("conversation.item.done", ev.previous_item_id, _committed_item(m, ev))


def input_cleared(_: Memory, ev: e.InputCleared | e.InputCancelled) -> Json:
    return {"type": "input_audio_buffer.cleared"}


# --- items ------------------------------------------------------------------------------------------------------------


def _announced_previous(m: Memory, ev: e.ItemCreated) -> str | None:
    """The client's word for the place, except that OpenAI's "root" reads null in the plain view."""
    return None if m.plain and ev.previous_item_id == "root" else ev.previous_item_id


def _announced_item(m: Memory, ev: e.ItemCreated) -> Json:
    """The transcript of an item that is still to be committed follows in an event of its own."""
    return shapes.item(ev.item, m.view) if ev.done or not m.plain else shapes.untranscribed(ev.item)


def item_added(m: Memory, ev: e.ItemCreated) -> Json:
    return item_frame("conversation.item.added", _announced_previous(m, ev), _announced_item(m, ev))


def item_created(m: Memory, ev: e.ItemCreated) -> Json:
    return item_frame("conversation.item.created", _announced_previous(m, ev), _announced_item(m, ev))


def item_done(m: Memory, ev: e.ItemCreated) -> Json:
    return item_frame("conversation.item.done", ev.predecessor_id, shapes.item(ev.item, m.view))


def item_deleted(m: Memory, ev: e.ItemDeleted) -> Json:
    return _with_event(m, {"type": "conversation.item.deleted", "item_id": ev.item_id})


def item_retrieved(m: Memory, ev: e.ItemRetrieved) -> Json:
    return {"type": "conversation.item.retrieved", "item": shapes.item(ev.item, m.view)}


def item_truncated(m: Memory, ev: e.ItemTruncated) -> Json:
    return _with_event(
        m,
        {
            "type": "conversation.item.truncated",
            "item_id": ev.item_id,
            "content_index": ev.content_index,
            "audio_end_ms": ev.audio_end_ms,
        },
    )


def _with_event(m: Memory, native: Json) -> Json:
    return native if m.plain else {**native, "event": native}


# --- the rest ---------------------------------------------------------------------------------------------------------


def playback_acknowledged(_: Memory, ev: e.PlaybackAcknowledged) -> Json:
    return {"type": "playback.acknowledged", "event": native_playback_acknowledged(ev)}


def native_playback_acknowledged(ev: e.PlaybackAcknowledged) -> Json:
    """The native event, wrapped verbatim by the realtime dialect."""
    return {
        "type": "playback.acknowledged",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        "item_id": ev.item_id,
        "played_ms": ev.played_ms,
        "committed_ms": ev.committed_ms,
        "truncate": ev.truncate,
        "playback": ev.playback.as_wire(),
        "history_committed": ev.history_committed,
    }


def overlap_decision(_: Memory | None, ev: e.OverlapDecision) -> Json:
    frame: Json = {
        "type": "overlap.decision",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        "policy": ev.policy,
        "action": ev.action,
        "reason": ev.reason,
    }
    return frame | shapes.optional(
        overlap_ms=ev.overlap_ms,
        duration_ms=ev.duration_ms,
        buffer_audio=ev.buffer_audio,
        defer_runtime_append=ev.defer_runtime_append,
        force_listen=ev.force_listen,
        cancel_reason=ev.cancel_reason,
        preserve_realtime_input=ev.preserve_realtime_input,
    )


def native_turn_event(ev: e.TurnEvent) -> Json:
    """``turn.event`` (contract 4.3)."""
    return {
        "type": "turn.event",
        "session_id": ev.session_id,
        "event": ev.event,
        "turn_state": ev.turn_state,
        "epoch": ev.epoch,
    }


def turn_event(_: Memory, ev: e.TurnEvent) -> Json:
    return {"type": "duplex.turn.event", "event": native_turn_event(ev)}


def runtime_control(_: Memory | None, ev: e.RuntimeControl) -> Json:
    return {"type": "runtime.control", "session_id": ev.session_id, "epoch": ev.epoch, "result": ev.result}


def error(m: Memory, ev: e.ErrorRaised) -> Json:
    return envelope(
        m.view,
        ev.code,
        ev.message,
        param=ev.param,
        event_id=ev.related_event_id,
        retryable=ev.retryable,
        cause=ev.cause,
    )
