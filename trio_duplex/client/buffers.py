"""Ring buffers between the reader, which never waits, and consumers, which may be slow (contract 21.4, 24.7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

BUFFER_SIZE = 1024


class RingBuffer(Generic[T]):
    """Keeps the newest `size` items. `put` and `end` are synchronous and never block."""

    __slots__ = ("__weakref__", "_items", "_lot", "dropped", "ended")

    def __init__(self, size: int = BUFFER_SIZE) -> None:
        self._items: deque[T] = deque(maxlen=size)
        self._lot = trio.lowlevel.ParkingLot()
        self.dropped = 0
        """How many items fell out unread."""
        self.ended = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        items = self._items
        if len(items) == items.maxlen:
            self.dropped += 1
        items.append(item)
        if self._lot:
            # All, not one: the woken task may be cancelled before it takes the item, and then another must look.
            self._lot.unpark_all()

    def end(self) -> None:
        """No more items will come; what is buffered can still be taken."""
        self.ended = True
        self._lot.unpark_all()

    async def take(self) -> T:
        """The oldest item; `trio.EndOfChannel` once the buffer has ended and is empty.

        Cancellation takes nothing out. Always a checkpoint, and a single one: this runs once per audio chunk.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._items:
            item = self._items.popleft()
            await trio.lowlevel.cancel_shielded_checkpoint()
            return item
        while not self._items:
            if self.ended:
                await trio.lowlevel.cancel_shielded_checkpoint()
                raise trio.EndOfChannel
            await self._lot.park()
        return self._items.popleft()


class BufferIterator(Generic[T]):
    """An async iterator over a ring buffer. An object, not a generator: leaving it half-way needs no clean-up.

    `at_end` is asked once the buffer is empty and ended: it returns the exception to raise, or None to stop quietly.
    """

    __slots__ = ("_at_end", "_buffer")

    def __init__(self, buffer: RingBuffer[T], at_end: Callable[[], Exception | None]) -> None:
        self._buffer = buffer
        self._at_end = at_end

    def __aiter__(self) -> BufferIterator[T]:
        return self

    async def __anext__(self) -> T:
        """The next item. Cancellation loses none."""
        try:
            return await self._buffer.take()
        except trio.EndOfChannel:
            error = self._at_end()
        if error is not None:
            raise error
        raise StopAsyncIteration
