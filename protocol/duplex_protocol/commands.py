"""Native commands: the one inner vocabulary in which clients speak to a session, whatever their dialect.

A dialect decodes wire text into these; a session applies them in arrival order. ``event_id`` is the client's id of
the wire event, echoed only in an error which that event causes.
"""

from __future__ import annotations

from typing import Literal

import attrs

from duplex_protocol.audio_formats import Encoding
from duplex_protocol.values import Item, Json


@attrs.frozen(kw_only=True)
class Command:
    """Base of all commands."""

    event_id: str | None = None


@attrs.frozen(kw_only=True)
class UpdateSession(Command):
    """``session.update`` after the opening one; ``session`` is the raw object, parsed against the config then valid."""

    session: Json


@attrs.frozen(kw_only=True)
class Heartbeat(Command):
    """``session.heartbeat``: refreshes the lease."""


@attrs.frozen(kw_only=True)
class AckEvents(Command):
    """``session.event_ack``: the client has everything up to ``server_event_seq``."""

    server_event_seq: int


@attrs.frozen(kw_only=True)
class CloseSession(Command):
    """``session.close``.

    ``drain`` first waits until the answer that is under way was sent, or was played as far as the client acknowledges
    it; ``drain_timeout_s`` bounds the wait (None: the session's default).
    """

    drain: Literal["sent", "played"] | None = None
    drain_timeout_s: float | None = None


@attrs.frozen(kw_only=True)
class AppendHints:
    """What a client says about one append (contract 3.1, 9.2, 11); None = not said."""

    duration_ms: float | None = None
    audio_start_ms: float | None = None
    audio_end_ms: float | None = None
    is_speech: bool | None = None
    speech_probability: float | None = None
    silence_rms: float | None = None
    overlap_action: str | None = None
    force_barge_in: bool = False
    force_listen: bool = False
    transcript: str | None = None


@attrs.frozen(kw_only=True)
class AppendAudio(Command):
    """``input_audio_buffer.append``: never empty raw bytes.

    ``encoding``/``rate_hz`` are what the event itself names (None = not named). The session settles the format when
    the command is *applied* (:func:`duplex_protocol.audio_formats.append_format`), because an update that is still
    ahead of it in the mailbox may change the session's format; only then can odd byte counts be told.
    """

    audio: bytes = attrs.field(repr=False)
    encoding: Encoding | None = None
    rate_hz: int | None = None
    hints: AppendHints = AppendHints()
    video_frames: tuple[str, ...] = attrs.field(default=(), repr=False)


@attrs.frozen(kw_only=True)
class CommitInput(Command):
    """``input_audio_buffer.commit``; ``response_create`` None = the dialect and the lane decide."""

    final: bool = True
    response_create: bool | None = None
    is_speech: bool | None = None
    audio_end_ms: float | None = None


@attrs.frozen(kw_only=True)
class ClearInput(Command):
    """``input_audio_buffer.clear``: drops uncommitted input, no epoch change."""


@attrs.frozen(kw_only=True)
class CancelInput(Command):
    """``input.cancel``: drops input and cancels the active response; the epoch advances."""

    reason: str | None = None


@attrs.frozen(kw_only=True)
class AppendText(Command):
    """``input.text.append`` (chat lane only)."""

    text: str


@attrs.frozen(kw_only=True)
class ItemAudio:
    """Audio of an ``input_audio`` part in ``conversation.item.create``; format as in :class:`AppendAudio`."""

    audio: bytes = attrs.field(repr=False)
    encoding: Encoding | None = None
    rate_hz: int | None = None


@attrs.frozen(kw_only=True)
class CreateItem(Command):
    """``conversation.item.create``; ``item.id`` is empty when the client gave none.

    ``previous_item_id`` is the client's word verbatim, ``previous_item_named`` whether it was there at all.
    ``audio`` holds the decoded audio parts in order.
    """

    item: Item
    previous_item_id: str | None = None
    previous_item_named: bool = False
    audio: tuple[ItemAudio, ...] = ()


@attrs.frozen(kw_only=True)
class RetrieveItem(Command):
    """``conversation.item.retrieve``."""

    item_id: str


@attrs.frozen(kw_only=True)
class DeleteItem(Command):
    """``conversation.item.delete``."""

    item_id: str


@attrs.frozen(kw_only=True)
class TruncateItem(Command):
    """``conversation.item.truncate`` at ``audio_end_ms`` (may be negative or too large: the session refuses)."""

    item_id: str
    content_index: int = 0
    audio_end_ms: float


@attrs.frozen(kw_only=True)
class CreateResponse(Command):
    """``response.create``; ``options`` is the raw ``response`` object (None when absent), checked by the session."""

    options: Json | None = None


@attrs.frozen(kw_only=True)
class CancelResponse(Command):
    """``response.cancel``, of the named response or of the active one."""

    response_id: str | None = None


@attrs.frozen(kw_only=True)
class ClearOutput(Command):
    """``output_audio_buffer.clear``."""

    response_id: str | None = None


@attrs.frozen(kw_only=True)
class BargeIn(Command):
    """``barge_in``: an explicit hard interrupt."""

    response_id: str | None = None


@attrs.frozen(kw_only=True)
class SignalTurn(Command):
    """``turn.signal`` with a word that names no command of its own."""

    event: str
    payload: Json = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class AckPlayback(Command):
    """``playback.ack``: cumulative positions in ms; negative input was already folded to 0."""

    played_ms: float | None = None
    committed_ms: float | None = None
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool = False


# Data events are refused under back-pressure; everything else has reserved room in the mailbox (contract 24a).
DATA_COMMANDS: tuple[type[Command], ...] = (AppendAudio, AppendText, CreateItem, CommitInput)
