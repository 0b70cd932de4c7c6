# ruff: noqa: N803 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""The small kernels between the products: embeddings, norms, rotation table, gate, and the drawing of tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from duplex_gpu.runtime.kernels.chain import wait_for_predecessor


@triton.jit
def embed_kernel(
    columns,
    text_table,
    code_tables,
    out,
    CODES: tl.constexpr,
    WIDTH: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Sum of the embeddings of a column's tokens; -1 adds nothing. Grid (rows, WIDTH / BLOCK)."""
    row = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < WIDTH
    wait_for_predecessor(TRIGGER)
    token = tl.load(columns + row * (CODES + 1))
    acc = tl.load(text_table + tl.maximum(token, 0).to(tl.int64) * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    acc = tl.where(token >= 0, acc, 0.0)
    for j in tl.static_range(CODES):
        code = tl.load(columns + row * (CODES + 1) + j + 1)
        at = (j * VOCABULARY + tl.maximum(code, 0)).to(tl.int64) * WIDTH + d
        acc += tl.where(code >= 0, tl.load(code_tables + at, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(out + row * WIDTH + d, acc, mask=inside)


@triton.jit
def rotation_kernel(
    column, cos, sin, field_stride: tl.constexpr, HALF: tl.constexpr, log_base: tl.constexpr, TRIGGER: tl.constexpr
):
    """cos and sin of column * base ** (-i / HALF). Grid (rows,)."""
    row = tl.program_id(0)
    wait_for_predecessor(TRIGGER)
    i = tl.arange(0, HALF)
    angle = tl.load(column + row * field_stride).to(tl.float32) * tl.exp(i.to(tl.float32) * (-log_base / HALF))
    tl.store(cos + row * HALF + i, tl.cos(angle))
    tl.store(sin + row * HALF + i, tl.sin(angle))


@triton.jit
def rms_norm_kernel(x, weight, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, eps: tl.constexpr, TRIGGER: tl.constexpr):
    """RMS norm in float32. Grid (rows,); BLOCK is the power of two that covers WIDTH."""
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    gain = tl.load(weight + d, mask=inside, other=0.0)
    wait_for_predecessor(TRIGGER)
    values = tl.load(x + row * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / WIDTH + eps)
    tl.store(out + row * WIDTH + d, (values * scale * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_gate_kernel(both, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TRIGGER: tl.constexpr):
    """out = silu(first half) * second half of a library product. Grid (rows, blocks)."""
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    wait_for_predecessor(TRIGGER)
    gate = tl.load(both + row * (2 * WIDTH) + i, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(both + row * (2 * WIDTH) + WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, (gate * tl.sigmoid(gate) * other).to(out.dtype.element_ty), mask=inside)


@triton.jit
def candidates_kernel(
    logits,
    top_k,
    kept,
    kept_ids,
    field_stride: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    KEEP: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Each chunk of a large vocabulary keeps its own top k (at most KEEP), found by bisection on the value.

    The union holds the top k of all. Grid (chunks, rows); `kept`, `kept_ids` [rows, chunks, KEEP], padded with -inf.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_predecessor(TRIGGER)
    k = tl.load(top_k + row * field_stride)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < VOCABULARY
    values = tl.load(logits + row * VOCABULARY + ids, mask=inside, other=-float("inf"))
    low = tl.min(tl.where(inside, values, float("inf")), 0)
    high = tl.max(values, 0)
    count = CHUNK
    tries = 0
    while (count != k) & (tries < 32):
        middle = 0.5 * (low + high)
        count = tl.sum((values >= middle).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        high = tl.where(count >= k, high, middle)
        tries += 1
    chosen = (values >= low) & inside
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    found = tl.sum(chosen.to(tl.int32), 0)
    base = (row * tl.num_programs(0) + chunk) * KEEP
    fits = chosen & (place < KEEP)
    tl.store(kept + base + place, values, mask=fits)
    tl.store(kept_ids + base + place, ids, mask=fits)
    rest = tl.arange(0, KEEP)
    tl.store(kept + base + rest, tl.full([KEEP], -float("inf"), tl.float32), mask=rest >= found)
    tl.store(kept_ids + base + rest, tl.zeros([KEEP], tl.int32), mask=rest >= found)


@triton.jit(do_not_specialize=["stream"])
def choose_kernel(
    logits,
    ids,
    top_k,
    temperature,
    seed,
    column,
    forced,
    tokens,
    table,
    into,
    x,
    stream,
    logits_stride: tl.constexpr,
    into_stride: tl.constexpr,
    field_stride: tl.constexpr,
    forced_stride: tl.constexpr,
    TOKENS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    START: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Draw one token per row: exact top-k sampling without sorting. Grid (rows,).

    The largest of logit / temperature + Gumbel noise wins if fewer than k logits are larger than its own; otherwise
    everything not larger than its logit is out and the next largest is tried. LISTED: candidates have ids of their own.
    START: also begin the next depth step, x = input projection + embedding of the token.
    """
    row = tl.program_id(0)
    wait_for_predecessor(TRIGGER)
    place = tl.arange(0, BLOCK)
    inside = place < CANDIDATES
    values = tl.load(logits + row * logits_stride + place, mask=inside, other=-float("inf"))
    token_ids = place
    if LISTED:
        token_ids = tl.load(ids + row * logits_stride + place, mask=inside, other=0)
    k = tl.load(top_k + row * field_stride)
    heat = tl.load(temperature + row * field_stride)
    key0 = tl.load(seed + row * field_stride).to(tl.uint32, bitcast=True)
    key1 = tl.load(seed + row * field_stride + 1).to(tl.uint32, bitcast=True)
    c1 = tl.load(column + row * field_stride).to(tl.uint32, bitcast=True)
    zeros = tl.zeros([BLOCK], tl.uint32)
    word, _, _, _ = philox_impl(
        token_ids.to(tl.uint32, bitcast=True),
        zeros + c1,
        zeros + stream.to(tl.uint32),
        zeros,
        zeros + key0,
        zeros + key1,
        10,
    )
    uniform = ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    noise = -tl.log(-tl.log(uniform))
    score = tl.where(heat > 0, values / tl.maximum(heat, 1e-6) + noise, values)
    score = tl.where(inside, score, -float("inf"))
    winner = tl.argmax(score, 0)
    level = tl.max(tl.where(place == winner, values, -float("inf")), 0)
    larger = tl.sum((values > level).to(tl.int32), 0)
    while larger >= k:
        score = tl.where(values <= level, -float("inf"), score)
        winner = tl.argmax(score, 0)
        level = tl.max(tl.where(place == winner, values, -float("inf")), 0)
        larger = tl.sum((values > level).to(tl.int32), 0)
    token = tl.sum(tl.where(place == winner, token_ids, 0), 0)
    given = tl.load(forced + row * forced_stride + stream)
    token = tl.where(given >= 0, given, token)
    tl.store(tokens + row * TOKENS + stream, token)
    if START:
        d = tl.arange(0, WIDTH_BLOCK)
        wide = d < WIDTH
        found = tl.load(table + token.to(tl.int64) * WIDTH + d, mask=wide, other=0.0).to(tl.float32)
        tl.store(x + row * WIDTH + d, tl.load(into + row * into_stride + d, mask=wide, other=0.0) + found, mask=wide)
