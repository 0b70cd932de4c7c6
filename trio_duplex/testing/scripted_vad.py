"""A speech detector that goes by loudness, on Trio's clock: the scorer of session tests."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import trio

from trio_duplex.models.plugin import FloatAudio
from trio_duplex.vad_scorer import VadFailed, VadUnavailable


@attrs.define(eq=False)
class ScriptedVad:
    """A :class:`trio_duplex.vad_scorer.VadScorer`: frames louder than ``rms`` score 1, others 0.

    ``delay_s`` is how long scoring takes, ``load_s`` how long opening does, ``fails`` makes scoring fail,
    ``unavailable`` refuses new sessions.
    """

    rms: float = 0.01
    delay_s: float = 0.0
    load_s: float = 0.0
    fails: bool = False
    unavailable: bool = False
    open_streams: int = 0
    resets: int = 0

    async def run(self) -> None:
        """Nothing to run. Cancellation: ends."""
        await trio.sleep_forever()

    async def open(self) -> ScriptedVadStream:
        """A stream. Raises ``VadUnavailable`` when told to. Cancellation: before it is taken."""
        await trio.sleep(self.load_s)
        if self.unavailable:
            raise VadUnavailable("the script says so")
        self.open_streams += 1
        return ScriptedVadStream(self)


@attrs.define(eq=False)
class ScriptedVadStream:
    """One session's stream."""

    scorer: ScriptedVad
    closed: bool = False

    async def score(self, frames: Sequence[FloatAudio]) -> Sequence[float]:
        """One probability per frame. Cancellation: the frames are lost."""
        await trio.sleep(self.scorer.delay_s)
        if self.scorer.fails:
            raise VadFailed("the script says so")
        return [float(np.sqrt(np.mean(np.square(frame))) >= self.scorer.rms) for frame in frames]

    def reset(self) -> None:
        """Count it."""
        self.scorer.resets += 1

    def close(self) -> None:
        """Give the place back."""
        if not self.closed:
            self.closed = True
            self.scorer.open_streams -= 1
