"""The depformer: text and then eight agent codes of the next column, one serial step each, within the frame."""

from __future__ import annotations

import torch

from duplex_gpu.personaplex.config import CODES, TOKENS, LMConfig
from duplex_gpu.personaplex.lm_weights import LMWeights
from duplex_gpu.runtime.ops import LMOps
from duplex_gpu.runtime.rows import Rows


class Depformer:
    """Static buffers and the frame. `tokens` int32 [rows, 9] receives text and codes; `logits` [8, rows, vocabulary]
    keeps each step's float32 logits."""

    def __init__(self, config: LMConfig, weights: LMWeights, ops: LMOps, rows: int) -> None:
        self._config, self._weights, self._ops = config, weights, ops
        dtype, device = weights.text_head.dtype, weights.text_head.device
        e = config.dep_dim

        def buffer(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self.tokens = buffer(rows, TOKENS, kind=torch.int32)
        self.logits = buffer(CODES, rows, config.audio_vocab, kind=torch.float32)
        self._into = buffer(rows, CODES * e, kind=torch.float32)
        self._x = buffer(rows, e, kind=torch.float32)
        self._qkv = buffer(config.dep_layers, CODES, rows, 3 * e)
        self._gated = buffer(rows, config.dep_ffn)

    def frame(self, rows: Rows, hidden: torch.Tensor, text_logits: torch.Tensor, forced: torch.Tensor) -> None:
        """Choose all nine tokens from the temporal output; `forced` int32 [n, 9] holds -1 where a token is free."""
        n, config, ops, dep = rows.count, self._config, self._ops, self._weights.dep
        e = config.dep_dim
        tokens, into, x = self.tokens[:n], self._into[:n], self._x[:n]
        gated = self._gated[:n]
        ops.product(hidden, dep.into, into)
        ops.choose_and_start(rows, text_logits, 0, forced, tokens, dep.text_table, into[:, :e], x)
        for step in range(CODES):
            for layer, block in enumerate(dep.steps[step]):
                qkv = self._qkv[layer][:, :n]
                ops.norm_product(x, block.norm1, config.norm_eps, block.qkv, qkv[step])
                ops.step_attention_add(qkv, step, config.dep_heads, block.out, x)
                ops.norm_gated(x, block.norm2, config.norm_eps, block.gate, gated)
                ops.add_product(gated, block.down, x)
            logits = self.logits[step, :n]
            ops.product(x, dep.heads[step], logits)
            if step + 1 == CODES:
                ops.choose(rows, logits, step + 1, forced, tokens)
            else:
                start = into[:, (step + 1) * e : (step + 2) * e]
                ops.choose_and_start(rows, logits, step + 1, forced, tokens, dep.code_tables[step], start, x)
