"""Paged keys and values: a slot owns as many pages as it has columns, so memory follows use and not capacity."""

from __future__ import annotations

import attrs
import torch


class KVExhaustedError(RuntimeError):
    """No free page is left for a slot that needs one. The slot keeps what it has."""


@attrs.frozen
class KVStatistics:
    """`pages_total` and `pages_free` of `page_columns` columns each; `page_bytes` over all layers, keys and values."""

    pages_total: int
    pages_free: int
    page_columns: int
    page_bytes: int


class PagedKV:
    """Keys and values of all layers in pages of `page_columns` columns; a ring of `context` columns per slot.

    Column `c` of a slot lives in cell `c % context`, in page `table[cell // page_columns]`. Page 0 is the scratch page
    of rows that pad a batch; nobody owns it. Rotation by position is done before storing, so cells need no order.

    Tensors `k`, `v`: [layers, pages + 1, heads, page_columns, head_dim] of `dtype` (float8_e4m3fn halves the bytes).
    """

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        head_dim: int,
        context: int,
        slots: int,
        pages: int,
        page_columns: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if page_columns & (page_columns - 1) or page_columns < 1:
            raise ValueError(f"page_columns must be a power of two, got {page_columns}")
        shape = (layers, pages + 1, heads, page_columns, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.context = context
        self.page_columns = page_columns
        self.table_pages = -(-context // page_columns)
        self._tables: list[list[int]] = [[] for _ in range(slots)]
        self._free = list(range(pages, 0, -1))
        self._total = pages

    def pages_for(self, columns: int) -> int:
        """Pages that `columns` columns of one slot occupy (never more than a full window)."""
        return -(-min(columns, self.context) // self.page_columns)

    def table(self, slot: int) -> list[int]:
        """The slot's page numbers in cell order (a live list: do not change it)."""
        return self._tables[slot]

    def ensure(self, slot: int, columns: int) -> bool:
        """Give the slot pages for its first `columns` columns; True if it got new ones.

        Raises `KVExhaustedError`, with nothing taken, when too few are free.
        """
        table = self._tables[slot]
        need = self.pages_for(columns) - len(table)
        if need <= 0:
            return False
        if need > len(self._free):
            raise KVExhaustedError(f"slot {slot} needs {need} more KV pages, {len(self._free)} are free")
        for _ in range(need):
            table.append(self._free.pop())
        return True

    def release(self, slot: int) -> None:
        """Give all pages of the slot back."""
        table = self._tables[slot]
        self._free.extend(reversed(table))
        table.clear()

    def snapshot(self, slot: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of the pages that hold the first `columns` columns: two of [layers, pages, heads, page, head_dim]."""
        pages = self._index(slot, columns)
        return self.k.index_select(1, pages), self.v.index_select(1, pages)

    def restore(self, slot: int, columns: int, copy: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Copy a snapshot of `columns` columns into the slot's own pages (which `ensure` has given it)."""
        pages = self._index(slot, columns)
        self.k.index_copy_(1, pages, copy[0])
        self.v.index_copy_(1, pages, copy[1])

    def statistics(self) -> KVStatistics:
        page = self.k[:, 0].numel() * self.k.element_size() * 2
        return KVStatistics(self._total, len(self._free), self.page_columns, page)

    def _index(self, slot: int, columns: int) -> torch.Tensor:
        return torch.tensor(self._tables[slot][: self.pages_for(columns)], device=self.k.device)
