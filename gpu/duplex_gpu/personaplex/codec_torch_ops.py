"""The codec's operations in plain torch: the reference, and the path on CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from duplex_gpu.personaplex.codec_layout import Half, Window
from duplex_gpu.personaplex.config import CODES
from duplex_gpu.personaplex.mimi_weights import Conv, MimiWeights
from duplex_gpu.runtime.torch_ops import rotate, rotation_of

_LAYER_NORM_EPS = 1e-5


class TorchCodecOps:
    """Rows are the first axis everywhere; `slots` and `positions` are int32 [n, 1]."""

    def load_state(self, state: torch.Tensor, slots: torch.Tensor, half: Half, arena: torch.Tensor) -> None:
        """Copy each row's saved contexts from its slot to their places in the arena."""
        arena[:, half.load_to.long()] = state[slots[:, 0].long()]

    def save_state(self, arena: torch.Tensor, slots: torch.Tensor, half: Half, state: torch.Tensor) -> None:
        """Keep the newest steps of every window as the slot's contexts for the next frame."""
        state[slots[:, 0].long()] = arena[:, half.save_from.long()]

    def place(
        self, x: torch.Tensor, arena: torch.Tensor, window: Window, replicate_at: torch.Tensor | None = None
    ) -> None:
        """Put `x` [n, length * channels] into a window's new steps. Where `replicate_at` [n, 1] is 0 (first frame),
        the context before it is its first step, repeated."""
        arena[:, window.new : window.new + x.shape[1]] = x.to(arena.dtype)
        if replicate_at is not None:
            first = x[:, : window.channels].repeat(1, window.context).to(arena.dtype)
            context = arena[:, window.offset : window.new]
            context.copy_(torch.where(replicate_at == 0, first, context))

    def window_product(
        self,
        source: torch.Tensor,
        offset: int,
        step: int,
        count: int,
        conv: Conv,
        out: torch.Tensor,
        out_offset: int,
        *,
        residual: tuple[torch.Tensor, int] | None = None,
        elu_in: bool = False,
        elu_out: bool = False,
    ) -> None:
        """A convolution as `count` products per row: output t reads the kernel's numbers from `offset + t * step`.

        `residual` (buffer, offset) is added before the output's ELU; the bias repeats over a transposed one's phases.
        """
        outputs, kernel = conv.weight.shape
        span = source[:, offset : offset + (count - 1) * step + kernel]
        if elu_in:
            span = F.elu(span)
        y = span.unfold(1, kernel, step) @ conv.weight.t()
        if conv.bias is not None:
            y = y + conv.bias.repeat(outputs // conv.bias.numel()).to(y.dtype)
        flat = y.reshape(y.shape[0], count * outputs)
        if residual is not None:
            flat = flat + residual[0][:, residual[1] : residual[1] + count * outputs]
        if elu_out:
            flat = F.elu(flat)
        out[:, out_offset : out_offset + count * outputs] = flat.to(out.dtype)

    def norm_product(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        bias: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        gelu: bool,
    ) -> None:
        """LayerNorm (float32), product, and exact GELU if wanted."""
        normed = F.layer_norm(x.float(), (x.shape[1],), gain, bias, _LAYER_NORM_EPS).to(weight.dtype)
        y = F.linear(normed, weight)
        out.copy_(F.gelu(y) if gelu else y)

    def add_scaled_product(
        self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor
    ) -> None:
        """`residual` (float32) += scale * (x weight^T): a branch under its LayerScale."""
        residual.add_(scale * F.linear(x, weight).float())

    def pair_rotation(self, positions: torch.Tensor, base: float, turns: torch.Tensor) -> None:
        """`turns` float32 [n, 2, 2, half]: for each row's two positions cos, then sin."""
        at = (positions.long() + torch.arange(2, device=turns.device)).reshape(-1)
        cos, sin = rotation_of(at, turns.shape[3], base)
        turns.copy_(torch.stack([cos, sin], 1).view(turns.shape))

    def pair_attention(
        self,
        qkv: torch.Tensor,
        rings: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        turns: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Attention of a frame's two positions over the slot's ring and themselves; writes the ring.

        `qkv` [2n, 3d] (row's first position, then its second), `rings` [2, slots, heads, context, head_dim]. Both new
        positions are in the ring before either attends, so once it is full the first of them sees one old key less.
        """
        n = slots.shape[0]
        _, _, heads, context, dim = rings.shape
        slot = slots[:, 0].long()
        at = positions.long() + torch.arange(2, device=qkv.device)
        cell = at % context
        query, key, value = qkv.view(n, 2, 3, heads, dim).permute(2, 0, 1, 3, 4)
        turn = (turns[:, :, 0, None], turns[:, :, 1, None])
        rings[0][slot[:, None], :, cell] = rotate(key, *turn).to(rings.dtype)
        rings[1][slot[:, None], :, cell] = value.to(rings.dtype)
        cells = torch.arange(context, device=qkv.device)
        live = cells <= at[:, 1:]
        first = live & (cells != cell[:, 1:])
        mask = torch.stack([first, live], 1)[:, None]
        keys = rings[0][slot].masked_fill(~live[:, None, :, None], 0.0)
        values = rings[1][slot].masked_fill(~live[:, None, :, None], 0.0)
        rotated = rotate(query, *turn).transpose(1, 2)
        found = F.scaled_dot_product_attention(rotated, keys, values, attn_mask=mask)
        out.copy_(found.transpose(1, 2).reshape(out.shape))

    def quantize(self, latent: torch.Tensor, weights: MimiWeights, codes: torch.Tensor) -> None:
        """Nearest codes of the float32 latent: the semantic one, and seven of the residual chain beside it."""
        semantic, rest = F.linear(latent, weights.quant_in).chunk(2, -1)
        for k in range(CODES):
            target = semantic if k == 0 else rest
            code = torch.addmm(weights.book_bias[k], target, weights.books[k].t()).argmax(-1)
            codes[:, k] = code.to(codes.dtype)
            if k > 0:
                rest = rest - weights.books[k][code]

    def dequantize(self, codes: torch.Tensor, weights: MimiWeights, latent: torch.Tensor) -> None:
        """The latent of eight codes (ids outside the books, as in a start column, are clamped)."""
        ids = codes.long().clamp(0, weights.books.shape[1] - 1)
        semantic = weights.books[0][ids[:, 0]]
        rest = weights.books[1][ids[:, 1]]
        for k in range(2, CODES):
            rest = rest + weights.books[k][ids[:, k]]
        both = torch.cat([semantic, rest], -1).to(weights.quant_out.dtype)
        latent.copy_(F.linear(both, weights.quant_out))

    def upsample(self, arena: torch.Tensor, window: Window, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Depthwise transposed convolution, kernel 4 and stride 2: `out` [n, 2 * channels] float32."""
        before = arena[:, window.offset : window.new].float()
        now = arena[:, window.new : window.new + window.channels].float()
        out.copy_(torch.cat([weight[:, i] * now + weight[:, i + 2] * before for i in range(2)], -1))
