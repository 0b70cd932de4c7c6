"""Speech from files, and where in it somebody speaks. No clock, no network."""

from __future__ import annotations

import wave
from importlib import resources
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["FIRST", "SECOND", "Recording", "RecordingError", "bundled", "load_recording", "speech_bounds"]

Samples = npt.NDArray[np.int16]

RAW_RATE_HZ: Final = 16_000
MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 192_000
"""What a server of this API takes as an input rate."""

FRAME_MS: Final = 10
ONSET_MS: Final = 50
"""Speech begins with the first loud stretch of at least this length, so that a click does not count."""
BELOW_LOUD: Final = 0.1
"""A frame is loud when its level is within 20 dB of the loud parts (their 95th percentile)."""


class RecordingError(Exception):
    """A file cannot be used as speech; the message is one line that names it."""


@attrs.frozen(eq=False)
class Recording:
    """Mono speech: ``samples`` int16[n] at ``rate_hz``; ``name`` is the file's.

    ``speech_start_ms`` and ``speech_end_ms`` say where in it somebody speaks, by level (see :func:`speech_bounds`);
    they are 0 and the whole length when nothing is loud.
    """

    name: str
    samples: Samples = attrs.field(repr=False)
    rate_hz: int
    speech_start_ms: float
    speech_end_ms: float

    @classmethod
    def of(cls, name: str, samples: Samples, rate_hz: int) -> Recording:
        """A recording whose speech is found by its level."""
        bounds = speech_bounds(samples, rate_hz) or (0.0, len(samples) * 1000 / rate_hz)
        return cls(name, samples, rate_hz, *bounds)

    @property
    def duration_ms(self) -> float:
        """Length in ms."""
        return len(self.samples) * 1000 / self.rate_hz


def speech_bounds(samples: Samples, rate_hz: int) -> tuple[float, float] | None:
    """(start, end) of the speech in int16[n], in ms to 10 ms; None for silence.

    The end is the last 10 ms that are within 20 dB of the loud parts, so it does not depend on any speech detector.
    """
    frame = rate_hz * FRAME_MS // 1000
    count = len(samples) // frame
    if count == 0:
        return None
    squares = np.square(samples[: count * frame].astype(np.float64)).reshape(count, frame)
    level = np.sqrt(squares.mean(axis=1))
    loud = level >= max(float(np.percentile(level, 95)) * BELOW_LOUD, 1.0)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], loud.astype(np.int8), [0]))))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if (end - begin) * FRAME_MS >= ONSET_MS:
            return float(begin * FRAME_MS), float(edges[-1] * FRAME_MS)
    return None


def load_recording(path: Path, *, raw_rate_hz: int | None = None) -> Recording:
    """Read a 16-bit PCM WAV (several channels are mixed), or with ``raw_rate_hz`` headerless little-endian samples.

    Raises :class:`RecordingError` for a file that is missing, empty or of another kind.
    """
    try:
        data = path.read_bytes() if raw_rate_hz is not None else b""
        samples, rate_hz = (_raw(data), raw_rate_hz) if raw_rate_hz is not None else _wav(path)
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from None
    except (wave.Error, EOFError) as error:
        detail = str(error) or "it ends too early"
        raise RecordingError(
            f"{path}: not a 16-bit PCM WAV file ({detail}); for samples without a header give --raw-rate"
        ) from None
    except ValueError as error:
        raise RecordingError(f"{path}: {error}") from None
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise RecordingError(f"{path}: a rate of {rate_hz} Hz is not between {MIN_RATE_HZ} and {MAX_RATE_HZ} Hz")
    if len(samples) == 0:
        raise RecordingError(f"{path}: there is no audio in it")
    return Recording.of(path.name, samples, rate_hz)


def _raw(data: bytes) -> Samples:
    if len(data) % 2:
        raise ValueError("an odd number of bytes cannot be 16-bit samples")
    return np.frombuffer(data, "<i2").astype(np.int16)


def _wav(path: Path) -> tuple[Samples, int]:
    with wave.open(str(path), "rb") as reader:
        if reader.getsampwidth() != 2:
            raise ValueError(f"16-bit samples are needed, these have {8 * reader.getsampwidth()} bits")
        channels, rate_hz = reader.getnchannels(), reader.getframerate()
        samples = np.frombuffer(reader.readframes(reader.getnframes()), "<i2").astype(np.int16)
    if channels > 1:
        whole = samples[: len(samples) // channels * channels].reshape(-1, channels)
        samples = whole.mean(axis=1).round().astype(np.int16)
    return samples, rate_hz


FIRST: Final = "librivox_0890.wav"
"""What the demo asks first."""
SECOND: Final = "goforward.raw"
"""What interrupts the answer."""


def bundled(name: str) -> Recording:
    """A recording that comes with the package (:data:`FIRST`, :data:`SECOND`)."""
    source = resources.files("trio_duplex.showcase") / "data" / name
    with resources.as_file(source) as path:
        return load_recording(path, raw_rate_hz=RAW_RATE_HZ if name.endswith(".raw") else None)
