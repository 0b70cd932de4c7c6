# ruff: noqa: N803 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""Triton kernels around a column: assembling it, settling what was chosen, reporting."""

from __future__ import annotations

import triton
import triton.language as tl

from duplex_gpu.runtime.kernels.chain import wait_for_predecessor


@triton.jit
def assemble_kernel(
    slots, user_frame, codes, next_tokens, late_codes, columns, field_stride: tl.constexpr, CODES: tl.constexpr,
    HEARD: tl.constexpr, BLOCK: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """Grid (rows,). BLOCK is a power of two of at least CODES + 1."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    wait_for_predecessor(TRIGGER)
    slot = tl.load(slots + row * field_stride)
    user = tl.load(user_frame + row * field_stride + j, mask=j < CODES, other=-1)
    if HEARD:
        user = tl.where(user >= 0, user, tl.load(codes + row * CODES + j, mask=j < CODES, other=0))
    late = slot * (CODES - 1) + j - 1
    follows = (j >= 1) & (j < CODES)
    held = tl.load(late_codes + late, mask=follows, other=0)
    own = tl.load(next_tokens + slot * (CODES + 1) + j, mask=j < CODES + 1, other=0)
    column = columns + row * (2 * CODES + 1)
    tl.store(column + j, own, mask=j < CODES + 1)
    tl.store(column + CODES + 1 + j, tl.where(j == 0, user, held), mask=j < CODES)
    tl.debug_barrier()
    tl.store(late_codes + late, user, mask=follows)


@triton.jit
def settle_kernel(
    slots, columns, tokens, next_tokens, play, field_stride: tl.constexpr, CODES: tl.constexpr, BLOCK: tl.constexpr,
    TRIGGER: tl.constexpr,
):  # fmt: skip
    """Grid (rows,)."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    wait_for_predecessor(TRIGGER)
    slot = tl.load(slots + row * field_stride)
    chosen = tl.load(tokens + row * (CODES + 1) + j, mask=j < CODES + 1, other=0)
    tl.store(next_tokens + slot * (CODES + 1) + j, chosen, mask=j < CODES + 1)
    first = tl.load(columns + row * (2 * CODES + 1) + 1)
    tl.store(play + row * CODES + j - 1, tl.where(j == 1, first, chosen), mask=(j >= 1) & (j < CODES + 1))


@triton.jit
def report_kernel(
    pcm, latent, hidden, columns, play, out_tokens, out_broken, out_energy, out_pcm, out_stride: tl.constexpr,
    CODES: tl.constexpr, BLOCK: tl.constexpr, SAMPLES: tl.constexpr, SAMPLES_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, LATENT: tl.constexpr, LATENT_BLOCK: tl.constexpr,
    AUDIO: tl.constexpr, TRIGGER: tl.constexpr,
):  # fmt: skip
    """Grid (rows,). A value is not finite if it differs from itself or its size reaches infinity."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH_BLOCK)
    wait_for_predecessor(TRIGGER)
    text = tl.load(columns + row * (2 * CODES + 1))
    codes = tl.load(play + row * CODES + j - 1, mask=(j >= 1) & (j < CODES + 1), other=0)
    tl.store(out_tokens + row * out_stride + j, tl.where(j == 0, text, codes), mask=j < CODES + 1)
    values = tl.load(hidden + row * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    bad = tl.sum((~(tl.abs(values) < float("inf"))).to(tl.int32), 0)
    if AUDIO:
        i = tl.arange(0, SAMPLES_BLOCK)
        inside = i < SAMPLES
        sound = tl.load(pcm + row * SAMPLES + i, mask=inside, other=0.0)
        bad += tl.sum((~(tl.abs(sound) < float("inf"))).to(tl.int32), 0)
        e = tl.arange(0, LATENT_BLOCK)
        heard = tl.load(latent + row * LATENT + e, mask=e < LATENT, other=0.0)
        bad += tl.sum((~(tl.abs(heard) < float("inf"))).to(tl.int32), 0)
        tl.store(out_energy + row * out_stride, tl.sqrt(tl.sum(sound * sound, 0) / SAMPLES))
        tl.store(out_pcm + row * out_stride + i, sound, mask=inside)
    tl.store(out_broken + row * out_stride, (bad > 0).to(tl.int32))
