"""An epoch: one number, one cancel scope, one nursery. The generation subtree of a session lives in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

JOIN_TIMEOUT_S = 0.25
"""How long an ended epoch's tasks may take to unwind before it is abandoned (contract 12.3)."""


class Epoch:
    """``number`` on the wire *is* this scope. Ended once, never reopened.

    After :meth:`end` has returned true every task that could have spoken under this epoch is gone. ``open`` turns
    false before the first task is cancelled, so nothing can slip out while the subtree unwinds.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.open = True
        self._scope = trio.CancelScope()
        self._joined = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The epoch's own task, started in the session's nursery; returns when the epoch has ended.

        Cancellation: cancels the subtree.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.open = False
            self._joined.set()

    def start_soon(self, task: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run ``task`` inside the epoch. The epoch must be open."""
        assert self._nursery is not None
        assert self.open
        self._nursery.start_soon(task, name=name)

    @property
    def tasks(self) -> int:
        """How many tasks live in it now."""
        return len(self._nursery.child_tasks) if self._nursery is not None else 0

    async def end(self) -> bool:
        """Cancel the subtree and wait until it is gone; False when something in it refused to end in time.

        Cancellation: the subtree stays cancelled, only the waiting stops.
        """
        self.open = False
        self._scope.cancel()
        with trio.move_on_after(JOIN_TIMEOUT_S):
            await self._joined.wait()
        return self._joined.is_set()
