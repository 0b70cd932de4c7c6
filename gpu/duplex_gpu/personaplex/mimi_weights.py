"""The codec's weights, turned time-major: each convolution is one product over a window of adjacent numbers."""

from __future__ import annotations

import attrs
import torch

from duplex_gpu.personaplex.config import CODES, DECODER_STRIDES, ENCODER_STRIDES, MimiConfig
from duplex_gpu.personaplex.lm_weights import Take

_LEAST_USAGE = 1e-5


@attrs.frozen(eq=False)
class Conv:
    """`weight` [outputs, kernel * inputs] over a time-major window, `bias` float32 [channels] (repeats over phases).

    A transposed convolution of stride r has r * channels outputs, phase-major, over a window of two inputs.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None


@attrs.frozen(eq=False)
class CodecBlock:
    """One codec transformer layer; norms and scales are float32 vectors."""

    qkv: torch.Tensor
    out: torch.Tensor
    linear1: torch.Tensor
    linear2: torch.Tensor
    norm1: torch.Tensor
    bias1: torch.Tensor
    norm2: torch.Tensor
    bias2: torch.Tensor
    scale1: torch.Tensor
    scale2: torch.Tensor


@attrs.frozen(eq=False)
class Stage:
    """A resampling stage: the residual block's two convolutions and the strided (or transposed) one."""

    narrow: Conv
    widen: Conv
    resample: Conv


@attrs.frozen(eq=False)
class MimiWeights:
    """Both halves of the codec and the first 8 codebooks (float32)."""

    enc_in: Conv
    enc_stages: tuple[Stage, ...]
    enc_out: Conv
    enc_blocks: tuple[CodecBlock, ...]
    down: Conv
    quant_in: torch.Tensor
    """[2 * code_dim, dim] float32: semantic projection, then acoustic."""
    books: torch.Tensor
    """[8, bins, code_dim] float32 centroids."""
    book_bias: torch.Tensor
    """[8, bins]: minus half the squared norm of each centroid, so that the nearest has the largest score."""
    quant_out: torch.Tensor
    """[dim, 2 * code_dim]."""
    up: torch.Tensor
    """[dim, 4] float32, depthwise."""
    dec_blocks: tuple[CodecBlock, ...]
    dec_in: Conv
    dec_stages: tuple[Stage, ...]
    dec_out: Conv


def build_mimi_weights(config: MimiConfig, take: Take, dtype: torch.dtype) -> MimiWeights:
    """Read and reorder; `dtype` is the storage type of products (quantizer, norms and biases stay float32)."""

    def conv(name: str, bias: bool = True) -> Conv:
        weight = take(name + ".weight", torch.float32)
        flat = weight.permute(0, 2, 1).reshape(weight.shape[0], -1)
        return Conv(flat.to(dtype).contiguous(), take(name + ".bias", torch.float32) if bias else None)

    def transposed(name: str) -> Conv:
        weight = take(name + ".weight", torch.float32)
        stride = weight.shape[2] // 2
        current, previous = weight[:, :, :stride], weight[:, :, stride:]
        flat = torch.cat([previous.permute(2, 1, 0), current.permute(2, 1, 0)], -1)
        flat = flat.reshape(stride * weight.shape[1], -1)
        return Conv(flat.to(dtype).contiguous(), take(name + ".bias", torch.float32))

    def block(at: str) -> CodecBlock:
        def vector(name: str) -> torch.Tensor:
            return take(at + name, torch.float32).contiguous()

        return CodecBlock(
            qkv=take(at + "self_attn.in_proj_weight", dtype),
            out=take(at + "self_attn.out_proj.weight", dtype),
            linear1=take(at + "linear1.weight", dtype),
            linear2=take(at + "linear2.weight", dtype),
            norm1=vector("norm1.weight"),
            bias1=vector("norm1.bias"),
            norm2=vector("norm2.weight"),
            bias2=vector("norm2.bias"),
            scale1=vector("layer_scale_1.scale"),
            scale2=vector("layer_scale_2.scale"),
        )

    def blocks(side: str) -> tuple[CodecBlock, ...]:
        return tuple(block(f"{side}_transformer.transformer.layers.{i}.") for i in range(config.layers))

    def book(group: str, i: int) -> torch.Tensor:
        at = f"quantizer.rvq_{group}.vq.layers.{i}._codebook."
        usage = take(at + "cluster_usage", torch.float32).clamp(min=_LEAST_USAGE)
        return take(at + "embedding_sum", torch.float32) / usage[:, None]

    def projection(group: str, name: str) -> torch.Tensor:
        return take(f"quantizer.rvq_{group}.{name}.weight", torch.float32)[..., 0]

    books = torch.stack([book("first", 0), *(book("rest", i) for i in range(CODES - 1))]).contiguous()
    enc_stages = tuple(
        Stage(
            narrow=conv(f"encoder.model.{3 * j + 1}.block.1.conv.conv"),
            widen=conv(f"encoder.model.{3 * j + 1}.block.3.conv.conv"),
            resample=conv(f"encoder.model.{3 * j + 3}.conv.conv"),
        )
        for j in range(len(ENCODER_STRIDES))
    )
    dec_stages = tuple(
        Stage(
            narrow=conv(f"decoder.model.{3 * j + 3}.block.1.conv.conv"),
            widen=conv(f"decoder.model.{3 * j + 3}.block.3.conv.conv"),
            resample=transposed(f"decoder.model.{3 * j + 2}.convtr.convtr"),
        )
        for j in range(len(DECODER_STRIDES))
    )
    return MimiWeights(
        enc_in=conv("encoder.model.0.conv.conv"),
        enc_stages=enc_stages,
        enc_out=conv("encoder.model.14.conv.conv"),
        enc_blocks=blocks("encoder"),
        down=conv("downsample.conv.conv.conv", bias=False),
        quant_in=torch.cat([projection("first", "input_proj"), projection("rest", "input_proj")]).contiguous(),
        books=books,
        book_bias=(-0.5 * (books * books).sum(-1)).contiguous(),
        quant_out=torch.cat([projection("first", "output_proj"), projection("rest", "output_proj")], 1)
        .to(dtype)
        .contiguous(),
        up=take("upsample.convtr.convtr.convtr.weight", torch.float32)[:, 0].contiguous(),
        dec_blocks=blocks("decoder"),
        dec_in=conv("decoder.model.0.conv.conv"),
        dec_stages=dec_stages,
        dec_out=conv("decoder.model.14.conv.conv"),
    )
