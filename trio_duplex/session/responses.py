"""Responses: generating inside an epoch, ending naturally, and the one way an epoch is ended early.

The promise of the whole program is kept here: :func:`advance_epoch` joins the epoch's task subtree, then – without a
checkpoint – takes back unsent deltas, settles ledger and history, appends the terminal and steps the number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import structlog

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import ItemStatus
from trio_duplex.models.plugin import GenerationFailed, ResponseRequest, Speech, Turn
from trio_duplex.session.response import Delta, Response, ResponseOptions
from trio_duplex.session.response_options import parse_options

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class Generation:
    """One answer in the making. ``response`` is None until it becomes visible (its first output, or precreated)."""

    session: Session
    epoch: int
    turn: Turn | None
    options: ResponseOptions
    response_id: str
    response: Response | None = None

    async def run(self) -> None:
        """The generation task, a child of the epoch. Cancellation: an interruption; nothing is said any more."""
        session = self.session
        modalities = self.options.modalities or session.config.modalities
        request = ResponseRequest(
            epoch=self.epoch,
            response_id=self.response_id,
            config=session.config,
            history=session.conversation.history(),
            turn=self.turn,
            text_only="audio" not in modalities,
            instructions=self.options.instructions or session.config.instructions,
            options=self.options.raw,
        )
        try:
            await session.model.respond(request, self.say)
        except GenerationFailed as error:
            generation_failed(session, self, error)
        else:
            generation_ended(session, self)

    def say(self, speech: Speech) -> None:
        """One piece of the answer. After the epoch ended this does nothing: its tasks are being unwound."""
        if self.session.generation is self and self.session.epoch.open and self.session.state == "open":
            spoken(self.session, self, speech)


def start_generation(session: Session, turn: Turn | None, options: ResponseOptions, *, precreate: bool = False) -> None:
    """Begin an answer in the current epoch; ``precreate`` makes the response visible at once. No checkpoint."""
    generation = Generation(session, session.epoch.number, turn, options, session.ids.response())
    session.generation = generation
    session.unanswered = None
    session.turn_state = "assistant_generating"
    if precreate:
        announce(session, generation)
    session.start_generation_task(generation)


def announce(session: Session, generation: Generation) -> Response:
    """Make the response visible: ``response.created``; its item enters the chain now."""
    options = generation.options
    output_format = options.output_format or session.config.output_format
    response = Response(
        id=generation.response_id,
        epoch=generation.epoch,
        turn_id=session.turn_id,
        modalities=options.modalities or session.config.modalities,
        output_format=output_format,
        options=options,
        turn=generation.turn,
    )
    generation.response = response
    previous = session.conversation.tail_id
    if response.in_history:
        session.conversation.add(response.item("in_progress"))
    session.remember(response)
    session.output.begin(output_format)
    session.emit(
        ev.ResponseCreated(
            session_id=session.id,
            response_id=response.id,
            epoch=response.epoch,
            turn_id=response.turn_id,
            item_id=response.item_id,
            previous_item_id=previous,
            modalities=response.modalities,
            metadata=options.metadata if options.metadata is not None else session.config.metadata,
            conversation=options.conversation,
            prompt=options.prompt,
            output_format=output_format,
        )
    )
    return response


def spoken(session: Session, generation: Generation, speech: Speech) -> None:
    """Project one piece of speech: response.created and speak first if need be, then the delta. No checkpoint."""
    response = generation.response or announce(session, generation)
    if "audio" not in response.modalities:
        if speech.text:
            response.add_text(speech.text)
            session.emit(
                ev.TextDelta(
                    session_id=session.id,
                    response_id=response.id,
                    item_id=response.item_id,
                    epoch=response.epoch,
                    delta=speech.text,
                ),
                epoch=response.epoch,
                tag=response.deltas[-1],
            )
        return
    audio, samples = session.output.encode(speech.audio, last=speech.end_of_turn)
    if not audio and not speech.text:
        return
    if not response.speak_announced:
        response.speak_announced = True
        session.emit(
            ev.ResponseSpeak(
                session_id=session.id, response_id=response.id, item_id=response.item_id, epoch=response.epoch
            )
        )
    session.turn_state = "assistant_playing"
    session.audio_started = True
    end_ms = response.add_audio(speech.text, samples, speech.marks)
    session.emit(
        ev.AudioDelta(
            session_id=session.id,
            response_id=response.id,
            item_id=response.item_id,
            epoch=response.epoch,
            audio=audio,
            format=response.output_format,
            text=speech.text,
            end_of_turn=speech.end_of_turn,
            audio_duration_ms=end_ms,
            marks=response.marks,
            playback=response.ledger.snapshot(),
        ),
        epoch=response.epoch,
        tag=response.deltas[-1],
    )


def generation_ended(session: Session, generation: Generation) -> None:
    """The answer came to its natural end; the loser of a race against a cancel has no effect."""
    if session.generation is not generation or not session.epoch.open:
        return
    response = generation.response
    if response is None:
        session.generation = None
        session.turn_state = "idle"
        session.emit(
            ev.ResponseListen(
                session_id=session.id, epoch=session.epoch.number, reason="model_turn_completed_without_output"
            )
        )
    elif not response.deltas:
        session.emit(
            ev.ResponseListen(
                session_id=session.id,
                epoch=session.epoch.number,
                reason="model_turn_completed_without_output",
                response_id=response.id,
            )
        )
        finish_response(session, response, "completed", None)
    else:
        finish_response(session, response, "completed", None)
    promote_deferred(session)


def generation_failed(session: Session, generation: Generation, error: GenerationFailed) -> None:
    """The answer could not be made: the error, then the failed terminal; deferred work waits (contract 10.1)."""
    if session.generation is not generation or not session.epoch.open:
        return
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


def promote_deferred(session: Session) -> None:
    """Start the answer that waited for the active one to complete."""
    if session.deferred is not None and session.generation is None and session.state == "open":
        turn, options, precreate = session.deferred
        session.deferred = None
        start_generation(session, turn, options, precreate=precreate)


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
            next_epoch=next_epoch,
            metadata=response.options.metadata if response.options.metadata is not None else session.config.metadata,
            modalities=response.modalities,
            output_format=response.output_format,
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
    if record.cut_ms is not None and "audio" in response.modalities:
        cut = response.heard_text(record.cut_ms)
        text = cut if len(cut) < len(text) else text
    record.history_text = text.strip() or None
    return record.history_text is not None


# --- ending an epoch ----------------------------------------------------------------------------------------------


async def advance_epoch(
    session: Session, reason: str, *, cleared: bool = False, reopen: bool = True, keep_deferred: bool = False
) -> None:
    """End the current epoch: cancel its scope, join it, settle, say the terminal, step the number, open the next.

    ``cleared``: an output clear, whose reply precedes the terminal. ``reopen`` false: the session is ending.
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
    retract_unsent(session, old.number)
    if cleared:
        target = response or session.last_response
        session.emit(ev.OutputCleared(session_id=session.id, response_id=target.id if target else None, epoch=number))
    if response is not None:
        finish_response(session, response, "cancelled", reason, next_epoch=number)
    elif session.last_response is not None:
        settle_playing(session, session.last_response)
    session.turn_state = "barge_in"
    if not keep_deferred:
        session.deferred = None
    session.model.interrupt(old.number)
    session.epoch.number = number
    if reopen:
        await session.open_epoch(number)


def retract_unsent(session: Session, epoch: int) -> None:
    """Remove the epoch's untaken deltas from the journal and from what their response claims to have sent."""
    gone = [tag for tag in session.journal.drop_epoch(epoch) if isinstance(tag, Delta)]
    if gone and session.last_response is not None:
        session.last_response.retract(gone)


def settle_playing(session: Session, response: Response) -> None:
    """An interruption while a finished answer was still playing: history keeps only what was acknowledged."""
    if response.done and still_playing(session, response):
        record = session.conversation.get(response.item_id)
        if record is not None:
            record.history_text = response.heard_text(response.ledger.committed_ms).strip() or None


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
    )


def settle_on_exit(session: Session, reason: str) -> None:
    """The session's nursery is gone: close a response that is still open (crash or outer cancel). No checkpoint."""
    generation = session.generation
    if generation is None or generation.response is None:
        return
    retract_unsent(session, session.epoch.number)
    status = "failed" if reason == "internal_error" else "cancelled"
    finish_response(session, generation.response, status, reason, next_epoch=session.epoch.number + 1)


# --- commands -----------------------------------------------------------------------------------------------------


async def create_response(session: Session, command: cmd.CreateResponse) -> None:
    """``response.create`` (contract 12.4): format → options → already active → no input."""
    options = parse_options(command.options, session.dialect.name, strict=session.strict)
    generation = session.generation
    if generation is not None:
        if generation.response is None and session.strict:
            # The model is already working on an answer; it is the one that was asked for.
            generation.options = options
            announce(session, generation)
            return
        raise RemoteProtocolError("response_already_active", "a response is already active")
    turn = session.unanswered
    if turn is None and session.strict:
        raise RemoteProtocolError("response_create_without_input", "nothing committed is waiting for an answer")
    start_generation(session, turn if isinstance(turn, Turn) else None, options, precreate=True)


async def cancel_response(session: Session, command: cmd.CancelResponse) -> None:
    """``response.cancel``: the active response, or work in flight that is not visible yet."""
    generation = session.generation
    active = session.active_response
    if generation is None or (command.response_id is not None and command.response_id != generation.response_id):
        raise RemoteProtocolError("response_not_active", "there is no such active response to cancel")
    log.debug("response_cancel", session_id=session.id, response_id=active.id if active else None)
    session.unanswered = None
    await advance_epoch(session, "client_cancelled")


async def clear_output(session: Session, command: cmd.ClearOutput) -> None:
    """``output_audio_buffer.clear``: active audio or queued playback; otherwise just the reply."""
    generation = session.generation
    last = session.last_response
    named = command.response_id
    if generation is not None and named in (None, generation.response_id):
        await advance_epoch(session, "output_audio_buffer_clear", cleared=True, keep_deferred=True)
        promote_deferred_as_unanswered(session)
    elif generation is None and still_playing(session, last) and named in (None, last.id if last else None):
        await advance_epoch(session, "output_audio_buffer_clear", cleared=True, keep_deferred=True)
    else:
        response_id = named or (last.id if last else None)
        session.emit(ev.OutputCleared(session_id=session.id, response_id=response_id, epoch=session.epoch.number))


def promote_deferred_as_unanswered(session: Session) -> None:
    """A clear keeps deferred work: it is answered by ``response.create`` or with the next commit (12.2)."""
    if session.deferred is not None:
        session.unanswered = session.deferred[0] or True
        session.deferred = None


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.CreateResponse: create_response,
    cmd.CancelResponse: cancel_response,
    cmd.ClearOutput: clear_output,
}
