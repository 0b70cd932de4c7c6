"""The reaper: model slots that could not be given back are kept aside and asked for again (contract 15.4, 16.1, 22)."""

from __future__ import annotations

from typing import Protocol

import structlog
import trio

__all__ = ["Reapable", "Reaper"]

log = structlog.get_logger(__name__)


class Reapable(Protocol):
    """A session whose clean-up failed; it holds its place."""

    @property
    def id(self) -> str:
        """For the log."""
        ...

    async def reap(self) -> bool:
        """Try once more, within a bound; true when the slot is back and the session has said its end. Never raises.

        Cancellation: the slot is still kept.
        """
        ...

    def give_up(self) -> None:
        """Nobody will try again: end without saying that it was closed. Never blocks."""
        ...


class Reaper:
    """Tries every ``interval_s`` seconds, all kept sessions side by side, so that one that hangs delays no other.

    Their number is bounded by that of sessions, because each holds its place. Lives in the hub's nursery.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._kept: dict[Reapable, None] = {}
        self._running = False
        self._filled = trio.Event()
        self._hurried = trio.Event()
        self.failures = 0
        self.retries = 0

    @property
    def kept(self) -> int:
        """Sessions whose slot is kept aside now."""
        return len(self._kept)

    def keep(self, session: Reapable) -> None:
        """A session could not clean up. When the hub is going already, it is given up at once. Never blocks."""
        self.failures += 1
        if not self._running:
            self._abandon(session)
            return
        self._kept[session] = None
        self._filled.set()

    def hurry(self) -> None:
        """The hub is to end: try now, and not only after the interval."""
        self._hurried.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Cancellation: what is still kept is given up."""
        self._running = True
        task_status.started()
        try:
            while True:
                if not self._kept:
                    self._filled = trio.Event()
                    await self._filled.wait()
                hurried = self._hurried
                with trio.move_on_after(self._interval_s):
                    await hurried.wait()
                if hurried.is_set():
                    self._hurried = trio.Event()
                async with trio.open_nursery() as nursery:
                    for session in self._kept:
                        nursery.start_soon(self._try, session, name=f"reap {session.id}")
        finally:
            self._running = False
            for session in self._kept:
                self._abandon(session)
            self._kept.clear()

    async def _try(self, session: Reapable) -> None:
        """Cancellation: the session stays kept."""
        self.retries += 1
        if await session.reap():
            del self._kept[session]
            log.info("slot_reaped", session_id=session.id)

    def _abandon(self, session: Reapable) -> None:
        log.error("slot_abandoned", session_id=session.id)
        session.give_up()
