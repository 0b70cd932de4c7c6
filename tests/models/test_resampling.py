"""The streaming resampler against scipy's and against theory."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from trio_duplex.resampling import Resampler

FloatAudio = npt.NDArray[np.float32]

PAIRS = [
    (22_050, 24_000),
    (24_000, 16_000),
    (16_000, 24_000),
    (8_000, 16_000),
    (16_000, 8_000),
    (48_000, 16_000),
    (44_100, 16_000),
    (192_000, 8_000),
    (8_000, 192_000),
    (8_001, 192_000),
    (191_999, 8_000),
    (16_000, 16_001),
]


def whole(audio: FloatAudio, input_rate_hz: int, output_rate_hz: int) -> FloatAudio:
    resampler = Resampler(input_rate_hz, output_rate_hz)
    return np.concatenate([resampler.push(audio), resampler.flush()])


def noise(count: int) -> FloatAudio:
    return (0.1 * np.random.default_rng(7).standard_normal(count)).astype(np.float32)


@pytest.mark.parametrize(("input_rate_hz", "output_rate_hz"), PAIRS)
def test_a_tone_stays_the_same_tone(input_rate_hz: int, output_rate_hz: int) -> None:
    seconds = 0.25
    tone_hz = 0.3 * min(input_rate_hz, output_rate_hz)
    time_in = np.arange(int(seconds * input_rate_hz)) / input_rate_hz
    audio = whole(np.sin(2 * np.pi * tone_hz * time_in).astype(np.float32), input_rate_hz, output_rate_hz)
    expected = np.sin(2 * np.pi * tone_hz * np.arange(len(audio)) / output_rate_hz)
    middle = slice(len(audio) // 8, -len(audio) // 8)
    assert np.abs(audio - expected)[middle].max() < 1e-3


@pytest.mark.parametrize(("input_rate_hz", "output_rate_hz"), [(24_000, 16_000), (48_000, 8_000), (191_999, 8_000)])
def test_what_the_lower_rate_cannot_hold_is_removed(input_rate_hz: int, output_rate_hz: int) -> None:
    time_in = np.arange(input_rate_hz // 4) / input_rate_hz
    tone_hz = 0.6 * output_rate_hz
    audio = whole(np.sin(2 * np.pi * tone_hz * time_in).astype(np.float32), input_rate_hz, output_rate_hz)
    middle = slice(len(audio) // 8, -len(audio) // 8)
    assert np.abs(audio[middle]).max() < 1e-3  # -60 dB


@pytest.mark.parametrize(("input_rate_hz", "output_rate_hz"), [(22_050, 24_000), (24_000, 16_000), (8_000, 16_000)])
def test_agrees_with_scipy_inside_the_band(input_rate_hz: int, output_rate_hz: int) -> None:
    common = math.gcd(input_rate_hz, output_rate_hz)
    band_hz = 0.35 * min(input_rate_hz, output_rate_hz)
    low_pass = signal.firwin(401, band_hz, fs=input_rate_hz)
    audio = np.convolve(noise(input_rate_hz // 2), low_pass, "same").astype(np.float32)
    ours = whole(audio, input_rate_hz, output_rate_hz)
    theirs = signal.resample_poly(
        audio.astype(np.float64), output_rate_hz // common, input_rate_hz // common, window=("kaiser", 12.0)
    )
    assert len(ours) == len(theirs)
    middle = slice(500, -500)
    error = np.sqrt(np.mean((ours - theirs)[middle] ** 2)) / np.sqrt(np.mean(theirs[middle] ** 2))
    assert error < 0.02


@given(
    st.sampled_from(PAIRS),
    st.lists(st.integers(0, 900), max_size=8),
)
@settings(derandomize=True, database=None, deadline=None, max_examples=60)
def test_any_cutting_gives_the_same_samples_and_whole_samples(pair: tuple[int, int], cuts: list[int]) -> None:
    audio = noise(sum(cuts))
    resampler = Resampler(*pair)
    pieces, place = [], 0
    for cut in cuts:
        pieces.append(resampler.push(audio[place : place + cut]))
        place += cut
        # All that can be known: an output sample waits for ``latency_s`` of input and no longer.
        given_out = sum(map(len, pieces))
        assert given_out >= (place / pair[0] - resampler.latency_s) * pair[1] - 1
    pieces.append(resampler.flush())
    stream = np.concatenate(pieces)
    assert stream.dtype == np.float32
    assert len(stream) == math.ceil(len(audio) * pair[1] / pair[0])
    np.testing.assert_allclose(stream, whole(audio, *pair), atol=1e-6)


def test_equal_rates_pass_through() -> None:
    audio = noise(1000)
    assert np.array_equal(whole(audio, 16_000, 16_000), audio)
    assert Resampler(16_000, 16_000).latency_s == 0.0


def test_flush_starts_a_new_stream() -> None:
    resampler = Resampler(22_050, 24_000)
    first = np.concatenate([resampler.push(noise(3000)), resampler.flush()])
    second = np.concatenate([resampler.push(noise(3000)), resampler.flush()])
    assert np.array_equal(first, second)
    assert len(Resampler(22_050, 24_000).flush()) == 0


def test_latency_is_small() -> None:
    assert Resampler(22_050, 24_000).latency_s < 0.002
    assert all(Resampler(*pair).latency_s <= 0.0031 for pair in PAIRS)


def test_memory_does_not_grow_with_the_stream() -> None:
    resampler = Resampler(24_000, 16_000)
    for _ in range(200):
        resampler.push(noise(2400))
    assert len(resampler._buffer) < 1000


def test_rates_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Resampler(0, 16_000)
