"""The journal: a session's only output queue, and its memory for resume.

A socket's writer is a *cursor* into it: live delivery and replay are one loop started at different numbers. An entry
gets its ``server_event_seq`` and its bytes when a cursor first takes it (contract 24a), so an ended epoch's untaken
deltas can be removed without leaving a gap, and each event is encoded once however often it is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from duplex_protocol.dialect import Projected
from duplex_protocol.values import Json

Encode = Callable[[Json, int | None], bytes]
"""(wire event without id and number, number) → its UTF-8 JSON; called exactly once per wire event."""

BATCH_BYTES: Final = 16_384
"""What a batch may hold before it is closed. One write has five seconds (contract 1.2), so a batch is no bigger than an
event may be: a link that is just fast enough for the events must be fast enough for a replay of them.
"""
FRAME_BYTES: Final = 400
"""What a wire event holds beside its audio and words, about."""


class JournalGap(Exception):
    """The asked position is older than what is still kept: only a resync helps."""


class CursorAhead(Exception):
    """The asked position is beyond the head: the peer claims events that were never made."""


@attrs.define(eq=False)
class _Pending:
    """An entry nobody has taken yet."""

    projected: Projected
    epoch: int | None
    tag: object
    size: int
    at_s: float


@attrs.define(eq=False)
class _Taken:
    """A numbered, encoded wire event kept for replay."""

    seq: int
    data: bytes
    at_s: float


@attrs.frozen
class Backlog:
    """An amount of output: wire events, and their bytes as far as they can be estimated."""

    events: int = 0
    bytes: int = 0


@attrs.frozen
class JournalStatistics:
    """Counters of one journal; sizes in bytes."""

    head: int
    kept: int
    kept_bytes: int
    pending: int
    pending_bytes: int
    dropped: int
    recording: bool


def _estimate(projected: Projected) -> int:
    """Encoded size of an entry, estimated without encoding it (audio is counted as base64)."""
    size = FRAME_BYTES * len(projected.frames)
    for frame in projected.frames:
        for value in frame.values():
            kind = value.__class__
            if kind is bytes:
                size += len(value) * 4 // 3
            elif kind is str:
                size += len(value)
    return size


class Journal:
    """Bounded in bytes and age. Never blocks, never awaits; only cursors wait.

    ``overflowed`` turns true once when the bound is hit: recording stops (nothing can be resumed from before), the
    session goes on and its later events are still numbered.
    """

    def __init__(self, encode: Encode, *, max_bytes: int, ttl_s: float) -> None:
        self._encode = encode
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._taken: deque[_Taken] = deque()
        self._taken_bytes = 0
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self.pending_events = 0
        self._appended_events = self._appended_bytes = 0
        self._taking = trio.Event()
        self._last_removed = 0
        self._dropped = 0
        self._cursors: set[Cursor] = set()
        self._direct: Cursor | None = None
        self._emptied = trio.Event()
        self.head = 0
        self.closed = False
        self._released = False
        self.overflowed = False

    # --- writing ---

    def append(self, projected: Projected, *, epoch: int | None = None, tag: object = None) -> None:
        """Add one entry at the end. ``epoch`` and ``tag`` let :meth:`drop_epoch` find and report it."""
        if self.closed or not projected.frames:
            return
        size = projected.size or _estimate(projected)
        if self._direct is not None:  # nothing waits then
            self._appended_bytes += size
            self._appended_events += len(projected.frames)
            self._direct.pass_on(projected.frames)
            return
        now_s = trio.current_time()
        self._pending.append(_Pending(projected, epoch, tag, size, now_s))
        self._pending_bytes += size
        self._appended_bytes += size
        events = len(projected.frames)
        self.pending_events += events
        self._appended_events += events
        self._prune(now_s)
        for cursor in self._cursors:
            cursor.wake()

    def drop_epoch(self, epoch: int, chosen: Callable[[object], bool] = lambda tag: True) -> list[object]:
        """Remove the untaken droppable entries of ``epoch`` whose tag is ``chosen``; returns their tags.

        Numbered entries stay.
        """
        kept: deque[_Pending] = deque()
        tags: list[object] = []
        for entry in self._pending:
            if entry.epoch == epoch and entry.projected.droppable and chosen(entry.tag):
                self._pending_bytes -= entry.size
                self.pending_events -= len(entry.projected.frames)
                self._dropped += 1
                tags.append(entry.tag)
            else:
                kept.append(entry)
        self._pending = kept
        if not kept:
            self._emptied.set()
        return tags

    def trim(self, seq: int) -> None:
        """The client has everything up to ``seq``. Raises :class:`CursorAhead` beyond the head; older is a no-op."""
        if seq > self.head:
            raise CursorAhead
        # A client cannot have what no socket was given yet; believing it would strand the cursor.
        for cursor in self._cursors:
            seq = min(seq, cursor.position)
        while self._taken and self._taken[0].seq <= seq:
            self._forget_oldest()

    def close(self) -> None:
        """No more entries; cursors end after the last one."""
        self.closed = True
        for cursor in self._cursors:
            cursor.wake()

    def release(self) -> None:
        """Nobody will come back: with the last cursor goes everything that was kept for replay.

        The objects of an ended session may wait for the garbage collector; their megabytes may not.
        """
        self._released = True
        if not self._cursors:
            self._discard_pending()

    # --- reading ---

    def check(self, after: int) -> None:
        """Whether a cursor may start after ``after``. Raises :class:`JournalGap` or :class:`CursorAhead`."""
        self._prune(trio.current_time())
        if after > self.head:
            raise CursorAhead
        if after < self._last_removed:
            raise JournalGap

    def cursor(self, after: int) -> Cursor:
        """A cursor that yields everything numbered above ``after``. Same errors as :meth:`check`."""
        self.check(after)
        cursor = Cursor(self, after)
        self._cursors.add(cursor)
        return cursor

    async def wait_taken(self) -> None:
        """Wait until a cursor took everything that was appended. Cancellation: nothing happens."""
        await trio.lowlevel.checkpoint()
        while self._pending:
            self._emptied = trio.Event()
            await self._emptied.wait()

    @property
    def backlog_bytes(self) -> int:
        """About how much was appended that no cursor took yet."""
        return self._pending_bytes

    @property
    def appended(self) -> Backlog:
        """Everything that was ever appended."""
        return Backlog(self._appended_events, self._appended_bytes)

    def backlog(self, since: Backlog) -> Backlog:
        """What no cursor took yet of that which was appended after ``since`` (some of it may have been dropped)."""
        return Backlog(
            min(self.pending_events, self._appended_events - since.events),
            min(self._pending_bytes, self._appended_bytes - since.bytes),
        )

    async def wait_progress(self) -> None:
        """Wait until a cursor takes an entry, or the rest is discarded. Cancellation: nothing happens."""
        self._taking = trio.Event()
        await self._taking.wait()

    def statistics(self) -> JournalStatistics:
        """A snapshot of the counters."""
        return JournalStatistics(
            head=self.head,
            kept=len(self._taken),
            kept_bytes=self._taken_bytes,
            pending=len(self._pending),
            pending_bytes=self._pending_bytes,
            dropped=self._dropped,
            recording=not self.overflowed,
        )

    # --- inside ---

    def _number_oldest(self) -> None:
        """Give the oldest pending entry its numbers and bytes; all frames of an entry together."""
        entry = self._take_oldest()
        # Encoded before any number is given: what JSON cannot say is lost whole, and leaves no gap.
        first, encode, at_s = self.head + 1, self._encode, entry.at_s
        taken = [_Taken(seq, encode(frame, seq), at_s) for seq, frame in enumerate(entry.projected.frames, first)]
        self._taken.extend(taken)
        self.head += len(taken)
        for one in taken:
            self._taken_bytes += len(one.data)
        if not self._pending:
            self._emptied.set()

    def _take_oldest(self) -> _Pending:
        entry = self._pending.popleft()
        self._pending_bytes -= entry.size
        self.pending_events -= len(entry.projected.frames)
        self._taking.set()
        return entry

    def _hand_over_oldest(self) -> list[tuple[int, Json]]:
        """Number the oldest pending entry and let go of it: nothing is encoded, nothing kept for replay."""
        entry = self._take_oldest()
        numbered = list(enumerate(entry.projected.frames, self.head + 1))
        self.head += len(numbered)
        while self._taken:  # what a socket took before: a reader that hands over is never resumed
            self._forget_oldest()
        self._last_removed = self.head
        if not self._pending:
            self._emptied.set()
        return numbered

    def _forget_oldest(self) -> None:
        entry = self._taken.popleft()
        self._taken_bytes -= len(entry.data)
        self._last_removed = entry.seq

    def _prune(self, now_s: float) -> None:
        horizon = now_s - self._ttl_s
        if self.overflowed or (self._taken and self._taken[0].at_s < horizon):
            slowest = min((c.position for c in self._cursors), default=self.head)
            while self._taken and self._taken[0].seq <= slowest and (self.overflowed or self._taken[0].at_s < horizon):
                self._forget_oldest()
        if self.overflowed:
            if not self._cursors:
                self._discard_pending()
        elif self._taken_bytes + self._pending_bytes > self._max_bytes:
            self.overflowed = True

    def _discard_pending(self) -> None:
        """Number and forget what nobody will ever read (detached after an overflow): the sequence stays gapless."""
        self.head += sum(len(entry.projected.frames) for entry in self._pending)
        self._pending.clear()
        self._taken.clear()
        self._pending_bytes = self._taken_bytes = self.pending_events = 0
        self._taking.set()
        self._last_removed = self.head
        self._emptied.set()

    def _after(self, position: int) -> _Taken | None:
        """The first numbered event above ``position``, numbering one more entry if needed."""
        if position >= self.head:
            if not self._pending:
                return None
            self._number_oldest()
        # Numbers in the deque are consecutive, so the index is arithmetic.
        entry = self._taken[position + 1 - self._taken[0].seq]
        return entry

    def _detach(self, cursor: Cursor) -> None:
        self._cursors.discard(cursor)
        if self._direct is cursor:
            self._direct = None
        if self._released:
            self.release()


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
