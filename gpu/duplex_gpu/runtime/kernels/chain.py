# ruff: noqa: N803 (capitals mark compile-time constants, as is usual for kernels)
# mypy: ignore-errors
# (kernels are written in Triton's language, which only looks like Python)
"""Programmatic dependent launch: every kernel of a step waits for its predecessor inside the kernel, not before it.

A kernel must call `wait_for_predecessor` before it touches anything an earlier kernel of the chain wrote; what it does
before (its own weights) overlaps with the predecessor's tail. `TRIGGER` says when it lets its successor start: 0 no
chaining at all (the interpreter), 1 right after the wait, 2 after its main loop.
"""

from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CHAINED = not INTERPRETED and os.environ.get("TRIO_DUPLEX_NO_PDL", "") != "1"
EARLY = 1 if CHAINED else 0
LATE = 2 if CHAINED else 0


def launch(warps: int) -> dict[str, Any]:
    """Launch options of a chained kernel."""
    if INTERPRETED:
        return {}
    return {"num_warps": warps, "launch_pdl": CHAINED}


@triton.jit
def wait_for_predecessor(TRIGGER: tl.constexpr):
    if TRIGGER > 0:
        gdc_wait()
    if TRIGGER == 1:
        gdc_launch_dependents()


@triton.jit
def release_successor(TRIGGER: tl.constexpr):
    if TRIGGER == 2:
        gdc_launch_dependents()
