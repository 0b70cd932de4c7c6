"""Wire bytes ↔ samples (contract 2.2; cases A1, A6)."""

from __future__ import annotations

import io
import warnings
import wave

import numpy as np
import pytest

from duplex_protocol.audio_formats import AudioFormat, Encoding
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.samples import decode_samples, decode_wav, encode_samples, float_from_int16, int16_from_float

PCM16 = AudioFormat("pcm16", 16_000)
F32 = AudioFormat("pcm_f32le", 16_000)
ULAW = AudioFormat("g711_ulaw", 8_000)
ALAW = AudioFormat("g711_alaw", 8_000)
EVERY_LEVEL = np.arange(-32768, 32768).astype(np.int16)


def test_pcm16_round_trip_is_exact_for_every_level() -> None:
    audio = decode_samples(EVERY_LEVEL.astype("<i2").tobytes(), PCM16)
    assert audio.dtype == np.float32
    assert audio.min() == -1.0
    assert audio.max() < 1.0
    assert encode_samples(audio, PCM16) == EVERY_LEVEL.astype("<i2").tobytes()


def test_floats_are_rounded_and_clipped() -> None:
    audio = np.array([-2.0, 0.4 / 32768, 0.6 / 32768, 1.0, 2.0], np.float32)
    assert int16_from_float(audio).tolist() == [-32768, 0, 1, 32767, 32767]
    assert float_from_int16(np.array([-32768, 16384], np.int16)).tolist() == [-1.0, 0.5]


def test_float_input_is_clipped_and_must_be_finite() -> None:
    data = np.array([0.25, -3.0, 3.0], "<f4").tobytes()
    assert decode_samples(data, F32).tolist() == [0.25, -1.0, 1.0]
    for bad in (np.nan, np.inf):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_samples(np.array([0.0, bad], "<f4").tobytes(), F32, param="item.content.audio")
        assert (caught.value.code, caught.value.param) == ("bad_audio", "item.content.audio")


@pytest.mark.parametrize(("fmt", "data"), [(PCM16, b"\0" * 4801), (F32, b"\0" * 6)])
def test_partial_samples_are_refused(fmt: AudioFormat, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_samples(data, fmt)
    assert caught.value.code == "bad_audio"


# Levels of ITU-T G.711 (tables 1a, 2a), as 16-bit samples.
@pytest.mark.parametrize(
    ("fmt", "code", "level"),
    [
        (ULAW, 0xFF, 0),
        (ULAW, 0x7F, 0),
        (ULAW, 0x80, 32124),
        (ULAW, 0x00, -32124),
        (ULAW, 0xFE, 8),
        (ULAW, 0xEF, 132),
        (ALAW, 0xD5, 8),
        (ALAW, 0x55, -8),
        (ALAW, 0xAA, 32256),
        (ALAW, 0x2A, -32256),
    ],
)
def test_g711_levels(fmt: AudioFormat, code: int, level: int) -> None:
    assert int16_from_float(decode_samples(bytes([code]), fmt)).tolist() == [level]


@pytest.mark.parametrize("fmt", [ULAW, ALAW])
def test_g711_codes_survive_and_every_sample_finds_a_near_level(fmt: AudioFormat) -> None:
    codes = bytes(range(256))
    levels = decode_samples(codes, fmt)
    again = decode_samples(encode_samples(levels, fmt), fmt)
    assert np.array_equal(again, levels)
    coded = int16_from_float(decode_samples(encode_samples(EVERY_LEVEL, fmt), fmt)).astype(int)
    # Half a step of the segment is the most that may be lost; beyond the last level the signal clips.
    inside = np.abs(EVERY_LEVEL.astype(int)) <= 32256
    error = np.abs(coded - EVERY_LEVEL)[inside]
    assert (error <= np.maximum(16, np.abs(EVERY_LEVEL.astype(int))[inside] // 16)).all()
    assert np.array_equal(np.sort(np.unique(coded)), np.unique(int16_from_float(levels).astype(int)))
    assert (np.diff(coded) >= 0).all()


def test_wav_round_trip_and_refusals() -> None:
    data = encode_samples(EVERY_LEVEL, AudioFormat("wav", 22_050))
    audio, rate_hz = decode_wav(data)
    assert rate_hz == 22_050
    assert np.array_equal(int16_from_float(audio), EVERY_LEVEL)
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\0" * 8)
    for bad in (target.getvalue(), b"", b"RIFF", data[:30], b"\1" * 100):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_wav(bad)
        assert caught.value.code == "bad_audio"


@pytest.mark.parametrize("encoding", ["pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw"])
def test_int16_and_float_samples_encode_alike(encoding: Encoding) -> None:
    fmt = AudioFormat(encoding, 16_000)
    assert encode_samples(EVERY_LEVEL, fmt) == encode_samples(float_from_int16(EVERY_LEVEL), fmt)
    assert len(encode_samples(EVERY_LEVEL[:7], fmt)) == 7 * fmt.bytes_per_sample


def test_floats_far_beyond_full_scale_are_clipped_without_a_warning() -> None:
    """Their squares overflow; a warning of numpy's would be the client's to print, or to raise with ``-W error``."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = decode_samples(np.array([3e38, -1e30, 0.5], "<f4").tobytes(), F32)
        assert samples.tolist() == [1.0, -1.0, 0.5]
        for bits in (0x7F800001, 0x7FC00000, 0x7F800000, 0xFF800000):  # signalling and quiet NaN, both infinities
            with pytest.raises(RemoteProtocolError):
                decode_samples(np.array([0, bits], "<u4").tobytes(), F32)
