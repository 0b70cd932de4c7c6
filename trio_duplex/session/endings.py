"""How an answer ends, what of it is remembered, and what may start after it (contract 5.1, 10, 14.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from duplex_protocol import events as ev
from duplex_protocol.values import ItemStatus
from trio_duplex.models.plugin import GenerationFailed
from trio_duplex.session.response import Response
from trio_duplex.session.speaking import Generation, start_generation
from trio_duplex.session.work import Work, merged

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

PLAYBACK_SLACK_S = 1.0
"""How much longer than its audio a finished answer is believed to be playing, for clients that stop acknowledging."""


def generation_ended(session: Session, generation: Generation, *, told: bool = False) -> None:
    """The answer came to its natural end; the loser of a race against a cancel has no effect.

    ``told``: the client knows already that the model listens.
    """
    if session.generation is not generation or not session.epoch.open:
        return
    response = generation.response
    if response is not None and response.is_mute and not session.traits.turn_based:
        generation_failed(
            session,
            generation,
            GenerationFailed("runtime_data_plane_text_without_audio", "the model gave text but no sound"),
        )
        return
    generation.end()
    session.model_turn += 1
    if (response is None or not response.deltas) and not told:
        auto = session.config.auto_response
        session.emit(
            ev.ResponseListen(
                session_id=session.id,
                epoch=session.epoch.number,
                reason="model_turn_completed_without_output" if auto else "data_plane_finished_without_output",
                model_listen=auto,
                response_id=response.id if response else None,
            )
        )
    if response is not None:
        finish_response(session, response, "completed", None)
    session.generation = None
    session.turn_state = "idle"
    promote_deferred(session)
    release_waiting(session)


def generation_failed(session: Session, generation: Generation, error: GenerationFailed) -> None:
    """The answer could not be made: the error, then the failed terminal; deferred work waits (contract 10.1)."""
    if session.generation is not generation or not session.epoch.open:
        return
    generation.end()
    log.warning("generation_failed", session_id=session.id, code=error.code)
    response = generation.response
    session.emit(
        ev.ErrorRaised(
            code=error.code,
            message=error.message,
            session_id=session.id,
            epoch=session.epoch.number,
            response_id=response.id if response else None,
        )
    )
    if response is not None:
        finish_response(session, response, "failed", error.code)
    session.generation = None
    session.turn_state = "idle"
    keep_deferred(session)
    release_waiting(session)


# --- what waited --------------------------------------------------------------------------------------------------


def promote_deferred(session: Session) -> None:
    """The active answer completed: start the one that waited for it, or let its input wait for ``response.create``."""
    work, session.deferred = session.deferred, None
    if work is None or session.state != "open":
        return
    if work.wanted and session.generation is None:
        start_answer(session, work)
    else:
        session.unanswered = merged(session.unanswered, work)


def keep_deferred(session: Session) -> None:
    """The active answer failed or was cleared: deferred input stays committed, nothing starts by itself (12.2)."""
    work, session.deferred = session.deferred, None
    session.unanswered = merged(session.unanswered, work)


def start_answer(session: Session, work: Work) -> None:
    """Answer committed input together with everything before it that has no answer yet."""
    together = merged(session.unanswered, work)
    assert together is not None
    session.unanswered = None
    start_generation(session, together, precreate=together.precreate)


def release_waiting(session: Session) -> None:
    """Store the utterance that waited for the answer to end, and answer it (contract 9.1)."""
    waiting, session.waiting = session.waiting, None
    if waiting is None or session.state != "open":
        return
    record = session.conversation.get(waiting.turn.item_id or "")
    if record is not None:
        record.history_text = waiting.turn.transcript or ""
    if waiting.wanted and session.generation is None:
        start_answer(session, Work([waiting.turn], precreate=True))


async def promote_when_played(session: Session, response: Response) -> None:
    """An epoch task: deferred input is answered once the client played the finished answer (contract 10.1).

    A client that stops acknowledging is believed to be done when the audio must be. Cancellation: the epoch ended,
    which settled the deferred input.
    """
    started_s = trio.current_time() if response.first_audio_s is None else response.first_audio_s
    with trio.move_on_at(started_s + response.ledger.sent_ms / 1000 + PLAYBACK_SLACK_S):
        await response.played.wait()
    if session.generation is None:
        promote_deferred(session)


# --- terminal and history -----------------------------------------------------------------------------------------

_ITEM_STATUS: dict[str, ItemStatus] = {"completed": "completed", "cancelled": "cancelled", "failed": "failed"}


def finish_response(
    session: Session, response: Response, status: str, reason: str | None, *, next_epoch: int | None = None
) -> None:
    """Settle ledger and history and append the one terminal of a response. No checkpoint.

    A second call for the same response does nothing (O8, O15).
    """
    if response.done:
        return
    cancelled = status == "cancelled"
    response.status = status  # type: ignore[assignment]
    response.reason = reason
    session.tally.responses[status] += 1
    record = session.conversation.get(response.item_id)
    shown: str | None = None
    if cancelled:
        shown = response.heard_text(response.ledger.committed_ms)
    elif record is not None and record.cut_ms is not None:
        shown = response.heard_text(record.cut_ms)
    item = response.item(_ITEM_STATUS[status], transcript=shown)
    committed = False
    predecessor = session.conversation.predecessor(response.item_id)
    if record is not None:
        record.item = item
        committed = commit_history(session, response)
    if session.generation is not None and session.generation.response is response:
        session.generation = None
    session.overlap_ms = 0.0
    session.turn_state = "barge_in" if cancelled else "idle"
    session.emit(
        ev.ResponseDone(
            session_id=session.id,
            response_id=response.id,
            epoch=response.epoch,
            status=response.status,
            item=item,
            predecessor_id=predecessor,
            committed=committed,
            playback=response.ledger.snapshot(),
            had_audio=response.had_audio,
            transcript=response.transcript,
            text=response.text,
            reason=reason,
            finish_reason=response.finish_reason if status == "completed" else None,
            next_epoch=next_epoch,
            metadata=response.options.metadata if response.options.metadata is not None else session.config.metadata,
            modalities=response.modalities,
            output_format=response.output_format,
            deadlines=session.deadlines() if session.config.extra_body.get("return_stage_metrics") is True else None,
        )
    )


def commit_history(session: Session, response: Response) -> bool:
    """Write what of a finished answer belongs to history (contract 14.2); true when text was written.

    ``commit_all_on_done``: everything, unless an ack already stands strictly inside what was sent; ``ack_only`` and
    every cancel: as far as it was acknowledged.
    """
    record = session.conversation.get(response.item_id)
    if record is None or not response.in_history:
        return False
    ledger = response.ledger
    if "audio" not in response.modalities:
        text = response.text
    elif response.status == "completed" and session.config.playback_commit_policy == "commit_all_on_done":
        inside = 0 < ledger.committed_ms < ledger.sent_ms or ledger.cap_ms is not None
        text = response.heard_text(ledger.committed_ms) if inside else response.transcript
    else:
        text = response.heard_text(ledger.committed_ms)
    cut_ms = record.cut_ms if session.capabilities.supports_audio_truncate else None
    if cut_ms is not None and "audio" in response.modalities:
        cut = response.heard_text(cut_ms)
        text = cut if len(cut) < len(text) else text
    record.history_text = text.strip() or None
    return record.history_text is not None


def still_playing(session: Session, response: Response | None) -> bool:
    """ack_only playback that the client has not acknowledged to the end: counts as an active response (10.1)."""
    return (
        response is not None
        and session.config.playback_commit_policy == "ack_only"
        and response.status == "completed"
        and response.had_audio
        and not response.ledger.fully_played
        and response.ledger.cap_ms is None
        and response.commits_after_end == 0
        and not response.interrupted
    )


def response_active(session: Session) -> bool:
    """Contract 10.1: an active answer, work bound to one, ack_only playback that is not finished, or work behind it."""
    return (
        session.generation is not None or still_playing(session, session.last_response) or session.deferred is not None
    )
