"""What takes input back or ends an answer from the user's side (contract 10, 11, 12.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.session.endings import still_playing
from trio_duplex.session.epochs import advance_epoch
from trio_duplex.session.speech import forget_input

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


async def clear_input(session: Session, command: cmd.ClearInput) -> None:
    """``input_audio_buffer.clear``: uncommitted input goes, no epoch change. Cancellation: there is no checkpoint."""
    session.touch(lease=True)
    dropped = forget_input(session)
    if session.generation is None:
        session.turn_state = "idle"
    session.emit(
        ev.InputCleared(
            session_id=session.id, epoch=session.epoch.number, drained_input_events=dropped, cancelled=False
        )
    )


async def cancel_input(session: Session, command: cmd.CancelInput) -> None:
    """``input.cancel``: pending input, committed work and the active response go; the epoch always advances.

    Cancellation: the session is ending.
    """
    await interrupt_everything(session)


async def barge_in(session: Session, command: cmd.BargeIn) -> None:
    """``barge_in``: a hard interrupt, where the model supports it. Cancellation: the session is ending."""
    if not session.capabilities.supports_barge_in:
        raise RemoteProtocolError("barge_in_unsupported", "this model cannot be interrupted")
    await interrupt_everything(session)


async def interrupt_everything(session: Session) -> None:
    """The shared procedure of ``input.cancel`` and ``barge_in`` (12.2, O20). Cancellation: the session is ending."""
    session.touch(lease=True)
    texts = len(session.input.text)
    await advance_epoch(session, "barge_in")
    dropped = forget_input(session)
    session.emit(
        ev.InputCancelled(
            session_id=session.id,
            reason="barge_in",
            epoch=session.epoch.number,
            audio_chunks=dropped,
            text_chunks=texts,
        )
    )


async def barge_in_on_overlap(
    session: Session,
    *,
    reason: str,
    cancel_reason: str,
    duration_ms: float | None = None,
    overlap_ms: float | None = None,
) -> None:
    """Overlapping speech ends the answer: the decision is reported before its effect (O19); the input stays.

    Nothing is reported while nothing can be heard yet (case V2): then only work in flight is given up.

    Cancellation: the session is ending.
    """
    if session.active_response is not None or still_playing(session, session.last_response):
        session.emit(
            ev.OverlapDecision(
                session_id=session.id,
                epoch=session.epoch.number,
                policy=session.config.overlap_policy,
                action="barge_in",
                reason=reason,
                overlap_ms=None if overlap_ms is None else int(overlap_ms),
                duration_ms=None if duration_ms is None else int(duration_ms),
                cancel_reason=cancel_reason,
                preserve_realtime_input=True,
            )
        )
    await advance_epoch(session, cancel_reason, keep_work=True)


async def signal_turn(session: Session, command: cmd.SignalTurn) -> None:
    """A turn signal that names no command: acknowledged; ``timeout`` and ``close`` end the session (contract 4.2).

    Cancellation: there is no checkpoint.
    """
    session.touch(lease=True)
    session.emit(
        ev.TurnEvent(
            session_id=session.id,
            event=command.event,
            turn_state=session.turn_state,
            epoch=session.epoch.number,
        )
    )
    if command.event in ("timeout", "close"):
        session.request_end("timeout" if command.event == "timeout" else "session_close")


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.ClearInput: clear_input,
    cmd.CancelInput: cancel_input,
    cmd.BargeIn: barge_in,
    cmd.SignalTurn: signal_turn,
}
