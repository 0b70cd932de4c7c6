# ruff: noqa: N803 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""Decode attention: over the live columns of paged rings, and over the earlier steps of a depth frame."""

from __future__ import annotations

import triton
import triton.language as tl

from duplex_gpu.runtime.kernels.chain import release_successor, wait_for_predecessor


@triton.jit
def rotate_store_kernel(
    qkv,
    q,
    keys,
    values,
    cos,
    sin,
    column,
    pages,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    field_stride: tl.constexpr,
    context: tl.constexpr,
    PAGE: tl.constexpr,
    EIGHT_BIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """After a library product: rotate query and key, put key and value into the row's page. Grid (rows, heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    wait_for_predecessor(TRIGGER)
    width: tl.constexpr = HEADS * DIM
    half: tl.constexpr = DIM // 2
    i = tl.arange(0, half)
    source = qkv + row * (3 * width) + head * DIM + 2 * i
    c = tl.load(cos + row * half + i)
    s = tl.load(sin + row * half + i)
    q_even = tl.load(source).to(tl.float32)
    q_odd = tl.load(source + 1).to(tl.float32)
    k_even = tl.load(source + width).to(tl.float32)
    k_odd = tl.load(source + width + 1).to(tl.float32)
    v_even = tl.load(source + 2 * width).to(tl.float32)
    v_odd = tl.load(source + 2 * width + 1).to(tl.float32)
    at = q + row * width + head * DIM + 2 * i
    tl.store(at, (q_even * c - q_odd * s).to(q.dtype.element_ty))
    tl.store(at + 1, (q_even * s + q_odd * c).to(q.dtype.element_ty))
    turned_even = k_even * c - k_odd * s
    turned_odd = k_even * s + k_odd * c
    if EIGHT_BIT:
        turned_even = tl.clamp(turned_even, -448.0, 448.0)
        turned_odd = tl.clamp(turned_odd, -448.0, 448.0)
        v_even = tl.clamp(v_even, -448.0, 448.0)
        v_odd = tl.clamp(v_odd, -448.0, 448.0)
    cell = tl.load(column + row * field_stride) % context
    page = tl.load(pages + row * field_stride + cell // PAGE).to(tl.int64)
    place = (page * HEADS + head) * (PAGE * DIM) + (cell % PAGE) * DIM + 2 * i
    tl.store(keys + place, turned_even.to(keys.dtype.element_ty))
    tl.store(keys + place + 1, turned_odd.to(keys.dtype.element_ty))
    tl.store(values + place, v_even.to(values.dtype.element_ty))
    tl.store(values + place + 1, v_odd.to(values.dtype.element_ty))


@triton.jit
def live_attention_kernel(
    q,
    keys,
    values,
    column,
    pages,
    part_out,
    part_max,
    part_sum,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    field_stride: tl.constexpr,
    context: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    scale: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One program per (split, head, row): a row's cells 0..length-1, cut into SPLITS on the device by its own length.

    Each line of a tile keeps its own running maximum, sum and output, so the loop needs no traffic between warps; they
    meet once at the end. `scale` holds log2(e) / sqrt(DIM).
    """
    split = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    wait_for_predecessor(TRIGGER)
    length = tl.minimum(tl.load(column + row * field_stride) + 1, context)
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    start = split * share
    stop = tl.minimum(start + share, length)
    d = tl.arange(0, DIM)
    line = tl.arange(0, TILE)
    query = tl.load(q + (row * HEADS + head) * DIM + d).to(tl.float32) * scale
    high = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, DIM], tl.float32)
    within = line[:, None] * DIM + d[None, :]
    table = pages + row * field_stride
    for cell in tl.range(start, stop, TILE, num_stages=STAGES):
        page = tl.load(table + cell // PAGE).to(tl.int64)
        place = (page * HEADS + head) * (PAGE * DIM) + (cell % PAGE) * DIM
        live = (cell + line) < stop
        k = tl.load(keys + place + within, mask=live[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + place + within, mask=live[:, None], other=0.0).to(tl.float32)
        score = tl.where(live, tl.sum(k * query[None, :], 1), -1e30)
        higher = tl.maximum(high, score)
        fade = tl.exp2(high - higher)
        weight = tl.where(live, tl.exp2(score - higher), 0.0)
        total = total * fade + weight
        acc = acc * fade[:, None] + weight[:, None] * v
        high = higher
    top = tl.max(high, 0)
    fade = tl.exp2(high - top)
    whole = tl.sum(total * fade, 0)
    found = tl.sum(acc * fade[:, None], 0)
    if SPLITS == 1:
        at = out + (row * HEADS + head) * DIM + d
        tl.store(at, (found / tl.maximum(whole, 1e-30)).to(out.dtype.element_ty))
    else:
        part = (row * HEADS + head) * SPLITS + split
        tl.store(part_out + part * DIM + d, found)
        tl.store(part_max + part, top)
        tl.store(part_sum + part, whole)


@triton.jit
def combine_kernel(
    part_out,
    part_max,
    part_sum,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Put the splits of `live_attention_kernel` together. Grid (heads, rows)."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_predecessor(TRIGGER)
    d = tl.arange(0, DIM)
    part = (row * HEADS + head) * SPLITS + tl.arange(0, SPLITS)
    tops = tl.load(part_max + part)
    fade = tl.exp2(tops - tl.max(tops, 0))
    whole = tl.sum(tl.load(part_sum + part) * fade, 0)
    found = tl.sum(tl.load(part_out + part[:, None] * DIM + d[None, :]) * fade[:, None], 0)
    at = out + (row * HEADS + head) * DIM + d
    tl.store(at, (found / tl.maximum(whole, 1e-30)).to(out.dtype.element_ty))


@triton.jit
def depth_heads(
    qkv,
    step_stride,
    step,
    rows,
    live,
    head,
    BATCH: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    STEPS: tl.constexpr,
    scale: tl.constexpr,
):
    """Attention of one head over steps 0..step for a few rows; [BATCH, DIM] float32."""
    d = tl.arange(0, DIM)
    j = tl.arange(0, STEPS)
    base = qkv + head * DIM
    at = rows[:, None] * (3 * WIDTH) + d[None, :]
    query = tl.load(base + step * step_stride + at, mask=live[:, None], other=0.0).to(tl.float32)
    past = base + WIDTH + j[:, None, None] * step_stride + at[None, :, :]
    seen = (j <= step)[:, None, None] & live[None, :, None]
    k = tl.load(past, mask=seen, other=0.0).to(tl.float32)
    v = tl.load(past + WIDTH, mask=seen, other=0.0).to(tl.float32)
    score = tl.sum(query[None, :, :] * k, 2) * scale
    score = tl.where((j <= step)[:, None], score, -1e30)
    weight = tl.exp(score - tl.max(score, 0)[None, :])
    return tl.sum(weight[:, :, None] * v, 0) / tl.sum(weight, 0)[:, None]


@triton.jit(do_not_specialize=["count", "step"])
def depth_attention_kernel(
    qkv,
    out,
    step_stride,
    count,
    step,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    BATCH: tl.constexpr,
    STEPS: tl.constexpr,
    scale: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Grid (heads, batch tiles): `out` [count, WIDTH]."""
    head = tl.program_id(0)
    rows = tl.program_id(1) * BATCH + tl.arange(0, BATCH)
    live = rows < count
    wait_for_predecessor(TRIGGER)
    found = depth_heads(qkv, step_stride, step, rows, live, head, BATCH, WIDTH, DIM, STEPS, scale)
    release_successor(TRIGGER)
    d = tl.arange(0, DIM)
    keep = live[:, None] & (d >= 0)[None, :]
    tl.store(out + rows[:, None] * WIDTH + head * DIM + d[None, :], found.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["step"])
def depth_attention_out_kernel(
    qkv,
    weight,
    residual,
    step_stride,
    step,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    scale: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """One row: a head's attention times its share of the output projection, added atomically (tiles, heads, rows)."""
    head = tl.program_id(1)
    rows = tl.program_id(2) + tl.arange(0, 1)
    outputs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    d = tl.arange(0, DIM)
    w = tl.load(weight + outputs[:, None] * WIDTH + head * DIM + d[None, :])
    wait_for_predecessor(TRIGGER)
    found = depth_heads(qkv, step_stride, step, rows, rows >= 0, head, 1, WIDTH, DIM, STEPS, scale)
    release_successor(TRIGGER)
    share = tl.sum(w.to(tl.float32) * tl.sum(found, 0)[None, :], 1)
    tl.atomic_add(residual + tl.program_id(2) * WIDTH + outputs, share, sem="relaxed")
