"""Changing the sample rate of a stream: a polyphase filter that carries its state from block to block.

Output sample ``k`` lies at input position ``k * M / L`` (``L / M`` is the ratio of the rates in lowest terms).  Its
value is a sum over the input samples around it, weighted by a Kaiser-windowed sinc whose band edge is that of the
lower rate.  The weights depend on the fraction of that position only, of which there are ``L``: a bank of filters.
Where the bank would be large (rates with hardly a common factor), it is kept for :data:`COARSE_PHASES` fractions, and
two neighbouring filters are interpolated.

Cutting a stream into blocks in another way changes no output sample (beyond the rounding of float32 sums).
"""

from __future__ import annotations

import functools
import math
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["Resampler"]

FloatAudio = npt.NDArray[np.float32]

ZERO_CROSSINGS: Final = 24
"""Of the sinc, on either side, in samples of the lower rate: 1.5 ms of look-ahead when that is 16 kHz."""
BAND_EDGE: Final = 0.92
"""The middle of the filter's slope, as a part of the lower rate's half."""
KAISER_BETA: Final = 8.0
MAX_BANK: Final = 1 << 18
"""Weights kept for one pair of rates, at most (1 MiB)."""
COARSE_PHASES: Final = 256
MAX_PRODUCTS: Final = 1 << 18
"""Size of the temporary arrays of one slice of work."""
FEW_PHASES: Final = 8
"""With so few filters each one is applied to its own evenly spaced windows, which needs no gathering."""


@attrs.frozen(eq=False)
class _Bank:
    """The filters of one pair of rates: ``weights`` float32[phases (+ 1 if coarse), 2 * half]."""

    up: int
    down: int
    half: int
    coarse: bool
    weights: FloatAudio = attrs.field(repr=False)


@functools.lru_cache(maxsize=16)
def _bank(input_rate_hz: int, output_rate_hz: int) -> _Bank:
    common = math.gcd(input_rate_hz, output_rate_hz)
    up, down = output_rate_hz // common, input_rate_hz // common
    narrowing = min(1.0, up / down)
    half = math.ceil(ZERO_CROSSINGS / narrowing)
    coarse = up * 2 * half > MAX_BANK
    phases = COARSE_PHASES if coarse else up
    fractions = np.arange(phases + coarse) / phases
    # Distance of input sample j of a window from the output position, in samples of the lower rate.
    distance = (np.arange(1 - half, half + 1)[None, :] - fractions[:, None]) * narrowing
    inside = np.clip(1.0 - (distance / ZERO_CROSSINGS) ** 2, 0.0, None)
    window = np.where(inside > 0.0, np.i0(KAISER_BETA * np.sqrt(inside)) / np.i0(KAISER_BETA), 0.0)
    weights = BAND_EDGE * np.sinc(BAND_EDGE * distance) * window * narrowing
    return _Bank(up, down, half, coarse, np.ascontiguousarray(weights, np.float32))


class Resampler:
    """One stream: :meth:`push` blocks of float32 samples, :meth:`flush` at its end (and the next stream may begin).

    ``n`` input samples give ``ceil(n * output_rate_hz / input_rate_hz)`` in all; an output sample appears as soon as
    the ``latency_s`` of input that follows it is there.  Rates are whole Hz (8 000 to 192 000 on the wire).
    """

    def __init__(self, input_rate_hz: int, output_rate_hz: int) -> None:
        if input_rate_hz < 1 or output_rate_hz < 1:
            raise ValueError("rates must be positive")
        self.input_rate_hz = input_rate_hz
        self.output_rate_hz = output_rate_hz
        self._bank = None if input_rate_hz == output_rate_hz else _bank(input_rate_hz, output_rate_hz)
        self._pushed = 0
        self._produced = 0
        # Input samples from position ``_first`` on; a stream begins with silence before it.
        self._first = 0
        self._buffer: FloatAudio = np.zeros(0, np.float32)
        self._start_over()

    @property
    def latency_s(self) -> float:
        """How much later input an output sample needs."""
        return self._bank.half / self.input_rate_hz if self._bank else 0.0

    def push(self, audio: FloatAudio) -> FloatAudio:
        """Input float32[n] → the output samples that are now certain, float32[m]."""
        if self._bank is None:
            return audio
        self._pushed += len(audio)
        self._buffer = np.concatenate([self._buffer, audio.astype(np.float32, copy=False)])
        # Output k needs input up to floor(k * down / up) + half.
        certain = max(0, -(-(self._pushed - self._bank.half) * self._bank.up // self._bank.down))
        return self._produce(self._bank, certain)

    def flush(self) -> FloatAudio:
        """The rest of the stream, with silence after its end; then starts over."""
        if self._bank is None:
            return np.zeros(0, np.float32)
        total = -(-self._pushed * self._bank.up // self._bank.down)
        self._buffer = np.concatenate([self._buffer, np.zeros(self._bank.half, np.float32)])
        rest = self._produce(self._bank, total)
        self._start_over()
        return rest

    def _start_over(self) -> None:
        half = self._bank.half if self._bank else 0
        self._pushed = self._produced = 0
        self._first = 1 - half
        self._buffer = np.zeros(max(half - 1, 0), np.float32)

    def _produce(self, bank: _Bank, until: int) -> FloatAudio:
        slice_length = max(1, MAX_PRODUCTS // (2 * bank.half))
        blocks = [
            self._block(bank, begin, min(begin + slice_length, until))
            for begin in range(self._produced, until, slice_length)
        ]
        self._produced = max(self._produced, until)
        oldest = self._produced * bank.down // bank.up - bank.half + 1
        if oldest > self._first:
            self._buffer = self._buffer[oldest - self._first :].copy()
            self._first = oldest
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    def _block(self, bank: _Bank, begin: int, end: int) -> FloatAudio:
        """Output samples ``begin`` to ``end``."""
        windows = np.lib.stride_tricks.sliding_window_view(self._buffer, 2 * bank.half)
        position = np.arange(begin, end, dtype=np.int64) * bank.down
        window, phase = position // bank.up - bank.half + 1 - self._first, position % bank.up
        if not bank.coarse and bank.up <= FEW_PHASES:
            output = np.empty(end - begin, np.float32)
            for lane in range(min(bank.up, end - begin)):
                lanes = windows[window[lane] :: bank.down][: len(range(lane, end - begin, bank.up))]
                output[lane :: bank.up] = lanes @ bank.weights[phase[lane]]
            return output
        if not bank.coarse:
            return np.asarray(np.einsum("ij,ij->i", windows[window], bank.weights[phase]), np.float32)
        place = phase * (COARSE_PHASES / bank.up)
        lower = place.astype(np.int64)
        share = (place - lower).astype(np.float32)
        rows = windows[window]
        low = np.einsum("ij,ij->i", rows, bank.weights[lower])
        high = np.einsum("ij,ij->i", rows, bank.weights[lower + 1])
        return np.asarray(low + share * (high - low), np.float32)
