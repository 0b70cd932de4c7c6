"""The projection of native events onto realtime events as literal tables (contract 5, 5.1, 19, 25).

A row is one wire event: its builder, the condition under which it is sent, and what the plain view does with it. The
rows of a native event run in order. One table serves both views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from duplex_protocol import events as e
from duplex_protocol import frames_response as r
from duplex_protocol import frames_session as s
from duplex_protocol.dialect import Projected
from duplex_protocol.errors import LocalProtocolError
from duplex_protocol.memory import Bracket, Memory
from duplex_protocol.states import ResponseMove, next_response_phase
from duplex_protocol.values import Json

Build = Callable[[Memory, Any], Json]
When = Callable[[Memory, Any], bool]


def always(_: Memory, ev: Any) -> bool:
    """In every case."""
    return True


def never(_: Memory, ev: Any) -> bool:
    """In no case."""
    return False


@attrs.frozen
class Row:
    """One wire event of a fan-out.

    ``when`` is the condition in both views, ``plain`` one more in the plain view (``never``: the event is not OpenAI's
    and nobody asked for it). ``droppable``: see :class:`duplex_protocol.dialect.Projected`.
    """

    type: str
    build: Build
    when: When = always
    plain: When = always
    droppable: bool = False


# --- conditions -------------------------------------------------------------------------------------------------------


def opened_by_update(_: Memory, ev: e.SessionCreated) -> bool:
    """The client opened the session with an update."""
    return ev.opened_by_update


def close_was_asked(_: Memory, ev: e.SessionClosed) -> bool:
    """The client sent ``session.close``."""
    return ev.reason == "session_close"


def resumed_by_message(_: Memory, ev: e.SessionResumed) -> bool:
    """``session.resume`` asked for it."""
    return not ev.by_query


def resumed_by_plain_url(m: Memory, ev: e.SessionResumed) -> bool:
    """A plain-view client asked for it in its URL."""
    return m.plain and ev.by_query


def answers_resume(_: Memory, ev: e.ResyncRequired) -> bool:
    """It answers a resume."""
    return ev.reason == "journal_gap"


def found_by_server(_: Memory, ev: e.SpeechStarted | e.SpeechStopped) -> bool:
    """Turn detection is on."""
    return ev.detected_by_server


def is_news(_: Memory, ev: e.InputCommitted) -> bool:
    """The item was not announced before."""
    return bool(ev.item.id) and not ev.item_known


def has_item(_: Memory, ev: e.InputCommitted) -> bool:
    """The commit made an item."""
    return bool(ev.item.id)


def has_transcript(_: Memory, ev: e.InputCommitted) -> bool:
    """The item has an audio part with words."""
    return bool(ev.item.id) and s.transcript_of(ev) is not None


def is_done(_: Memory, ev: e.ItemCreated) -> bool:
    """The item is final at once."""
    return ev.done


def answers_with_audio(_: Memory, ev: e.ResponseCreated) -> bool:
    """Audio is among the modalities, or they are unknown."""
    return "audio" in ev.modalities or not ev.modalities


def audio_part_missing(m: Memory, ev: e.AudioDelta) -> bool:
    """No audio part is open yet."""
    return not m.open[ev.response_id].audio_part and bool(ev.audio or ev.text)


def speaks_first(m: Memory, ev: e.AudioDelta) -> bool:
    """The model speaks and that was not said yet."""
    return ev.model_speak and bool(ev.audio) and not m.open[ev.response_id].speak_sent


def speak_unsaid(m: Memory, ev: e.ResponseSpeak) -> bool:
    """That was not said yet."""
    return not m.open[ev.response_id].speak_sent


def has_audio(_: Memory, ev: e.AudioDelta) -> bool:
    """The chunk has audio."""
    return bool(ev.audio)


def has_content(_: Memory, ev: e.AudioDelta) -> bool:
    """The chunk has audio or text."""
    return bool(ev.audio or ev.text)


def text_part_missing(m: Memory, ev: e.TextDelta) -> bool:
    """No text part is open yet."""
    return not m.open[ev.response_id].text_part


def in_conversation(m: Memory, ev: e.ResponseCreated | e.ResponseDone) -> bool:
    """The response is part of the conversation (not ``conversation: none``)."""
    return not m.open[ev.response_id].beside


def was_heard(_: Memory, ev: e.ResponseDone) -> bool:
    """The response had audio or a transcript."""
    return ev.had_audio or bool(ev.transcript)


def was_transcribed(_: Memory, ev: e.ResponseDone) -> bool:
    """The transcript is not empty."""
    return bool(ev.transcript)


def audio_part_open(m: Memory, ev: e.ResponseDone) -> bool:
    """An audio part was added."""
    return m.open[ev.response_id].audio_part


def text_part_open(m: Memory, ev: e.ResponseDone) -> bool:
    """A text part was added."""
    return m.open[ev.response_id].text_part


def well_formed(_: Memory, ev: e.FunctionCallDone) -> bool:
    """The call has an id and a name."""
    return bool(ev.call_id and ev.name)


def malformed(m: Memory, ev: e.FunctionCallDone) -> bool:
    """The call's id or name is missing."""
    return not well_formed(m, ev)


def was_asked(_: Memory, ev: e.PlaybackAcknowledged) -> bool:
    """A ``playback.ack`` asked for it (not the one inside a truncate)."""
    return ev.asked


# --- the tables -------------------------------------------------------------------------------------------------------

TERMINAL: Final[tuple[Row, ...]] = (
    Row("response.output_audio.done", r.audio_done, was_heard),
    Row("response.output_audio_transcript.done", r.transcript_done, was_transcribed),
    Row("response.content_part.done", r.audio_part_done, audio_part_open),
    Row("response.output_text.done", r.text_done, text_part_open),
    Row("response.content_part.done", r.text_part_done, text_part_open),
    Row("response.output_item.done", r.output_item_done),
    Row("conversation.item.done", r.answer_done, in_conversation),
    Row("response.done", r.response_done),
    Row("rate_limits.updated", r.rate_limits),
)
"""The end of every response, whatever its status (contract 5.1)."""

FUNCTION_CALL: Final[tuple[Row, ...]] = (
    Row("response.created", r.call_response_created, well_formed),
    Row("conversation.item.added", r.call_added, well_formed),
    Row("conversation.item.created", r.call_created, well_formed),
    Row("response.output_item.added", r.call_output_item_added, well_formed),
    Row("response.function_call_arguments.delta", r.call_arguments_delta, well_formed),
    Row("response.function_call_arguments.done", r.call_arguments_done, well_formed),
    Row("response.output_item.done", r.call_output_item_done, well_formed),
    Row("conversation.item.done", r.call_done, well_formed),
    Row("response.done", r.call_response_done, well_formed),
    Row("rate_limits.updated", r.rate_limits, well_formed),
    Row("duplex.function_call.done", r.call_raw, malformed, plain=never),
)
"""A tool call is a response of its own, complete in one go (contract 19)."""

FANOUT: Final[dict[type[e.Event], tuple[Row, ...]]] = {
    e.SessionCreated: (
        Row("session.created", s.session_created),
        Row("session.updated", s.session_updated, opened_by_update),
    ),
    e.SessionUpdated: (Row("session.updated", s.session_updated),),
    e.HeartbeatAck: (Row("session.heartbeat_ack", s.heartbeat_ack),),
    e.SessionClosed: (Row("session.closed", s.session_closed, plain=close_was_asked),),
    e.SessionExpired: (Row("session.expired", s.session_expired, plain=never),),
    e.SessionResumed: (
        Row("session.created", s.session_created_again, resumed_by_plain_url),
        Row("session.resumed", s.session_resumed, plain=resumed_by_message),
    ),
    e.SessionReplaced: (Row("session.replaced", s.session_replaced, plain=never),),
    e.ResyncRequired: (Row("session.resync_required", s.resync_required, plain=answers_resume),),
    e.SpeechStarted: (Row("input_audio_buffer.speech_started", s.speech_started, plain=found_by_server),),
    e.SpeechStopped: (Row("input_audio_buffer.speech_stopped", s.speech_stopped, plain=found_by_server),),
    e.InputCommitted: (
        Row("conversation.item.added", s.committed_added, is_news),
        Row("conversation.item.created", s.committed_created, is_news),
        Row("input_audio_buffer.committed", s.committed, plain=has_item),
        Row("conversation.item.input_audio_transcription.completed", s.transcription_completed, has_transcript),
        Row("conversation.item.done", s.committed_done, has_item),
    ),
    e.InputTranscribed: (Row("conversation.item.input_audio_transcription.completed", s.transcribed),),
    e.InputCleared: (Row("input_audio_buffer.cleared", s.input_cleared),),
    e.InputCancelled: (Row("input_audio_buffer.cleared", s.input_cleared),),
    e.ItemCreated: (
        Row("conversation.item.added", s.item_added),
        Row("conversation.item.created", s.item_created),
        Row("conversation.item.done", s.item_done, is_done),
    ),
    e.ItemDeleted: (Row("conversation.item.deleted", s.item_deleted),),
    e.ItemRetrieved: (Row("conversation.item.retrieved", s.item_retrieved),),
    e.ItemTruncated: (Row("conversation.item.truncated", s.item_truncated),),
    e.ResponseCreated: (
        Row("response.created", r.response_created),
        Row("conversation.item.added", r.answer_added, in_conversation),
        Row("conversation.item.created", r.answer_created, in_conversation),
        Row("response.output_item.added", r.output_item_added),
        Row("response.content_part.added", r.audio_part_added, answers_with_audio),
    ),
    e.ResponseSpeak: (Row("response.speak", r.speak, speak_unsaid, plain=never),),
    e.AudioDelta: (
        Row("response.content_part.added", r.audio_part_added, audio_part_missing),
        Row("response.speak", r.speak, speaks_first, plain=never),
        Row("response.output_audio.delta", r.audio_delta, has_audio, droppable=True),
        Row("response.output_audio_transcript.delta", r.transcript_delta, has_content, droppable=True),
    ),
    e.TextDelta: (
        Row("response.content_part.added", r.text_part_added, text_part_missing),
        Row("response.output_text.delta", r.text_delta),
    ),
    e.ResponseListen: (Row("response.listen", r.listen, plain=never),),
    e.ResponseDone: TERMINAL,
    e.OutputCleared: (Row("output_audio_buffer.cleared", r.output_cleared),),
    e.FunctionCallDone: FUNCTION_CALL,
    e.PlaybackAcknowledged: (Row("playback.acknowledged", s.playback_acknowledged, plain=was_asked),),
    e.OverlapDecision: (Row("overlap.decision", s.overlap_decision, plain=never),),
    e.TurnEvent: (Row("duplex.turn.event", s.turn_event),),
    e.RuntimeControl: (Row("runtime.control", s.runtime_control, plain=never),),
    e.ErrorRaised: (Row("error", s.error),),
}

RESPONSE_EVENTS: Final[dict[type[e.Event], ResponseMove]] = {
    e.ResponseCreated: "create",
    e.ResponseSpeak: "speak",
    e.AudioDelta: "audio",
    e.TextDelta: "text",
    e.ResponseListen: "listen",
    e.ResponseDone: "finish",
}
"""Native events that move a response along (a listen only with an id); :mod:`duplex_protocol.states` says how."""

FINISHED_KEPT: Final = 256
"""How many finished response ids a dialect remembers, to swallow what comes late for them."""


def project(memory: Memory, event: e.Event) -> list[Projected]:
    """Run the rows of ``event``.

    Anything for a finished response, a second terminal included, gives nothing. Raises :class:`LocalProtocolError` for
    an event type without rows and for a move that a response cannot make, before anything is remembered.
    """
    kind = type(event)
    if isinstance(event, e.AudioDelta) and _flows(memory, event):
        pair = tuple([build(memory, event) for build in _DELTA_PAIR])
        return [Projected(pair, True, True, len(event.audio) * 4 // 3 + len(event.text) + _PAIR_BYTES)]
    rows = FANOUT.get(kind)
    if rows is None:
        raise LocalProtocolError(f"no projection for {kind.__name__}")
    move = RESPONSE_EVENTS.get(kind)
    if move is not None and not moved(memory, event, move):
        return []
    numbered = not unnumbered(event)
    out: list[Projected] = []
    frames: list[Json] = []
    droppable = False
    for row in rows:
        if not row.when(memory, event) or (memory.view == "plain" and not row.plain(memory, event)):
            continue
        if row.droppable is not droppable and frames:
            out.append(Projected(tuple(frames), droppable, numbered))
            frames = []
        droppable = row.droppable
        frames.append(row.build(memory, event))
    if frames:
        out.append(Projected(tuple(frames), droppable, numbered))
    if move == "finish":
        forget(memory, event)
    return out


_DELTA_PAIR: Final = tuple(row.build for row in FANOUT[e.AudioDelta] if row.droppable)
_PAIR_BYTES: Final = 1_000


def _flows(memory: Memory, event: e.AudioDelta) -> bool:
    """Whether a delta is one of many: its response has opened all that it opens, so that only the pair is to be said.

    The same as the rows' conditions, asked once for the dozen deltas a second that every speaking session makes.
    """
    bracket = memory.open.get(event.response_id)
    return (
        bracket is not None
        and bracket.audio_part
        and bracket.phase == "speaking"
        and bool(event.audio)
        and (bracket.speak_sent or not event.model_speak or memory.view == "plain")
    )


def moved(memory: Memory, event: Any, move: ResponseMove) -> bool:
    """Move the response of ``event`` along; False when it is already finished."""
    response_id: str | None = event.response_id
    if response_id is None:  # a listen decision outside any response
        return True
    bracket = memory.open.get(response_id)
    if bracket is not None:
        bracket.phase = next_response_phase(bracket.phase, move)
        return True
    if response_id in memory.finished:
        if move == "create":
            raise LocalProtocolError(f"response id {response_id!r} is used twice")
        return False
    beside = isinstance(event, e.ResponseCreated) and event.conversation == "none"
    memory.open[response_id] = Bracket(next_response_phase(None, move), beside=beside)
    return True


def forget(memory: Memory, event: Any) -> None:
    """Close the books of a finished response; its id stays known for a while."""
    del memory.open[event.response_id]
    memory.finished[event.response_id] = None
    while len(memory.finished) > FINISHED_KEPT:
        del memory.finished[next(iter(memory.finished))]


def unnumbered(event: Any) -> bool:
    """Events without ``server_event_seq``: those that answer a resume (contract 15.1)."""
    kind = type(event)
    if kind is e.ResyncRequired:
        return bool(event.reason == "journal_gap")
    return kind is e.SessionResumed or kind is e.SessionReplaced
