"""Native events: what a session says, before a dialect projects it onto the wire.

The names follow contract 4.3 (the native dialect), the payloads are typed. Each event carries the ``epoch`` it belongs
to where the wire shows one. Nothing here knows a dialect, a socket or a sequence number.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.commands import Command
from duplex_protocol.values import Deadlines, Item, Json, Playback, ResponseStatus, SessionSnapshot, TextMark, TurnState


@attrs.frozen(kw_only=True)
class Event:
    """Base of all native events."""


# --- session life -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionCreated(Event):
    """The session is open. ``resume_token`` is None when the model or the dialect cannot resume.

    ``opened_by_update`` is true when a client's ``session.update`` (or native opening message) opened it, false for
    an autostarted session: only the former is followed by ``session.updated`` (O3).
    """

    session: SessionSnapshot
    incarnation: int
    attachment_generation: int
    resume_token: str | None = attrs.field(default=None, repr=False)
    opened_by_update: bool = True


@attrs.frozen(kw_only=True)
class SessionUpdated(Event):
    """The effective configuration after an accepted update."""

    session: SessionSnapshot


@attrs.frozen(kw_only=True)
class HeartbeatAck(Event):
    """Reply to a heartbeat."""

    session_id: str


@attrs.frozen(kw_only=True)
class SessionClosed(Event):
    """The session's terminal event; ``reason`` per contract 13. ``deadlines`` None: the model keeps no account."""

    session_id: str
    reason: str
    deadlines: Deadlines | None = None


@attrs.frozen(kw_only=True)
class SessionExpired(Event):
    """The other terminal event: the lease was reaped."""

    session_id: str
    incarnation: int
    reason: Literal["disconnect_grace_expired", "idle_ttl_expired"]
    deadlines: Deadlines | None = None


@attrs.frozen(kw_only=True)
class SessionResumed(Event):
    """A resume was accepted. Travels without a sequence number (contract 15.1).

    ``by_query`` is true when the URL asked for it instead of a ``session.resume`` message; the plain view then says
    ``session.created``, the first event that its clients wait for on every socket.
    """

    session_id: str
    incarnation: int
    attachment_generation: int
    resume_token: str = attrs.field(repr=False)
    by_query: bool = False


@attrs.frozen(kw_only=True)
class SessionReplaced(Event):
    """To the superseded socket, with *its* generation; unnumbered."""

    session_id: str
    attachment_generation: int


@attrs.frozen(kw_only=True)
class ResyncRequired(Event):
    """Replay is impossible (``journal_gap``, unnumbered, answers a resume) or the journal overflowed (numbered)."""

    session_id: str
    reason: Literal["journal_gap", "journal_overflow"]


# --- input --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SpeechStarted(Event):
    """Speech onset of an input item, on the session's audio clock.

    ``detected_by_server`` is false while ``turn_detection`` is null: the plain view then keeps the event to itself,
    because stock clients take it as an interruption.
    """

    item_id: str
    audio_start_ms: int
    detected_by_server: bool = True


@attrs.frozen(kw_only=True)
class SpeechStopped(Event):
    """Speech end of the same item."""

    item_id: str
    audio_end_ms: int
    detected_by_server: bool = True


@attrs.frozen(kw_only=True)
class InputCommitted(Event):
    """A commit was accepted: the user item and its place.

    ``previous_item_id`` is the item's predecessor in insertion order. ``item_known`` is true when the item was already
    announced (then no added/created precedes). ``message`` is the history message of contract 10.1.
    """

    session_id: str
    turn_id: int
    epoch: int
    history_len: int
    item: Item
    previous_item_id: str | None
    message: Json
    item_known: bool = False
    native_audio: bool = True
    transcript: str | None = None
    audio_ms: int = 0
    overlap_deferred: bool | None = None
    response_create_deferred: bool | None = None
    empty: bool = False
    no_response: bool = False
    is_speech: bool | None = None
    overlap_ack: bool = False


@attrs.frozen(kw_only=True)
class InputTranscribed(Event):
    """The model recognised a committed user item after its commit fan-out; ``audio_ms`` is the item's length.

    ``content_index`` is the part that got the transcript.
    """

    item_id: str
    transcript: str
    content_index: int = 0
    audio_ms: int = 0


@attrs.frozen(kw_only=True)
class InputCleared(Event):
    """Reply to ``input_audio_buffer.clear`` (or a detector failure)."""

    session_id: str
    epoch: int
    drained_input_events: int = 0
    cancelled: bool = False


@attrs.frozen(kw_only=True)
class InputCancelled(Event):
    """Reply to ``input.cancel`` / ``barge_in``: pending input is gone, ``epoch`` is the new one."""

    session_id: str
    reason: str
    epoch: int
    text_chunks: int = 0
    audio_chunks: int = 0


# --- items --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ItemCreated(Event):
    """An item entered the conversation (reply to ``conversation.item.create``).

    ``previous_item_id`` is what ``added``/``created`` report (the client's own word when it gave one);
    ``predecessor_id`` is the item before it in insertion order, which ``done`` reports. ``done`` false: an audio
    item that an :class:`InputCommitted` will finish.
    """

    item: Item
    previous_item_id: str | None
    predecessor_id: str | None
    done: bool = True


@attrs.frozen(kw_only=True)
class ItemDeleted(Event):
    """Reply to ``conversation.item.delete``."""

    item_id: str


@attrs.frozen(kw_only=True)
class ItemRetrieved(Event):
    """Reply to ``conversation.item.retrieve``."""

    item: Item


@attrs.frozen(kw_only=True)
class ItemTruncated(Event):
    """Reply to ``conversation.item.truncate``."""

    item_id: str
    content_index: int
    audio_end_ms: int


# --- responses ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ResponseCreated(Event):
    """A visible response starts; its assistant item is ``item_<response_id>`` and enters the chain now."""

    session_id: str
    response_id: str
    epoch: int
    turn_id: int
    item_id: str
    previous_item_id: str | None
    modalities: tuple[str, ...]
    metadata: Json | None = None
    conversation: str | None = None
    prompt: Any = None
    output_format: AudioFormat = AudioFormat("pcm16", 24_000)


@attrs.frozen(kw_only=True)
class ResponseSpeak(Event):
    """The model chose to speak; at most once per response, before its first audio."""

    session_id: str
    response_id: str
    item_id: str
    epoch: int


@attrs.frozen(kw_only=True)
class AudioDelta(Event):
    """One chunk of audio with the text it speaks (native: one event; realtime: a pair of events).

    ``audio`` holds whole samples in ``format``; ``audio_duration_ms`` and ``marks`` are cumulative per response.
    """

    session_id: str
    response_id: str
    item_id: str
    epoch: int
    audio: bytes = attrs.field(repr=False)
    format: AudioFormat
    text: str = ""
    end_of_turn: bool = False
    model_speak: bool = True
    audio_duration_ms: int = 0
    marks: tuple[TextMark, ...] = ()
    playback: Playback = Playback()
    channels: int | None = None


@attrs.frozen(kw_only=True)
class TextDelta(Event):
    """A piece of a text-modality answer."""

    session_id: str
    response_id: str
    item_id: str
    epoch: int
    delta: str


@attrs.frozen(kw_only=True)
class ResponseListen(Event):
    """The model keeps listening; with ``response_id`` it terminates a precreated response (a done follows)."""

    session_id: str
    epoch: int
    reason: str
    model_listen: bool = True
    buffering: bool = False
    response_id: str | None = None


@attrs.frozen(kw_only=True)
class ResponseDone(Event):
    """The terminal of a response; the dialect unfolds it into the sequence of contract 5.1.

    ``transcript``/``text`` are the exact joins of the deltas that were *kept* in the journal; ``item`` is the final
    assistant item (on a cancel its transcript is cut at the committed position). ``epoch`` is the epoch the response
    ran under; ``next_epoch`` is set when this terminal ends that epoch (a cancel). ``cancel_reason`` is the native
    word (``client_cancelled``, ``barge_in``, …). ``deadlines``: the session's account so far, where it was asked for.
    """

    session_id: str
    response_id: str
    epoch: int
    status: ResponseStatus
    item: Item
    predecessor_id: str | None
    committed: bool
    playback: Playback
    had_audio: bool
    transcript: str
    text: str
    reason: str | None = None
    next_epoch: int | None = None
    finish_reason: str | None = None
    metadata: Json | None = None
    modalities: tuple[str, ...] = ("audio", "text")
    output_format: AudioFormat = AudioFormat("pcm16", 24_000)
    input_audio_ms: int = 0
    deadlines: Deadlines | None = None


@attrs.frozen(kw_only=True)
class OutputCleared(Event):
    """Reply to ``output_audio_buffer.clear``; comes before the terminal of the response it cleared."""

    session_id: str
    response_id: str | None
    epoch: int


@attrs.frozen(kw_only=True)
class FunctionCallDone(Event):
    """The model calls a tool; malformed ones (``call_id`` or ``name`` missing) take the raw fallback (contract 19)."""

    session_id: str
    epoch: int
    call_id: str | None
    name: str | None
    arguments: str
    response_id: str
    item_id: str
    previous_item_id: str | None = None


# --- the rest -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PlaybackAcknowledged(Event):
    """Reply to ``playback.ack``; ``played_ms``/``committed_ms`` repeat the request, ``playback`` the cursors."""

    session_id: str
    epoch: int
    item_id: str | None
    played_ms: int
    committed_ms: int
    truncate: bool
    playback: Playback
    history_committed: bool
    asked: bool = True


@attrs.frozen(kw_only=True)
class OverlapDecision(Event):
    """How an append that overlapped an active response was handled (contract 11); ``epoch`` is before the cancel."""

    session_id: str
    epoch: int
    policy: str
    action: Literal["drop", "listen", "barge_in"]
    reason: str
    overlap_ms: int | None = None
    duration_ms: int | None = None
    buffer_audio: bool | None = None
    defer_runtime_append: bool | None = None
    force_listen: bool | None = None
    cancel_reason: str | None = None
    preserve_realtime_input: bool | None = None


@attrs.frozen(kw_only=True)
class TurnEvent(Event):
    """A turn signal that does nothing on the wire."""

    session_id: str
    event: str
    turn_state: TurnState
    epoch: int


@attrs.frozen(kw_only=True)
class RuntimeControl(Event):
    """Diagnostic: an engine control signal was partially unsupported."""

    session_id: str
    epoch: int
    result: Json


@attrs.frozen(kw_only=True)
class ErrorRaised(Event):
    """One refused client event, or an engine error.

    ``cause`` is the class of the refused command where it is known; the plain view picks OpenAI's code by it
    (``item_not_found`` has a code per event there).
    """

    code: str
    message: str
    param: str | None = None
    related_event_id: str | None = None
    retryable: bool | None = None
    session_id: str | None = None
    epoch: int | None = None
    response_id: str | None = None
    cause: type[Command] | None = None
