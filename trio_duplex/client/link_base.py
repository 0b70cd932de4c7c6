"""What a client's way to its session must do, and what every way has in common: order, deduplication, the end."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import trio

from .counters import LinkCounters
from .events import DuplexEvent
from .session_state import TALK, SessionEnd, SessionState

TEARDOWN_TIMEOUT_S = 2.0
"""Upper bound for the shielded clean-up on any way out."""


class LinkBase(abc.ABC):
    """One client's connection to its session. Its tasks run in the client's nursery and never raise of their own."""

    def __init__(
        self,
        *,
        state: SessionState,
        on_event: Callable[[DuplexEvent], None],
        on_end: Callable[[], None],
    ) -> None:
        self._state = state
        self._on_event = on_event
        self._on_end = on_end
        self._closing = False
        self._ended = trio.Event()
        self.end: SessionEnd | None = None
        self.counters = LinkCounters()

    @abc.abstractmethod
    async def open(self, nursery: trio.Nursery, opening: dict[str, Any]) -> None:
        """Reach the session and give it the opening `session.update`; cancellation undoes it.

        DuplexConnectionError if it cannot be reached; DuplexProtocolError if it is refused on the spot.
        """

    @abc.abstractmethod
    async def send(self, event: dict[str, Any], *, own: bool = False, yields: bool = True) -> None:
        """Send one event, whole or not at all, also when cancelled.

        `own`: the client built it, so it holds nothing but JSON values, and `bytes` for audio. `yields` False: the
        caller has a checkpoint right behind this one, which may therefore be no more than a look for cancellation.

        DuplexSessionClosedError after the end; DuplexConnectionError when it cannot be sent: nothing is queued.
        """

    @abc.abstractmethod
    async def heartbeat(self, interval_s: float) -> None:
        """Task: keep the session's lease alive. Cancellation ends it."""

    @abc.abstractmethod
    async def close(self, timeout_s: float) -> None:
        """Ask for the end of the session and wait for it; see `DuplexClient.close`.

        Cancellation ends the waiting and leaves the rest to `tear_down`.
        """

    @abc.abstractmethod
    async def tear_down(self) -> None:
        """Shielded, at most `TEARDOWN_TIMEOUT_S`: leave nothing behind. Cancellation waits for that."""

    def finish(self, reason: str, *, expected: bool) -> None:
        """Declare the session over. The first reason stays."""
        if self.end is None:
            self.end = SessionEnd(reason, expected)
            self._ended.set()
            self._on_end()

    def _take(self, event: DuplexEvent) -> bool:
        """Deduplicate, remember, dispatch. Synchronous, so order is wire order. False: it was not wanted."""
        if self.end is not None:
            return False
        if self._state.is_duplicate(event):
            self.counters.duplicates_dropped += 1
            return False
        if type(event) in TALK:
            self._on_event(event)
            return True
        self._state.absorb(event)
        self._on_event(event)
        end = self._state.end_of(event, closing=self._closing)
        if end is not None:
            self.finish(end.reason, expected=end.expected)
        return True
