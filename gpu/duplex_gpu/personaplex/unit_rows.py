"""What goes into a unit step for one row, and what comes out of it."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from duplex_gpu.personaplex.config import SamplingConfig
from duplex_gpu.personaplex.prompts import Prompt

Pcm = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class UnitOutput:
    """What one row's step gave.

    `text_id` is the text token of this frame (0 and 3 carry no text) and `text` what it adds to the transcript; `pcm`
    float32 [1920] at 24 kHz, None where there is no audio yet (the very first column of a session without prompts) or
    the row failed; `levels` the same as int16, where the step has converted it; `energy` its RMS. `failure` is None,
    `"not_finite"` (the row's numbers broke: reset the slot) or `"kv_exhausted"` (no memory for its next column or its
    prompt: the row did not run). Failures concern their own row only. `ready` is False while a prompt is still being
    fed: send `FeedPrompt` until it is True.
    """

    text_id: int
    text: str
    pcm: Pcm | None
    energy: float
    failure: str | None = None
    ready: bool = True
    levels: npt.NDArray[np.int16] | None = None

    @property
    def not_finite(self) -> bool:
        return self.failure == "not_finite"


@attrs.frozen(eq=False)
class Start:
    """A row that starts a session in its slot: reset, how to sample, and the prompt to be fed, if any."""

    prompt: Prompt | None = None
    sampling: SamplingConfig | None = None
    seed: int = 0


@attrs.frozen
class FeedPrompt:
    """A row that lets the slot's prompt advance by at most one chunk."""


Payload = Pcm | None | Start | FeedPrompt
"""A row: a frame of PCM, float32 [1920] in -1..1 at 24 kHz (None is silence), or a step of a session's start."""
