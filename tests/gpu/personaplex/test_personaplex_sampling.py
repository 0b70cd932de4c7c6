"""Random numbers and the drawing of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duplex_gpu.runtime.philox import gumbel, philox_word
from duplex_gpu.runtime.rows import LM_FIELDS, rows_of
from duplex_gpu.runtime.staging import Staging
from duplex_gpu.runtime.torch_ops import TorchOps


def word(key: tuple[int, int], counter: tuple[int, int, int]) -> int:
    return int(philox_word(*(torch.tensor([v]) for v in (*key, *counter)))[0])


def test_known_answer_of_philox():
    """Random123's published vectors for philox4x32-10 with a zero last counter word."""
    assert word((0, 0), (0, 0, 0)) == 0x6627E8D5


def test_gumbel_noise_is_finite_at_both_ends_and_has_its_mean():
    ends = gumbel(torch.tensor([0, 0xFFFFFFFF]))
    assert torch.isfinite(ends).all()
    ids = torch.arange(200_000)
    zero = torch.zeros_like(ids)
    noise = gumbel(philox_word(zero + 5, zero, ids, zero, zero))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.std().item() == pytest.approx(np.pi / np.sqrt(6), abs=0.01)


def draw(logits: torch.Tensor, count: int, stream: int, top_k: int, temperature: float, seed: int = 3) -> np.ndarray:
    staging = Staging(LM_FIELDS, count, torch.device("cpu"))
    staging.host["column"][:, 0] = np.arange(count)
    staging.host["top_k"][:] = top_k
    staging.host["temperature"][:] = temperature
    staging.host["seed"][:] = (seed, 9)
    tokens = torch.zeros(count, 9, dtype=torch.int32)
    forced = torch.full((count, 9), -1, dtype=torch.int32)
    TorchOps().choose(rows_of(staging, count), logits.expand(count, -1).contiguous(), stream, forced, tokens)
    return tokens[:, stream].numpy()


@pytest.mark.parametrize("stream", [0, 4])
def test_draws_follow_the_truncated_softmax(stream: int):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, generator=generator) * 1.5
    count, k, temperature = 20_000, 8, 0.8
    kept = logits.topk(k).indices
    wanted = torch.zeros(40)
    wanted[kept] = torch.softmax(logits[kept] / temperature, 0)
    drawn = np.bincount(draw(logits, count, stream, k, temperature), minlength=40) / count
    assert drawn[wanted.numpy() == 0].sum() == 0
    chi_square = count * ((drawn - wanted.numpy())[kept] ** 2 / wanted.numpy()[kept]).sum()
    assert chi_square < 26  # the 0.1 % point of 7 degrees of freedom is 24.3


def test_temperature_zero_is_greedy_and_forcing_wins():
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2))
    assert set(draw(logits, 50, 1, 10, 0.0)) == {int(logits.argmax())}
    assert len(set(draw(logits, 50, 1, 10, 1.0))) > 1
    assert set(draw(logits, 50, 1, 1, 1.0)) == {int(logits.argmax())}
