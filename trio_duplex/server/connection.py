"""One socket's visit: handshake, then a reader that never rests and a writer that is a cursor into the journal.

Leaving detaches the session; it never cancels it. Nothing in a session waits for what happens here.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import structlog
import trio

from duplex_protocol import wire
from duplex_protocol.commands import AppendAudio, UpdateSession
from duplex_protocol.dialect import MAX_EVENT_BYTES
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json
from trio_duplex.hub import Hub
from trio_duplex.server.access import Access, AudioBudget, bound_command, check_rate
from trio_duplex.server.handshake import Entrance, Handshake, HandshakeEnded
from trio_duplex.server.socket import SocketGone, SocketLike, payload_bytes
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

MAX_REFUSALS_IN_A_ROW = 64
"""Back-pressure refusals in a row after which the socket is closed with 1008 (contract 24a)."""

CLOSE_CODES = {"server_shutdown": 1001}


@attrs.define(eq=False)
class Connection:
    """Serves one accepted socket on one route until either side leaves."""

    socket: SocketLike
    hub: Hub
    handshake: Callable[[SocketLike, Hub], Handshake]
    access: Access | None = None
    """The server's bounds per key and session; None where the caller is trusted."""
    _bound: Json = attrs.field(factory=dict, init=False, repr=False)
    """What the key that opened this connection is bound to; it holds when the key has expired meanwhile."""
    _budget: AudioBudget | None = attrs.field(default=None, init=False, repr=False)

    async def run(self) -> None:
        """Shake hands, then converse. Cancellation: the session is detached, not ended."""
        if self.access is not None:
            self._bound = self.access.bound(self.socket)
        entrance = await self._enter()
        if entrance is None:
            return
        session, attachment = entrance.session, entrance.attachment
        if self.access is not None:
            self._budget = self.access.budget(session)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, entrance)
                await self._write(session, attachment)
                nursery.cancel_scope.cancel()
        except* SocketGone as gone:
            log.debug("socket_gone", session_id=session.id, error=repr(gone.exceptions[0]))
        finally:
            session.detach(attachment)

    async def _enter(self) -> Entrance | None:
        """The handshake; None when it failed, or was ended early because the server shuts down.

        Cancellation: a session that was opened or resumed meanwhile is detached.
        """
        entrance: Entrance | None = None
        answered = entered = False
        try:
            async with trio.open_nursery() as nursery:

                async def leave() -> None:
                    await self.socket.going_away.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(leave)
                try:
                    entrance = await self.handshake(self.socket, self.hub).run()
                except HandshakeEnded:
                    answered = True
                nursery.cancel_scope.cancel()
            entered = True
        finally:
            if entrance is not None and not entered:  # cancelled on the last step: nobody else would let go
                entrance.session.detach(entrance.attachment)
        if entrance is None and not answered:
            await self.socket.close(1001, "going away")
        return entrance

    # --- reading ---

    async def _read(self, entrance: Entrance) -> None:
        """Feed the mailbox; never waits for the session. Raises :class:`SocketGone` at the end.

        A socket that another one has superseded may take a while to go, when its peer does not read: what it still
        brings is dropped, for there are never two live sockets (contract 22). Cancellation: nothing more is taken.
        """
        session, attachment = entrance.session, entrance.attachment
        refusals = 0
        for event in entrance.held:
            try:
                self._take(session, event)
            except RemoteProtocolError as error:
                session.post_refusal(error)

        def take(message: str | bytes) -> bool:
            nonlocal refusals
            self.hub.tally.received_bytes += payload_bytes(message)
            if session.attachment is not attachment:
                return True
            session.tokens.confirm()
            try:
                if not isinstance(message, str) and len(message) > MAX_EVENT_BYTES:
                    raise RemoteProtocolError("event_too_large", "the event is over 15 MiB")
                self._take(session, wire.parse(message))
            except RemoteProtocolError as error:
                if session.post_refusal(error):
                    return True
                refusals += 1
                return refusals < MAX_REFUSALS_IN_A_ROW
            refusals = 0
            return True

        await self.socket.receive_each(take)
        log.warning("socket_refused_too_often", session_id=session.id)
        # The writer closes: closing beside it would make it fail, and with it this task, before the frame is out.
        attachment.end(code=1008, reason="input_backpressure")

    def _take(self, session: Session, event: Json) -> None:
        """Decode one parsed client event and post its commands, in order."""
        for command in session.dialect.decode(event):
            if isinstance(command, AppendAudio):
                if self._budget is not None:
                    check_rate(self._budget, session, command)
            elif isinstance(command, UpdateSession):
                command = bound_command(command, self._bound)
            session.post(command)

    # --- writing ---

    async def _write(self, session: Session, attachment: Attachment) -> None:
        """Send the prelude, then whatever the cursor gives, then the close frame; returns when the visit is over.

        Cancellation: stops sending; what was not sent stays in the journal.
        """
        for frame in attachment.prelude:
            if not await self._send(session, [frame]):
                return
        while True:
            try:
                batch = await attachment.cursor.next_batch()
            except trio.EndOfChannel:
                break
            if not await self._send(session, batch):
                return
        if attachment.ended.is_set():
            if attachment.farewell is not None and not await self._send(session, [attachment.farewell]):
                return
            await self._close(session, attachment.close_code, attachment.close_reason)
            return
        reason = session.close_reason or ""
        shown = "session_expired" if reason.endswith("_expired") else reason
        await self._close(session, CLOSE_CODES.get(reason, 1000), shown)

    async def _send(self, session: Session, frames: list[bytes]) -> bool:
        """Some frames within ``attachment_io_timeout_s``; a socket that takes longer is dead: detached and reset."""
        try:
            await self.socket.send_all(frames, session.settings.attachment_io_timeout_s)
        except trio.TooSlowError:
            pass
        else:
            self.hub.tally.sent_bytes += sum(map(len, frames))
            return True
        log.warning("socket_write_timeout", session_id=session.id)
        self.socket.abort()
        return False

    async def _close(self, session: Session, code: int, reason: str) -> None:
        with trio.move_on_after(session.settings.attachment_io_timeout_s):
            await self.socket.close(code, reason)
            return
        self.socket.abort()
