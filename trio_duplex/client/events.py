"""Server events as typed views of the wire dictionaries (contract section 21.2).

Nothing here validates: a client must take whatever any server of this API sends, so every accessor returns None
when a field is missing or has another type than promised.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs
import pybase64

from .errors import DuplexProtocolError
from .values import Deadlines

JsonDict = dict[str, Any]


def _str(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _member(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


@attrs.define(eq=False)
class DuplexEvent:
    """One server event. `raw` is the wire dictionary, unchanged.

    `received_at_s` is the `time.monotonic()` reading at which the client's reader parsed it (None for events that
    were made by hand).
    """

    # What the fields are read from: `raw`, or a frame of a session in this process, which nobody may be given.
    _said: JsonDict = attrs.field(alias="raw")
    received_at_s: float | None = attrs.field(default=None, kw_only=True)
    """`time.monotonic()` at which the reader had it."""
    _to_wire: Callable[[JsonDict], JsonDict] | None = attrs.field(default=None, init=False, repr=False)

    @property
    def raw(self) -> JsonDict:
        """The wire dictionary, unchanged."""
        if self._to_wire is not None:
            self._said = self._to_wire(self._said)
            self._to_wire = None
        return self._said

    def __repr__(self) -> str:
        return f"{type(self).__name__}(raw={self.raw!r}, received_at_s={self.received_at_s!r})"

    def _keep_frame(self, to_wire: Callable[[JsonDict], JsonDict]) -> None:
        """What was given is not a wire dictionary yet: `to_wire` makes one of it, once, when somebody asks for it."""
        self._to_wire = to_wire

    @property
    def type(self) -> str:
        """The wire type; empty when there is none."""
        return _str(self._said.get("type")) or ""

    @property
    def event_id(self) -> str | None:
        """The server's id of this event."""
        return _str(self._said.get("event_id"))

    @property
    def session_id(self) -> str | None:
        """Top-level `session_id`, else `session.id`."""
        return _str(self._said.get("session_id")) or _str(_member(self._said.get("session"), "id"))

    @property
    def response_id(self) -> str | None:
        """Top-level `response_id`, else `response.id`."""
        return _str(self._said.get("response_id")) or _str(_member(self._said.get("response"), "id"))

    @property
    def item_id(self) -> str | None:
        """Top-level `item_id`, else `item.id`."""
        return _str(self._said.get("item_id")) or _str(_member(self._said.get("item"), "id"))

    @property
    def server_event_seq(self) -> int | None:
        """The event's number in the session; None for the few that have none."""
        return _int(self._said.get("server_event_seq"))

    @property
    def sample_rate_hz(self) -> int | None:
        """Rate of the event's audio, when it says."""
        return _int(self._said.get("sample_rate_hz"))

    @property
    def audio(self) -> bytes | None:
        """Decoded audio; None on everything but audio deltas, and on bad base64."""
        return None

    @property
    def text(self) -> str | None:
        """`text`, `delta` or `transcript`, the first that is a string."""
        for key in ("text", "delta", "transcript"):
            value = self._said.get(key)
            if isinstance(value, str):
                return value
        return None


class SessionCreated(DuplexEvent):
    """First event of a session."""

    __slots__ = ()

    @property
    def session(self) -> JsonDict:
        """The session object; empty when there is none."""
        value = self.raw.get("session")
        return value if isinstance(value, dict) else {}

    @property
    def resume_token(self) -> str | None:
        """Top level (duplex view) or inside `session` (plain view)."""
        return _str(self.raw.get("resume_token")) or _str(self.session.get("resume_token"))

    @property
    def incarnation(self) -> int:
        """Which life of the session id this is, from 0."""
        value = _int(self.raw.get("incarnation"))
        if value is None:
            value = _int(self.session.get("incarnation"))
        return 0 if value is None else value


class SessionResumed(SessionCreated):
    """A new connection carries the session again."""

    __slots__ = ()


class SessionUpdated(DuplexEvent):
    """The configuration as it is after an update."""

    __slots__ = ()

    @property
    def session(self) -> JsonDict:
        """The session object; empty when there is none."""
        value = self.raw.get("session")
        return value if isinstance(value, dict) else {}


class SessionClosed(DuplexEvent):
    """Last event of a session. Some servers wrap the reason in `event`."""

    __slots__ = ()

    @property
    def reason(self) -> str | None:
        """Why it ended."""
        return _str(self.raw.get("reason")) or _str(_member(self.raw.get("event"), "reason"))

    @property
    def deadlines(self) -> Deadlines | None:
        """How the session kept its units' deadlines, when the server says."""
        return Deadlines.from_wire(self.raw.get("deadlines"))


class SessionExpired(DuplexEvent):
    """Last event of a session that nobody kept alive."""

    __slots__ = ()

    @property
    def reason(self) -> str | None:
        """Which time ran out."""
        return _str(self.raw.get("reason"))

    @property
    def deadlines(self) -> Deadlines | None:
        """How the session kept its units' deadlines, when the server says."""
        return Deadlines.from_wire(self.raw.get("deadlines"))


class ResponseCreated(DuplexEvent):
    """An answer begins."""

    __slots__ = ()


class ResponseDone(DuplexEvent):
    """The one terminal event of an answer."""

    __slots__ = ()

    @property
    def status(self) -> str | None:
        """`completed`, `cancelled`, `failed` (or what the server says)."""
        return _str(_member(self.raw.get("response"), "status"))

    @property
    def deadlines(self) -> Deadlines | None:
        """The session's deadlines so far; sent when its `extra_body` has `return_stage_metrics`."""
        return Deadlines.from_wire(_member(_member(self.raw.get("response"), "metadata"), "deadlines"))


@attrs.define(eq=False, repr=False)
class AudioDelta(DuplexEvent):
    """One chunk of assistant audio; decoded once, on first use."""

    _decoded: bytes | None = attrs.field(default=None, init=False, repr=False)
    _tried: bool = attrs.field(default=False, init=False, repr=False)

    @property
    def audio(self) -> bytes | None:
        if not self._tried:
            self._tried = True
            for key in ("delta", "audio"):
                value = self.raw.get(key)
                if isinstance(value, str):
                    self._decoded = _decode_base64(value)
                    break
        return self._decoded

    def _keep_decoded(self, audio: bytes) -> None:
        """Give the audio along with the event: a link inside the process has it already."""
        self._decoded = audio
        self._tried = True

    @property
    def text(self) -> str | None:
        """None: the `delta` of this event is audio."""
        return None

    @property
    def format(self) -> str | None:
        """Encoding of the decoded bytes as the server names it."""
        return _str(self._said.get("format"))

    @property
    def audio_duration_ms(self) -> int | None:
        """Cumulative length of the response's audio up to this delta, when the server says."""
        return _int(_member(self._said.get("metadata"), "audio_duration_ms"))


class TranscriptDelta(DuplexEvent):
    """Words of the answer's speech."""

    __slots__ = ()


class TextDelta(DuplexEvent):
    """Words of a text answer."""

    __slots__ = ()


class ListenDecision(DuplexEvent):
    """The model chose to go on listening."""

    __slots__ = ()


class SpeakDecision(DuplexEvent):
    """The model chose to speak."""

    __slots__ = ()


class ErrorEvent(DuplexEvent):
    """An `error` event, in the envelope form (`error` is an object) or the flat handshake form."""

    __slots__ = ()

    @property
    def code(self) -> str | None:
        """The wire code."""
        return _str(_member(self.raw.get("error"), "code")) or _str(self.raw.get("code"))

    @property
    def message(self) -> str:
        """The server's words; never empty."""
        error = self.raw.get("error")
        found = _str(error) or _str(_member(error, "message")) or _str(self.raw.get("message"))
        return found or self.code or "the server reported an error without a message"

    @property
    def param(self) -> str | None:
        """The field that is wrong, when the server names one."""
        return _str(_member(self.raw.get("error"), "param")) or _str(self.raw.get("param"))

    @property
    def related_event_id(self) -> str | None:
        """The client event this error answers; None if the server does not name one."""
        return _str(_member(self.raw.get("error"), "event_id"))

    def to_exception(self) -> DuplexProtocolError:
        """What the client raises for this event."""
        return DuplexProtocolError(self.message, code=self.code, event_id=self.related_event_id, raw=self.raw)


class ConnectionResumed(DuplexEvent):
    """Made by the client itself after an automatic resume, ahead of the server's `session.resumed`."""

    TYPE: ClassVar[str] = "connection.resumed"
    __slots__ = ()

    @property
    def attempt(self) -> int:
        """Which attempt succeeded, counted from 1."""
        return _int(self.raw.get("attempt")) or 0


EVENT_CLASSES: dict[str, type[DuplexEvent]] = {
    "session.created": SessionCreated,
    "session.resumed": SessionResumed,
    "session.updated": SessionUpdated,
    "session.closed": SessionClosed,
    "session.expired": SessionExpired,
    "response.created": ResponseCreated,
    "response.done": ResponseDone,
    "response.output_audio.delta": AudioDelta,
    "response.audio.delta": AudioDelta,
    "response.output_audio_transcript.delta": TranscriptDelta,
    "response.audio_transcript.delta": TranscriptDelta,
    "response.output_text.delta": TextDelta,
    "response.text.delta": TextDelta,
    "response.listen": ListenDecision,
    "response.speak": SpeakDecision,
    "error": ErrorEvent,
    ConnectionResumed.TYPE: ConnectionResumed,
}
"""Wire type to class; the beta names are accepted on input only."""


def wrap_event(raw: JsonDict, *, received_at_s: float | None = None) -> DuplexEvent:
    """The typed view of a wire dictionary; unknown types become a plain `DuplexEvent`."""
    kind = raw.get("type")
    cls = EVENT_CLASSES.get(kind, DuplexEvent) if isinstance(kind, str) else DuplexEvent
    return cls(raw, received_at_s=received_at_s)


def base64_text(value: object) -> str:
    """The encoder's hook: bytes become base64 text. TypeError for everything else that is no JSON value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return pybase64.b64encode_as_string(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _decode_base64(text: str) -> bytes | None:
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
