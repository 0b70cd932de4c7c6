"""The language-model operations as Triton kernels on CUDA, mirrors of `TorchOps`; capturable, host arrays untouched."""

from __future__ import annotations

import math

import torch
import triton

from duplex_gpu.runtime.kernels import attention, chain, products, small
from duplex_gpu.runtime.kernels.tiles import Tile, batch_tile, choose_tile
from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.rows import Rows

Tensor = torch.Tensor

_LOG2_E = 1.4426950408889634
_CHUNK, _KEEP = 2048, 64


class TritonOps:
    """Kernels for steps of at most `rows` rows. Scratch buffers are made once and live outside every graph."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._scratch: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def embed_columns(self, columns: Tensor, text_table: Tensor, code_tables: Tensor, out: Tensor) -> None:
        codes, vocabulary, width = code_tables.shape
        block = min(1024, triton.next_power_of_2(width))
        small.embed_kernel[(columns.shape[0], triton.cdiv(width, block))](
            columns, text_table, code_tables, out, codes, width, vocabulary, block, chain.EARLY, **chain.launch(4)
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        count, width = x.shape
        block = triton.next_power_of_2(width)
        small.rms_norm_kernel[(count,)](
            x, weight, out, width, block, eps, chain.EARLY, **chain.launch(8 if width > 2048 else 4)
        )

    def product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        tile = choose_tile("product", weight.shape[0], weight.shape[1], x.shape[0])
        if tile is None:
            out.copy_(torch.mm(x.to(weight.dtype), weight.t()))
        else:
            self._product(x, weight, out, tile, products.STORE)

    def add_product(self, x: Tensor, weight: Tensor, residual: Tensor) -> None:
        tile = choose_tile("add", weight.shape[0], weight.shape[1], x.shape[0])
        if tile is None:
            residual.add_(torch.mm(x, weight.t()))
        else:
            self._product(x, weight, residual, tile, products.ATOMIC_ADD if tile.splits > 1 else products.ADD)

    def norm_product(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, out: Tensor) -> None:
        tile = choose_tile("product", weight.shape[0], weight.shape[1], x.shape[0])
        if tile is None:
            torch.mm(self._normed(x, norm, eps, weight.dtype), weight.t(), out=out)
        elif tile.register:
            self._product(x, weight, out, tile, products.STORE, norm=norm, eps=eps)
        else:
            self._product(self._normed(x, norm, eps, weight.dtype), weight, out, tile, products.STORE)

    def norm_gated(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, out: Tensor) -> None:
        count, width = out.shape
        tile = choose_tile("gate", width, weight.shape[1], count)
        if tile is None:
            both = self._buffer("both", 2 * width, weight.dtype)[:count]
            torch.mm(self._normed(x, norm, eps, weight.dtype), weight.t(), out=both)
            block = min(2048, triton.next_power_of_2(width))
            small.silu_gate_kernel[(count, triton.cdiv(width, block))](
                both, out, width, block, chain.EARLY, **chain.launch(4)
            )
        elif tile.register:
            self._product(x, weight, out, tile, products.STORE, norm=norm, eps=eps, gate=True)
        else:
            self._product(self._normed(x, norm, eps, weight.dtype), weight, out, tile, products.STORE, gate=True)

    def rotation(self, rows: Rows, base: float, cos: Tensor, sin: Tensor) -> None:
        column = rows.device["column"]
        small.rotation_kernel[(rows.count,)](
            column, cos, sin, column.stride(0), cos.shape[1], math.log(base), chain.EARLY, **chain.launch(1)
        )

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
    ) -> None:
        heads, dim = kv.k.shape[2], kv.k.shape[4]
        count, inner = x.shape
        column, pages = rows.device["column"], rows.device["pages"]
        eight_bit = kv.k.dtype == torch.float8_e4m3fn
        normed = self._normed(x, norm, eps, weight.dtype)
        tile = choose_tile("qkv", weight.shape[0], weight.shape[1], count)
        if tile is not None and dim % (2 * tile.rows) == 0:
            batch = batch_tile(tile, count)
            products.qkv_store_kernel[(3 * inner // 2 // tile.rows, 1, triton.cdiv(count, batch))](
                normed,
                weight,
                q,
                kv.k[layer],
                kv.v[layer],
                *turns,
                column,
                pages,
                count,
                inner,
                heads,
                dim,
                column.stride(0),
                kv.context,
                kv.page_columns,
                tile.rows,
                batch,
                tile.step,
                tile.stages,
                eight_bit,
                chain.EARLY,
                **chain.launch(tile.warps),
            )
            return
        qkv = self._buffer("qkv", 3 * inner, weight.dtype)[:count]
        torch.mm(normed, weight.t(), out=qkv)
        attention.rotate_store_kernel[(count, heads)](
            qkv,
            q,
            kv.k[layer],
            kv.v[layer],
            *turns,
            column,
            pages,
            heads,
            dim,
            column.stride(0),
            kv.context,
            kv.page_columns,
            eight_bit,
            chain.EARLY,
            **chain.launch(1),
        )

    def live_attention(self, q: Tensor, rows: Rows, kv: PagedKV, layer: int, out: Tensor) -> None:
        heads, dim = kv.k.shape[2], kv.k.shape[4]
        count = q.shape[0]
        column, pages = rows.device["column"], rows.device["pages"]
        one = count == 1
        splits = 8 if one else 4 if count <= 16 else 1
        tile = min(64 if one or kv.k.element_size() == 1 else 32, kv.page_columns)
        parts = heads * splits
        part_out = self._buffer("part_out", parts * dim, torch.float32)
        part_max, part_sum = (self._buffer(name, parts, torch.float32) for name in ("part_max", "part_sum"))
        attention.live_attention_kernel[(splits, heads, count)](
            q,
            kv.k[layer],
            kv.v[layer],
            column,
            pages,
            part_out,
            part_max,
            part_sum,
            out,
            heads,
            dim,
            column.stride(0),
            kv.context,
            kv.page_columns,
            tile,
            splits,
            2 if one else 3,
            _LOG2_E / math.sqrt(dim),
            chain.EARLY,
            **chain.launch(8 if one else 4),
        )
        if splits > 1:
            attention.combine_kernel[(heads, count)](
                part_out, part_max, part_sum, out, heads, dim, splits, chain.EARLY, **chain.launch(2)
            )

    def step_attention_add(self, qkv: Tensor, step: int, heads: int, weight: Tensor, residual: Tensor) -> None:
        count, width = residual.shape
        steps = qkv.shape[0]
        dim = width // heads
        tile = choose_tile("add", weight.shape[0], weight.shape[1], count)
        if tile is not None and tile.register:
            attention.depth_attention_out_kernel[(width // tile.rows, heads, count)](
                qkv,
                weight,
                residual,
                qkv.stride(0),
                step,
                width,
                dim,
                tile.rows,
                steps,
                dim**-0.5,
                chain.EARLY,
                **chain.launch(tile.warps),
            )
            return
        found = self._buffer("found", width, weight.dtype)[:count]
        few = count <= 16
        batch = 4 if few else 2
        attention.depth_attention_kernel[(heads, triton.cdiv(count, batch))](
            qkv,
            found,
            qkv.stride(0),
            count,
            step,
            width,
            dim,
            batch,
            steps,
            dim**-0.5,
            chain.LATE if few else chain.EARLY,
            **chain.launch(2 if few else 1),
        )
        self.add_product(found, weight, residual)

    def choose(self, rows: Rows, logits: Tensor, stream: int, forced: Tensor, tokens: Tensor) -> None:
        self._choose(rows, logits, stream, forced, tokens, tokens, logits, logits, start=False)

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
    ) -> None:
        self._choose(rows, logits, stream, forced, tokens, table, into, x, start=True)

    def _choose(
        self,
        rows: Rows,
        logits: Tensor,
        stream: int,
        forced: Tensor,
        tokens: Tensor,
        table: Tensor,
        into: Tensor,
        x: Tensor,
        start: bool,
    ) -> None:
        kind = min(stream, 1)
        top_k, temperature = rows.device["top_k"][:, kind:], rows.device["temperature"][:, kind:]
        fields = top_k.stride(0)
        count, candidates = logits.shape
        ids, listed = tokens, stream == 0
        if listed:  # text: too many for one program, so each chunk first keeps its own top k
            chunks = triton.cdiv(candidates, _CHUNK)
            kept = self._buffer("kept", chunks * _KEEP, torch.float32)
            ids = self._buffer("kept_ids", chunks * _KEEP, torch.int32)
            small.candidates_kernel[(chunks, count)](
                logits, top_k, kept, ids, fields, candidates, _CHUNK, _KEEP, chain.EARLY, **chain.launch(4)
            )
            logits, candidates = kept, chunks * _KEEP
        width = table.shape[-1]
        small.choose_kernel[(count,)](
            logits,
            ids,
            top_k,
            temperature,
            rows.device["seed"],
            rows.device["column"],
            forced,
            tokens,
            table,
            into,
            x,
            stream,
            logits.stride(0),
            into.stride(0),
            fields,
            forced.stride(0),
            tokens.stride(0),
            candidates,
            triton.next_power_of_2(candidates),
            width,
            triton.next_power_of_2(width),
            listed,
            start,
            chain.EARLY,
            **chain.launch(4),
        )

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        tile: Tile,
        epilogue: int,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        gate: bool = False,
    ) -> None:
        count, inner = x.shape
        outputs = weight.shape[0] // 2 if gate else weight.shape[0]
        batch = batch_tile(tile, count)
        products.product_kernel[(outputs // tile.rows, tile.splits, triton.cdiv(count, batch))](
            x,
            weight,
            out,
            weight if norm is None else norm,
            count,
            x.stride(0),
            out.stride(0),
            outputs,
            inner,
            eps,
            tile.rows,
            batch,
            tile.step,
            tile.splits,
            tile.stages,
            norm is not None,
            gate,
            epilogue,
            tile.ask and chain.CHAINED,
            chain.LATE if tile.late else chain.EARLY,
            **chain.launch(tile.warps),
        )

    def _normed(self, x: Tensor, norm: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        out = self._buffer("normed", x.shape[1], dtype)[: x.shape[0]]
        self.rms_norm(x, norm, eps, out)
        return out

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """A scratch buffer [rows, width], the same one at every call: steps run one after the other on one stream."""
        key = (name, width, dtype)
        found = self._scratch.get(key)
        if found is None:
            found = self._scratch[key] = torch.zeros(self._rows, width, dtype=dtype, device=self._device)
        return found
