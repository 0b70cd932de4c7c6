"""The journal: a session's only output queue, and its memory for resume.

A socket's writer is a *cursor* into it: live delivery and replay are one loop started at different numbers. An entry
gets its ``server_event_seq`` and its bytes when a cursor first takes it (contract 24a), so an ended epoch's untaken
deltas can be removed without leaving a gap, and each event is encoded once however often it is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from duplex_protocol.dialect import Projected
from duplex_protocol.values import Json
from trio_duplex.session.cursor import Cursor

Encode = Callable[[Json, int | None], bytes]
"""(wire event without id and number, number) → its UTF-8 JSON; called exactly once per wire event."""

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
        """Number and forget what nobody will ever read (an overflow, or the end): the sequence stays gapless."""
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
