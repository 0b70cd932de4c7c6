"""The unit step on CPU: independence of rows, resets, masked rows, prompts, memory, failures."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from duplex_gpu.model_thread import ModelThread
from duplex_gpu.personaplex.config import GREEDY, SamplingConfig
from duplex_gpu.personaplex.prompts import build_prompt, load_voice
from duplex_gpu.personaplex.random_checkpoint import random_voice
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.personaplex.unit_rows import FeedPrompt, Payload, Start, UnitOutput
from duplex_gpu.steps import BatchedStep, RowResult
from tests.gpu.gpu_kit import Loop
from tests.gpu.personaplex.support import CONFIG, microphone, unit

SAMPLED = SamplingConfig()


def voice(seed: int = 1):
    data = io.BytesIO()
    torch.save(random_voice(CONFIG.lm, columns=5, seed=seed), data)
    data.seek(0)
    return load_voice(f"voice{seed}", data, CONFIG.lm)


def start(target: PersonaPlexUnit, slot: int, row: Start) -> None:
    (output,) = target.run([(slot, row)])
    while not output.ready:
        (output,) = target.run([(slot, FeedPrompt())])
    assert output.failure is None


def talk(target: PersonaPlexUnit, slot: int, frames: int, seed: int, first: int = 0) -> list[UnitOutput]:
    sound = microphone(first + frames, seed).numpy()
    return [target.run([(slot, sound[f])])[0] for f in range(first, first + frames)]


def same(a: list[UnitOutput], b: list[UnitOutput], tolerance: float = 1e-5) -> None:
    assert [o.text_id for o in a] == [o.text_id for o in b]
    for x, y in zip(a, b, strict=True):
        assert (x.pcm is None) == (y.pcm is None)
        if x.pcm is not None:
            assert np.abs(x.pcm - y.pcm).max() < tolerance


def slot_state(target: PersonaPlexUnit, slot: int) -> list[torch.Tensor]:
    engine, codec = target.engine, target.engine.codec
    pages = torch.tensor(engine.kv.table(slot))
    return [
        engine.kv.k[:, pages].clone(),
        engine.kv.v[:, pages].clone(),
        codec.encoder_state[slot].clone(),
        codec.decoder_state[slot].clone(),
        codec.encoder_rings[:, :, slot].clone(),
        codec.decoder_rings[:, :, slot].clone(),
        engine.next_tokens(slot).clone(),
        engine._late_codes[slot].clone(),
        torch.from_numpy(target._words[slot].copy()),
    ]


def test_a_session_is_the_same_alone_and_in_changing_company():
    alone = unit(1, sampling=SAMPLED)
    start(alone, 0, Start(seed=77))
    wanted = talk(alone, 0, 14, seed=5)

    crowd = unit(4, sampling=SAMPLED)
    sound = {slot: microphone(14, seed).numpy() for slot, seed in ((0, 6), (1, 5), (2, 7), (3, 8))}
    for slot in range(4):
        start(crowd, slot, Start(seed=77 if slot == 1 else slot))
    found = []
    for f in range(14):
        company = [slot for slot in (3, 1, 0, 2) if slot == 1 or (f + slot) % 3]
        outputs = crowd.run([(slot, sound[slot][f]) for slot in company])
        found.append(outputs[company.index(1)])
    same(found, wanted)
    assert len({o.text_id for o in found}) > 3


def test_the_seed_decides_and_nothing_else():
    target = unit(3, sampling=SAMPLED)
    for slot, seed in ((0, 1), (1, 1), (2, 2)):
        start(target, slot, Start(seed=seed))
    sound = microphone(8, 3).numpy()
    ids = [[o.text_id for o in target.run([(slot, frame) for slot in range(3)])] for frame in sound]
    assert all(row[0] == row[1] for row in ids)
    assert any(row[0] != row[2] for row in ids)


def test_reset_forgets_everything():
    target = unit(2, sampling=SAMPLED)
    start(target, 0, Start(seed=4))
    first = talk(target, 0, 6, seed=9)
    talk(target, 0, 5, seed=10)
    start(target, 0, Start(seed=4))
    same(talk(target, 0, 6, seed=9), first, tolerance=0.0 + 1e-7)


def test_rows_that_sit_out_keep_every_bit():
    target = unit(4, sampling=SAMPLED)
    for slot in range(4):
        start(target, slot, Start(seed=slot))
        talk(target, slot, 2, seed=slot)
    before = {slot: slot_state(target, slot) for slot in (1, 3)}
    sound = microphone(3, 20).numpy()
    for frame in sound:
        target.run([(2, frame), (0, frame)])
    target.run([(0, Start(build_prompt(CONFIG.lm, voice(), [4, 5])))])
    target.run([(0, FeedPrompt()), (2, sound[0])])
    target.reset(2)
    for slot, tensors in before.items():
        for old, new in zip(tensors, slot_state(target, slot), strict=True):
            assert torch.equal(old, new)


def test_a_nan_concerns_its_row_only_and_reset_clears_it():
    target = unit(3)
    for slot in range(3):
        start(target, slot, Start())
    sound = microphone(30, 2).numpy()
    for frame in sound[:2]:
        target.run([(slot, frame) for slot in range(3)])
    bad = sound[2].copy()
    bad[100] = np.nan
    outputs = target.run([(0, sound[2]), (1, bad), (2, sound[2])])
    assert [o.not_finite for o in outputs] == [False, True, False]
    assert outputs[1].pcm is None
    assert target.run([(slot, sound[3]) for slot in range(3)])[1].not_finite
    target.reset(1)
    for frame in sound[4:]:
        assert not any(o.failure for o in target.run([(slot, frame) for slot in range(3)]))


def test_a_page_left_full_of_nan_does_not_reach_the_next_owner():
    target = unit(1)
    start(target, 0, Start())
    wanted = talk(target, 0, 10, seed=1)
    target.engine.kv.k.fill_(float("nan"))
    target.engine.kv.v.fill_(float("nan"))
    for rings in (target.engine.codec.encoder_rings, target.engine.codec.decoder_rings):
        rings.fill_(float("nan"))
    start(target, 0, Start())
    same(talk(target, 0, 10, seed=1), wanted)


def test_memory_follows_use_and_its_end_concerns_one_row():
    target = unit(2, pages=3, page_columns=8)
    for slot in range(2):
        start(target, slot, Start())
    assert target.kv_statistics().pages_free == 3  # a session without columns holds nothing
    sound = microphone(20, 1).numpy()
    for frame in sound[:8]:
        target.run([(0, frame), (1, frame)])
    assert target.kv_statistics().pages_free == 1
    outputs = target.run([(0, sound[8]), (1, sound[8])])
    assert [o.failure for o in outputs] == [None, "kv_exhausted"]
    assert target.column(1) == 8
    assert target.run([(0, sound[9])])[0].failure is None
    target.reset(0)
    assert target.kv_statistics().pages_free == 2
    assert target.run([(1, sound[9])])[0].failure is None  # nothing was lost meanwhile


def test_a_session_outlives_its_window_without_more_memory():
    target = unit(1)
    start(target, 0, Start())
    outputs = talk(target, 0, CONFIG.lm.context + 20, seed=3)
    assert all(o.failure is None for o in outputs)
    statistics = target.kv_statistics()
    assert statistics.pages_total - statistics.pages_free == -(-CONFIG.lm.context // 8)


@pytest.mark.parametrize("columns", [64, 3])
def test_prompts_chunks_and_the_cached_voice_give_the_same_session(columns: int):
    plain, prompt = unit(1, sampling=SAMPLED), build_prompt(CONFIG.lm, voice(), [9, 8, 7])
    start(plain, 0, Start(prompt, seed=3))
    wanted = talk(plain, 0, 6, seed=2)
    assert wanted[0].pcm is not None  # audio from the first live frame on
    chunked = unit(2, sampling=SAMPLED, prefill_columns=columns)
    for slot in (1, 0):  # the second one has its voice copied in
        start(chunked, slot, Start(prompt, seed=3))
        same(talk(chunked, slot, 6, seed=2), wanted)


def test_one_chunk_a_step_whoever_waits_and_frames_go_on_beside_it():
    target = unit(3, prefill_columns=4)
    start(target, 2, Start())
    prompt = build_prompt(CONFIG.lm, None, [5] * 8)
    frame = microphone(1, 1)[0].numpy()
    outputs = target.run([(0, Start(prompt)), (1, Start(prompt)), (2, frame)])
    assert [o.ready for o in outputs] == [False, False, True]
    ready_after = {}
    for step in range(1, 40):
        waiting = [slot for slot in (0, 1) if slot not in ready_after]
        if not waiting:
            break
        outputs = target.run([*((slot, FeedPrompt()) for slot in waiting), (2, frame)])
        assert outputs[-1].pcm is not None
        for slot, output in zip(waiting, outputs, strict=False):
            if output.ready:
                ready_after[slot] = step
    chunks = -(-(prompt.count - 1) // 4) + 1
    assert ready_after == {0: chunks, 1: 2 * chunks}


@pytest.mark.parametrize(
    "rows",
    [
        [(0, None), (0, None)],
        [(2, None)],
        [(-1, None)],
        [(0, np.zeros(100, np.float32))],
        [(1, None)],
    ],
    ids=["twice", "too large", "negative", "short frame", "prompt not fed"],
)
def test_what_a_step_refuses_changes_nothing(rows):
    target = unit(2)
    start(target, 0, Start())
    target.run([(1, Start(build_prompt(CONFIG.lm, None, [1, 2])))])
    talk(target, 0, 1, seed=1)
    before = slot_state(target, 0), slot_state(target, 1)
    with pytest.raises(ValueError, match=r"slot|frame"):
        target.run(rows)
    for old, new in zip(before, (slot_state(target, 0), slot_state(target, 1)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_a_prompt_without_memory_fails_alone_and_leaves_the_slot_free():
    target = unit(2, pages=2, page_columns=8)
    start(target, 1, Start())
    prompt = build_prompt(CONFIG.lm, None, [1] * 8)  # 20 columns: three pages
    outputs = target.run([(0, Start(prompt)), (1, None)])
    assert [o.failure for o in outputs] == ["kv_exhausted", None]
    assert target.run([(0, None)])[0].failure is None


def test_the_model_thread_drives_it():
    """Through a real thread: start with a prompt, feed it, talk; answers equal to direct calls."""
    prompt = build_prompt(CONFIG.lm, voice(), [4, 5, 6])
    direct = unit(2, sampling=SAMPLED)
    start(direct, 0, Start(prompt, seed=5))
    wanted = talk(direct, 0, 3, seed=1)

    step: BatchedStep[Payload, UnitOutput] = unit(2, sampling=SAMPLED)
    loop = Loop()
    thread = ModelThread(step, call_soon=loop.call_soon)
    thread.start()
    try:
        found: list[RowResult[UnitOutput]] = []
        slot = thread.open_slot(found.append)

        def ask(payload: Payload) -> UnitOutput:
            slot.submit(payload)
            count = len(found)
            loop.run_until(lambda: len(found) > count)
            assert found[-1].error is None
            return found[-1].output

        output = ask(Start(prompt, seed=5))
        while not output.ready:
            output = ask(FeedPrompt())
        same([ask(frame) for frame in microphone(3, 1).numpy()], wanted)
    finally:
        assert thread.stop(10.0)


def test_energy_is_the_rms_of_the_frame():
    target = unit(1, sampling=GREEDY)
    start(target, 0, Start())
    for output in talk(target, 0, 4, seed=8)[1:]:
        assert output.energy == pytest.approx(float(np.sqrt(np.mean(output.pcm**2))), rel=1e-4)
