"""Model results enter a session here and nowhere else; what was computed under an ended epoch is dropped here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from duplex_protocol import events as ev
from duplex_protocol.values import Item
from trio_duplex.models import plugin as model
from trio_duplex.session.commits import answer, commit_nothing, commit_turn
from trio_duplex.session.conversation import item_text, untranscribed_part, with_transcript
from trio_duplex.session.endings import finish_response, generation_ended, response_active
from trio_duplex.session.interrupting import barge_in_on_overlap
from trio_duplex.session.speaking import spoken, start_generation
from trio_duplex.session.speech import close_speech, open_speech
from trio_duplex.session.work import Work

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

ONSET_SLACK_MS = 64
"""A detector works in frames, so speech that goes on across a commit may seem to begin a frame or two before it. An
onset that was inside the committed turn began earlier: it takes three frames to be believed."""


async def heard(session: Session, result: model.ModelResult) -> None:
    """Apply one model result. Cancellation: the session is ending; the rest of what it causes is left out."""
    if isinstance(result, model.Spoke):  # first the two that come a dozen times a second
        spoke(session, result)
    elif isinstance(result, model.Listened):
        listened(session, result)
    elif isinstance(result, model.SpeechStarted):
        await speech_started(session, result)
    elif isinstance(result, model.SpeechStopped):
        session.heard_ms = max(session.heard_ms, result.audio_end_ms)
        close_speech(session, result.audio_end_ms)
    elif isinstance(result, model.TurnEnded):
        turn_ended(session, result)
    elif isinstance(result, model.TurnTranscribed):
        turn_transcribed(session, result.turn)
    elif isinstance(result, model.ModelFailed):
        model_failed(session, result)
    elif isinstance(result, model.ControlReported):
        session.emit(ev.RuntimeControl(session_id=session.id, epoch=session.epoch.number, result=result.result))
    else:
        tool_called(session, result)


# --- turns --------------------------------------------------------------------------------------------------------


async def speech_started(session: Session, result: model.SpeechStarted) -> None:
    """An onset of a model that detects speech: announce it, then – when something is being said – interrupt it.

    A model that answers by itself also decides by itself when to be quiet; one that answers on request is
    interrupted where the client chose so (policy or server VAD), else its user is listened to (contract 11). An
    onset inside what a commit has ended meanwhile comes too late: it belongs to the turn that is being answered.
    Cancellation: the session is ending.
    """
    if result.audio_start_ms < session.committed_ms - ONSET_SLACK_MS:
        return
    session.heard_ms = max(session.heard_ms, result.audio_start_ms)
    open_speech(session, result.audio_start_ms)
    detection = session.config.turn_detection
    allowed = session.config.auto_response or session.config.overlap_policy == "barge_in_on_speech"
    interrupts = session.capabilities.supports_barge_in and (
        detection.interrupt_response if detection is not None else allowed
    )
    if interrupts and response_active(session):
        if detection is not None:
            reason, cancel_reason = "server_vad_speech_started", "turn_detected"
        else:
            reason = "model_barge_in" if session.config.auto_response else "policy_barge_in_on_speech"
            cancel_reason = "barge_in"
        await barge_in_on_overlap(session, reason=reason, cancel_reason=cancel_reason)
        session.turn_state = "user_speaking"
    elif session.generation is None:
        session.turn_state = "user_speaking"


def turn_ended(session: Session, result: model.TurnEnded) -> None:
    """The model says that the user's turn is over: commit it, and answer if the model wants to."""
    turn = result.turn
    session.heard_ms = max(session.heard_ms, turn.audio_end_ms)
    if not turn.speech:
        commit_nothing(session, audio_end_ms=turn.audio_end_ms)
        return
    deferred = result.respond and session.generation is not None
    commit_turn(session, turn, deferred=True if deferred else None)
    answer(session, Work([turn], wanted=result.respond), deferred=deferred)


def turn_transcribed(session: Session, turn: model.Turn) -> None:
    """The transcript of a turn that a commit ended: it joins item and history afterwards, and is told once."""
    record = session.conversation.get(turn.item_id) if turn.item_id else None
    index = None if record is None else untranscribed_part(record.item)
    if record is None or turn.item_id is None or index is None:
        return
    record.item = with_transcript(record.item, index, turn.transcript or "")
    record.history_text = item_text(record.item) or None
    session.emit(
        ev.InputTranscribed(
            item_id=turn.item_id,
            transcript=turn.transcript or "",
            content_index=index,
            audio_ms=max(0, turn.audio_end_ms - turn.audio_start_ms),
        )
    )


# --- decisions of units -------------------------------------------------------------------------------------------


def listened(session: Session, result: model.Listened) -> None:
    """A decision to listen: told unless an answer is open that it does not end (contract 10.5)."""
    if result.epoch is not None and result.epoch != session.epoch.number:
        return
    generation = session.generation
    if generation is not None and generation.in_units and result.turn_done:
        generation_ended(session, generation)
        return
    if generation is not None and (generation.response is not None or not generation.in_units):
        return
    if result.turn_done:
        session.model_turn += 1
    session.emit(
        ev.ResponseListen(
            session_id=session.id, epoch=session.epoch.number, reason=result.reason, buffering=result.buffering
        )
    )


def spoke(session: Session, result: model.Spoke) -> None:
    """Speech of a model that speaks while it listens: an answer begins with its first visible output (contract 8.3)."""
    if result.epoch != session.epoch.number or not session.epoch.open or session.state != "open":
        return
    generation = session.generation
    if result.model_turn is not None:
        if result.model_turn < session.model_turn:
            return
        if generation is not None and generation.response is not None and result.model_turn > session.model_turn:
            generation_ended(session, generation)
            generation = session.generation
        session.model_turn = max(session.model_turn, result.model_turn)
    if generation is None:
        if not len(result.speech.audio) and not result.speech.text:
            return
        generation = start_generation(session, Work())
    spoken(session, generation, result.speech)
    if result.speech.end_of_turn:
        generation_ended(session, generation)


# --- the rest -----------------------------------------------------------------------------------------------------


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
    """Something broke in the model: one error, the active response may fail, a fatal one ends the session."""
    log.warning("model_failed", session_id=session.id, code=result.code, fatal=result.fatal)
    generation = session.generation
    if result.fails_response and not result.fatal and generation is not None:
        session.generation_over(generation, model.GenerationFailed(result.code, result.message))
        return
    session.emit(
        ev.ErrorRaised(code=result.code, message=result.message, session_id=session.id, epoch=session.epoch.number)
    )
    if result.loses_input:
        session.input.failed = True
    if result.fatal:
        if session.active_response is not None:
            finish_response(session, session.active_response, "failed", result.code)
        session.request_end(result.code)
