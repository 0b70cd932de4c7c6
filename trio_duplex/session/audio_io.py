"""Audio at the session's two borders: client bytes → model samples, model samples → client bytes. Carries state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duplex_protocol.audio_formats import AudioFormat
from trio_duplex.models.plugin import FloatAudio
from trio_duplex.resampling import Resampler
from trio_duplex.samples import decode_samples, encode_samples, float_from_int16


class InputDecoder:
    """Brings appends to the model's rate; the fractional sample is carried from append to append.

    A change of the input rate within a stream starts a new resampler.
    """

    def __init__(self, model_rate_hz: int) -> None:
        self._model_rate_hz = model_rate_hz
        self._resampler: Resampler | None = None

    def decode(self, audio: bytes, fmt: AudioFormat) -> FloatAudio:
        """``audio`` in ``fmt`` → float32[n] at the model's rate. Raises ``bad_audio`` and then nothing changed."""
        samples = decode_samples(audio, fmt)
        if fmt.rate_hz == self._model_rate_hz:
            return samples
        if self._resampler is None or self._resampler.input_rate_hz != fmt.rate_hz:
            self._resampler = Resampler(fmt.rate_hz, self._model_rate_hz)
        return self._resampler.push(samples)

    def flush(self) -> FloatAudio:
        """What the resampler still holds: the end of a stream that is complete."""
        held = np.zeros(0, np.float32) if self._resampler is None else self._resampler.flush()
        self._resampler = None
        return held

    def reset(self) -> None:
        """Forget the carried samples (input was cleared)."""
        self._resampler = None


class OutputEncoder:
    """Brings the model's int16 samples to one response's output format; whole samples always."""

    def __init__(self, model_rate_hz: int) -> None:
        self._model_rate_hz = model_rate_hz
        self._format = AudioFormat("pcm16", model_rate_hz)
        self._resampler: Resampler | None = None

    def begin(self, fmt: AudioFormat) -> None:
        """Start a response in ``fmt``; nothing of the last one is carried over."""
        self._format = fmt
        self._resampler = None if fmt.rate_hz == self._model_rate_hz else Resampler(self._model_rate_hz, fmt.rate_hz)

    def encode(self, audio: npt.NDArray[np.int16], *, last: bool) -> tuple[bytes, int]:
        """int16[n] at the model's rate → (bytes in the response's format, number of output samples).

        ``last`` also gives out what the resampler still holds, so that no tail is lost.
        """
        if self._resampler is None:
            return encode_samples(audio, self._format), len(audio)
        samples = self._resampler.push(float_from_int16(audio))
        if last:
            samples = np.concatenate([samples, self._resampler.flush()])
        return encode_samples(samples, self._format), len(samples)
