"""The language-model operations in plain torch: the reference, and the path on CPU. Kernels mirror them one by one.

Activations are [rows, width]; every operation writes into the buffer it is given, so both paths share one step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.philox import gumbel, philox_word
from duplex_gpu.runtime.rows import Rows


class TorchOps:
    """Plain torch operations for any device and dtype; they read the host's copy of the rows: never capture them."""

    def embed_columns(
        self, columns: torch.Tensor, text_table: torch.Tensor, code_tables: torch.Tensor, out: torch.Tensor
    ) -> None:
        """`out` [n, d] float32 = text embedding + the embeddings of all codes; a token of -1 adds nothing.

        `columns` int32 [n, 1 + codes]; `code_tables` [codes, vocabulary, d].
        """
        tokens = columns.long()
        total = _row(text_table, tokens[:, 0])
        for k in range(code_tables.shape[0]):
            total = total + _row(code_tables[k], tokens[:, 1 + k])
        out.copy_(total)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        """RMS norm computed in float32."""
        out.copy_(_normed(x, weight, eps, out.dtype))

    def product(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """`out` = x weight^T."""
        out.copy_(F.linear(x.to(weight.dtype), weight))

    def add_product(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> None:
        """`residual` (float32) += x weight^T."""
        residual.add_(F.linear(x, weight))

    def norm_product(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor, out: torch.Tensor
    ) -> None:
        """`out` = rms_norm(x) weight^T."""
        self.product(_normed(x, norm, eps, weight.dtype), weight, out)

    def norm_gated(
        self, x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor, out: torch.Tensor
    ) -> None:
        """`out` = silu(y first^T) * (y second^T) with y = rms_norm(x) and the two halves of the weight's rows."""
        first, second = F.linear(_normed(x, norm, eps, weight.dtype), weight).float().chunk(2, -1)
        out.copy_(F.silu(first) * second)

    def rotation(self, rows: Rows, base: float, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Fill cos and sin [n, head_dim / 2] float32 for each row's column number."""
        half = cos.shape[1]
        index = torch.arange(half, device=cos.device, dtype=torch.float32)
        angle = rows.device["column"].float() * _frequencies(index, half, base)
        cos.copy_(torch.cos(angle))
        sin.copy_(torch.sin(angle))

    def norm_qkv_store(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        rows: Rows,
        kv: PagedKV,
        layer: int,
        q: torch.Tensor,
    ) -> None:
        """Norm, project, rotate queries and keys by `turns` (cos, sin), put key and value into the row's ring cell,
        keep the query in `q` [n, d]."""
        cos, sin = turns
        heads, dim = kv.k.shape[2], kv.k.shape[4]
        normed = _normed(x, norm, eps, weight.dtype)
        query, key, value = F.linear(normed, weight).view(-1, 3, heads, dim).unbind(1)
        turn = (cos[:, None], sin[:, None])
        q.copy_(rotate(query, *turn).reshape(q.shape))
        cell = rows.device["column"].long() % kv.context
        page = rows.device["pages"].long().gather(1, cell // kv.page_columns)[:, 0]
        offset = cell[:, 0] % kv.page_columns
        kv.k[layer][page, :, offset] = to_cache(rotate(key, *turn), kv.k.dtype)
        kv.v[layer][page, :, offset] = to_cache(value, kv.v.dtype)

    def live_attention(self, q: torch.Tensor, rows: Rows, kv: PagedKV, layer: int, out: torch.Tensor) -> None:
        """Attention of each row's query over the live cells of its own ring; `out` [n, d]."""
        heads, dim = kv.k.shape[2], kv.k.shape[4]
        for i, length in enumerate(rows.lengths(kv.context)):
            count = -(-length // kv.page_columns)
            pages = rows.device["pages"][i, :count].long()
            keys, values = (gather_cells(cache[layer], pages, length, q.dtype) for cache in (kv.k, kv.v))
            query = q[i].view(1, heads, 1, dim)
            out[i] = F.scaled_dot_product_attention(query, keys[None], values[None]).reshape(-1)

    def step_attention_add(
        self, qkv: torch.Tensor, step: int, heads: int, weight: torch.Tensor, residual: torch.Tensor
    ) -> None:
        """Depth attention of `step` over steps 0..step, projected and added to `residual` (float32).

        `qkv` [steps, n, 3d] is the cache itself: it holds the projections of this step and of those before.
        """
        n, width = residual.shape
        parts = qkv[: step + 1].view(step + 1, n, 3, heads, width // heads)
        query = parts[step, :, 0][:, :, None]
        keys, values = (parts[:, :, k].permute(1, 2, 0, 3) for k in (1, 2))
        found = F.scaled_dot_product_attention(query, keys, values)
        self.add_product(found[:, :, 0].reshape(n, width), weight, residual)

    def choose(self, rows: Rows, logits: torch.Tensor, stream: int, forced: torch.Tensor, tokens: torch.Tensor) -> None:
        """Draw `tokens[:, stream]` (int32) from float32 logits, or take the forced one where `forced` is not -1.

        Top-k and temperature are text's for stream 0, else audio's. The noise of a candidate depends on the row's seed
        and column, the stream and the candidate's id alone, so a session draws the same whoever shares its batch.
        """
        kind = min(stream, 1)
        logits = logits.float()
        drawn = logits.argmax(-1)
        hot = rows.host["temperature"][:, kind] > 0
        if hot.any():
            most = min(int(rows.host["top_k"][:, kind].max()), logits.shape[1])
            values, ids = logits.topk(most)
            seed = rows.device["seed"]
            word = philox_word(seed[:, 0:1], seed[:, 1:2], ids, rows.device["column"], torch.full_like(ids, stream))
            temperature = rows.device["temperature"][:, kind : kind + 1]
            out = torch.arange(most, device=ids.device) >= rows.device["top_k"][:, kind : kind + 1]
            score = (values / temperature.clamp(min=1e-6) + gumbel(word)).masked_fill(out, float("-inf"))
            sampled = ids.gather(1, score.argmax(-1, keepdim=True))[:, 0]
            drawn = torch.where(temperature[:, 0] > 0, sampled, drawn)
        given = forced[:, stream].long()
        tokens[:, stream] = torch.where(given >= 0, given, drawn).to(tokens.dtype)

    def start_step(
        self, tokens: torch.Tensor, stream: int, table: torch.Tensor, into: torch.Tensor, x: torch.Tensor
    ) -> None:
        """Depth residual `x` (float32) = input projection of the step + embedding of the token just chosen."""
        x.copy_(into + table[tokens[:, stream].long()])

    def choose_and_start(
        self,
        rows: Rows,
        logits: torch.Tensor,
        stream: int,
        forced: torch.Tensor,
        tokens: torch.Tensor,
        table: torch.Tensor,
        into: torch.Tensor,
        x: torch.Tensor,
    ) -> None:
        """`choose`, then `start_step` (kernels do both at once)."""
        self.choose(rows, logits, stream, forced, tokens)
        self.start_step(tokens, stream, table, into, x)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate interleaved pairs of the last axis in float32; cos and sin broadcast to half of it. Keeps x's dtype."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def rotation_of(columns: torch.Tensor, half: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [n, half] float32 for column numbers [n]."""
    index = torch.arange(half, device=columns.device, dtype=torch.float32)
    angle = columns.float()[:, None] * _frequencies(index, half, base)
    return torch.cos(angle), torch.sin(angle)


def gather_cells(cache: torch.Tensor, pages: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Cells 0..length-1 of a slot's ring as [heads, length, head_dim] from one layer's pages."""
    found = cache[pages].permute(1, 0, 2, 3).flatten(1, 2)[:, :length]
    return found.to(dtype)


def to_cache(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert to the cache's dtype; 8-bit floats are clamped to their range first (their conversion would give NaN)."""
    if dtype == torch.float8_e4m3fn:
        return x.clamp(-448.0, 448.0).to(dtype)
    return x.to(dtype)


def _frequencies(index: torch.Tensor, half: int, base: float) -> torch.Tensor:
    return torch.exp(index * (-torch.log(torch.tensor(base, device=index.device)) / half))


def _row(table: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    found = table[token.clamp(min=0)].float()
    return torch.where(token[:, None] >= 0, found, 0.0)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    wide = x.float()
    return (wide * (weight * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps))).to(dtype)
