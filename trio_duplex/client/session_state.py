"""What the client remembers of its session: identity, resume credentials, the highest event number seen."""

from __future__ import annotations

from typing import Any

import attrs
import orjson

from .events import (
    AudioDelta,
    DuplexEvent,
    ErrorEvent,
    ListenDecision,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionResumed,
    SessionUpdated,
    SpeakDecision,
    TextDelta,
    TranscriptDelta,
    wrap_event,
)

TALK = frozenset({AudioDelta, TranscriptDelta, TextDelta, ListenDecision, SpeakDecision})
"""Events that say nothing of the session itself; most are of these kinds."""


@attrs.frozen
class SessionEnd:
    """Why the session is over. `expected` ends are quiet for iterators."""

    reason: str
    expected: bool


@attrs.define
class SessionState:
    """Changed by the reader only, without checkpoints."""

    session_id: str | None = None
    session_info: dict[str, Any] = attrs.field(factory=dict)
    resume_token: str | None = None
    incarnation: int = 0
    last_seq: int = 0
    last_error: str | None = None

    def is_duplicate(self, event: DuplexEvent) -> bool:
        """True for a number already seen; a new number is remembered."""
        seq = event.server_event_seq
        if seq is None:
            return False
        if seq <= self.last_seq:
            return True
        self.last_seq = seq
        return False

    def absorb(self, event: DuplexEvent) -> None:
        """Take over what the event says about the session."""
        kind = type(event)
        if kind is SessionCreated or kind is SessionResumed:
            assert isinstance(event, SessionCreated)
            self._absorb_identity(event)
        elif isinstance(event, SessionUpdated):
            if event.session:
                self.session_info = event.session
        elif isinstance(event, ErrorEvent):
            self.last_error = str(event.to_exception())
        elif event.type == "session.resync_required":
            self.resume_token = None

    def end_of(self, event: DuplexEvent, *, closing: bool) -> SessionEnd | None:
        """The end this event means, if it means one. `closing`: we asked for it."""
        if isinstance(event, SessionClosed):
            return SessionEnd("closed" if closing or self.last_error is None else self.last_error, True)
        if isinstance(event, SessionExpired):
            return SessionEnd(f"expired: {event.reason or 'no reason given'}", closing)
        return None

    def resume_request(self) -> dict[str, Any]:
        return {
            "type": "session.resume",
            "session_id": self.session_id,
            "incarnation": self.incarnation,
            "resume_token": self.resume_token,
            "last_received_server_event_seq": self.last_seq,
        }

    def _absorb_identity(self, event: SessionCreated) -> None:
        self.session_id = event.session_id or self.session_id
        if event.session:
            self.session_info = event.session
        if event.resume_token is not None:
            self.resume_token = event.resume_token
        if "incarnation" in event.raw or "incarnation" in event.session:
            self.incarnation = event.incarnation


def parse_frame(frame: str | bytes, received_at_s: float) -> DuplexEvent | None:
    """The event in a frame; None for a binary frame and for text that is not a JSON object with a type (21.4)."""
    if not isinstance(frame, str):
        return None
    try:
        raw = orjson.loads(frame)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        return None
    return wrap_event(raw, received_at_s=received_at_s)
