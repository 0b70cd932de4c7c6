"""Whether an append holds speech when no detector says so (contract 9.2). Pure."""

from __future__ import annotations

import math
from typing import Final

from duplex_protocol.commands import AppendHints
from trio_duplex.models.plugin import FloatAudio

SPEECH_PROBABILITY: Final = 0.5


def holds_speech(hints: AppendHints, samples: FloatAudio, silence_rms: float) -> bool:
    """The client's verdict, its probability, else the loudness: RMS of ``samples`` at or above the threshold."""
    if hints.is_speech is not None:
        return hints.is_speech
    if hints.speech_probability is not None:
        return hints.speech_probability >= SPEECH_PROBABILITY
    if len(samples) == 0:
        return False
    threshold = silence_rms if hints.silence_rms is None else hints.silence_rms
    return math.sqrt(float(samples @ samples) / len(samples)) >= threshold
