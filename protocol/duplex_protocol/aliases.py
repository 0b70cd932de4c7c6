"""Alias tables of the wire and their folding (contract section 2). Names only; nothing is checked beyond shape."""

from __future__ import annotations

from typing import Final

import attrs

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json

EVENT_ALIASES: Final[dict[str, str]] = {
    "input.audio.append": "input_audio_buffer.append",
    "push_chunk": "input_audio_buffer.append",
    "input_text.append": "input.text.append",
    "push_text": "input.text.append",
    "signal_turn": "turn.signal",
    "audio.playback_ack": "playback.ack",
    "close_session": "session.close",
    "close": "session.close",
    "session_close": "session.close",
}
"""Other names of client events. ``input.commit`` keeps a row of its own: its default differs in the native dialect."""

LEGACY_WAV_NAMES: Final = frozenset({"input.audio.append", "push_chunk"})
"""Append aliases that mean WAV when they name no format."""

OPENING_ALIASES: Final[dict[str, str]] = {"open_session": "session.create", "session.config": "session.create"}
"""Other names of the native dialect's opening message."""

TURN_SIGNAL_COMMANDS: Final = frozenset(
    {
        "barge_in",
        "input.cancel",
        "response.cancel",
        "session.update",
        "conversation.item.create",
        "conversation.item.delete",
        "conversation.item.truncate",
    }
)
"""Words of ``turn.signal`` that are commands of their own: the signal is rewritten into the event of that name."""


@attrs.frozen
class Folded:
    """A client event under its canonical name; ``legacy_wav``: it came by an alias that may carry WAV."""

    name: str
    event: Json
    legacy_wav: bool = False


def fold(event: Json) -> Folded:
    """Fold event aliases and rewrite command-like turn signals.

    The keys of a rewritten signal's ``payload`` are lifted into the event, whose own keys win. Raises
    :class:`RemoteProtocolError` ``bad_event`` for a ``payload`` that is not an object.
    """
    name: str = event["type"]
    canonical = EVENT_ALIASES.get(name, name)
    word = event.get("event")
    if canonical == "turn.signal" and isinstance(word, str) and word in TURN_SIGNAL_COMMANDS:
        payload = event.get("payload")
        if payload is not None and not isinstance(payload, dict):
            raise RemoteProtocolError("bad_event", "payload must be an object", param="payload")
        lifted = {key: value for key, value in (payload or {}).items() if key != "event_id"}
        rewritten = {**lifted, **event, "type": word}
        del rewritten["event"]
        rewritten.pop("payload", None)
        return Folded(word, rewritten, legacy_wav=False)
    return Folded(canonical, event, legacy_wav=name in LEGACY_WAV_NAMES)
