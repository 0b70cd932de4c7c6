# ruff: noqa: N803, N806 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""Products of a few rows with a large weight: bound by reading the weight once, so tiles run along the weight's rows.

Accumulators are [weight rows, batch rows] with the batch padded to a multiple of 16 for the matrix units; a single row
skips them and sums in registers. With several `SPLITS` of the inner dimension the parts meet by float32 atomics in the
residual, whose last bits then depend on the order of arrival.
"""

from __future__ import annotations

import triton
import triton.language as tl

from duplex_gpu.runtime.kernels.chain import release_successor, wait_for_predecessor

STORE = 0
ATOMIC_ADD = 1
ADD = 2


@triton.jit
def ask_l2(weight, rows, inner: tl.constexpr, start, width: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr):
    """Ask the L2 cache for weight[rows, start : start + width] (2-byte elements) without waiting for it."""
    part: tl.constexpr = width // PARTS
    places = (weight + rows.to(tl.int64)[:, None] * inner + start + tl.arange(0, PARTS)[None, :] * part).to(tl.int64)
    sizes = tl.full([TILE, PARTS], part * 2, tl.int32)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [places, sizes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def whole_tile(
    x,
    x_stride,
    weight,
    first,
    second,
    row,
    norm,
    inner: tl.constexpr,
    start,
    width: tl.constexpr,
    NORM: tl.constexpr,
    DUAL: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One batch row: the weight tile is in registers before the predecessor is done, then one multiply and sum."""
    k = tl.arange(0, width)
    w1 = tl.load(weight + first.to(tl.int64)[:, None] * inner + start + k[None, :])
    w2 = w1
    if DUAL:
        w2 = tl.load(weight + second.to(tl.int64)[:, None] * inner + start + k[None, :])
    wait_for_predecessor(TRIGGER)
    values = tl.load(x + row * x_stride + start + k).to(tl.float32)
    squares = tl.sum(values * values, 0)
    if NORM:
        values = values * tl.load(norm + start + k)
    acc1 = tl.sum(w1.to(tl.float32) * values[None, :], 1)
    acc2 = acc1
    if DUAL:
        acc2 = tl.sum(w2.to(tl.float32) * values[None, :], 1)
    return acc1, acc2, squares


@triton.jit
def tile_loop(
    x,
    x_stride,
    weight,
    first,
    second,
    rows,
    live,
    inner: tl.constexpr,
    start,
    width: tl.constexpr,
    TILE: tl.constexpr,
    BATCH: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    DUAL: tl.constexpr,
):
    """Pipelined loop over the inner dimension with the matrix units; returns one or two [TILE, BATCH] sums."""
    k = tl.arange(0, STEP)
    acc1 = tl.zeros([TILE, BATCH], tl.float32)
    acc2 = tl.zeros([TILE, BATCH], tl.float32)
    x_at = x + rows[:, None] * x_stride + start + k[None, :]
    w1_at = weight + first.to(tl.int64)[:, None] * inner + start + k[None, :]
    w2_at = weight + second.to(tl.int64)[:, None] * inner + start + k[None, :]
    for at in tl.range(0, width, STEP, num_stages=STAGES):
        values = tl.load(x_at + at, mask=live[:, None], other=0.0).to(weight.dtype.element_ty)
        turned = tl.trans(values)
        acc1 = tl.dot(tl.load(w1_at + at), turned, acc1)
        if DUAL:
            acc2 = tl.dot(tl.load(w2_at + at), turned, acc2)
    return acc1, acc2


@triton.jit(do_not_specialize=["count"])
def product_kernel(
    x,
    weight,
    out,
    norm,
    count,
    x_stride: tl.constexpr,
    out_stride: tl.constexpr,
    outputs: tl.constexpr,
    inner: tl.constexpr,
    eps: tl.constexpr,
    TILE: tl.constexpr,
    BATCH: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    NORM: tl.constexpr,
    DUAL: tl.constexpr,
    EPILOGUE: tl.constexpr,
    ASK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """out [count, outputs] (=, +=, atomically +=) x weight^T; grid (outputs / TILE, SPLITS, batch tiles).

    BATCH 1 takes the register path (NORM: RMS norm of x in the prologue); else x is used as it is. DUAL: SiLU of the
    product with weight rows 0..outputs-1 times the product with the rows after them.
    """
    split = tl.program_id(1)
    width: tl.constexpr = inner // SPLITS
    first = tl.program_id(0) * TILE + tl.arange(0, TILE)
    second = first + outputs
    start = split * width
    if BATCH == 1:
        row = tl.program_id(2)
        acc1, acc2, squares = whole_tile(
            x, x_stride, weight, first, second, row, norm, inner, start, width, NORM, DUAL, TRIGGER
        )
        if NORM:
            scale = tl.rsqrt(squares / inner + eps)
            acc1 = acc1 * scale
            acc2 = acc2 * scale
        at = out + row * out_stride + first
        keep = first < outputs
    else:
        rows = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
        live = rows < count
        if ASK:
            PARTS: tl.constexpr = 4 if TILE <= 32 else 2
            ask_l2(weight, first, inner, start, width, TILE, PARTS)
            if DUAL:
                ask_l2(weight, second, inner, start, width, TILE, PARTS)
        wait_for_predecessor(TRIGGER)
        acc1, acc2 = tile_loop(
            x, x_stride, weight, first, second, rows, live, inner, start, width, TILE, BATCH, STEP, STAGES, DUAL
        )
        at = out + rows[None, :] * out_stride + first[:, None]
        keep = live[None, :] & (first < outputs)[:, None]
    release_successor(TRIGGER)
    if DUAL:
        acc1 = acc1 * tl.sigmoid(acc1) * acc2
    if EPILOGUE == 0:
        tl.store(at, acc1.to(out.dtype.element_ty), mask=keep)
    elif EPILOGUE == 1:
        tl.atomic_add(at, acc1, mask=keep, sem="relaxed")
    else:
        tl.store(at, tl.load(at, mask=keep, other=0.0) + acc1, mask=keep)


@triton.jit(do_not_specialize=["count"])
def qkv_store_kernel(
    x,
    weight,
    q,
    keys,
    values,
    cos,
    sin,
    column,
    pages,
    count,
    inner: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    field_stride: tl.constexpr,
    context: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BATCH: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    EIGHT_BIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Product with the qkv weight whose even and odd rows are two sums, so that rotation happens in the epilogue and
    keys and values go straight into the row's page. Grid (3 d / 2 / TILE, 1, batch tiles)."""
    pairs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    rows = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    live = rows < count
    even = 2 * pairs
    wait_for_predecessor(TRIGGER)
    a, b = tile_loop(x, inner, weight, even, even + 1, rows, live, inner, 0, inner, TILE, BATCH, STEP, STAGES, True)
    release_successor(TRIGGER)
    width: tl.constexpr = HEADS * DIM
    part = (tl.program_id(0) * TILE * 2) // width
    head = ((tl.program_id(0) * TILE * 2) % width) // DIM
    d = even % DIM
    keep = live[None, :] & (pairs >= 0)[:, None]
    if part < 2:
        turn = rows[None, :] * (DIM // 2) + (d // 2)[:, None]
        c = tl.load(cos + turn, mask=keep, other=0.0)
        s = tl.load(sin + turn, mask=keep, other=0.0)
        turned = a * c - b * s
        b = a * s + b * c
        a = turned
    if part == 0:
        q_at = q + rows[None, :] * width + (head * DIM + d)[:, None]
        tl.store(q_at, a.to(q.dtype.element_ty), mask=keep)
        tl.store(q_at + 1, b.to(q.dtype.element_ty), mask=keep)
    else:
        cell = tl.load(column + rows * field_stride, mask=live, other=0) % context
        page = tl.load(pages + rows * field_stride + cell // PAGE, mask=live, other=0).to(tl.int64)
        place = (page * HEADS + head) * (PAGE * DIM) + (cell % PAGE) * DIM
        at = place[None, :] + d[:, None]
        if EIGHT_BIT:
            a = tl.clamp(a, -448.0, 448.0)
            b = tl.clamp(b, -448.0, 448.0)
        if part == 1:
            tl.store(keys + at, a.to(keys.dtype.element_ty), mask=keep)
            tl.store(keys + at + 1, b.to(keys.dtype.element_ty), mask=keep)
        else:
            tl.store(values + at, a.to(values.dtype.element_ty), mask=keep)
            tl.store(values + at + 1, b.to(values.dtype.element_ty), mask=keep)
