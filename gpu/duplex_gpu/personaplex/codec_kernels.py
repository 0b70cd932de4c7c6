# ruff: noqa: N803 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""Triton kernels of the codec: every convolution is one product over windows of adjacent numbers in a row's arena."""

from __future__ import annotations

import triton
import triton.language as tl

from duplex_gpu.runtime.kernels.chain import wait_for_predecessor


@triton.jit
def elu(x):
    return tl.where(x > 0, x, tl.exp(x) - 1.0)


@triton.jit
def load_state_kernel(
    state, slots, places, arena, slot_stride: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """arena[row, places[i]] = state[slot, i]. Grid (blocks, rows)."""
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < STATE
    at = tl.load(places + i, mask=inside, other=0)
    wait_for_predecessor(TRIGGER)
    slot = tl.load(slots + row * slot_stride).to(tl.int64)
    tl.store(arena + row.to(tl.int64) * WIDTH + at, tl.load(state + slot * STATE + i, mask=inside), mask=inside)


@triton.jit
def save_state_kernel(
    arena, slots, places, state, slot_stride: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """state[slot, i] = arena[row, places[i]]. Grid (blocks, rows)."""
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < STATE
    at = tl.load(places + i, mask=inside, other=0)
    wait_for_predecessor(TRIGGER)
    slot = tl.load(slots + row * slot_stride).to(tl.int64)
    tl.store(state + slot * STATE + i, tl.load(arena + row.to(tl.int64) * WIDTH + at, mask=inside), mask=inside)


@triton.jit
def place_kernel(
    x, arena, positions, x_stride: tl.constexpr, position_stride: tl.constexpr, WIDTH: tl.constexpr,
    OFFSET: tl.constexpr, COUNT: tl.constexpr, CHANNELS: tl.constexpr, CONTEXT: tl.constexpr,
    REPLICATE: tl.constexpr, BLOCK: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """Put a row's COUNT numbers into its window; on the first frame REPLICATE also fills the context. Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < COUNT
    wait_for_predecessor(TRIGGER)
    values = tl.load(x + row * x_stride + i, mask=inside, other=0.0)
    base = arena + row * WIDTH + OFFSET
    tl.store(base + CONTEXT * CHANNELS + i, values.to(arena.dtype.element_ty), mask=inside)
    if REPLICATE and tl.load(positions + row * position_stride) == 0:
        first = inside & (i < CHANNELS)
        for j in tl.static_range(CONTEXT):
            tl.store(base + j * CHANNELS + i, values.to(arena.dtype.element_ty), mask=first)


@triton.jit(do_not_specialize=["total"])
def window_kernel(
    source, weight, bias, residual, out, parts, total, count, source_stride: tl.constexpr, offset: tl.constexpr,
    step: tl.constexpr, out_stride: tl.constexpr, out_offset: tl.constexpr, residual_stride: tl.constexpr,
    residual_offset: tl.constexpr, outputs: tl.constexpr, kernel: tl.constexpr, biases: tl.constexpr,
    HAS_BIAS: tl.constexpr, ELU_IN: tl.constexpr, ELU_OUT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """Line m is (row, t): its window is `kernel` adjacent numbers from offset + t * step of the row's source.

    Grid (lines, outputs, splits). With SPLITS > 1 the parts go to `parts` and `finish_kernel` ends the work.
    """
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    m_in = m < total
    n_in = n < outputs
    row = (m // count).to(tl.int64)
    t = m % count
    k = tl.arange(0, TILE_K)
    window = source + row * source_stride + offset + t * step
    width: tl.constexpr = kernel // SPLITS
    start = tl.program_id(2) * width
    acc = tl.zeros([TILE_M, TILE_N], tl.float32)
    wait_for_predecessor(TRIGGER)
    for at in tl.range(0, width, TILE_K, num_stages=STAGES):
        place = start + at + k
        if kernel % TILE_K == 0:
            x = tl.load(window[:, None] + place[None, :], mask=m_in[:, None], other=0.0)
            w = tl.load(weight + n[:, None] * kernel + place[None, :], mask=n_in[:, None], other=0.0)
        else:
            k_in = place < kernel
            x = tl.load(window[:, None] + place[None, :], mask=m_in[:, None] & k_in[None, :], other=0.0)
            w = tl.load(weight + n[:, None] * kernel + place[None, :], mask=n_in[:, None] & k_in[None, :], other=0.0)
        if ELU_IN:
            x = elu(x.to(tl.float32))
        acc = tl.dot(x.to(weight.dtype.element_ty), tl.trans(w), acc, input_precision=PRECISION)
    keep = m_in[:, None] & n_in[None, :]
    if SPLITS > 1:
        tl.store(parts + (tl.program_id(2) * total + m)[:, None] * outputs + n[None, :], acc, mask=keep)
    else:
        if HAS_BIAS:
            acc += tl.load(bias + n % biases, mask=n_in, other=0.0)[None, :]
        if HAS_RESIDUAL:
            beside = residual + row * residual_stride + residual_offset + t * outputs
            acc += tl.load(beside[:, None] + n[None, :], mask=keep, other=0.0).to(tl.float32)
        if ELU_OUT:
            acc = elu(acc)
        at_out = out + row * out_stride + out_offset + t * outputs
        tl.store(at_out[:, None] + n[None, :], acc.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["total"])
def finish_kernel(
    parts, bias, residual, out, total, count, out_stride: tl.constexpr, out_offset: tl.constexpr,
    residual_stride: tl.constexpr, residual_offset: tl.constexpr, outputs: tl.constexpr, biases: tl.constexpr,
    HAS_BIAS: tl.constexpr, ELU_OUT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """Sum the splits of `window_kernel` in a fixed order and end as it does. Grid (lines, outputs / BLOCK)."""
    m = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wait_for_predecessor(TRIGGER)
    row = (m // count).to(tl.int64)
    t = m % count
    acc = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(SPLITS):
        acc += tl.load(parts + (j * total + m) * outputs + n)
    if HAS_BIAS:
        acc += tl.load(bias + n % biases)
    if HAS_RESIDUAL:
        acc += tl.load(residual + row * residual_stride + residual_offset + t * outputs + n).to(tl.float32)
    if ELU_OUT:
        acc = elu(acc)
    tl.store(out + row * out_stride + out_offset + t * outputs + n, acc.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["total"])
def linear_kernel(
    x, weight, gain, shift, scale, out, total, outputs: tl.constexpr, inner: tl.constexpr, eps: tl.constexpr,
    NORM: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    TILE_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """out = act(layer_norm(x) weight^T), or with ADD out += scale * (x weight^T). Grid (lines, outputs)."""
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    m_in = m < total
    if NORM:
        k = tl.arange(0, inner)
        w = tl.load(weight + n[:, None] * inner + k[None, :])
        wait_for_predecessor(TRIGGER)
        values = tl.load(x + m[:, None] * inner + k[None, :], mask=m_in[:, None], other=0.0).to(tl.float32)
        centred = values - (tl.sum(values, 1) / inner)[:, None]
        inverse = tl.rsqrt(tl.sum(centred * centred, 1) / inner + eps)
        normed = centred * inverse[:, None] * tl.load(gain + k)[None, :] + tl.load(shift + k)[None, :]
        acc = tl.dot(normed.to(weight.dtype.element_ty), tl.trans(w), input_precision=PRECISION)
    else:
        k = tl.arange(0, TILE_K)
        acc = tl.zeros([TILE_M, TILE_N], tl.float32)
        wait_for_predecessor(TRIGGER)
        for at in tl.range(0, inner, TILE_K, num_stages=STAGES):
            values = tl.load(x + m[:, None] * inner + (at + k)[None, :], mask=m_in[:, None], other=0.0)
            w = tl.load(weight + n[:, None] * inner + (at + k)[None, :])
            acc = tl.dot(values.to(weight.dtype.element_ty), tl.trans(w), acc, input_precision=PRECISION)
    place = out + m[:, None] * outputs + n[None, :]
    keep = m_in[:, None] & (n < outputs)[None, :]
    if GELU:
        acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    if ADD:
        acc = tl.load(place, mask=keep, other=0.0).to(tl.float32) + tl.load(scale + n)[None, :] * acc
    tl.store(place, acc.to(out.dtype.element_ty), mask=keep)


@triton.jit
def pair_rotation_kernel(
    positions, turns, position_stride: tl.constexpr, HALF: tl.constexpr, log_base: tl.constexpr, TRIGGER: tl.constexpr
):
    """turns [rows, 2 positions, (cos, sin), HALF]. Grid (rows,)."""
    row = tl.program_id(0)
    wait_for_predecessor(TRIGGER)
    i = tl.arange(0, HALF)
    frequency = tl.exp(i.to(tl.float32) * (-log_base / HALF))
    for j in tl.static_range(2):
        angle = (tl.load(positions + row * position_stride) + j).to(tl.float32) * frequency
        tl.store(turns + (2 * row + j) * (2 * HALF) + i, tl.cos(angle))
        tl.store(turns + (2 * row + j) * (2 * HALF) + HALF + i, tl.sin(angle))


@triton.jit
def turned(base, own, other, sign, cos, sin):
    """A head's vector rotated and reordered to evens, then odds."""
    return tl.load(base + own).to(tl.float32) * cos + sign * tl.load(base + other).to(tl.float32) * sin


@triton.jit
def pair_attention_kernel(
    qkv, ring_k, ring_v, slots, positions, turns, out, field_stride: tl.constexpr, HEADS: tl.constexpr,
    DIM: tl.constexpr, context: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, scale: tl.constexpr,
    TRIGGER: tl.constexpr,
):  # fmt: skip
    """A frame's two positions: rotate, attend over the ring and themselves, then write the ring. Grid (heads, rows).

    Keys lie in the ring as evens then odds: the order inside a head does not matter as queries have it too.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_predecessor(TRIGGER)
    slot = tl.load(slots + row * field_stride).to(tl.int64)
    position = tl.load(positions + row * field_stride)
    half: tl.constexpr = DIM // 2
    width: tl.constexpr = HEADS * DIM
    d = tl.arange(0, DIM)
    pair = d % half
    own = 2 * pair + d // half
    other = 2 * pair + 1 - d // half
    sign = tl.where(d < half, -1.0, 1.0)
    turn = turns + (2 * row) * (2 * half) + pair
    cos0, sin0 = tl.load(turn), tl.load(turn + half)
    cos1, sin1 = tl.load(turn + 2 * half), tl.load(turn + 3 * half)
    base0 = qkv + (2 * row) * (3 * width) + head * DIM
    base1 = base0 + 3 * width
    q0 = turned(base0, own, other, sign, cos0, sin0) * scale
    q1 = turned(base1, own, other, sign, cos1, sin1) * scale
    k0 = turned(base0 + width, own, other, sign, cos0, sin0)
    k1 = turned(base1 + width, own, other, sign, cos1, sin1)
    v0 = tl.load(base0 + 2 * width + d).to(tl.float32)
    v1 = tl.load(base1 + 2 * width + d).to(tl.float32)
    ring = (slot * HEADS + head) * (context * DIM)
    cell0 = position % context
    cell1 = (position + 1) % context
    live = tl.minimum(position, context)
    m0 = tl.full([TILE], -1e30, tl.float32)
    m1 = tl.full([TILE], -1e30, tl.float32)
    l0 = tl.zeros([TILE], tl.float32)
    l1 = tl.zeros([TILE], tl.float32)
    o0 = tl.zeros([TILE, DIM], tl.float32)
    o1 = tl.zeros([TILE, DIM], tl.float32)
    for at in tl.range(0, live, TILE, num_stages=STAGES):
        cell = at + tl.arange(0, TILE)
        old = (cell < live) & (cell != cell0) & (cell != cell1)
        place = ring + cell[:, None] * DIM + d[None, :]
        k = tl.load(ring_k + place, mask=old[:, None], other=0.0).to(tl.float32)
        v = tl.load(ring_v + place, mask=old[:, None], other=0.0).to(tl.float32)
        s0 = tl.where(old, tl.sum(k * q0[None, :], 1), -1e30)
        s1 = tl.where(old, tl.sum(k * q1[None, :], 1), -1e30)
        n0 = tl.maximum(m0, s0)
        n1 = tl.maximum(m1, s1)
        p0 = tl.where(old, tl.exp(s0 - n0), 0.0)
        p1 = tl.where(old, tl.exp(s1 - n1), 0.0)
        l0 = l0 * tl.exp(m0 - n0) + p0
        l1 = l1 * tl.exp(m1 - n1) + p1
        o0 = o0 * tl.exp(m0 - n0)[:, None] + p0[:, None] * v
        o1 = o1 * tl.exp(m1 - n1)[:, None] + p1[:, None] * v
        m0 = n0
        m1 = n1
    s00 = tl.sum(q0 * k0, 0)
    s10 = tl.sum(q1 * k0, 0)
    s11 = tl.sum(q1 * k1, 0)
    top0 = tl.maximum(tl.max(m0, 0), s00)
    top1 = tl.maximum(tl.max(m1, 0), tl.maximum(s10, s11))
    w0 = tl.exp(m0 - top0)
    w1 = tl.exp(m1 - top1)
    e00 = tl.exp(s00 - top0)
    e10 = tl.exp(s10 - top1)
    e11 = tl.exp(s11 - top1)
    found0 = (tl.sum(o0 * w0[:, None], 0) + e00 * v0) / (tl.sum(l0 * w0, 0) + e00)
    found1 = (tl.sum(o1 * w1[:, None], 0) + e10 * v0 + e11 * v1) / (tl.sum(l1 * w1, 0) + e10 + e11)
    at_out = out + (2 * row) * width + head * DIM + d
    tl.store(at_out, found0.to(out.dtype.element_ty))
    tl.store(at_out + width, found1.to(out.dtype.element_ty))
    tl.debug_barrier()  # every line of the ring has been read
    tl.store(ring_k + ring + cell0 * DIM + d, k0.to(ring_k.dtype.element_ty))
    tl.store(ring_k + ring + cell1 * DIM + d, k1.to(ring_k.dtype.element_ty))
    tl.store(ring_v + ring + cell0 * DIM + d, v0.to(ring_v.dtype.element_ty))
    tl.store(ring_v + ring + cell1 * DIM + d, v1.to(ring_v.dtype.element_ty))


@triton.jit(do_not_specialize=["count", "level"])
def nearest_kernel(
    targets, books, biases, best, count, level, best_stride: tl.constexpr, CODES: tl.constexpr, DIM: tl.constexpr,
    PART: tl.constexpr, BINS: tl.constexpr, BATCH: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    TRIGGER: tl.constexpr,
):  # fmt: skip
    """One level of the residual quantizer: the best of TILE centroids for BATCH rows, merged by an atomic maximum of
    (ordered score, smallest id). Level 0 runs books 0 and 1 side by side. Grid (bins / TILE, batch, 1 or 2)."""
    rows = tl.program_id(1) * BATCH + tl.arange(0, BATCH)
    book = level + tl.program_id(2)
    live = rows < count
    shift = tl.where(book == 0, 0, DIM)
    bins = tl.program_id(0) * TILE + tl.arange(0, TILE)
    score = tl.zeros([BATCH, TILE], tl.float32)
    wait_for_predecessor(TRIGGER)
    for at in tl.static_range(0, DIM, PART):
        d = at + tl.arange(0, PART)
        rest = tl.load(targets + rows[:, None] * (2 * DIM) + shift + d[None, :], mask=live[:, None], other=0.0)
        for j in tl.static_range(1, CODES - 1):
            before = live & (j < book)
            packed = tl.load(best + j * best_stride + rows, mask=before, other=0)
            code = tl.where(before, BINS - 1 - (packed & 0xFFFFFFFF).to(tl.int32), 0)
            rest -= tl.load(books + (j * BINS + code)[:, None] * DIM + d[None, :], mask=before[:, None], other=0.0)
        centroid = tl.load(books + (book * BINS + bins)[:, None] * DIM + d[None, :])
        score = tl.dot(rest, tl.trans(centroid), score, input_precision=PRECISION)
    score += tl.load(biases + book * BINS + bins)[None, :]
    order = score.to(tl.int32, bitcast=True)
    order = tl.where(order >= 0, order, order ^ 0x7FFFFFFF)
    packed = (order.to(tl.int64) << 32) | (BINS - 1 - bins).to(tl.int64)[None, :]
    tl.atomic_max(best + book * best_stride + rows, tl.max(packed, 1), mask=live, sem="relaxed")


@triton.jit
def codes_kernel(
    best, codes, best_stride: tl.constexpr, CODES: tl.constexpr, BINS: tl.constexpr, TRIGGER: tl.constexpr
):
    """Unpack the winners and clear them for the next frame. Grid (rows,)."""
    row = tl.program_id(0)
    j = tl.arange(0, CODES)
    wait_for_predecessor(TRIGGER)
    packed = tl.load(best + j * best_stride + row)
    code = BINS - 1 - (packed & 0xFFFFFFFF).to(tl.int32)
    tl.store(codes + row * CODES + j, tl.minimum(tl.maximum(code, 0), BINS - 1))
    tl.store(best + j * best_stride + row, tl.full([CODES], -9223372036854775807, tl.int64))


@triton.jit
def centroids_kernel(
    codes, books, out, CODES: tl.constexpr, DIM: tl.constexpr, BINS: tl.constexpr, TRIGGER: tl.constexpr
):
    """out [rows, 2 * DIM]: the semantic centroid, then the sum of the others. Grid (rows,)."""
    row = tl.program_id(0)
    d = tl.arange(0, DIM)
    wait_for_predecessor(TRIGGER)
    first = tl.minimum(tl.maximum(tl.load(codes + row * CODES), 0), BINS - 1)
    tl.store(out + row * (2 * DIM) + d, tl.load(books + first * DIM + d).to(out.dtype.element_ty))
    acc = tl.zeros([DIM], tl.float32)
    for j in tl.static_range(1, CODES):
        code = tl.minimum(tl.maximum(tl.load(codes + row * CODES + j), 0), BINS - 1)
        acc += tl.load(books + (j * BINS + code) * DIM + d)
    tl.store(out + row * (2 * DIM) + DIM + d, acc.to(out.dtype.element_ty))


@triton.jit
def upsample_kernel(
    arena, weight, out, WIDTH: tl.constexpr, OFFSET: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):  # fmt: skip
    """Depthwise transposed convolution, kernel 4 and stride 2. Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < CHANNELS
    wait_for_predecessor(TRIGGER)
    base = arena + row * WIDTH + OFFSET
    before = tl.load(base + d, mask=inside, other=0.0).to(tl.float32)
    now = tl.load(base + CHANNELS + d, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(2):
        w_now = tl.load(weight + d * 4 + i, mask=inside, other=0.0)
        w_before = tl.load(weight + d * 4 + i + 2, mask=inside, other=0.0)
        tl.store(out + (2 * row + i) * CHANNELS + d, w_now * now + w_before * before, mask=inside)
