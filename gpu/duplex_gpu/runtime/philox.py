"""Philox-4x32-10 in plain torch: the numbers the kernels draw, keyed by seed and counter, not by place in a batch."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def philox_word(
    seed_low: torch.Tensor, seed_high: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor
) -> torch.Tensor:
    """First output word (int64, 0 to 2**32-1) of the counter (c0, c1, c2, 0) under the 64-bit key; all broadcast."""
    k0, k1 = seed_low.long() & _MASK, seed_high.long() & _MASK
    a, b, c = c0.long() & _MASK, c1.long() & _MASK, c2.long() & _MASK
    d = torch.zeros_like(a)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = ((p1 >> 32) & _MASK) ^ b ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ d ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return a


def gumbel(word: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise (float32) from a 32-bit word: its upper 23 bits, so that the uniform is never 0 or 1."""
    uniform = ((word >> 9).to(torch.float32) + 0.5) * (2.0**-23)
    return -torch.log(-torch.log(uniform))
