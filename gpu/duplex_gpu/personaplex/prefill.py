"""Many known columns of one session in one pass: prompts are read at once instead of frame by frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from duplex_gpu.personaplex.config import LMConfig
from duplex_gpu.personaplex.lm_weights import LMWeights
from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.torch_ops import TorchOps, gather_cells, rotate, rotation_of, to_cache


def embed(weights: LMWeights, columns: torch.Tensor) -> torch.Tensor:
    """Input embeddings [count, dim] float32 of token columns int [count, 17]."""
    out = torch.empty(columns.shape[0], weights.text_table.shape[1], device=columns.device)
    TorchOps().embed_columns(columns, weights.text_table, weights.audio_table, out)
    return out


def prefill(
    config: LMConfig, weights: LMWeights, kv: PagedKV, slot: int, x: torch.Tensor, first: int
) -> torch.Tensor:
    """Run columns `first`, `first + 1`, … of a slot from their input embeddings `x` [count, dim].

    Writes their keys and values into the slot's pages, which must cover them, and attends causally to all columns
    before. Returns the final hidden states [count, dim]. The columns must fit the context without wrapping.
    """
    count, stop = x.shape[0], first + x.shape[0]
    if stop > config.context:
        raise ValueError(f"columns up to {stop} do not fit a context of {config.context}")
    device, dtype = weights.text_head.device, weights.text_head.dtype
    ops = TorchOps()
    heads, dim = config.heads, config.head_dim
    cells = torch.arange(first, stop, device=device)
    pages = torch.tensor(kv.table(slot)[: kv.pages_for(stop)], device=device)
    page, offset = pages[cells // kv.page_columns], cells % kv.page_columns
    cos, sin = rotation_of(cells, dim // 2, config.rope_base)
    cos, sin = cos[:, None], sin[:, None]
    allowed = torch.arange(stop, device=device)[None] <= cells[:, None]
    x = x.to(device, torch.float32).clone()
    normed = torch.empty(count, config.dim, device=device, dtype=dtype)
    gated = torch.empty(count, config.ffn, device=device, dtype=dtype)
    for layer, block in enumerate(weights.blocks):
        ops.rms_norm(x, block.norm1, config.norm_eps, normed)
        q, k, v = F.linear(normed, block.qkv).view(count, 3, heads, dim).unbind(1)
        kv.k[layer][page, :, offset] = to_cache(rotate(k, cos, sin), kv.k.dtype)
        kv.v[layer][page, :, offset] = to_cache(v, kv.v.dtype)
        keys = gather_cells(kv.k[layer], pages, stop, dtype)
        values = gather_cells(kv.v[layer], pages, stop, dtype)
        query = rotate(q, cos, sin).transpose(0, 1)
        found = F.scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=allowed)[0]
        ops.add_product(found.transpose(0, 1).reshape(count, config.dim), block.out, x)
        ops.norm_gated(x, block.norm2, config.norm_eps, block.gate, gated)
        ops.add_product(gated, block.down, x)
    hidden = torch.empty_like(normed)
    ops.rms_norm(x, weights.out_norm, config.norm_eps, hidden)
    return hidden
