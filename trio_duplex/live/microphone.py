"""A microphone: blocks come in the device's thread and leave as appends. Bounded; what is lost is counted."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import attrs
import trio

from trio_duplex.client import DuplexClient, DuplexConnectionError, DuplexSessionClosedError
from trio_duplex.live.device import SAMPLE_BYTES, Device
from trio_duplex.live.sound import BLOCK_MS, Flags, Sound

__all__ = ["LiveMicrophone"]

QUEUE_BLOCKS: Final = 2_000 // BLOCK_MS
"""Two seconds wait at most while the connection is slow."""
JOINED_BLOCKS: Final = 10
"""So many waiting blocks travel together: what waited is caught up quickly."""


@attrs.define(eq=False)
class LiveMicrophone(Device):
    """Mono int16 from a device to a client, every sample once and in order, unless one of the counters says so.

    ``refused_frames``: the queue was full. ``unsent_frames``: the connection was away. ``overflows``: how often the
    device itself lost something (it does not say how much). ``silent_frames``: zeros since the start, until the first
    other sample; a muted or forbidden microphone gives nothing else.
    """

    refused_frames: int = attrs.field(default=0, init=False)
    unsent_frames: int = attrs.field(default=0, init=False)
    overflows: int = attrs.field(default=0, init=False)
    silent_frames: int = attrs.field(default=0, init=False)
    _sounded: bool = attrs.field(default=False, init=False)
    _blocks: deque[bytes] = attrs.field(factory=deque, init=False)

    def open(self, sound: Sound, device: int | str | None, wanted_hz: int) -> None:
        """Open the device. Raises :class:`SoundError`."""
        self._open = sound.open_input(device, wanted_hz, self._take, self._on_end)

    def _take(self, samples: memoryview, frames: int, _times: Any, flags: Flags) -> None:
        """In the device's thread: no lock, no wait. This is the only place that appends, so the bound is exact."""
        self.calls += 1
        if flags.input_overflow:
            self.overflows += 1
        if len(self._blocks) >= QUEUE_BLOCKS:
            self.refused_frames += frames
        else:
            self._blocks.append(bytes(samples))
        self._wake()

    async def run(self, client: DuplexClient) -> None:
        """Stream until cancelled or the session has ended.

        Cancellation: stops between or inside appends; what waits is dropped with the conversation.
        """
        while True:
            await self._next_news()
            while self._blocks:
                joined = min(len(self._blocks), JOINED_BLOCKS)
                pcm = b"".join(self._blocks.popleft() for _ in range(joined))
                self._note_silence(pcm)
                try:
                    await client.append_audio(pcm)
                except DuplexConnectionError:
                    self.unsent_frames += len(pcm) // SAMPLE_BYTES
                    await trio.lowlevel.checkpoint()
                except DuplexSessionClosedError:
                    return

    def _note_silence(self, pcm: bytes) -> None:
        if not self._sounded:
            self._sounded = bool(pcm.strip(b"\0"))
            self.silent_frames += 0 if self._sounded else len(pcm) // SAMPLE_BYTES
