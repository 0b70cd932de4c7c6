"""What a session asks of a speech detector: frames in, probabilities out, asynchronously. Holds no detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trio_duplex.models.plugin import FloatAudio


class VadFailed(Exception):
    """The scorer failed on these frames; the stream is usable again after ``reset``."""


class VadUnavailable(Exception):
    """There is no scorer, or it cannot be loaded, or it has no room."""


class VadStream(Protocol):
    """One session's place in a scorer."""

    async def score(self, frames: Sequence[FloatAudio]) -> Sequence[float]:
        """Frames float32[512] at 16 kHz, in order → one probability of speech each. Raises :class:`VadFailed`.

        Cancellation: the frames are lost; the stream is usable again after :meth:`reset`.
        """
        ...

    def reset(self) -> None:
        """Silence before the next frame. Never blocks."""
        ...

    def close(self) -> None:
        """Give the place back; idempotent, never blocks."""
        ...


class VadScorer(Protocol):
    """The hub's scorer."""

    async def run(self) -> None:
        """Serve until cancelled; loads nothing before the first :meth:`open`. Cancellation: ends, bounded."""
        ...

    async def open(self) -> VadStream:
        """A place for one session. Raises :class:`VadUnavailable`. Cancellation: no place is taken."""
        ...
