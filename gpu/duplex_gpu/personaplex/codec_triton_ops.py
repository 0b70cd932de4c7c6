"""The codec's operations as Triton kernels on CUDA, mirrors of `TorchCodecOps`."""

from __future__ import annotations

import math

import torch
import triton

from duplex_gpu.personaplex import codec_kernels as kernels
from duplex_gpu.personaplex.codec_layout import Half, Window
from duplex_gpu.personaplex.config import CODES
from duplex_gpu.personaplex.mimi_weights import Conv, MimiWeights
from duplex_gpu.runtime.kernels import chain

Tensor = torch.Tensor

_BLOCK = 2048
_LAYER_NORM_EPS = 1e-5
_LOWEST = -9223372036854775807


class TritonCodecOps:
    """Kernels for at most `rows` rows; scratch buffers are made once and live outside every graph."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._scratch: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self._best = torch.full((CODES, rows), _LOWEST, dtype=torch.int64, device=device)

    def load_state(self, state: Tensor, slots: Tensor, half: Half, arena: Tensor) -> None:
        kernels.load_state_kernel[(triton.cdiv(half.state, _BLOCK), arena.shape[0])](
            state, slots, half.load_to, arena, slots.stride(0), half.state, arena.stride(0), _BLOCK, chain.EARLY,
            **chain.launch(8),
        )  # fmt: skip

    def save_state(self, arena: Tensor, slots: Tensor, half: Half, state: Tensor) -> None:
        kernels.save_state_kernel[(triton.cdiv(half.state, _BLOCK), arena.shape[0])](
            arena, slots, half.save_from, state, slots.stride(0), half.state, arena.stride(0), _BLOCK, chain.EARLY,
            **chain.launch(8),
        )  # fmt: skip

    def place(self, x: Tensor, arena: Tensor, window: Window, replicate_at: Tensor | None = None) -> None:
        positions = x if replicate_at is None else replicate_at
        count = window.length * window.channels
        kernels.place_kernel[(arena.shape[0],)](
            x, arena, positions, x.stride(0), positions.stride(0), arena.stride(0), window.offset, count,
            window.channels, window.context, replicate_at is not None, triton.next_power_of_2(count), chain.EARLY,
            **chain.launch(4),
        )  # fmt: skip

    def window_product(
        self,
        source: Tensor,
        offset: int,
        step: int,
        count: int,
        conv: Conv,
        out: Tensor,
        out_offset: int,
        *,
        residual: tuple[Tensor, int] | None = None,
        elu_in: bool = False,
        elu_out: bool = False,
    ) -> None:
        outputs, kernel = conv.weight.shape
        total = source.shape[0] * count
        tile_m, tile_n, tile_k, stages, warps, splits = window_tile(total, outputs, kernel, conv.weight.element_size())
        bias = conv.weight if conv.bias is None else conv.bias
        beside, beside_offset = (out, 0) if residual is None else residual
        parts = out
        if splits > 1:
            lines = self._rows * count * outputs * splits // self._rows
            parts = self._buffer("parts", lines, torch.float32)
        kernels.window_kernel[(triton.cdiv(total, tile_m), triton.cdiv(outputs, tile_n), splits)](
            source, conv.weight, bias, beside, out, parts, total, count, source.stride(0), offset, step,
            out.stride(0), out_offset, beside.stride(0), beside_offset, outputs, kernel, bias.numel(),
            conv.bias is not None, elu_in, elu_out, residual is not None, tile_m, tile_n, tile_k, splits, stages,
            _precision(conv.weight), chain.EARLY, **chain.launch(warps),
        )  # fmt: skip
        if splits > 1:
            block = math.gcd(outputs, 512)
            kernels.finish_kernel[(total, outputs // block)](
                parts, bias, beside, out, total, count, out.stride(0), out_offset, beside.stride(0), beside_offset,
                outputs, bias.numel(), conv.bias is not None, elu_out, residual is not None, block, splits,
                chain.EARLY, **chain.launch(4),
            )  # fmt: skip

    def norm_product(self, x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor, out: Tensor, gelu: bool) -> None:
        self._linear(x, weight, out, gain=gain, shift=bias, gelu=gelu)

    def add_scaled_product(self, x: Tensor, weight: Tensor, scale: Tensor, residual: Tensor) -> None:
        self._linear(x, weight, residual, scale=scale)

    def pair_rotation(self, positions: Tensor, base: float, turns: Tensor) -> None:
        kernels.pair_rotation_kernel[(turns.shape[0],)](
            positions, turns, positions.stride(0), turns.shape[3], math.log(base), chain.EARLY, **chain.launch(1)
        )

    def pair_attention(
        self, qkv: Tensor, rings: Tensor, slots: Tensor, positions: Tensor, turns: Tensor, out: Tensor
    ) -> None:
        _, _, heads, context, dim = rings.shape
        kernels.pair_attention_kernel[(heads, slots.shape[0])](
            qkv, rings[0], rings[1], slots, positions, turns, out, slots.stride(0), heads, dim, context,
            32 if context >= 64 else 8, 3, dim**-0.5, chain.EARLY, **chain.launch(4),
        )  # fmt: skip

    def quantize(self, latent: Tensor, weights: MimiWeights, codes: Tensor) -> None:
        count = latent.shape[0]
        bins, dim = weights.books.shape[1:]
        targets = self._buffer("targets", 2 * dim, torch.float32)[:count]
        self._linear(latent, weights.quant_in, targets)
        tile = 32
        precision = "ieee" if chain.INTERPRETED else "tf32x3"
        for level in (0, *range(2, CODES)):
            kernels.nearest_kernel[(bins // tile, triton.cdiv(count, 16), 2 if level == 0 else 1)](
                targets, weights.books, weights.book_bias, self._best, count, level, self._rows, CODES, dim,
                min(dim, 64), bins, 16, tile, precision, chain.EARLY, **chain.launch(4),
            )  # fmt: skip
        kernels.codes_kernel[(count,)](
            self._best, codes, self._rows, CODES, bins, chain.EARLY, **chain.launch(1)
        )  # fmt: skip

    def dequantize(self, codes: Tensor, weights: MimiWeights, latent: Tensor) -> None:
        count = codes.shape[0]
        bins, dim = weights.books.shape[1:]
        both = self._buffer("centroids", 2 * dim, weights.quant_out.dtype)[:count]
        kernels.centroids_kernel[(count,)](
            codes, weights.books, both, CODES, dim, bins, chain.EARLY, **chain.launch(2)
        )  # fmt: skip
        self._linear(both, weights.quant_out, latent)

    def upsample(self, arena: Tensor, window: Window, weight: Tensor, out: Tensor) -> None:
        kernels.upsample_kernel[(arena.shape[0],)](
            arena, weight, out, arena.stride(0), window.offset, window.channels,
            triton.next_power_of_2(window.channels), chain.EARLY, **chain.launch(4),
        )  # fmt: skip

    def _linear(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        *,
        gain: Tensor | None = None,
        shift: Tensor | None = None,
        scale: Tensor | None = None,
        gelu: bool = False,
    ) -> None:
        total, inner = x.shape
        outputs = weight.shape[0]
        normed = gain is not None and shift is not None
        wide = weight.element_size() == 4
        tile_m = 16 if total <= 16 else 32 if total <= 64 or normed else 64
        tile_n = 16 if total <= 64 or outputs % 32 else 32
        tile_k = math.gcd(inner, 64 if wide else 128)
        kernels.linear_kernel[(triton.cdiv(total, tile_m), outputs // tile_n)](
            x, weight, weight if gain is None else gain, weight if shift is None else shift,
            weight if scale is None else scale, out, total, outputs, inner, _LAYER_NORM_EPS, normed, gelu,
            scale is not None, tile_m, tile_n, tile_k, 3, _precision(weight), chain.EARLY, **chain.launch(4),
        )  # fmt: skip

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        key = (name, width, dtype)
        found = self._scratch.get(key)
        if found is None:
            found = self._scratch[key] = torch.zeros(self._rows, width, dtype=dtype, device=self._device)
        return found


def window_tile(total: int, outputs: int, kernel: int, element_bytes: int) -> tuple[int, int, int, int, int, int]:
    """(lines, outputs, inner step, stages, warps, splits) for a convolution of `total` lines.

    Deep, narrow convolutions of few lines are split over their windows, so that the whole chip takes part.
    """
    wide = element_bytes == 4
    if outputs < 16:
        step = 16 if kernel < 32 else next(size for size in (64, 32, 16) if kernel % size == 0 or size == 16)
        return 128, 16, min(step, 32) if wide else step, 2, 4, 1

    def step_of(most: int) -> int:
        most = most // 2 if wide else most
        return next((size for size in (256, 128, 64, 32, 16) if size <= most and kernel % size == 0), 16)

    warps, stages = 4, 3
    narrow = 64 if outputs % 64 == 0 else 32 if outputs % 32 == 0 else 16
    if total <= 16:
        tile_m, tile_n, step = 16, 16 if outputs < 4096 else 32, step_of(256)
    elif total <= 128:
        tile_m, tile_n, step = 32 if total <= 32 else 64, min(narrow, 32), step_of(128)
    elif total <= 2048:
        tile_m, tile_n, step = 64, narrow, step_of(128)
    elif outputs % 128 == 0:
        tile_m, tile_n, step, warps = 128, 128, step_of(64), 8
    else:
        tile_m, tile_n, step = 128, narrow, step_of(64)
    tiles = triton.cdiv(total, tile_m) * triton.cdiv(outputs, tile_n)
    splits = 1
    while (
        kernel >= 1024
        and tiles * splits < 96
        and splits < 8
        and (kernel // (2 * splits)) % step == 0
        and kernel // (2 * splits) >= 256
        and outputs >= 128
    ):
        splits *= 2
    return tile_m, tile_n, step, stages, warps, splits


def _precision(weight: Tensor) -> str:
    """Full float32 products where the weights are float32; 16-bit products have no choice."""
    return "ieee" if weight.dtype == torch.float32 else "tf32"
