"""Paged keys and values, and the choice of batch buckets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_gpu.runtime.graphs import GraphBuckets, StepShapeError, buckets_up_to
from duplex_gpu.runtime.kv_pages import KVExhaustedError, PagedKV

CPU = torch.device("cpu")


def cache(slots: int, pages: int, context: int = 40, page_columns: int = 8) -> PagedKV:
    return PagedKV(
        layers=2,
        heads=1,
        head_dim=2,
        context=context,
        slots=slots,
        pages=pages,
        page_columns=page_columns,
        dtype=torch.float32,
        device=CPU,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=30))
def test_pages_are_neither_lost_nor_shared(moves: list[tuple[int, int]]):
    kv = cache(slots=4, pages=12)
    for slot, columns in moves:
        if columns == 0:
            kv.release(slot)
            continue
        before = list(kv.table(slot))
        try:
            kv.ensure(slot, columns)
        except KVExhaustedError:
            assert kv.table(slot) == before
        owned = [page for other in range(4) for page in kv.table(other)]
        assert len(owned) == len(set(owned))
        assert 0 not in owned  # the scratch page has no owner
        assert len(owned) + kv.statistics().pages_free == 12
        assert len(kv.table(slot)) <= kv.table_pages


def test_a_snapshot_is_the_columns_of_another_slot():
    kv = cache(slots=2, pages=10)
    kv.ensure(0, 12)
    kv.k.normal_()
    kv.v.normal_()
    copy = kv.snapshot(0, 12)
    kv.ensure(1, 20)
    kv.restore(1, 12, copy)
    for pool in (kv.k, kv.v):
        assert torch.equal(pool[:, kv.table(1)[:2]], pool[:, kv.table(0)])


def test_page_sizes_are_powers_of_two():
    with pytest.raises(ValueError, match="power of two"):
        cache(1, 1, page_columns=12)


def test_buckets():
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(48) == (1, 2, 4, 8, 16, 32, 48)
    ran: list[int] = []
    steps = GraphBuckets(ran.append, (1, 4, 6), CPU)
    assert [steps.bucket(n) for n in (1, 2, 4, 5, 6)] == [1, 4, 4, 6, 6]
    for rows in (0, 7):
        with pytest.raises(StepShapeError):
            steps.bucket(rows)
    steps.capture()
    assert not steps.captured
    steps.replay(4)
    assert ran[-1] == 4
    with pytest.raises(StepShapeError):
        GraphBuckets(ran.append, (4, 1), CPU)
