"""Every kernel under Triton's interpreter against plain torch: needs `triton` and TRITON_INTERPRET=1 (no GPU)."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 to run the kernels on a CPU", allow_module_level=True)

from duplex_gpu.personaplex.config import SamplingConfig
from duplex_gpu.personaplex.engine import Engine, EngineOptions
from duplex_gpu.personaplex.lm_weights import build_lm_weights
from duplex_gpu.personaplex.mimi_weights import build_mimi_weights
from duplex_gpu.personaplex.text import TextPieces
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.runtime.kernels import products
from duplex_gpu.runtime.kernels.tiles import Tile
from duplex_gpu.runtime.torch_ops import TorchOps
from duplex_gpu.runtime.triton_ops import TritonOps
from tests.gpu.personaplex.support import CONFIG, TakeFrom, lm_state, microphone, mimi_state

CPU = torch.device("cpu")
# The interpreter itself trips over a NumPy deprecation.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def unit(kernels: bool, sampling: SamplingConfig) -> PersonaPlexUnit:
    engine = Engine(
        CONFIG,
        build_lm_weights(CONFIG.lm, TakeFrom(lm_state()), torch.float32),
        build_mimi_weights(CONFIG.mimi, TakeFrom(mimi_state()), torch.float32),
        EngineOptions(max_rows=3, kv_pages=30, page_columns=8, prefill_columns=4, kernels=kernels),
    )
    return PersonaPlexUnit(engine, TextPieces([]), sampling=sampling)


def test_whole_steps():
    plain, kernels = unit(False, SamplingConfig()), unit(True, SamplingConfig())
    for target in (plain, kernels):
        for slot in (2, 0):
            target.reset(slot, seed=1234567891011 + slot)
    sound = [microphone(2, seed).numpy() for seed in range(2)]
    for frame in range(2):
        rows = [(slot, sound[i][frame]) for i, slot in enumerate((2, 0))]
        a, b = plain.run(rows), kernels.run(rows)
        assert (plain.engine.outputs.host["tokens"][:2] == kernels.engine.outputs.host["tokens"][:2]).all()
        for x, y in zip(a, b, strict=True):
            assert x.energy == pytest.approx(y.energy, abs=1e-5)
    assert (plain.engine.codec.pcm[:2] - kernels.engine.codec.pcm[:2]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, Tile(8, register=True)),
        (1, Tile(16, splits=2, register=True)),
        (5, Tile(32, 16)),
        (5, Tile(16, 32, splits=2)),
        (40, Tile(32, 16, batch=32)),
    ],
    ids=["register", "register-split", "plain", "split", "batch-tiles"],
)
def test_product_tiles(rows: int, tile: Tile):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 64), torch.randn(2 * 96, 64) / 8
    norm = torch.rand(64) + 0.5
    ops, plain = TritonOps(64, CPU), TorchOps()
    found = torch.randn(rows, 2 * 96)
    wanted = found.clone()
    ops._product(x, weight, found, tile, products.ATOMIC_ADD if tile.splits > 1 else products.ADD)
    plain.add_product(x, weight, wanted)
    assert (found - wanted).abs().max() < 1e-4
    if tile.splits > 1:
        return
    found, wanted = torch.zeros(rows, 96), torch.zeros(rows, 96)
    if tile.register:
        ops._product(x, weight, found, tile, products.STORE, norm=norm, eps=1e-8, gate=True)
        plain.norm_gated(x, norm, 1e-8, weight, wanted)
    else:
        normed = torch.zeros(rows, 64)
        plain.rms_norm(x, norm, 1e-8, normed)
        ops._product(normed, weight, found, tile, products.STORE, gate=True)
        plain.norm_gated(x, norm, 1e-8, weight, wanted)
    assert (found - wanted).abs().max() < 1e-4


def test_depth_attention_of_a_single_row():
    from duplex_gpu.runtime.kernels import attention

    torch.manual_seed(1)
    qkv, weight, residual = torch.randn(8, 1, 3 * 32), torch.randn(32, 32), torch.randn(1, 32)
    wanted = residual.clone()
    TorchOps().step_attention_add(qkv, 3, 2, weight, wanted)
    attention.depth_attention_out_kernel[(2, 2, 1)](qkv, weight, residual, 96, 3, 32, 16, 16, 8, 16**-0.5, 0)
    assert (residual - wanted).abs().max() < 1e-5
