"""Voice activity detection: the silero v6 network (16 kHz) for all slots in one torch step.

The network as published: a fixed short-time Fourier basis as a convolution, four convolutions with
ReLU, one LSTM cell, one linear unit with sigmoid.  A frame is 512 samples (32 ms); the 64 samples
before it are its left context, and 64 reflected samples follow it.  A frame has only four
Fourier columns, so the convolutions are written as matrix products over gathered columns, which is
quicker than a convolution at this size and the same arithmetic.

The weights are the state dictionary of the JIT file in the silero-vad wheel (MIT); the safetensors
file in that wheel holds others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from duplex_gpu.steps import DeviceMissing
from duplex_gpu.weights import SILERO_VAD_JIT, WeightsCorrupt, WeightsMissing, weight_path

__all__ = ["CONTEXT_SAMPLES", "FRAME_SAMPLES", "SAMPLE_RATE_HZ", "SileroVad", "SileroVadStep", "load_state"]

SAMPLE_RATE_HZ = 16_000
FRAME_SAMPLES = 512
CONTEXT_SAMPLES = 64
WINDOW_SAMPLES = 256
HOP_SAMPLES = 128
HIDDEN = 128

Frame = NDArray[np.float32]


def load_state(path: Path | None = None) -> dict[str, Tensor]:
    """The 16 kHz half of the official state dictionary, without its prefix, in the order of the layers.

    ``path``: a TorchScript file with the same layers instead of the installed one. Raises
    :class:`~duplex_gpu.weights.WeightsMissing` or :class:`~duplex_gpu.weights.WeightsCorrupt`.
    """
    if path is None:
        return _read_state(weight_path(SILERO_VAD_JIT))
    if not path.is_file():
        raise WeightsMissing(f"{path}: no such file")
    try:
        state = _read_state(path)
        SileroVad(state)
    except (RuntimeError, KeyError, ValueError) as error:
        raise WeightsCorrupt(f"{path} is no TorchScript file of the silero network: {_first_line(error)}") from error
    return state


def _read_state(path: Path) -> dict[str, Tensor]:
    official: Mapping[str, Tensor] = torch.jit.load(str(path), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    prefix = "_model."
    return {name.removeprefix(prefix): value.clone() for name, value in official.items() if name.startswith(prefix)}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class ColumnConv(nn.Module):
    """A convolution of width 3, padding 1, over a handful of columns, followed by ReLU.

    ``(batch, columns, channels)`` in and out, as one matrix product.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int) -> None:
        super().__init__()
        channels_out = weight.shape[0]
        # (out, in, 3) -> (out, 3 * in), matching three neighbouring columns laid side by side.
        self.weight = nn.Parameter(weight.permute(0, 2, 1).reshape(channels_out, -1).contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.stride = stride

    def forward(self, columns: Tensor) -> Tensor:
        batch, _, channels = columns.shape
        padded = functional.pad(columns, (0, 0, 1, 1))
        patches = padded.as_strided(
            (batch, (padded.shape[1] - 3) // self.stride + 1, 3 * channels),
            (padded.stride(0), self.stride * channels, 1),
        )
        # A product over overlapping views takes three times as long as copying them and multiplying once.
        return functional.linear(patches.contiguous(), self.weight, self.bias).relu_()


class SileroVad(nn.Module):
    """The network, without state of its own."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        basis = state["stft.forward_basis_buffer"].squeeze(1)
        self.basis = nn.Parameter(basis, requires_grad=False)  # (2 * 129, 256): cosine rows, then sine rows
        self.encoder = nn.Sequential(
            *(
                ColumnConv(
                    state[f"encoder.{layer}.reparam_conv.weight"], state[f"encoder.{layer}.reparam_conv.bias"], stride
                )
                for layer, stride in enumerate((1, 2, 2, 1))
            )
        )
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.cell.load_state_dict(
            {name: state[f"decoder.rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        )
        self.out = nn.Linear(HIDDEN, 1)
        self.out.load_state_dict(
            {"weight": state["decoder.decoder.2.weight"].squeeze(-1), "bias": state["decoder.decoder.2.bias"]}
        )
        self.requires_grad_(False)

    def forward(self, samples: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Context and frame ``(batch, 576)``, ``h`` and ``c`` ``(batch, 128)`` -> probability ``(batch,)``, h, c."""
        padded = functional.pad(samples, (0, CONTEXT_SAMPLES), mode="reflect")
        spectrum = functional.linear(padded.unfold(1, WINDOW_SAMPLES, HOP_SAMPLES).contiguous(), self.basis)
        real, imaginary = spectrum.chunk(2, dim=-1)
        columns = self.encoder((real.square() + imaginary.square()).sqrt())
        h, c = self.cell(columns.squeeze(1), (h, c))
        return self.out(h.relu()).squeeze(-1).sigmoid(), h, c


class SileroVadStep:
    """A :class:`~duplex_gpu.steps.BatchedStep`: one frame in, the probability of speech out.

    A payload is ``float32[512]`` at 16 kHz in [-1, 1]; anything else (NaN included) fails its row.  Per-slot
    state lives in tensors of ``max_rows`` rows on ``device``: 64 samples of context, LSTM ``h`` and ``c``.
    ``weights``: see :func:`load_state`.
    A row's probability does not depend on the other rows beyond the rounding of the matrix products (1e-6).
    """

    def __init__(self, max_rows: int, *, device: str = "cpu", weights: Path | None = None) -> None:
        self._max_rows = max_rows
        self._device = torch.device(device)
        if self._device.type == "cuda" and (self._device.index or 0) >= torch.cuda.device_count():
            raise DeviceMissing(f"device {device!r} is not here: torch sees {torch.cuda.device_count()} CUDA devices")
        with torch.inference_mode():
            self._network = SileroVad(load_state(weights)).to(self._device).eval()
            self._context = torch.zeros(max_rows, CONTEXT_SAMPLES, device=self._device)
            self._h = torch.zeros(max_rows, HIDDEN, device=self._device)
            self._c = torch.zeros(max_rows, HIDDEN, device=self._device)

    @property
    def max_rows(self) -> int:
        """Slots, and the largest batch."""
        return self._max_rows

    def state(self, slot: int) -> tuple[Tensor, Tensor, Tensor]:
        """Copies of one slot's context ``(64,)``, ``h`` ``(128,)`` and ``c`` ``(128,)``."""
        return self._context[slot].clone(), self._h[slot].clone(), self._c[slot].clone()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the network at a few batch sizes; no slot's state is touched."""
        for rows in {1, min(8, self._max_rows), self._max_rows}:
            zeros = torch.zeros(rows, HIDDEN, device=self._device)
            samples = torch.zeros(rows, CONTEXT_SAMPLES + FRAME_SAMPLES, device=self._device)
            self._network(samples, zeros, zeros)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """Silence before the first frame."""
        for state in (self._context, self._h, self._c):
            state[slot].zero_()

    @torch.inference_mode()
    def run(self, rows: Sequence[tuple[int, Frame]]) -> list[float]:
        """Advance the named slots by one frame; probabilities in [0, 1], in the order of ``rows``."""
        frames = np.stack([payload for _, payload in rows])
        if frames.shape != (len(rows), FRAME_SAMPLES) or frames.dtype != np.float32:
            raise ValueError(f"a frame is float32[{FRAME_SAMPLES}], not {frames.dtype}{list(frames.shape[1:])}")
        if not np.isfinite(frames).all():
            raise ValueError("a frame holds a sample that is not finite")
        slots = torch.tensor([slot for slot, _ in rows], device=self._device)
        samples = torch.cat([self._context[slots], torch.from_numpy(frames).to(self._device)], dim=1)
        probability, h, c = self._network(samples, self._h[slots], self._c[slots])
        result: list[float] = probability.tolist()
        # Only now, when nothing can fail any more, do the named slots move on.
        self._context.index_copy_(0, slots, samples[:, -CONTEXT_SAMPLES:])
        self._h.index_copy_(0, slots, h)
        self._c.index_copy_(0, slots, c)
        return result
