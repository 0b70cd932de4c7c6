"""Audio at the session's two borders: client bytes → model samples, model samples → client bytes. Carries state."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import trio

from duplex_protocol.audio_formats import MAX_RATE_HZ, MIN_RATE_HZ, AudioFormat
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import FloatAudio
from trio_duplex.resampling import Resampler
from trio_duplex.samples import decode_samples, decode_wav, encode_samples, float_from_int16

STEP_SAMPLES: Final = 16_384
"""Input samples that are decoded without a checkpoint: a few ms of work at any pair of rates (contract 24, 9)."""


def unwrapped(audio: bytes, fmt: AudioFormat, *, param: str = "audio") -> tuple[bytes, AudioFormat]:
    """A WAV file as the PCM16 that it holds, at the rate that it names; every other format as it came.

    Raises ``bad_audio`` for what is no such file, or has a rate that the wire does not take.
    """
    if fmt.encoding != "wav":
        return audio, fmt
    samples, rate_hz = decode_wav(audio, param=param)
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise RemoteProtocolError("bad_audio", f"a WAV of {rate_hz} Hz is not supported", param=param)
    inner = AudioFormat("pcm16", rate_hz)
    return encode_samples(samples, inner), inner


class InputDecoder:
    """Brings appends to the model's rate; the fractional sample is carried from append to append.

    A change of the input rate within a stream starts a new resampler.
    """

    def __init__(self, model_rate_hz: int) -> None:
        self._model_rate_hz = model_rate_hz
        self._resampler: Resampler | None = None

    async def decode(self, audio: bytes, fmt: AudioFormat, *, param: str = "audio") -> FloatAudio:
        """``audio`` in ``fmt`` (no WAV) → float32[n] at the model's rate. Raises ``bad_audio``; then nothing changed.

        Long audio is decoded in steps with a checkpoint between them, so that no other session waits for it.
        Cancellation: the samples are lost; call :meth:`reset`.
        """
        if self.is_short(audio, fmt):
            return self.decode_short(audio, fmt, param=param)
        step = STEP_SAMPLES * fmt.bytes_per_sample
        if fmt.encoding == "pcm_f32le":  # the one that can be wrong in its middle
            for start in range(0, len(audio), step):
                decode_samples(audio[start : start + step], fmt, param=param)
                await trio.lowlevel.checkpoint()
        blocks: list[FloatAudio] = []
        for start in range(0, len(audio), step):
            blocks.append(self._push(decode_samples(audio[start : start + step], fmt, param=param), fmt))
            await trio.lowlevel.checkpoint()
        return np.concatenate(blocks)

    @staticmethod
    def is_short(audio: bytes, fmt: AudioFormat) -> bool:
        """Whether it can be decoded in one step."""
        return len(audio) <= STEP_SAMPLES * fmt.bytes_per_sample

    def decode_short(self, audio: bytes, fmt: AudioFormat, *, param: str = "audio") -> FloatAudio:
        """As :meth:`decode`, without a checkpoint, for audio that :meth:`is_short`."""
        return self._push(decode_samples(audio, fmt, param=param), fmt)

    def _push(self, samples: FloatAudio, fmt: AudioFormat) -> FloatAudio:
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
