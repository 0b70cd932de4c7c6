"""Playback acknowledgements: what the client really heard (contract 14.1, 14.2, 14.5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Playback
from trio_duplex.session.endings import commit_history
from trio_duplex.session.response import Response

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


async def ack_playback(session: Session, command: cmd.AckPlayback) -> None:
    """Every accepted ack gets exactly one ``playback.acknowledged`` (O13). Cancellation: there is no checkpoint."""
    session.touch(lease=True)
    response = target(session, command)
    if response is None:
        session.emit(
            ev.PlaybackAcknowledged(
                session_id=session.id,
                epoch=session.epoch.number,
                item_id=None,
                played_ms=int(command.played_ms or 0),
                committed_ms=requested_committed(command),
                truncate=command.truncate,
                playback=Playback(),
                history_committed=False,
            )
        )
        return
    record = session.conversation.get(response.item_id)
    reserved = record is not None and (record.reserved or record.history_text is not None)
    if response.done and response.in_history and response.commits_after_end > 0 and not reserved:
        raise RemoteProtocolError(
            "playback_ack_too_late", "a later turn was committed before this answer was acknowledged"
        )
    acknowledge(session, command, response)


def requested_committed(command: cmd.AckPlayback) -> int:
    """The committed position the request asks for: its own word, else what was played."""
    wanted = command.committed_ms if command.committed_ms is not None else command.played_ms
    return int(wanted or 0)


def target(session: Session, command: cmd.AckPlayback) -> Response | None:
    """The response an ack means (14.5); None = there is none to mean.

    Raises ``playback_item_mismatch`` or ``playback_item_not_found``.
    """
    response_id = command.response_id
    if command.item_id is not None:
        if response_id is not None and command.item_id != f"item_{response_id}":
            raise RemoteProtocolError(
                "playback_item_mismatch", "item_id and response_id name different answers", param="item_id"
            )
        response_id = command.item_id.removeprefix("item_") if command.item_id.startswith("item_") else ""
    if response_id is not None:
        found = session.responses.get(response_id)
        if found is None:
            raise RemoteProtocolError(
                "playback_item_not_found", "no such answer", param="item_id" if command.item_id else "response_id"
            )
        return found
    pending = [r for r in session.responses.values() if r.done and r.had_audio and not r.ledger.fully_played]
    if len(pending) == 1:
        return pending[0]
    if session.active_response is not None:
        return session.active_response
    if len(session.responses) == 1:
        return next(iter(session.responses.values()))
    return None


def acknowledge(session: Session, command: cmd.AckPlayback, response: Response, *, asked: bool = True) -> None:
    """Move the cursors and, once the answer is done, its history entry in place. No checkpoint."""
    truncate = command.truncate and session.capabilities.supports_audio_truncate
    response.ledger.acknowledge(command.played_ms, command.committed_ms, truncate=truncate)
    if response.done and response.ledger.fully_played:
        response.played.set()
    record = session.conversation.get(response.item_id)
    written = False
    if record is not None:
        record.reserved = True
        if response.done and response.status != "failed":
            before = record.history_text
            commit_history(session, response)
            written = record.history_text is not None and (
                record.history_text != before or response.ledger.played_ms > 0
            )
    say_acknowledged(session, command, response, written=written, asked=asked)


def say_acknowledged(
    session: Session, command: cmd.AckPlayback, response: Response, *, written: bool, asked: bool
) -> None:
    """``playback.acknowledged`` with the cursors as they stand. No checkpoint."""
    session.emit(
        ev.PlaybackAcknowledged(
            session_id=session.id,
            epoch=session.epoch.number,
            item_id=response.item_id,
            played_ms=int(command.played_ms or 0),
            committed_ms=requested_committed(command),
            truncate=command.truncate,
            playback=response.ledger.snapshot(),
            history_committed=written,
            asked=asked,
        )
    )


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {cmd.AckPlayback: ack_playback}
