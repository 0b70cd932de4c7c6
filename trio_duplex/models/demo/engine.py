"""What the demo model's sessions need of its networks, as seen from Trio.

The real thing is :class:`trio_duplex.models.demo.threads.ThreadEngine`; tests put a virtual one in its place, which
lives on Trio's clock.  Everything here is called, and calls back, on the Trio thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trio_duplex.models.plugin import ModelHealth

__all__ = ["Clip", "Ear", "Engine", "EngineFailed", "EngineGone", "Heard", "Reading", "Urgency"]

FloatAudio = npt.NDArray[np.float32]

Urgency = Literal["now", "maybe", "later"]
"""Somebody waits for it; an answer that may not be wanted; a later clause of an answer that is being spoken."""


class EngineFailed(Exception):
    """One piece of work failed; the engine goes on."""


class EngineGone(Exception):
    """The engine is dead or stuck: nothing will come from it any more."""


@attrs.frozen
class Heard:
    """The detector's word on one frame: a probability of speech in [0, 1], or what went wrong instead.

    ``lateness_s``: how long after its deadline the frame was judged (negative: before); None where none was set.
    """

    probability: float = 0.0
    failure: EngineFailed | EngineGone | None = None
    lateness_s: float | None = None


@attrs.frozen(eq=False)
class Clip:
    """A piece of a text as sound: ``audio`` int16[n] at the engine's voice rate.

    ``marks`` are (characters of the text said, ms of its sound played), of the words that end in this piece; both
    count from the beginning of the text and ascend, and the last mark of the last piece is the end of both.
    """

    audio: npt.NDArray[np.int16] = attrs.field(repr=False)
    marks: tuple[tuple[int, float], ...] = ()


class Reading(Protocol):
    """A text being turned into sound, piece by piece."""

    async def next(self, urgency: Urgency) -> Clip | None:
        """The next piece, None after the last.  Raises ``EngineFailed`` or ``EngineGone``.

        Cancellation: the work is dropped or abandoned at once, and with it this reading.
        """
        ...


class Ear(Protocol):
    """One session's slot in the detector."""

    def submit(self, frame: FloatAudio) -> None:
        """Hand in float32[512] at 16 kHz; one ``heard`` call follows per frame, in order.  Raises ``EngineGone``."""
        ...

    def close(self) -> None:
        """Give the slot back; ``heard`` is never called again.  Idempotent."""
        ...


class Engine(Protocol):
    """Detector, recogniser and voice."""

    @property
    def voice_rate_hz(self) -> int:
        """Sample rate of clips; known once :meth:`run` has started."""
        ...

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Load, warm up, report started, then serve until cancelled.  Cancellation: ends within a bounded time."""
        ...

    def open_ear(self, heard: Callable[[Heard], None]) -> Ear:
        """Take a slot.  Raises :class:`trio_duplex.models.plugin.OpenRefused` when none is free."""
        ...

    async def transcribe(self, audio: FloatAudio, urgency: Urgency) -> str:
        """The words in float32[n] at 16 kHz ("" for none).  Raises ``EngineFailed`` or ``EngineGone``.

        Cancellation: the work is dropped or abandoned at once.
        """
        ...

    def read(self, text: str) -> Reading:
        """Begin to turn ``text`` into sound; no work is done before the first piece is asked for."""
        ...

    def health(self) -> ModelHealth:
        """Readiness, and statistics as JSON values."""
        ...
