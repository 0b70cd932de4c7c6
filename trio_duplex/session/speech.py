"""``speech_started`` and ``speech_stopped`` of the open input item, and forgetting that item (contract 9.2, O12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duplex_protocol import events as ev

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


def open_speech(session: Session, audio_start_ms: float, *, anew: bool = False) -> None:
    """An onset: once per open item; ``anew``: an onset after a stop begins another item (server VAD)."""
    buffer = session.input
    if anew and buffer.speech_stopped:
        buffer.item_id = None
        buffer.speech_started = buffer.speech_stopped = False
    if buffer.speech_started:
        return
    buffer.speech_started = True
    session.emit(
        ev.SpeechStarted(
            item_id=buffer.open_item(session.ids),
            audio_start_ms=int(audio_start_ms),
            detected_by_server=session.config.turn_detection is not None,
        )
    )


def close_speech(session: Session, audio_end_ms: float) -> None:
    """``speech_stopped`` for the open item if it was started and not stopped yet (O12)."""
    buffer = session.input
    if buffer.speech_started and not buffer.speech_stopped and buffer.item_id is not None:
        buffer.speech_stopped = True
        session.emit(
            ev.SpeechStopped(
                item_id=buffer.item_id,
                audio_end_ms=int(audio_end_ms),
                detected_by_server=session.config.turn_detection is not None,
            )
        )


def judged_end_ms(session: Session) -> float:
    """Where the open item's speech ends, as far as anybody said: the model, else the client's hint, else 0."""
    if session.judges_speech and session.detector is None:
        return session.input.end_hint_ms or 0
    return session.heard_ms


def forget_input(session: Session) -> int:
    """Drop uncommitted input here and in the model; returns how many appends were dropped."""
    dropped = session.input.appends
    if not session.traits.turn_based:
        session.model.drop_input()
    if session.feed is not None:
        session.feed.drop()
    if session.detector is not None:
        session.detector.reset()
    session.hearing.reset()
    close_speech(session, judged_end_ms(session))
    session.input.reset()
    session.overlap_ms = 0.0
    return dropped
