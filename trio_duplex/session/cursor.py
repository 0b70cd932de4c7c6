"""A cursor: one reader of a session's journal, for a socket (bytes) or for a client in this process (wire events)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import trio

from duplex_protocol.values import Json

if TYPE_CHECKING:
    from trio_duplex.session.journal import Journal

BATCH_BYTES: Final = 16_384
"""What a batch may hold before it is closed. One write has five seconds (contract 1.2), so a batch is no bigger than an
event may be: a link that is just fast enough for the events must be fast enough for a replay of them.
"""


class Cursor:
    """One reader of a journal. At most one entry's frames are numbered ahead of what was read."""

    def __init__(self, journal: Journal, after: int) -> None:
        self._journal = journal
        self._wakeup = trio.Event()
        self._take: Callable[[int, Json], None] | None = None
        self.position = after
        self.stopped = False

    def wake(self) -> None:
        """Something changed; re-check."""
        self._wakeup.set()

    def stop(self) -> None:
        """End this cursor: :meth:`next` raises :class:`trio.EndOfChannel` from now on."""
        self.stopped = True
        self._journal._detach(self)
        self._wakeup.set()

    def next_nowait(self) -> bytes:
        """The next wire event's bytes.

        Raises :class:`trio.WouldBlock` when there is none yet, :class:`trio.EndOfChannel` after :meth:`stop` or after
        the last event of a closed journal.
        """
        if self.stopped:
            raise trio.EndOfChannel
        entry = self._journal._after(self.position)
        if entry is None:
            if self._journal.closed:
                raise trio.EndOfChannel
            raise trio.WouldBlock
        self.position = entry.seq
        return entry.data

    def next_batch_nowait(self) -> list[bytes]:
        """The bytes of the next wire events that can go out in one write: at least one, about 16 KiB at most.

        A droppable entry (contract 24a) is numbered only when it stands first: what waits behind a batch in hand can
        still be taken back, as if the events were taken one by one. Raises as :meth:`next_nowait`.
        """
        data = self.next_nowait()
        batch = [data]
        size = len(data)
        journal = self._journal
        while size < BATCH_BYTES:
            if self.position >= journal.head and (not journal._pending or journal._pending[0].projected.droppable):
                break
            data = self.next_nowait()
            batch.append(data)
            size += len(data)
        return batch

    async def next_batch(self) -> list[bytes]:
        """Wait for :meth:`next_batch_nowait`; always a checkpoint. Raises the same. Cancellation: nothing is taken."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        while not self._ready:
            self._wakeup = trio.Event()
            await self._wakeup.wait()
        return self.next_batch_nowait()

    @property
    def _ready(self) -> bool:
        """Whether there is something to take, or nothing ever again."""
        journal = self._journal
        return self.stopped or self.position < journal.head or bool(journal._pending) or journal.closed

    def next_frames_nowait(self) -> list[tuple[int, Json]]:
        """The next entry's wire events with their numbers, not encoded and not kept: for a reader in this process.

        Such a reader is at the head, alone, and cannot be resumed. Raises as :meth:`next_nowait`.
        """
        if self.stopped:
            raise trio.EndOfChannel
        journal = self._journal
        assert self.position == journal.head, "handing over begins where nothing was taken yet"
        if not journal._pending:
            raise trio.EndOfChannel if journal.closed else trio.WouldBlock
        frames = journal._hand_over_oldest()
        self.position = journal.head
        return frames

    def pass_on(self, frames: Iterable[Json]) -> None:
        """Number the frames of an entry that is being appended while nothing waits, and hand them over at once."""
        assert self._take is not None
        journal = self._journal
        seq = journal.head
        for frame in frames:
            # Counted before each call: what a call does not survive was handed over all the same.
            seq += 1
            journal.head = journal._last_removed = self.position = seq
            self._take(seq, frame)

    async def hand_over_to(self, take: Callable[[int, Json], None]) -> None:
        """Call ``take`` with every wire event and its number as soon as it is appended; returns after the last one.

        ``take`` runs inside the writer's call, so it must neither write nor raise; no task has to wake. Always a
        checkpoint, before anything is taken. Cancellation: nothing more is taken.
        """
        await trio.lowlevel.checkpoint()
        journal = self._journal
        try:
            while not self.stopped and journal._pending:
                for seq, frame in self.next_frames_nowait():
                    take(seq, frame)
            if not self.stopped:
                self._take, journal._direct = take, self
            while not self.stopped and not journal.closed:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
        finally:
            if journal._direct is self:
                journal._direct = None

    async def next(self) -> bytes:
        """Wait for the next wire event's bytes; always a checkpoint.

        Raises :class:`trio.EndOfChannel` as :meth:`next_nowait`. Cancellation: nothing is taken.
        """
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            try:
                data = self.next_nowait()
            except trio.WouldBlock:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return data
