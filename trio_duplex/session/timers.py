"""A session's timers: idle receive, lease, disconnect grace (contract 15.4); on trio's clock only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from trio_duplex.session.base import SessionBase


class Timers:
    """Remembers when the client and the model last showed life; a session begins detached."""

    def __init__(self, session: SessionBase) -> None:
        self._session = session
        self._changed = trio.Event()
        now_s = trio.current_time()
        self._last_message_s = now_s
        self._last_lease_s = now_s
        self._detached_at_s: float | None = now_s

    def message(self, *, lease: bool = False) -> None:
        """A client message came; ``lease``: one that also keeps the lease."""
        self._last_message_s = trio.current_time()
        if lease:
            self._last_lease_s = self._last_message_s

    def lease(self) -> None:
        """Something happened that keeps the lease: input, an ack, a heartbeat, model output."""
        self._last_lease_s = trio.current_time()

    def attached(self) -> None:
        """A socket is there."""
        self._detached_at_s = None
        self.message()
        self.lease()
        self.wake()

    def detached(self) -> None:
        """The socket is gone: the grace time begins."""
        self._detached_at_s = self._last_lease_s = trio.current_time()
        self.wake()

    def wake(self) -> None:
        """Look again: something that moves a deadline forward changed."""
        self._changed.set()

    async def run(self, request_end: Callable[..., None]) -> None:
        """Ask the session to end when a timer runs out. Cancellation: the timers stop."""
        while True:
            deadline_s, reason, expired = self._next_deadline()
            if deadline_s <= trio.current_time():
                if reason == "idle_ttl_expired" and self._session.generation is not None:
                    # The lease does not run out while the model works for this session (contract 15.4).
                    self.lease()
                    continue
                request_end(reason, expired=expired)
                return
            self._changed = trio.Event()
            with trio.move_on_at(deadline_s):
                await self._changed.wait()

    def _next_deadline(self) -> tuple[float, str, bool]:
        """The earliest timer: (time, reason, expired)."""
        found: list[tuple[float, str, bool]] = [(float("inf"), "", False)]
        settings, idle_timeout_s = self._session.settings, self._session.config.idle_timeout_s
        if self._detached_at_s is not None:
            found.append((self._detached_at_s + settings.disconnect_grace_s, "disconnect_grace_expired", True))
        elif idle_timeout_s is not None:
            found.append((self._last_message_s + idle_timeout_s, "timeout", False))
        if settings.idle_ttl_s is not None:
            found.append((self._last_lease_s + settings.idle_ttl_s, "idle_ttl_expired", True))
        return min(found)
