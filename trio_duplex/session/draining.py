"""``session.close`` with ``drain``: what is being said is said to its end first, within a bound (case T6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from duplex_protocol import commands as cmd

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

DEFAULT_DRAIN_S = 10.0
MAX_DRAIN_S = 120.0

REFUSED = (*cmd.DATA_COMMANDS, cmd.CreateResponse, cmd.UpdateSession)
"""Commands that a draining session no longer takes (``session_closed``)."""


async def close_session(session: Session, command: cmd.CloseSession) -> None:
    """Begin to drain; the close follows by itself. A second drain changes nothing, a plain close ends it at once.

    Cancellation: there is no checkpoint.
    """
    if session.draining:
        return
    session.draining = True
    session.start_soon(partial(drain, session, command), name=f"drain {session.id}")


async def drain(session: Session, command: cmd.CloseSession) -> None:
    """Wait for the answer under way (and those that wait behind it), for the socket, and – if asked – for the acks.

    Cancellation: the session is ending anyway.
    """
    wanted_s = DEFAULT_DRAIN_S if command.drain_timeout_s is None else command.drain_timeout_s
    with trio.move_on_after(min(max(wanted_s, 0.0), MAX_DRAIN_S)):
        while session.generation is not None:
            await session.generation.over.wait()
        await session.journal.wait_taken()
        last = session.last_response
        if command.drain == "played" and last is not None and last.had_audio:
            await last.played.wait()
    session.request_end("session_close")


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {cmd.CloseSession: close_session}
