"""An attachment: one socket's visit to a session. Leaving detaches; it never cancels the session."""

from __future__ import annotations

import attrs
import trio

from trio_duplex.session.cursor import Cursor
from trio_duplex.session.journal import Backlog


@attrs.define(eq=False)
class Attachment:
    """What a connection holds while it serves a session.

    ``since``: what the journal had been given when the visit began; what waited then is no fault of this socket.
    ``prelude`` are unnumbered frames to send before the cursor's (``session.resumed``). ``farewell`` is an unnumbered
    last frame (``session.replaced``) with the close code and reason that follow it.
    """

    generation: int
    cursor: Cursor
    prelude: list[bytes] = attrs.field(factory=list)
    since: Backlog = Backlog()
    farewell: bytes | None = None
    close_code: int = 1000
    close_reason: str = ""
    ended: trio.Event = attrs.field(factory=trio.Event)

    def end(self, *, farewell: bytes | None = None, code: int = 1000, reason: str = "") -> None:
        """Stop this visit: the writer sends ``farewell`` and closes. Idempotent; never blocks."""
        if self.ended.is_set():
            return
        self.farewell, self.close_code, self.close_reason = farewell, code, reason
        self.ended.set()
        self.cursor.stop()
