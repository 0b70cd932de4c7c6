"""The temporal transformer: one column per row and step, keys and values in paged rings, live columns only."""

from __future__ import annotations

import torch

from duplex_gpu.personaplex.config import STREAMS, LMConfig
from duplex_gpu.personaplex.lm_weights import LMWeights
from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.ops import LMOps
from duplex_gpu.runtime.rows import Rows


class Temporal:
    """Static buffers and the step. After `step`, `hidden` [rows, dim] and `text_logits` [rows, text vocabulary] hold
    the results; `columns` int32 [rows, 17] is what it reads."""

    def __init__(self, config: LMConfig, weights: LMWeights, kv: PagedKV, ops: LMOps, rows: int) -> None:
        self._config, self._weights, self._kv, self._ops = config, weights, kv, ops
        dtype, device = weights.text_head.dtype, weights.text_head.device

        def buffer(width: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(rows, width, dtype=kind, device=device)

        self.columns = torch.zeros(rows, STREAMS, dtype=torch.int32, device=device)
        self.hidden = buffer(config.dim)
        self.text_logits = buffer(config.text_vocab, torch.float32)
        self._x = buffer(config.dim, torch.float32)
        self._q, self._attended = buffer(config.dim), buffer(config.dim)
        self._gated = buffer(config.ffn)
        self._cos = buffer(config.head_dim // 2, torch.float32)
        self._sin = buffer(config.head_dim // 2, torch.float32)

    def step(self, rows: Rows) -> None:
        """Run one column for each row from `columns`; the row's KV pages must cover its column."""
        n, weights = rows.count, self._weights
        x = self._x[:n]
        self._ops.embed_columns(self.columns[:n], weights.text_table, weights.audio_table, x)
        self.run(rows, x)
        self._ops.product(self.hidden[:n], weights.text_head, self.text_logits[:n])

    def run(self, rows: Rows, x: torch.Tensor) -> None:
        """All layers from input embeddings `x` [n, dim] float32 (overwritten) to `hidden`.

        Rows may be columns of one session that follow each other: every layer stores all keys and values before it
        attends, and a row sees the cells up to its own column, so that is a causal prefill.
        """
        n, config, weights, ops, kv = rows.count, self._config, self._weights, self._ops, self._kv
        q, attended, gated = (b[:n] for b in (self._q, self._attended, self._gated))
        turns = (self._cos[:n], self._sin[:n])
        ops.rotation(rows, config.rope_base, *turns)
        for layer, block in enumerate(weights.blocks):
            ops.norm_qkv_store(x, block.norm1, config.norm_eps, block.qkv, turns, rows, kv, layer, q)
            ops.live_attention(q, rows, kv, layer, attended)
            ops.add_product(attended, block.out, x)
            ops.norm_gated(x, block.norm2, config.norm_eps, block.gate, gated)
            ops.add_product(gated, block.down, x)
        ops.rms_norm(x, weights.out_norm, config.norm_eps, self.hidden[:n])
