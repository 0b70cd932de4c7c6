"""The operations a language-model step is written in; `TorchOps` documents each, `TritonOps` runs them as kernels."""

from __future__ import annotations

from typing import Protocol

import torch

from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.rows import Rows

Tensor = torch.Tensor


class LMOps(Protocol):
    """See `TorchOps` for shapes, types and meaning."""

    def embed_columns(self, columns: Tensor, text_table: Tensor, code_tables: Tensor, out: Tensor) -> None: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None: ...

    def product(self, x: Tensor, weight: Tensor, out: Tensor) -> None: ...

    def add_product(self, x: Tensor, weight: Tensor, residual: Tensor) -> None: ...

    def norm_product(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, out: Tensor) -> None: ...

    def norm_gated(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, out: Tensor) -> None: ...

    def rotation(self, rows: Rows, base: float, cos: Tensor, sin: Tensor) -> None: ...

    def norm_qkv_store(
        self,
        x: Tensor,
        norm: Tensor,
        eps: float,
        weight: Tensor,
        turns: tuple[Tensor, Tensor],
        rows: Rows,
        kv: PagedKV,
        layer: int,
        q: Tensor,
    ) -> None: ...

    def live_attention(self, q: Tensor, rows: Rows, kv: PagedKV, layer: int, out: Tensor) -> None: ...

    def step_attention_add(self, qkv: Tensor, step: int, heads: int, weight: Tensor, residual: Tensor) -> None: ...

    def choose(self, rows: Rows, logits: Tensor, stream: int, forced: Tensor, tokens: Tensor) -> None: ...

    def choose_and_start(
        self,
        rows: Rows,
        logits: Tensor,
        stream: int,
        forced: Tensor,
        tokens: Tensor,
        table: Tensor,
        into: Tensor,
        x: Tensor,
    ) -> None: ...
