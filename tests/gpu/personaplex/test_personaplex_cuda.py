"""The CUDA path at the published widths (fewer layers): kernels and graphs against plain torch in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from duplex_gpu.personaplex.config import GREEDY, LMConfig, MimiConfig, PersonaPlexConfig, SamplingConfig
from duplex_gpu.personaplex.engine import Engine, EngineOptions
from duplex_gpu.personaplex.layout import lm_shapes, mimi_shapes
from duplex_gpu.personaplex.lm_weights import LMWeights, build_lm_weights
from duplex_gpu.personaplex.mimi_weights import MimiWeights, build_mimi_weights
from duplex_gpu.personaplex.random_checkpoint import random_take
from duplex_gpu.personaplex.text import TextPieces
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.runtime.graphs import EAGER_VARIABLE
from tests.gpu.personaplex.support import microphone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WIDE = PersonaPlexConfig(lm=LMConfig(layers=2, dep_layers=2), mimi=MimiConfig(layers=2))
ROWS = 130
CUDA = torch.device("cuda", 0)


def weights(dtype: torch.dtype, codec_dtype: torch.dtype) -> tuple[LMWeights, MimiWeights]:
    """The same random numbers (rounded to bfloat16) in any type."""
    lm = random_take(lm_shapes(WIDE.lm), 1, CUDA, torch.bfloat16)
    mimi = random_take(mimi_shapes(WIDE.mimi), 2, CUDA, torch.float32)
    return build_lm_weights(WIDE.lm, lm, dtype), build_mimi_weights(WIDE.mimi, mimi, codec_dtype)


@pytest.fixture(scope="module")
def fast_weights():
    return weights(torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def exact_weights():
    return weights(torch.float32, torch.float32)


def engine(
    parts: tuple[LMWeights, MimiWeights], kernels: bool, rows: int = ROWS, kv: torch.dtype | None = None
) -> Engine:
    options = EngineOptions(max_rows=rows, kv_pages=12 * rows, page_columns=64, kernels=kernels, kv_dtype=kv)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        return Engine(WIDE, *parts, options)


def unit(parts, kernels=True, rows=ROWS, sampling=GREEDY, buckets=None, kv=None) -> PersonaPlexUnit:
    made = PersonaPlexUnit(engine(parts, kernels, rows, kv), TextPieces([]), sampling=sampling, buckets=buckets)
    made.warm_up()
    return made


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()


def fill(target: Engine, rows: int, seed: int = 0) -> None:
    """Random columns, positions, forced tokens and caches of up to 600 columns in shuffled slots."""
    random = np.random.default_rng(seed)
    host = target.inputs.host
    slots = random.permutation(ROWS)[:rows]
    columns = random.integers(0, 600, rows)
    torch.manual_seed(seed)
    target.kv.k.copy_(torch.randn(target.kv.k.shape, device=CUDA, dtype=torch.bfloat16))
    target.kv.v.copy_(torch.randn(target.kv.v.shape, device=CUDA, dtype=torch.bfloat16))
    for i, (slot, column) in enumerate(zip(slots.tolist(), columns.tolist(), strict=True)):
        target.kv.release(slot)
        target.kv.ensure(slot, 640)
        host["slot"][i], host["column"][i] = slot, column
        host["pages"][i, :10] = target.kv.table(slot)
    host["forced"][:rows] = random.integers(0, 2048, (rows, 9))
    host["top_k"][:rows], host["temperature"][:rows] = (25, 250), 0.0
    target.temporal.columns[:rows] = torch.from_numpy(random.integers(0, 2048, (rows, 17)).astype(np.int32))
    target.inputs.to_device(ROWS)


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rows", [1, 2, 16, 32, 64, 96, 128, 130])
def test_language_model_against_float32(fast_weights, exact_weights, rows: int, kv: torch.dtype):
    from duplex_gpu.runtime.rows import rows_of

    if kv == torch.float8_e4m3fn and rows not in (1, 64):
        pytest.skip("one small and one large batch are enough")
    fast, exact = engine(fast_weights, True, kv=kv), engine(exact_weights, False, kv=torch.float32)
    with torch.inference_mode():
        for target in (fast, exact):
            fill(target, rows)
        exact.kv.k.copy_(fast.kv.k.float())
        exact.kv.v.copy_(fast.kv.v.float())
        for target in (fast, exact):
            target.temporal.hidden.fill_(float("nan"))
            target.depformer.logits.fill_(float("nan"))
            batch = rows_of(target.inputs, rows)
            target.temporal.step(batch)
            target.depformer.frame(
                batch, target.temporal.hidden[:rows], target.temporal.text_logits[:rows], batch.device["forced"]
            )
    assert relative(fast.temporal.hidden[:rows], exact.temporal.hidden[:rows]) < 2e-2
    assert relative(fast.temporal.text_logits[:rows], exact.temporal.text_logits[:rows]) < 2e-2
    for k in range(8):
        assert relative(fast.depformer.logits[k, :rows], exact.depformer.logits[k, :rows]) < 2e-2, k
    assert relative(fast.kv.k, exact.kv.k) < 2e-2
    assert torch.equal(fast.depformer.tokens[:rows], exact.depformer.tokens[:rows])  # all forced


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_codec_against_float32(fast_weights, exact_weights, rows: int):
    fast, exact = engine(fast_weights, True).codec, engine(exact_weights, False).codec
    slots = torch.randperm(ROWS, device=CUDA, dtype=torch.int32)[:rows, None].contiguous()
    torch.manual_seed(3)
    differ = 0.0
    with torch.inference_mode():
        for frame in range(6):
            pcm = torch.randn(rows, 1920, device=CUDA) * 0.3
            at = torch.full((rows, 1), 2 * frame, device=CUDA, dtype=torch.int32)
            for target in (fast, exact):
                target.encode(pcm, slots, at)
            assert relative(fast.latent[:rows], exact.latent[:rows]) < 5e-3
            differ += (fast.codes[:rows] != exact.codes[:rows]).float().mean().item() / 6
            codes = exact.codes[:rows].clone()
            for target in (fast, exact):
                target.decode(codes, slots, at)
            assert relative(fast.pcm[:rows], exact.pcm[:rows]) < 5e-3
    assert differ < 0.05


def test_rotation_is_exact_late_in_a_session(fast_weights):
    from duplex_gpu.runtime.rows import rows_of
    from duplex_gpu.runtime.torch_ops import TorchOps
    from duplex_gpu.runtime.triton_ops import TritonOps

    target = engine(fast_weights, True)
    target.inputs.host["column"][:4, 0] = [3, 2999, 100_000, 3_000_000]
    with torch.inference_mode():
        target.inputs.to_device(ROWS)
    batch = rows_of(target.inputs, 4)
    found, wanted = ([torch.zeros(4, 64, device=CUDA) for _ in range(2)] for _ in range(2))
    TritonOps(ROWS, CUDA).rotation(batch, 10000.0, *found)
    TorchOps().rotation(batch, 10000.0, *wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a[:3] - b[:3]).abs().max() < 2e-2  # float32 angles: their own rounding shows at 100 000 columns
        assert (a[:2] - b[:2]).abs().max() < 1e-3


def play(target: PersonaPlexUnit, frames: int, slots: list[int], start: int = 0) -> list[list[tuple[int, bytes]]]:
    sound = {slot: microphone(start + frames, 70 + slot).numpy() for slot in slots}
    history = []
    for frame in range(start, start + frames):
        outputs = target.run([(slot, sound[slot][frame]) for slot in slots])
        assert not any(output.failure for output in outputs)
        history.append([(o.text_id, b"" if o.pcm is None else o.pcm.tobytes()) for o in outputs])
    return history


def test_replayed_graphs_give_what_eager_launches_give(fast_weights, monkeypatch):
    """At one bucket; sums by atomics may differ in the last bits, so tokens are compared over a short run."""
    captured = unit(fast_weights, rows=4, buckets=(4,))
    monkeypatch.setenv(EAGER_VARIABLE, "1")
    eager = unit(fast_weights, rows=4, buckets=(4,))
    assert captured._steps.captured
    assert not eager._steps.captured
    for target in (captured, eager):
        for slot in range(3):
            target.reset(slot, seed=slot)
    a, b = (play(target, 4, [0, 1, 2]) for target in (captured, eager))
    assert [[text for text, _ in row] for row in a[:2]] == [[text for text, _ in row] for row in b[:2]]


def test_rows_that_sit_out_keep_every_bit(fast_weights):
    target = unit(fast_weights, rows=8)
    for slot in range(8):
        target.reset(slot, SamplingConfig(), seed=slot)
    play(target, 3, list(range(8)))
    engine = target.engine

    def state(slot: int) -> list[torch.Tensor]:
        pages = torch.tensor(engine.kv.table(slot), device=CUDA)
        codec = engine.codec
        return [
            engine.kv.k[:, pages].clone(),
            engine.kv.v[:, pages].clone(),
            codec.encoder_state[slot].clone(),
            codec.decoder_state[slot].clone(),
            codec.encoder_rings[:, :, slot].clone(),
            codec.decoder_rings[:, :, slot].clone(),
            engine._next_tokens[slot].clone(),
            engine._late_codes[slot].clone(),
        ]

    before = {slot: state(slot) for slot in (1, 4, 7)}
    play(target, 3, [0, 2, 3, 5, 6], start=3)
    for slot, tensors in before.items():
        for old, new in zip(tensors, state(slot), strict=True):
            assert torch.equal(old, new)


def test_a_nan_is_reported_for_its_row_only_and_cleared_by_reset(fast_weights):
    target = unit(fast_weights, rows=4)
    for slot in range(4):
        target.reset(slot)
    good = microphone(1, 5)[0].numpy()
    bad = np.full(1920, np.nan, np.float32)
    for _ in range(2):
        target.run([(slot, good) for slot in range(4)])
    outputs = target.run([(0, good), (1, bad), (2, good), (3, good)])
    assert [output.not_finite for output in outputs] == [False, True, False, False]
    more = target.run([(slot, good) for slot in range(4)])
    assert [output.not_finite for output in more] == [False, True, False, False]
    target.reset(1)
    assert all(not o.failure for _ in range(3) for o in target.run([(slot, good) for slot in range(4)]))


def test_prompted_sessions_start_alike_with_and_without_neighbours(fast_weights):
    """A prompt is laid out, prefilled and finished on the device; sampling is the session's own."""
    target = unit(fast_weights, rows=4, sampling=SamplingConfig())
    from duplex_gpu.personaplex.prompts import build_prompt

    prompt = build_prompt(WIDE.lm, None, list(range(100, 130)))
    first = []
    for slot in (0, 3):
        target.reset(slot, seed=99)
        target.begin_prompt(slot, prompt)
        while not target.feed_prompt(slot):
            pass
        first.append(target.engine.next_tokens(slot)[0].item())
        assert target.column(slot) == prompt.count
    assert first[0] == first[1]
    outputs = target.run([(0, None), (3, None)])
    assert all(o.pcm is not None and not o.failure for o in outputs)


def test_prefill_of_many_columns_against_float32(fast_weights, exact_weights):
    """Columns of one session in two passes, the second attending to the first."""
    random = np.random.default_rng(4)
    columns = torch.from_numpy(random.integers(0, 2048, (80, 17)).astype(np.int32)).to(CUDA)
    hidden = []
    for target in (engine(fast_weights, True, kv=torch.bfloat16), engine(exact_weights, False, kv=torch.float32)):
        target.kv.ensure(5, 80)
        host = target.inputs.host
        with torch.inference_mode():
            x = target.embed(columns)
            for start, stop in ((0, 50), (50, 80)):
                count = stop - start
                host["pages"][:count, :2] = target.kv.table(5)
                host["column"][:count, 0] = np.arange(start, stop)
                target.set_prompt(x[start:stop])
                target.launch_prefill(count)
        torch.cuda.synchronize()
        hidden.append(target.temporal.hidden[:30].float())
    assert relative(*hidden) < 2e-2
