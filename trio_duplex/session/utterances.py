"""What the server's own detector hears in an append, and the commits it makes (contract 9, 9.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import FloatAudio, Turn
from trio_duplex.session.commits import answer, at_model_rate, commit_turn, seal_message
from trio_duplex.session.endings import response_active, start_answer
from trio_duplex.session.server_vad import Heard, SpeechBegan, SpeechEnded
from trio_duplex.session.speech import close_speech, forget_input, open_speech
from trio_duplex.session.work import WaitingUtterance, Work
from trio_duplex.vad_scorer import VadFailed

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

SCORING_TIMEOUT_S = 5.0


async def hear_append(session: Session, samples: FloatAudio, event_id: str | None) -> Heard | None:
    """The detector's word on an append; None when it failed, which the client was told then.

    A failure drops the buffered input (contract 9.1). Cancellation: the session is ending.
    """
    assert session.detector is not None
    reason = "scoring took too long"
    with session.bind(SCORING_TIMEOUT_S):
        try:
            return await session.detector.hear(samples)
        except VadFailed as error:
            reason = str(error)
    log.warning("server_vad_failed", session_id=session.id)
    lost(session, RemoteProtocolError("server_vad_inference_failed", reason, event_id=event_id))
    return None


def lost(session: Session, error: RemoteProtocolError) -> None:
    """Buffered input is gone: the error, then the cleared buffer."""
    dropped = forget_input(session)
    session.refuse(error)
    session.emit(
        ev.InputCleared(
            session_id=session.id, epoch=session.epoch.number, drained_input_events=dropped, cancelled=False
        )
    )


def speech_began(session: Session, heard: Heard) -> None:
    """The onset with which an append begins is told before anything that it causes."""
    if heard.events and isinstance(heard.events[0], SpeechBegan):
        session.heard_ms = max(session.heard_ms, heard.events[0].audio_start_ms)
        open_speech(session, heard.events[0].audio_start_ms, anew=True)


def utterances_heard(session: Session, heard: Heard) -> None:
    """Tell the other onsets and all ends of an append in order, and commit where the server ends turns."""
    for index, event in enumerate(heard.events):
        if isinstance(event, SpeechBegan):
            if index:
                open_speech(session, event.audio_start_ms, anew=True)
            continue
        session.heard_ms = max(session.heard_ms, event.audio_end_ms)
        close_speech(session, event.audio_end_ms)
        if session.traits.turn_based:
            commit_utterance(session, event)
        elif session.holds_input:
            session.input.held.append(at_model_rate(session, event.audio))
            if len(session.input.held) == 1:
                session.input.start_ms = event.audio_start_ms
    ended = any(isinstance(event, SpeechEnded) for event in heard.events)
    if ended and not heard.active and not session.traits.turn_based and not session.config.auto_response:
        commit_at_end(session)


def commit_at_end(session: Session) -> None:
    """Native lane without auto-response: the server commits at the end point and asks for the answer."""
    buffer = session.input
    if session.holds_input:
        turn = Turn(int(buffer.start_ms or 0), int(session.heard_ms), buffer.hinted_transcript)
        turn.audio, turn.video_frames = buffer.take_audio(), tuple(buffer.frames)
    else:
        if session.feed is not None:
            session.feed.pad(epoch=session.epoch.number, is_speech=True)
        turn = session.model.end_turn()
        turn.audio_end_ms = int(session.heard_ms)
        turn.transcript = turn.transcript or buffer.hinted_transcript
    deferred = response_active(session)
    commit_turn(session, turn, deferred=True if deferred else None)
    answer(session, Work([turn], wanted=True, precreate=True), deferred=deferred)


def commit_utterance(session: Session, utterance: SpeechEnded) -> None:
    """Turn-based lane: the server commits; while an answer runs one utterance may wait, a second is dropped."""
    detection = session.config.turn_detection
    assert detection is not None
    if session.waiting is not None:
        session.input.reset()
        session.refuse(RemoteProtocolError("input_backpressure", "an utterance waits already; this one was dropped"))
        return
    turn = Turn(
        utterance.audio_start_ms,
        utterance.audio_end_ms,
        session.input.hinted_transcript,
        audio=at_model_rate(session, utterance.audio),
        video_frames=tuple(session.input.frames),
    )
    busy = session.generation is not None
    seal_message(session, turn, store=not busy)
    if busy:
        session.waiting = WaitingUtterance(turn, wanted=detection.create_response)
    elif detection.create_response:
        start_answer(session, Work([turn], precreate=True))
