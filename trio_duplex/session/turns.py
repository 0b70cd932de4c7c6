"""The user's side: appends, commits, what the model heard, and interruptions (contract 9, 10, 11, 12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import structlog

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.audio_formats import append_format, check_whole_samples
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import ContentPart, Item, Json
from trio_duplex.models import plugin as model
from trio_duplex.session.conversation import user_audio_item
from trio_duplex.session.response import ResponseOptions
from trio_duplex.session.responses import advance_epoch, finish_response, start_generation, still_playing

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

NATIVE_AUDIO_MESSAGE = "native-duplex:input-audio"


# --- what the client sends ----------------------------------------------------------------------------------------


async def append_audio(session: Session, command: cmd.AppendAudio) -> None:
    """One append: settle its format, hand the samples to the model, remember that something is uncommitted."""
    fmt = append_format(session.config.input_format, command.encoding, command.rate_hz)
    check_whole_samples(command.audio, fmt)
    hints = command.hints
    wants_barge_in = hints.force_barge_in or hints.overlap_action in ("barge_in", "interrupt", "cancel")
    if wants_barge_in and not session.capabilities.supports_barge_in:
        raise RemoteProtocolError("barge_in_unsupported", "this model cannot be interrupted", param="force_barge_in")
    session.touch(lease=True)
    samples = session.hearing.decode(command.audio, fmt)
    try:
        session.model.submit(samples, video_frames=command.video_frames)
    except model.SessionOverloaded:
        raise RemoteProtocolError("input_backpressure", "the model cannot take this session's audio now") from None
    session.input.appends += 1
    session.input.audio_ms += fmt.duration_ms(len(command.audio))
    if hints.transcript:
        session.input.add_hint(hints.transcript)
    if session.generation is None:
        session.turn_state = "user_speaking"
    if wants_barge_in and response_active(session):
        reason = "client_force_barge_in" if hints.force_barge_in else "client_overlap_action"
        await barge_in_on_overlap(session, reason=reason, cancel_reason="barge_in", duration_ms=hints.duration_ms)


async def commit_input(session: Session, command: cmd.CommitInput) -> None:
    """Seal the buffered utterance into a user item (contract 10.1)."""
    if session.input.empty:
        raise RemoteProtocolError(
            "input_audio_buffer_empty", "input_audio_buffer.commit requires a non-empty input audio buffer."
        )
    session.touch(lease=True)
    if command.is_speech is False:
        session.model.drop_input()
        commit_nothing(session, audio_end_ms=command.audio_end_ms)
        return
    turn = session.model.end_turn()
    if not turn.speech:
        commit_nothing(session, audio_end_ms=turn.audio_end_ms)
        return
    if session.input.hinted_transcript and turn.transcript is None:
        turn.transcript = session.input.hinted_transcript
    wanted = bool(command.response_create) or session.config.auto_response
    deferred = wanted and response_active(session)
    commit_turn(session, turn, response_create_deferred=True if deferred else None)
    answer(session, turn, wanted=wanted, precreate=bool(command.response_create) and not session.config.auto_response)


def answer(session: Session, turn: model.Turn, *, wanted: bool, precreate: bool = False) -> None:
    """Start the answer to a committed turn, defer it behind a running one, or leave it for ``response.create``."""
    if not wanted:
        session.unanswered = turn
    elif session.generation is not None:
        session.deferred = (turn, ResponseOptions(), precreate)
    else:
        start_generation(session, turn, ResponseOptions(), precreate=precreate)


def commit_turn(session: Session, turn: model.Turn, *, response_create_deferred: bool | None = None) -> None:
    """The commit fan-out of a user turn, and its place in history. No checkpoint."""
    item_id = session.input.open_item(session.ids)
    close_speech(session, turn.audio_end_ms)
    turn.item_id = item_id
    item = user_audio_item(item_id, turn.transcript)
    previous = session.conversation.tail_id
    session.conversation.add(item, history_text=turn.transcript or "")
    session.turn_id += 1
    if session.last_response is not None and session.last_response.done:
        session.last_response.commits_after_end += 1
    audio_ms = max(0, turn.audio_end_ms - turn.audio_start_ms)
    session.input.reset()
    if session.generation is None:
        session.turn_state = "user_committed"
    session.emit(
        ev.InputCommitted(
            session_id=session.id,
            turn_id=session.turn_id,
            epoch=session.epoch.number,
            history_len=session.conversation.history_len,
            item=item,
            previous_item_id=previous,
            message=history_message(turn.transcript),
            transcript=turn.transcript,
            audio_ms=audio_ms,
            overlap_deferred=True if response_create_deferred else None,
            response_create_deferred=response_create_deferred,
        )
    )


def commit_nothing(session: Session, *, audio_end_ms: float | None) -> None:
    """A commit of silence or noise: an empty item, nothing in history, and the decision to listen (10.1 e)."""
    item_id = session.input.open_item(session.ids)
    close_speech(session, audio_end_ms or 0)
    item = user_audio_item(item_id, "", is_speech=False)
    previous = session.conversation.tail_id
    session.conversation.add(item)
    session.input.reset()
    if session.generation is None:
        session.turn_state = "idle"
    session.emit(
        ev.InputCommitted(
            session_id=session.id,
            turn_id=session.turn_id,
            epoch=session.epoch.number,
            history_len=session.conversation.history_len,
            item=item,
            previous_item_id=previous,
            message=history_message(None),
            transcript="",
            empty=True,
            no_response=True,
            is_speech=False,
        )
    )
    session.emit(
        ev.ResponseListen(
            session_id=session.id, epoch=session.epoch.number, reason="silence_or_noise", model_listen=False
        )
    )


def history_message(transcript: str | None) -> Json:
    """``input.committed.message`` of the native lane (contract 10.1)."""
    content: list[Json] = [{"type": "audio_url", "audio_url": {"url": NATIVE_AUDIO_MESSAGE}}]
    if transcript:
        content.append({"type": "text", "text": transcript})
    return {"role": "user", "content": content}


def close_speech(session: Session, audio_end_ms: float) -> None:
    """``speech_stopped`` for the open item if it was started and not stopped yet (O12)."""
    if session.input.speech_started and not session.input.speech_stopped and session.input.item_id is not None:
        session.input.speech_stopped = True
        session.emit(
            ev.SpeechStopped(
                item_id=session.input.item_id,
                audio_end_ms=int(audio_end_ms),
                detected_by_server=session.config.turn_detection is not None,
            )
        )


async def clear_input(session: Session, command: cmd.ClearInput) -> None:
    """``input_audio_buffer.clear``: uncommitted input goes, no epoch change."""
    dropped = forget_input(session)
    if session.generation is None:
        session.turn_state = "idle"
    session.emit(
        ev.InputCleared(
            session_id=session.id, epoch=session.epoch.number, drained_input_events=dropped, cancelled=False
        )
    )


def forget_input(session: Session) -> int:
    """Drop uncommitted input here and in the model; returns how many appends were dropped."""
    dropped = session.input.appends
    session.model.drop_input()
    session.hearing.reset()
    close_speech(session, session.heard_ms)
    session.input.reset()
    return dropped


async def cancel_input(session: Session, command: cmd.CancelInput) -> None:
    """``input.cancel``: pending input, committed work and the active response go; the epoch always advances."""
    await interrupt_everything(session)


async def barge_in(session: Session, command: cmd.BargeIn) -> None:
    """``barge_in``: a hard interrupt, where the model supports it."""
    if not session.capabilities.supports_barge_in:
        raise RemoteProtocolError("barge_in_unsupported", "this model cannot be interrupted")
    await interrupt_everything(session)


async def interrupt_everything(session: Session) -> None:
    """The shared procedure of ``input.cancel`` and ``barge_in`` (12.2, O20)."""
    session.touch(lease=True)
    await advance_epoch(session, "barge_in")
    dropped = forget_input(session)
    session.unanswered = None
    session.emit(
        ev.InputCancelled(session_id=session.id, reason="barge_in", epoch=session.epoch.number, audio_chunks=dropped)
    )


async def append_text(session: Session, command: cmd.AppendText) -> None:
    """``input.text.append`` belongs to the chat lane."""
    raise RemoteProtocolError(
        "native_text_append_unsupported", "input.text.append works in the chat lane only; use conversation.item.create"
    )


async def signal_turn(session: Session, command: cmd.SignalTurn) -> None:
    """A turn signal that names no command: acknowledged, no effect (contract 4.2)."""
    session.touch(lease=True)
    session.emit(
        ev.TurnEvent(
            session_id=session.id,
            event=command.event,
            turn_state=session.turn_state,
            epoch=session.epoch.number,
        )
    )


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.AppendAudio: append_audio,
    cmd.CommitInput: commit_input,
    cmd.ClearInput: clear_input,
    cmd.CancelInput: cancel_input,
    cmd.BargeIn: barge_in,
    cmd.AppendText: append_text,
    cmd.SignalTurn: signal_turn,
}


# --- what the model heard -----------------------------------------------------------------------------------------


def response_active(session: Session) -> bool:
    """Contract 10.1: an active answer, work bound to one, or ack_only playback that is not finished."""
    return session.generation is not None or still_playing(session, session.last_response)


async def heard(session: Session, result: model.ModelResult) -> None:
    """Apply one model result."""
    if isinstance(result, model.SpeechStarted):
        await speech_started(session, result)
    elif isinstance(result, model.SpeechStopped):
        session.heard_ms = max(session.heard_ms, result.audio_end_ms)
        close_speech(session, result.audio_end_ms)
    elif isinstance(result, model.TurnEnded):
        turn_ended(session, result)
    elif isinstance(result, model.TurnTranscribed):
        turn_transcribed(session, result.turn)
    elif isinstance(result, model.Listened):
        if session.generation is None:
            session.emit(ev.ResponseListen(session_id=session.id, epoch=session.epoch.number, reason=result.reason))
    elif isinstance(result, model.ModelFailed):
        model_failed(session, result)
    elif isinstance(result, model.Spoke):
        pass  # an always-clocked model's speech: none is deployed yet that speaks outside respond()
    else:
        tool_called(session, result)


async def speech_started(session: Session, result: model.SpeechStarted) -> None:
    """An onset: announce it, then – when something is being said – interrupt it in the same step."""
    session.heard_ms = max(session.heard_ms, result.audio_start_ms)
    if not session.input.speech_started:
        session.input.speech_started = True
        item_id = session.input.open_item(session.ids)
        session.emit(
            ev.SpeechStarted(
                item_id=item_id,
                audio_start_ms=result.audio_start_ms,
                detected_by_server=session.config.turn_detection is not None,
            )
        )
    detection = session.config.turn_detection
    interrupts = session.capabilities.supports_barge_in and (detection is None or detection.interrupt_response)
    if interrupts and response_active(session):
        reason = "server_vad_speech_started" if detection is not None else "model_barge_in"
        cancel_reason = "turn_detected" if detection is not None else "barge_in"
        await barge_in_on_overlap(session, reason=reason, cancel_reason=cancel_reason)
        session.turn_state = "user_speaking"
    elif session.generation is None:
        session.turn_state = "user_speaking"


async def barge_in_on_overlap(
    session: Session, *, reason: str, cancel_reason: str, duration_ms: float | None = None
) -> None:
    """Overlapping speech ends the answer: the decision is reported before its effect (O19); the input stays."""
    if session.active_response is not None or still_playing(session, session.last_response):
        session.emit(
            ev.OverlapDecision(
                session_id=session.id,
                epoch=session.epoch.number,
                policy=session.config.overlap_policy,
                action="barge_in",
                reason=reason,
                duration_ms=None if duration_ms is None else int(duration_ms),
                cancel_reason=cancel_reason,
                preserve_realtime_input=True,
            )
        )
    await advance_epoch(session, cancel_reason)


def turn_ended(session: Session, result: model.TurnEnded) -> None:
    """The model says that the user's turn is over: commit it, and answer if the model wants to."""
    turn = result.turn
    session.heard_ms = max(session.heard_ms, turn.audio_end_ms)
    if not turn.speech:
        commit_nothing(session, audio_end_ms=turn.audio_end_ms)
        return
    deferred = result.respond and session.generation is not None
    commit_turn(session, turn, response_create_deferred=True if deferred else None)
    answer(session, turn, wanted=result.respond)


def turn_transcribed(session: Session, turn: model.Turn) -> None:
    """The transcript of a turn that a commit ended: it joins item and history afterwards."""
    record = session.conversation.get(turn.item_id) if turn.item_id else None
    if record is None or turn.item_id is None:
        return
    text = turn.transcript or ""
    part = ContentPart("input_audio", transcript=text, is_speech=None if text else False)
    record.item = attrs.evolve(record.item, content=(part,))
    record.history_text = text or None
    session.emit(
        ev.InputTranscribed(
            item_id=turn.item_id, transcript=text, audio_ms=max(0, turn.audio_end_ms - turn.audio_start_ms)
        )
    )


def tool_called(session: Session, result: model.ToolCalled) -> None:
    """A tool call of the model: a pseudo response of its own; the audio response is untouched (contract 19)."""
    item_id = session.ids.item()
    previous = session.conversation.tail_id
    if result.call_id and result.name:
        session.conversation.add(
            Item(
                id=item_id,
                type="function_call",
                role=None,
                call_id=result.call_id,
                name=result.name,
                arguments=result.arguments,
            )
        )
    session.emit(
        ev.FunctionCallDone(
            session_id=session.id,
            epoch=session.epoch.number,
            call_id=result.call_id,
            name=result.name,
            arguments=result.arguments,
            response_id=session.ids.response(),
            item_id=item_id,
            previous_item_id=previous,
        )
    )


def model_failed(session: Session, result: model.ModelFailed) -> None:
    """Something broke in the model: one error, the active response fails, a fatal one ends the session."""
    log.warning("model_failed", session_id=session.id, code=result.code, fatal=result.fatal)
    session.emit(
        ev.ErrorRaised(code=result.code, message=result.message, session_id=session.id, epoch=session.epoch.number)
    )
    if result.fatal:
        if session.active_response is not None:
            finish_response(session, session.active_response, "failed", result.code)
        session.request_end(result.code)
