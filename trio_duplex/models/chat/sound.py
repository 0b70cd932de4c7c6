"""Encoded audio and its metadata → mono samples at the unit's rate (seed, "Turn-based Chat audio metadata").  Pure."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from duplex_protocol.audio_formats import MAX_RATE_HZ, MIN_RATE_HZ
from trio_duplex.models.chat.chunks import Audio
from trio_duplex.resampling import Resampler
from trio_duplex.samples import float_from_int16

__all__ = ["AudioMetadata", "SoundError", "SoundReader"]

FloatAudio = npt.NDArray[np.float32]

SAMPLE_BYTES: Final = 2
SLICE_SAMPLES: Final = 16_384
"""Samples that are resampled in one piece: a few ms of work at any pair of rates."""
MAX_CHANNELS: Final = 8
FORMATS: Final = {"pcm": "pcm", "pcm16": "pcm", "wav": "wav"}


class SoundError(Exception):
    """Audio that cannot be trusted: no metadata, wrong metadata, or a sample rate that changes within an answer."""


@attrs.frozen
class AudioMetadata:
    """``audio_metadata`` of a choice. ``frame_count`` is samples per channel in this chunk, not bytes."""

    format: str
    sample_rate_hz: int
    frame_count: int
    channels: int

    @classmethod
    def read(cls, value: Any) -> AudioMetadata:
        """Check the four fields. Raises :class:`SoundError`."""
        if not isinstance(value, dict):
            raise SoundError("audio came without audio_metadata")
        word = value.get("format")
        fmt = FORMATS.get(word.lower()) if isinstance(word, str) else None
        if fmt is None:
            raise SoundError("audio_metadata.format is neither pcm nor wav")
        return cls(
            fmt,
            _whole(value, "sample_rate_hz", MIN_RATE_HZ, MAX_RATE_HZ),
            _whole(value, "frame_count", 1, 1 << 40),
            _whole(value, "channels", 1, MAX_CHANNELS),
        )


def _whole(value: dict[str, Any], key: str, low: int, high: int) -> int:
    number = value.get(key)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise SoundError(f"audio_metadata.{key} is not a whole number of {low} to {high}")
    return number


class SoundReader:
    """The audio of one answer: :meth:`push` its chunks in order, :meth:`flush` at the end.

    Audio without metadata is raw mono PCM16 at ``bare_rate_hz`` (or a WAV, if it begins like one); a sample that is cut
    between two raw chunks is put together.
    """

    def __init__(self, output_rate_hz: int, *, bare_rate_hz: int) -> None:
        self._output_rate_hz = output_rate_hz
        self._bare_rate_hz = bare_rate_hz
        self._resampler: Resampler | None = None
        self._half_sample = b""

    def push(self, chunk: Audio) -> Iterator[FloatAudio]:
        """float32[n] at the output rate that are certain now, slice by slice: each is a few ms of work when asked for.

        All slices have to be taken before the next chunk. Raises :class:`SoundError` and then took nothing.
        """
        half_sample = self._half_sample
        if chunk.required or chunk.metadata is not None:
            told = AudioMetadata.read(chunk.metadata)
            sound = _decode(chunk.data, told)
        elif chunk.data.startswith(b"RIFF"):
            sound = _decode_wav(chunk.data)
        else:
            raw = half_sample + chunk.data
            whole = len(raw) - len(raw) % SAMPLE_BYTES
            sound = _Pcm(raw[:whole], 1, self._bare_rate_hz)
            half_sample = raw[whole:]
        if self._resampler is None:
            self._resampler = Resampler(sound.rate_hz, self._output_rate_hz)
        elif sound.rate_hz != self._resampler.input_rate_hz:
            raise SoundError("the sample rate changed within the answer")
        self._half_sample = half_sample
        return map(self._resampler.push, sound.slices())

    def flush(self) -> FloatAudio:
        """The rest at the output rate."""
        return self._resampler.flush() if self._resampler else np.zeros(0, np.float32)


@attrs.frozen
class _Pcm:
    """PCM16 of whole frames."""

    data: bytes = attrs.field(repr=False)
    channels: int
    rate_hz: int

    @property
    def frames(self) -> int:
        """Samples per channel."""
        return len(self.data) // (SAMPLE_BYTES * self.channels)

    def slices(self) -> Iterator[FloatAudio]:
        """float32[at most ``SLICE_SAMPLES``], made as they are asked for; several channels become their mean."""
        step = SLICE_SAMPLES * SAMPLE_BYTES * self.channels
        for start in range(0, len(self.data), step):
            samples = float_from_int16(np.frombuffer(self.data[start : start + step], "<i2"))
            yield (
                samples
                if self.channels == 1
                else np.asarray(samples.reshape(-1, self.channels).mean(axis=1), np.float32)
            )


def _decode(data: bytes, told: AudioMetadata) -> _Pcm:
    if told.format == "wav":
        sound = _decode_wav(data, channels=told.channels)
        if sound.rate_hz != told.sample_rate_hz:
            raise SoundError("audio_metadata.sample_rate_hz is not the WAV's")
    else:
        if len(data) != told.frame_count * told.channels * SAMPLE_BYTES:
            raise SoundError("audio_metadata.frame_count does not fit the audio")
        sound = _Pcm(data, told.channels, told.sample_rate_hz)
    if sound.frames != told.frame_count:
        raise SoundError("audio_metadata.frame_count does not fit the audio")
    return sound


def _decode_wav(data: bytes, *, channels: int | None = None) -> _Pcm:
    """16-bit PCM only, which is what the encoders write when they are asked for WAV."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            rate_hz, width, lanes = file.getframerate(), file.getsampwidth(), file.getnchannels()
            payload = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        raise SoundError("the audio is not a readable WAV") from None
    if width != SAMPLE_BYTES or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or not 1 <= lanes <= MAX_CHANNELS:
        raise SoundError("a WAV must have 16-bit samples at a usual rate")
    if channels is not None and lanes != channels:
        raise SoundError("audio_metadata.channels is not the WAV's")
    return _Pcm(payload[: len(payload) - len(payload) % (SAMPLE_BYTES * lanes)], lanes, rate_hz)
