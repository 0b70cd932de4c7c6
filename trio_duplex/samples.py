"""Sample formats: bytes of the wire ↔ mono float32 in [-1, 1] (contract 2.2). Rates are :mod:`trio_duplex.resampling`.

Integers scale by 32768, so PCM16 → float32 → PCM16 gives the same bytes; G.711 goes through 16-bit samples.
"""

from __future__ import annotations

import functools
import io
import math
import wave
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_protocol.audio_formats import AudioFormat, check_whole_samples
from duplex_protocol.errors import RemoteProtocolError

__all__ = ["decode_samples", "decode_wav", "encode_samples", "float_from_int16", "int16_from_float"]

FloatAudio = npt.NDArray[np.float32]
IntAudio = npt.NDArray[np.int16]

FULL_SCALE: Final = 32768.0
_STEP: Final = np.float32(1.0 / FULL_SCALE)
_MOST, _MOST_NEGATIVE = np.float32(1.0), np.float32(-1.0)
_INTEGERS, _FLOATS, _INT16 = np.dtype("<i2"), np.dtype("<f4"), np.dtype(np.int16)


def decode_samples(audio: bytes, fmt: AudioFormat, *, param: str = "audio") -> FloatAudio:
    """Bytes in ``fmt`` → float32[n] in [-1, 1] at ``fmt.rate_hz``; floats beyond full scale are clipped.

    Raises :class:`RemoteProtocolError` ``bad_audio`` with ``param`` for a partial sample or a float that is no number.
    WAV files carry their own rate: :func:`decode_wav`.
    """
    check_whole_samples(audio, fmt, param=param)
    match fmt.encoding:
        case "pcm16":
            return float_from_int16(np.frombuffer(audio, _INTEGERS))
        case "pcm_f32le":
            samples = np.frombuffer(audio, _FLOATS)
            # A sum of squares that is finite has finite terms: one pass for what nearly always is so.
            with np.errstate(over="ignore", invalid="ignore"):  # which only mean that the second pass is needed
                square = samples.dot(samples)
            if not math.isfinite(square) and not np.isfinite(samples).all():
                raise RemoteProtocolError("bad_audio", "a sample is not a finite number", param=param)
            return np.minimum(np.maximum(samples, _MOST_NEGATIVE), _MOST)
        case "g711_ulaw":
            return float_from_int16(_ulaw_levels()[np.frombuffer(audio, np.uint8)])
        case "g711_alaw":
            return float_from_int16(_alaw_levels()[np.frombuffer(audio, np.uint8)])
        case "wav":
            return decode_wav(audio, param=param)[0]


def decode_wav(audio: bytes, *, param: str = "audio") -> tuple[FloatAudio, int]:
    """A mono 16-bit WAV file → float32[n] and its rate in Hz.  Raises ``bad_audio`` for anything else."""
    try:
        with wave.open(io.BytesIO(audio)) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, 2):
                raise RemoteProtocolError("bad_audio", "a WAV must be mono with 16-bit samples", param=param)
            payload = file.readframes(file.getnframes())
            return float_from_int16(np.frombuffer(payload[: len(payload) & ~1], "<i2")), file.getframerate()
    except (wave.Error, EOFError) as error:
        raise RemoteProtocolError("bad_audio", f"not a readable WAV file: {error}", param=param) from error


def encode_samples(audio: FloatAudio | IntAudio, fmt: AudioFormat) -> bytes:
    """Samples (int16, or float32 in [-1, 1], clipped) at ``fmt.rate_hz`` → bytes in ``fmt``, whole samples always.

    WAV is PCM16 with a header.
    """
    match fmt.encoding:
        case "pcm_f32le":
            floats = np.clip(audio, -1.0, 1.0) if audio.dtype == np.float32 else float_from_int16(_int16(audio))
            return floats.astype("<f4").tobytes()
        case "pcm16":
            return _int16(audio).astype(_INTEGERS, copy=False).tobytes()
        case "g711_ulaw":
            return _ulaw_codes()[_int16(audio).view(np.uint16)].tobytes()
        case "g711_alaw":
            return _alaw_codes()[_int16(audio).view(np.uint16)].tobytes()
        case "wav":
            target = io.BytesIO()
            with wave.open(target, "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(fmt.rate_hz)
                file.writeframes(_int16(audio).astype("<i2", copy=False).tobytes())
            return target.getvalue()


def float_from_int16(audio: npt.NDArray[np.integer]) -> FloatAudio:
    """int16[n] → float32[n] in [-1, 1)."""
    samples = audio.astype(np.float32)
    samples *= _STEP
    return samples


def int16_from_float(audio: npt.NDArray[np.floating]) -> IntAudio:
    """float[n] → int16[n], rounded to the nearest level and clipped."""
    levels = audio * FULL_SCALE
    np.rint(levels, out=levels)
    np.minimum(levels, 32767, out=levels)
    np.maximum(levels, -32768, out=levels)
    return levels.astype(np.int16)


def _int16(audio: FloatAudio | IntAudio) -> IntAudio:
    if audio.dtype == _INT16:
        return np.ascontiguousarray(audio)
    return int16_from_float(audio.astype(np.float32, copy=False))


# --- G.711 (ITU-T): eight segments of sixteen levels per sign; tables, because a table look-up is one numpy call -----


@functools.cache
def _ulaw_levels() -> npt.NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    segment, step = code >> 4 & 7, code & 15
    level = (((step << 3) + 0x84) << segment) - 0x84
    return np.asarray(np.where(code & 0x80, -level, level), np.int16)


@functools.cache
def _alaw_levels() -> npt.NDArray[np.int16]:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    segment, step = code >> 4 & 7, code & 15
    level = np.where(segment == 0, (step << 4) + 8, ((step << 4) + 0x108) << np.maximum(segment - 1, 0))
    return np.asarray(np.where(code & 0x80, level, -level), np.int16)


def _all_int16() -> npt.NDArray[np.int32]:
    """Every 16-bit sample, in the order of its bits read as an unsigned number."""
    return np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)


@functools.cache
def _ulaw_codes() -> npt.NDArray[np.uint8]:
    # The law works on 14 bits; the bias of 33 makes every segment start at a power of two.
    sample = _all_int16() >> 2
    magnitude = np.minimum(np.abs(sample), 8158) + 33
    segment = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    code = segment << 4 | magnitude >> segment + 1 & 15
    return np.asarray(np.where(sample < 0, code ^ 0x7F, code ^ 0xFF), np.uint8)


@functools.cache
def _alaw_codes() -> npt.NDArray[np.uint8]:
    # 13 bits, the negative half mirrored by complement.
    sample = _all_int16() >> 3
    magnitude = np.where(sample < 0, ~sample, sample)
    segment = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    code = segment << 4 | magnitude >> np.maximum(segment, 1) & 15
    return np.asarray(np.where(sample < 0, code ^ 0x55, code ^ 0xD5), np.uint8)
