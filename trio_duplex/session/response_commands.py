"""``response.create``, ``response.cancel``, ``output_audio_buffer.clear`` (contract 12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import structlog

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import TakesToolOutputs
from trio_duplex.session.endings import still_playing
from trio_duplex.session.epochs import advance_epoch
from trio_duplex.session.response_context import context_of
from trio_duplex.session.response_options import parse_options
from trio_duplex.session.speaking import announce, start_generation
from trio_duplex.session.work import Work, merged

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)


async def create_response(session: Session, command: cmd.CreateResponse) -> None:
    """``response.create`` (contract 12.4): format → options → already active → no input.

    Cancellation: the session is ending; nothing was created.
    """
    session.touch(lease=True)
    turn_based = session.traits.turn_based
    options = parse_options(command.options, session.dialect.name, strict=session.strict and not turn_based)
    context = await context_of(session, options.context)
    out_of_band = options.conversation == "none"
    generation = session.generation
    if generation is not None:
        if session.tool_answer_unasked and context is None:
            session.tool_answer_unasked = False
            if not isinstance(session.model, TakesToolOutputs):
                # The result came while another answer runs: the answer to it waits for that one's end.
                asked = attrs.evolve(session.unanswered or Work(), wanted=True, precreate=True)
                session.unanswered = None
                session.deferred = merged(session.deferred, asked)
            # Else the model went on by itself when its tool answered; stock clients ask for that all the same.
            return
        absorbs = generation.response is None and session.strict and not out_of_band and not turn_based
        if absorbs and context is None:
            # The model is already working on an answer; it is the one that was asked for.
            generation.options = options
            announce(session, generation)
            return
        if not (turn_based and session.dialect.name == "native" and command.options is None):
            raise RemoteProtocolError("response_already_active", "a response is already active")
        await advance_epoch(session, "new_response", keep_work=True)
    if context is not None:
        # It answers this instead of the conversation, where what waits keeps waiting.
        start_generation(session, Work(), options, precreate=True, context=context)
        return
    session.tool_answer_unasked = False
    if out_of_band:
        # Beside the conversation: it answers what its options say, and takes no input away.
        start_generation(session, Work(), options, precreate=True)
        return
    work = session.unanswered
    if work is None and session.strict and not turn_based:
        raise RemoteProtocolError("response_create_without_input", "nothing committed is waiting for an answer")
    session.unanswered = None
    start_generation(session, work or Work(), options, precreate=True)


async def cancel_response(session: Session, command: cmd.CancelResponse) -> None:
    """``response.cancel``: the active response, or work in flight that is not visible yet."""
    generation = session.generation
    unnamed = command.response_id is None and session.dialect.name == "native"
    if generation is None and unnamed and still_playing(session, session.last_response):
        # The native dialect's cancel reaches what is still being played (12.3).
        session.touch(lease=True)
        await advance_epoch(session, "client_cancelled")
        return
    if generation is None or (command.response_id is not None and command.response_id != generation.response_id):
        raise RemoteProtocolError("response_not_active", "there is no such active response to cancel")
    session.touch(lease=True)
    log.debug("response_cancel", session_id=session.id, response_id=generation.response_id)
    await advance_epoch(session, "client_cancelled")


async def clear_output(session: Session, command: cmd.ClearOutput) -> None:
    """``output_audio_buffer.clear``: active audio or queued playback; otherwise just the reply.

    Input that was committed stays: it is answered by ``response.create`` or with the next commit (12.2).
    Cancellation: the session is ending.
    """
    session.touch(lease=True)
    generation = session.generation
    last = session.last_response
    named = command.response_id
    active = generation is not None and named in (None, generation.response_id)
    playing = generation is None and still_playing(session, last) and named in (None, last.id if last else None)
    if active or playing:
        await advance_epoch(session, "output_audio_buffer_clear", cleared=True, keep_work=True)
        return
    response_id = named or (last.id if last else None)
    session.emit(ev.OutputCleared(session_id=session.id, response_id=response_id, epoch=session.epoch.number))


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.CreateResponse: create_response,
    cmd.CancelResponse: cancel_response,
    cmd.ClearOutput: clear_output,
}
