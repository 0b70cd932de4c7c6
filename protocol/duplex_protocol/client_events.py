"""The 21 client events as a table, and the one function that walks it (contract 3.1, 4.2).

A row names the fields it reads, their spellings in order of precedence, their kinds, and the builder that turns the
checked values into a command. Unknown fields are ignored, null means absent.
"""

from __future__ import annotations

from typing import Final

from duplex_protocol import appends, item_events, readers
from duplex_protocol import commands as c
from duplex_protocol.aliases import fold
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.rows import ClientRow, Field, FieldTable, Said
from duplex_protocol.values import Json


def decode_event(event: Json, *, native: bool) -> c.Command:
    """One parsed client event → its command.

    ``native`` is true in the native dialect, whose defaults differ. Raises :class:`RemoteProtocolError` with the
    event's ``event_id``; then nothing has happened.
    """
    said_id = event.get("event_id")
    event_id = said_id if isinstance(said_id, str) else None
    try:
        row = NEVER_FOLDED.get(event["type"])
        if row is not None:
            return row.build(Said(row.fields.read(event), event, event_id, native))
        folded = fold(event)
        row = CLIENT_EVENTS.get(folded.name)
        if row is None:
            raise unknown_event(folded.name, native=native)
        return row.build(Said(row.fields.read(folded.event), folded.event, event_id, native, folded.legacy_wav))
    except RemoteProtocolError as error:
        error.event_id = error.event_id or event_id
        raise


def unknown_event(name: str, *, native: bool) -> RemoteProtocolError:
    """Why an event that has no row is refused in an established session."""
    if native and name in OPENING_NAMES:
        return RemoteProtocolError("session_exists", "this socket already has a session")
    return RemoteProtocolError("unknown_event", f"unknown event {name[:64]!r}", param="type")


def event_session(event: Json) -> Json:
    """The session object of an opening message or update: its ``session``, else the event's own fields.

    A ``session_id`` beside the object joins it. Raises ``bad_event`` with the event's id when ``session`` is no object.
    """
    session = event.get("session")
    if session is None:
        return {key: value for key, value in event.items() if key not in ("type", "event_id", "session")}
    if not isinstance(session, dict):
        error = readers.wrong_kind("session", "an object", session)
        error.event_id = event.get("event_id") if isinstance(event.get("event_id"), str) else None
        raise error
    if event.get("session_id") is not None and session.get("session_id") is None:
        return {**session, "session_id": event["session_id"]}
    return session


OPENING_NAMES: Final = frozenset({"session.create", "open_session", "session.config"})


def _refuse_resume(_: Said) -> c.Command:
    raise RemoteProtocolError("unsupported_session_resume", "this socket already has a session")


def _commit(said: Said, *, wants_response: bool | None = None) -> c.Command:
    asked = said["response_create"]
    return c.CommitInput(
        event_id=said.event_id,
        final=True if said["final"] is None else said["final"],
        response_create=wants_response if asked is None else asked,
        is_speech=said["is_speech"],
        audio_end_ms=said["audio_end_ms"],
    )


_TEXT_ID: Final = Field("response_id", readers.text)
_ITEM_ID: Final = Field("item_id", readers.item_id, missing="missing_item_id")
_COMMIT_FIELDS: Final = FieldTable(
    Field("final", readers.flag, note="default true; informational"),
    Field("response_create", readers.flag, ("create_response",), note="default: the lane decides"),
    Field("is_speech", readers.flag, note="false declares silence"),
    Field("audio_end_ms", readers.positive_ms, ("audio_ms",), note="for speech_stopped"),
)

CLIENT_EVENTS: Final[dict[str, ClientRow]] = {
    "session.update": ClientRow(
        2,
        "The first one opens the session; later ones reconfigure it, all or nothing.",
        lambda s: c.UpdateSession(event_id=s.event_id, session=event_session(s.event)),
        FieldTable(
            Field("session", readers.object_, note="the session object; without it the event's own fields are read")
        ),
    ),
    "session.heartbeat": ClientRow(3, "Keeps the session's lease alive.", lambda s: c.Heartbeat(event_id=s.event_id)),
    "session.event_ack": ClientRow(
        3,
        "The client has every event up to a number; the journal forgets them.",
        lambda s: c.AckEvents(event_id=s.event_id, server_event_seq=s["server_event_seq"]),
        FieldTable(Field("server_event_seq", readers.acknowledged_seq, missing="invalid_event_ack")),
    ),
    "session.close": ClientRow(
        3,
        "Ends the session in order; with drain only after the answer under way was sent or played.",
        lambda s: c.CloseSession(event_id=s.event_id, drain=s["drain"], drain_timeout_s=s["drain_timeout_s"]),
        FieldTable(
            Field("drain", readers.drain, note="sent (also true) or played; default: close at once"),
            Field("drain_timeout_s", readers.not_negative, note="bounds the wait"),
        ),
    ),
    "session.resume": ClientRow(
        3,
        "First message of a new socket: take a living session over.",
        _refuse_resume,
        FieldTable(
            Field("session_id", readers.anything),
            Field("incarnation", readers.anything),
            Field("resume_token", readers.anything),
            Field("last_received_server_event_seq", readers.anything, note="default 0"),
        ),
    ),
    "input_audio_buffer.append": ClientRow(
        2, "Adds a chunk of audio, maybe with camera frames.", appends.append, appends.FIELDS
    ),
    "input_audio_buffer.commit": ClientRow(
        2, "Seals the buffered utterance into a user item.", _commit, _COMMIT_FIELDS
    ),
    "input.commit": ClientRow(
        3,
        "The same under the native name; in the native dialect it asks for a response unless told otherwise.",
        lambda s: _commit(s, wants_response=True if s.native else None),
        _COMMIT_FIELDS,
    ),
    "input_audio_buffer.clear": ClientRow(
        1, "Drops input that was not committed.", lambda s: c.ClearInput(event_id=s.event_id)
    ),
    "input.cancel": ClientRow(
        3,
        "Drops all pending input and cancels the active response; the epoch advances.",
        lambda s: c.CancelInput(event_id=s.event_id, reason=s["reason"]),
        FieldTable(Field("reason", readers.text)),
    ),
    "input.text.append": ClientRow(
        3,
        "Adds text to the open input item (chat lane only).",
        lambda s: c.AppendText(event_id=s.event_id, text=s["text"]),
        FieldTable(Field("text", readers.text, missing="bad_event")),
    ),
    "conversation.item.create": ClientRow(
        1,
        "Adds an item to the conversation: a message, a function call or its output.",
        item_events.create,
        FieldTable(
            Field("item", readers.object_, missing="bad_event", note="see the item table"),
            Field("previous_item_id", readers.text, note="repeated verbatim"),
        ),
    ),
    "conversation.item.retrieve": ClientRow(
        1,
        "Asks for an item by id.",
        lambda s: c.RetrieveItem(event_id=s.event_id, item_id=s["item_id"]),
        FieldTable(_ITEM_ID),
    ),
    "conversation.item.delete": ClientRow(
        1,
        "Removes an item and its place in the history.",
        lambda s: c.DeleteItem(event_id=s.event_id, item_id=s["item_id"]),
        FieldTable(_ITEM_ID),
    ),
    "conversation.item.truncate": ClientRow(
        1,
        "Cuts an assistant item at what was heard.",
        lambda s: c.TruncateItem(
            event_id=s.event_id,
            item_id=s["item_id"],
            content_index=s["content_index"] or 0,
            audio_end_ms=s["audio_end_ms"],
        ),
        FieldTable(
            _ITEM_ID,
            Field("audio_end_ms", readers.milliseconds, missing="bad_event"),
            Field("content_index", readers.whole, note="default 0"),
        ),
    ),
    "response.create": ClientRow(
        1,
        "Asks for a response, maybe with options for this one only.",
        lambda s: c.CreateResponse(event_id=s.event_id, options=s["response"]),
        FieldTable(Field("response", readers.object_)),
    ),
    "response.cancel": ClientRow(
        1,
        "Cancels the named or the active response; the epoch advances.",
        lambda s: c.CancelResponse(event_id=s.event_id, response_id=s["response_id"]),
        FieldTable(_TEXT_ID),
    ),
    "output_audio_buffer.clear": ClientRow(
        1,
        "Throws queued output audio away; the epoch advances when there was any.",
        lambda s: c.ClearOutput(event_id=s.event_id, response_id=s["response_id"]),
        FieldTable(_TEXT_ID),
    ),
    "barge_in": ClientRow(
        3,
        "Interrupts at once; needs the capability supports_barge_in.",
        lambda s: c.BargeIn(event_id=s.event_id, response_id=s["response_id"]),
        FieldTable(_TEXT_ID),
    ),
    "turn.signal": ClientRow(
        3,
        "A turn-taking word from outside; words that are commands act as that command.",
        lambda s: c.SignalTurn(event_id=s.event_id, event=s["event"], payload=s["payload"] or {}),
        FieldTable(Field("event", readers.word, missing="bad_event"), Field("payload", readers.object_)),
    ),
    "playback.ack": ClientRow(
        3,
        "Reports how far the answer was played; truncate says that nothing after it was heard.",
        lambda s: c.AckPlayback(
            event_id=s.event_id,
            played_ms=s["played_ms"],
            committed_ms=s["committed_ms"],
            response_id=s["response_id"],
            item_id=s["item_id"],
            truncate=bool(s["truncate"]),
        ),
        FieldTable(
            Field("played_ms", readers.positive_ms, ("audio_ms",), note="negative counts as 0"),
            Field("committed_ms", readers.positive_ms, note="negative counts as 0"),
            _TEXT_ID,
            Field("item_id", readers.text),
            Field("truncate", readers.flag),
        ),
    ),
}

NEVER_FOLDED: Final = {name: row for name, row in CLIENT_EVENTS.items() if name != "turn.signal"}
"""Canonical names, which folding leaves as they are: only a turn signal may stand for another event."""
