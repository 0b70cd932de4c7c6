"""Mimi, streaming and batched: one 80 ms frame per row and call, all state per slot, nothing shared between rows."""

from __future__ import annotations

from typing import Protocol

import torch

from duplex_gpu.personaplex.codec_layout import Half, Window, decoder_half, encoder_half
from duplex_gpu.personaplex.config import CODES, DECODER_STRIDES, ENCODER_STRIDES, FRAME_SAMPLES, MimiConfig
from duplex_gpu.personaplex.mimi_weights import CodecBlock, Conv, MimiWeights, Stage

Tensor = torch.Tensor


class CodecOps(Protocol):
    """The operations the codec is written in; `TorchCodecOps` documents each."""

    def load_state(self, state: Tensor, slots: Tensor, half: Half, arena: Tensor) -> None: ...

    def save_state(self, arena: Tensor, slots: Tensor, half: Half, state: Tensor) -> None: ...

    def place(self, x: Tensor, arena: Tensor, window: Window, replicate_at: Tensor | None = None) -> None: ...

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
    ) -> None: ...

    def norm_product(self, x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor, out: Tensor, gelu: bool) -> None: ...

    def add_scaled_product(self, x: Tensor, weight: Tensor, scale: Tensor, residual: Tensor) -> None: ...

    def pair_rotation(self, positions: Tensor, base: float, turns: Tensor) -> None: ...

    def pair_attention(
        self, qkv: Tensor, rings: Tensor, slots: Tensor, positions: Tensor, turns: Tensor, out: Tensor
    ) -> None: ...

    def quantize(self, latent: Tensor, weights: MimiWeights, codes: Tensor) -> None: ...

    def dequantize(self, codes: Tensor, weights: MimiWeights, latent: Tensor) -> None: ...

    def upsample(self, arena: Tensor, window: Window, weight: Tensor, out: Tensor) -> None: ...


class MimiCodec:
    """Per-slot state for `slots` sessions (one more slot is scratch) and buffers for `rows` rows.

    `encode` leaves codes in `codes` int32 [rows, 8] and the un-quantised latent in `latent`; `decode` leaves float32
    PCM in `pcm` [rows, 1920]. Slots that a call does not name keep their state bit for bit.
    """

    def __init__(self, config: MimiConfig, weights: MimiWeights, ops: CodecOps, rows: int, slots: int) -> None:
        self._config, self._weights, self._ops = config, weights, ops
        device, dtype = weights.quant_in.device, weights.enc_in.weight.dtype
        d = config.dim
        self.encoder, self.decoder = encoder_half(config, device), decoder_half(config, device)

        def buffer(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self.encoder_state = buffer(slots + 1, self.encoder.state)
        self.decoder_state = buffer(slots + 1, self.decoder.state)
        ring = (config.layers, 2, slots + 1, config.heads, config.context, config.head_dim)
        self.encoder_rings, self.decoder_rings = buffer(*ring), buffer(*ring)
        self.codes = buffer(rows, CODES, kind=torch.int32)
        self.latent = buffer(rows, d, kind=torch.float32)
        self._chosen = buffer(rows, d, kind=torch.float32)
        self.pcm = buffer(rows, FRAME_SAMPLES, kind=torch.float32)
        self._arena = buffer(rows, max(self.encoder.width, self.decoder.width))
        self._narrow = buffer(rows, FRAME_SAMPLES * config.filters // 2)
        self._x = buffer(rows, 2 * d, kind=torch.float32)
        self._turns = buffer(rows, 2, 2, config.head_dim // 2, kind=torch.float32)
        self._qkv, self._attended, self._ffn = buffer(rows, 6 * d), buffer(rows, 2 * d), buffer(rows, 2 * config.ffn)

    def reset(self, slot: int) -> None:
        """Forget both halves of a slot. Its positions, which the caller keeps, must start at 0 again."""
        self.reset_encoder(slot)
        self.decoder_state[slot].zero_()

    def reset_encoder(self, slot: int) -> None:
        """Forget the encoder's half of a slot."""
        self.encoder_state[slot].zero_()

    def encode(self, pcm: Tensor, slots: Tensor, positions: Tensor) -> None:
        """One frame: `pcm` float32 [n, 1920], `slots` int32 [n, 1], `positions` int32 [n, 1] = 2 * frames so far."""
        n, ops, weights, half = pcm.shape[0], self._ops, self._weights, self.encoder
        arena, at = self._arena[:n], half.windows
        ops.load_state(self.encoder_state, slots, half, arena)
        ops.place(pcm, arena, at["in"])
        self._convolve(weights.enc_in, arena, at["in"], 1, arena, at["block0"].new)
        last = len(ENCODER_STRIDES) - 1
        for j, stride in enumerate(ENCODER_STRIDES):
            source = at[f"stride{j}"]
            self._residual(weights.enc_stages[j], arena, at[f"block{j}"], source.new)
            target = at["out"] if j == last else at[f"block{j + 1}"]
            self._convolve(weights.enc_stages[j].resample, arena, source, stride, arena, target.new, elu_out=j == last)
        x = self._x[:n]
        self._convolve(weights.enc_out, arena, at["out"], 1, x, 0)
        self._transform(weights.enc_blocks, self.encoder_rings, x, slots, positions)
        ops.place(x, arena, at["down"], replicate_at=positions)
        self._convolve(weights.down, arena, at["down"], 2, self.latent[:n], 0)
        ops.quantize(self.latent[:n], weights, self.codes[:n])
        ops.save_state(arena, slots, half, self.encoder_state)

    def decode(self, codes: Tensor, slots: Tensor, positions: Tensor) -> None:
        """One frame of audio from `codes` int32 [n, 8]; `positions` as in `encode`, for the decoder's own frames."""
        n, ops, weights, half = codes.shape[0], self._ops, self._weights, self.decoder
        arena, at = self._arena[:n], half.windows
        ops.load_state(self.decoder_state, slots, half, arena)
        chosen = self._chosen[:n]
        ops.dequantize(codes, weights, chosen)
        ops.place(chosen, arena, at["up"])
        x = self._x[:n]
        ops.upsample(arena, at["up"], weights.up, x)
        self._transform(weights.dec_blocks, self.decoder_rings, x, slots, positions)
        ops.place(x, arena, at["in"])
        self._convolve(weights.dec_in, arena, at["in"], 1, arena, at["stride0"].new, elu_out=True)
        last = len(DECODER_STRIDES) - 1
        for j in range(len(DECODER_STRIDES)):
            block = at[f"block{j}"]
            source = at[f"stride{j}"]
            ops.window_product(
                arena, source.offset, source.channels, source.length, weights.dec_stages[j].resample, arena, block.new
            )
            target = at["out"] if j == last else at[f"stride{j + 1}"]
            self._residual(weights.dec_stages[j], arena, block, target.new)
        self._convolve(weights.dec_out, arena, at["out"], 1, self.pcm[:n], 0)
        ops.save_state(arena, slots, half, self.decoder_state)

    def _convolve(
        self, conv: Conv, source: Tensor, window: Window, stride: int, out: Tensor, offset: int, elu_out: bool = False
    ) -> None:
        self._ops.window_product(
            source,
            window.offset,
            stride * window.channels,
            window.length // stride,
            conv,
            out,
            offset,
            elu_out=elu_out,
        )

    def _residual(self, stage: Stage, arena: Tensor, window: Window, out_offset: int) -> None:
        """elu(x + widen(elu(narrow(elu(x))))), written where the next convolution reads it."""
        n = arena.shape[0]
        narrow = self._narrow[:n]
        self._ops.window_product(
            arena, window.offset, window.channels, window.length, stage.narrow, narrow, 0, elu_in=True, elu_out=True
        )
        self._ops.window_product(
            narrow,
            0,
            window.channels // 2,
            window.length,
            stage.widen,
            arena,
            out_offset,
            residual=(arena, window.new),
            elu_out=True,
        )

    def _transform(
        self, blocks: tuple[CodecBlock, ...], rings: Tensor, x: Tensor, slots: Tensor, positions: Tensor
    ) -> None:
        """The codec's transformer over the frame's two positions; `x` [n, 2 * dim] float32 is the residual."""
        n, d, ops = x.shape[0], self._config.dim, self._ops
        pairs = x.view(2 * n, d)
        qkv = self._qkv[:n].view(2 * n, 3 * d)
        attended = self._attended[:n].view(2 * n, d)
        ffn = self._ffn[:n].view(2 * n, self._config.ffn)
        turns = self._turns[:n]
        ops.pair_rotation(positions, self._config.rope_base, turns)
        for layer, block in enumerate(blocks):
            ops.norm_product(pairs, block.norm1, block.bias1, block.qkv, qkv, gelu=False)
            ops.pair_attention(qkv, rings[layer], slots, positions, turns, attended)
            ops.add_scaled_product(attended, block.out, block.scale1, pairs)
            ops.norm_product(pairs, block.norm2, block.bias2, block.linear1, ffn, gelu=True)
            ops.add_scaled_product(ffn, block.linear2, block.scale2, pairs)
