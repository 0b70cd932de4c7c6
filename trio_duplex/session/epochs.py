"""The one way an epoch is ended early. The promise of the whole program is kept here.

:func:`advance_epoch` joins the epoch's task subtree, then – without a checkpoint – takes back unsent deltas, settles
ledger and history, appends the terminal and steps the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from duplex_protocol import events as ev
from trio_duplex.session.endings import finish_response, keep_deferred, release_waiting, still_playing
from trio_duplex.session.response import Delta, Response

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)


async def advance_epoch(
    session: Session, reason: str, *, cleared: bool = False, reopen: bool = True, keep_work: bool = False
) -> None:
    """End the current epoch: cancel its scope, join it, settle, say the terminal, step the number, open the next.

    ``cleared``: an output clear, whose reply precedes the terminal. ``keep_work``: input that was committed and has no
    answer stays (clear, overlap); else it goes with the answer (12.2). ``reopen`` false: the session is ending.
    Cancellation: only when the whole session is being cancelled; :func:`settle_on_exit` then says the terminal.
    """
    old = session.epoch
    joined = await old.end()
    # No checkpoint from here to the new number (contract 24a).
    if not joined:
        log.error("epoch_join_timeout", session_id=session.id, epoch=old.number, tasks=old.tasks)
    number = old.number + 1
    generation, session.generation = session.generation, None
    response = generation.response if generation else None
    if generation is not None:
        generation.end()
    retract_unsent(session, old.number, response)
    if cleared:
        target = response or session.last_response
        session.emit(ev.OutputCleared(session_id=session.id, response_id=target.id if target else None, epoch=number))
    if response is not None:
        finish_response(session, response, "cancelled", reason, next_epoch=number)
    elif session.last_response is not None:
        settle_playing(session, session.last_response)
    session.turn_state = "barge_in"
    session.overlap_ms = 0.0
    session.playback_shown = None
    if keep_work:
        keep_deferred(session)
    else:
        session.unanswered = session.deferred = None
    session.stale_calls |= session.open_calls
    session.model.interrupt(old.number)
    session.epoch.number = number
    if reopen:
        await session.open_epoch(number)
        release_waiting(session)


def retract_unsent(session: Session, epoch: int, response: Response | None) -> None:
    """Remove the untaken deltas of the answer that is cut from the journal and from what it claims to have sent.

    An answer of this epoch that came to its own end keeps its deltas: its terminal stands behind them and counts them.
    """
    if response is None:
        return
    own = {id(delta) for delta in response.deltas}
    gone = session.journal.drop_epoch(epoch, lambda tag: id(tag) in own)
    response.retract([tag for tag in gone if isinstance(tag, Delta)])


def settle_playing(session: Session, response: Response) -> None:
    """An interruption while a finished answer was still playing: history keeps only what was acknowledged."""
    if response.done and still_playing(session, response):
        response.interrupted = True
        record = session.conversation.get(response.item_id)
        if record is not None:
            record.history_text = response.heard_text(response.ledger.committed_ms).strip() or None


def settle_on_exit(session: Session, reason: str) -> None:
    """The session's nursery is gone: close a response that is still open (crash or outer cancel). No checkpoint."""
    generation = session.generation
    if generation is None or generation.response is None:
        return
    retract_unsent(session, session.epoch.number, generation.response)
    status = "failed" if reason == "internal_error" else "cancelled"
    finish_response(session, generation.response, status, reason, next_epoch=session.epoch.number + 1)
