"""The language model's weights in the form the step wants, from tensors under their published names."""

from __future__ import annotations

from typing import Protocol

import attrs
import torch

from duplex_gpu.personaplex.config import CODES, LMConfig


class Take(Protocol):
    """Hands out a tensor by its published name in the wanted type; with `rows` only its first rows."""

    def __call__(self, name: str, dtype: torch.dtype | None = None, rows: int | None = None) -> torch.Tensor: ...


@attrs.frozen(eq=False)
class Block:
    """One transformer layer: `qkv` [3d, d], `out` [d, d], `gate` [2f, d] (SiLU half first), `down` [d, f]."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate: torch.Tensor
    down: torch.Tensor
    norm1: torch.Tensor
    norm2: torch.Tensor


@attrs.frozen(eq=False)
class DepWeights:
    """Depformer: `steps[k][layer]` blocks (norms shared by the steps), all input projections as one [8e, d]."""

    into: torch.Tensor
    text_table: torch.Tensor
    code_tables: torch.Tensor
    """[7, audio_vocab + 1, e]: the table of code k feeds step k + 1."""
    steps: tuple[tuple[Block, ...], ...]
    heads: tuple[torch.Tensor, ...]


@attrs.frozen(eq=False)
class LMWeights:
    """Everything one column needs. Norm weights are float32 vectors; all else has the loader's dtype."""

    text_table: torch.Tensor
    audio_table: torch.Tensor
    """[16, audio_vocab + 1, d]: agent codes 0-7, user codes 0-7."""
    blocks: tuple[Block, ...]
    out_norm: torch.Tensor
    text_head: torch.Tensor
    dep: DepWeights


def build_lm_weights(config: LMConfig, take: Take, dtype: torch.dtype) -> LMWeights:
    """Read the 8 depformer steps that matter (a file may hold 16) and everything else."""
    e = config.dep_dim

    def norm(name: str) -> torch.Tensor:
        return take(name, torch.float32).reshape(-1).contiguous()

    def block(at: str) -> Block:
        return Block(
            qkv=take(at + "self_attn.in_proj_weight", dtype),
            out=take(at + "self_attn.out_proj.weight", dtype),
            gate=take(at + "gating.linear_in.weight", dtype),
            down=take(at + "gating.linear_out.weight", dtype),
            norm1=norm(at + "norm1.alpha"),
            norm2=norm(at + "norm2.alpha"),
        )

    blocks = tuple(block(f"transformer.layers.{i}.") for i in range(config.layers))
    steps: list[list[Block]] = [[] for _ in range(CODES)]
    for i in range(config.dep_layers):
        at = f"depformer.layers.{i}."
        qkv = take(at + "self_attn.in_proj_weight", dtype, rows=CODES * 3 * e)
        out = take(at + "self_attn.out_proj.weight", dtype, rows=CODES * e)
        norm1, norm2 = norm(at + "norm1.alpha"), norm(at + "norm2.alpha")
        for k in range(CODES):
            steps[k].append(
                Block(
                    qkv=qkv[k * 3 * e : (k + 1) * 3 * e],
                    out=out[k * e : (k + 1) * e],
                    gate=take(at + f"gating.{k}.linear_in.weight", dtype),
                    down=take(at + f"gating.{k}.linear_out.weight", dtype),
                    norm1=norm1,
                    norm2=norm2,
                )
            )
    return LMWeights(
        text_table=take("text_emb.weight", dtype),
        audio_table=torch.stack([take(f"emb.{k}.weight", dtype) for k in range(2 * CODES)]),
        blocks=blocks,
        out_norm=norm("out_norm.alpha"),
        text_head=take("text_linear.weight", dtype),
        dep=DepWeights(
            into=torch.cat([take(f"depformer_in.{k}.weight", dtype) for k in range(CODES)]),
            text_table=take("depformer_text_emb.weight", dtype),
            code_tables=torch.stack([take(f"depformer_emb.{k}.weight", dtype) for k in range(CODES - 1)]),
            steps=tuple(tuple(step) for step in steps),
            heads=tuple(take(f"linears.{k}.weight", dtype) for k in range(CODES)),
        ),
    )
