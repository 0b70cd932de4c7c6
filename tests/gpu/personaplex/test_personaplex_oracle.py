"""Our networks against the reference implementation with the same random weights, float32 on CPU."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.gpu.personaplex.support import CONFIG, codec, engine, lm_state, microphone, mimi_state, unit

pytest.importorskip("moshi", reason="the reference package moshi is not installed (requirements-oracle.txt)")

from duplex_gpu.personaplex.config import PAD_TEXT, SILENCE_CODES, SINE_CODES
from duplex_gpu.personaplex.prompts import Voice, build_prompt
from duplex_gpu.runtime.rows import rows_of
from tests.gpu.personaplex.oracle import oracle_generator, oracle_lm, oracle_mimi

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LM = CONFIG.lm


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def random_columns(rows: int, count: int, seed: int = 3) -> torch.Tensor:
    """Token columns int64 [rows, 17, count] as the reference takes them, the first one made of start tokens."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, LM.audio_vocab, (rows, 17, count), generator=generator)
    columns[:, 0] = torch.randint(0, LM.text_vocab, (rows, count), generator=generator)
    columns[:, 0, 0], columns[:, 1:, 0] = LM.text_start, LM.audio_start
    return columns


def test_logits_of_forced_columns_past_the_window_end():
    rows, count = 2, LM.context + 15
    columns = random_columns(rows, count)
    reference = oracle_lm(lm_state())
    ours = engine(rows)
    host = ours.inputs.host
    worst_text = worst_audio = 0.0
    with reference.streaming(rows):
        for t in range(count - 1):
            hidden, text_logits = reference.forward_text(columns[:, :, t : t + 1])
            with reference.depformer.streaming(rows):
                wanted = [
                    reference.forward_depformer(k, columns[:, k : k + 1, t + 1 : t + 2], hidden) for k in range(8)
                ]
            for slot in range(rows):
                ours.kv.ensure(slot, t + 1)
                table = ours.kv.table(slot)
                host["pages"][slot, : len(table)] = table
                host["slot"][slot], host["column"][slot] = slot, t
                host["forced"][slot] = columns[slot, :9, t + 1].numpy()
            batch = rows_of(ours.inputs, rows)
            ours.temporal.columns[:rows] = columns[:, :, t].int()
            ours.temporal.step(batch)
            ours.depformer.frame(
                batch, ours.temporal.hidden[:rows], ours.temporal.text_logits[:rows], batch.device["forced"]
            )
            worst_text = max(worst_text, (ours.temporal.text_logits[:rows] - text_logits[:, 0, 0]).abs().max().item())
            for k in range(8):
                worst_audio = max(
                    worst_audio, (ours.depformer.logits[k, :rows] - wanted[k][:, 0, 0]).abs().max().item()
                )
    assert worst_text < 1e-4
    assert worst_audio < 1e-4


def test_batched_prefill_gives_the_hidden_states_of_single_columns():
    columns = random_columns(1, 30)
    reference = oracle_lm(lm_state())
    with reference.streaming(1):
        wanted = [reference.forward_text(columns[:, :, t : t + 1])[0][0, 0] for t in range(30)]
    ours = engine(1)
    ours.kv.ensure(0, 30)
    x = ours.embed(columns[0].t().int())
    host = ours.inputs.host
    found = []
    for start, stop in pairwise([0, 1, 12, 29, 30]):
        count = stop - start
        host["pages"][:count, : len(ours.kv.table(0))] = ours.kv.table(0)
        host["column"][:count, 0] = range(start, stop)
        ours.set_prompt(x[start:stop])
        ours.launch_prefill(count)
        found.append(ours.temporal.hidden[:count].clone())
    assert (torch.cat(found) - torch.stack(wanted)).abs().max() < 1e-5


def test_mimi_codes_latents_and_waveform_streaming_past_the_window():
    rows, frames = 3, 3 * CONFIG.mimi.context // 2
    reference, ours = oracle_mimi(mimi_state()), codec(rows, 4)
    sound = torch.stack([microphone(frames, seed) for seed in range(rows)])
    slots = torch.tensor([[2], [0], [3]], dtype=torch.int32)
    latents = oracle_mimi(mimi_state())
    with reference.streaming(rows), latents.streaming(rows):
        for f in range(frames):
            codes = reference.encode(sound[:, f, None])
            latent = latents.encode_to_latent(sound[:, f, None], quantize=False)
            wave = reference.decode(codes)
            position = torch.full((rows, 1), 2 * f, dtype=torch.int32)
            ours.encode(sound[:, f], slots, position)
            assert torch.equal(ours.codes[:rows].long(), codes[:, :, 0])
            assert (ours.latent[:rows] - latent[:, :, 0]).abs().max() < 1e-4
            ours.decode(codes[:, :, 0].int(), slots, position)
            assert (ours.pcm[:rows] - wave[:, 0]).abs().max() < 1e-4
    assert len(torch.unique(codes)) > 8  # the books are really in use


def test_whole_frames_greedy_tokens_and_waveform_past_the_window():
    rows, frames, slots = 3, LM.context + 12, (2, 0, 3)
    mimi, generator, ours = oracle_mimi(mimi_state()), oracle_generator(oracle_lm(lm_state())), unit(4)
    sound = torch.stack([microphone(frames, seed) for seed in range(rows)])
    for slot in slots:
        ours.reset(slot)
    with mimi.streaming(rows), generator.streaming(rows):
        for f in range(frames):
            tokens = generator.step(mimi.encode(sound[:, f, None]))
            outputs = ours.run([(slot, sound[i, f].numpy()) for i, slot in enumerate(slots)])
            if f == 0:
                assert tokens is None
                assert all(output.pcm is None for output in outputs)
                continue
            assert np.array_equal(ours.engine.outputs.host["tokens"][:rows], tokens[:, :, 0].numpy())
            wave = mimi.decode(tokens[:, 1:])[:, 0].numpy()
            for i, output in enumerate(outputs):
                assert output.text_id == tokens[i, 0, 0]
                assert np.abs(output.pcm - wave[i]).max() < 1e-4


def test_late_join_pause_and_reset_of_single_slots():
    """The reference with out-of-step slots against our rows that simply sit a step out."""
    rows, frames = 3, 26
    generator = oracle_generator(oracle_lm(lm_state()), out_of_sync=True)
    mimi, speaker, ours = oracle_mimi(mimi_state()), oracle_mimi(mimi_state()), unit(rows)
    sound = torch.stack([microphone(frames, 40 + seed) for seed in range(rows)])
    for slot in range(rows):
        ours.reset(slot)
    compared = 0
    with mimi.streaming(rows), speaker.streaming(rows), generator.streaming(rows):
        for f in range(frames):
            active = [f % 5 != 2, f >= 6, f % 3 != 1]
            resets = [f == 15, False, f == 9]
            mask = torch.tensor(resets)
            if mask.any():
                for part in (generator, mimi, speaker):
                    part.set_exec_mask(torch.ones(rows, dtype=torch.bool))
                    part.reset_streaming(mask)
                for slot in mask.nonzero()[:, 0].tolist():
                    ours.reset(slot)
            running = torch.tensor(active)
            generator.set_exec_mask(running)
            mimi.set_exec_mask(running)
            tokens = generator.step(mimi.encode(sound[:, f, None]))
            speaker.set_exec_mask(tokens[:, 0, 0] >= 0)
            wave = speaker.decode(tokens[:, 1:].clamp(min=0)).numpy()
            playing = [slot for slot in range(rows) if active[slot]]
            outputs = ours.run([(slot, sound[slot, f].numpy()) for slot in playing])
            found = ours.engine.outputs.host["tokens"]
            for i, slot in enumerate(playing):
                if outputs[i].pcm is None:
                    assert tokens[slot, 0, 0] == -2
                    continue
                compared += 1
                assert np.array_equal(found[i], tokens[slot, :, 0].numpy()), (f, slot)
                assert np.abs(outputs[i].pcm - wave[slot, 0]).max() < 1e-4, (f, slot)
    assert compared > 35


def prompt_by_the_book(clip: list[list[int]], persona: list[int]) -> list[list[int]]:
    """The prompt frames (text, 8 agent, 8 user codes) in order: voice, spacer, persona, spacer."""
    silence, sine = list(SILENCE_CODES), list(SINE_CODES)
    quiet = [PAD_TEXT, *silence, *sine]
    return [
        *([PAD_TEXT, *codes, *sine] for codes in clip),
        *[quiet] * 6,
        *([token, *silence, *sine] for token in persona),
        *[quiet] * 6,
    ]


@pytest.mark.parametrize("chunk", [64, 3], ids=["one-pass", "chunks-of-3"])
def test_prompts_voice_and_persona_then_live(chunk: int):
    """Prefill, cached voice prefix and early sampling against single reference steps over the column table."""
    generator = torch.Generator().manual_seed(9)
    clip = torch.randint(0, LM.audio_vocab, (5, 8), generator=generator).tolist()
    persona = [7, 50, 23]
    frames = prompt_by_the_book(clip, persona)
    count, live = len(frames), 25
    user = torch.randint(0, LM.audio_vocab, (live, 8), generator=generator)
    everything = [*frames, *([-1] * 9 + row for row in user.tolist())]

    model = oracle_lm(lm_state())
    table = torch.full((17, count + live + 1), LM.audio_start)
    table[0, 0] = LM.text_start
    recorded = []
    chosen = []
    late = [*range(2, 9), *range(10, 17)]
    with model.streaming(1):
        for p in range(count + live):
            frame = torch.tensor(everything[p])
            if p > 0:
                on_time = [0, 1] if p < count else []
                table[[*on_time, 9], p] = frame[[*on_time, 9]]
            column = table[:, p].clone()
            x = sum(model.emb[k](column[k + 1]) for k in range(16)) + model.text_emb(column[0])
            recorded.append(x)
            hidden, text_logits = model.forward_text(column[None, :, None])
            forced = [-1] * 9
            if p < count:
                forced[2:] = everything[p][2:9] if p > 0 else [LM.audio_start] * 7
            token = int(text_logits[0, 0, 0].argmax()) if forced[0] < 0 else forced[0]
            picked = [token]
            with model.depformer.streaming(1):
                for k in range(8):
                    logits = model.forward_depformer(k, torch.tensor([[[picked[-1]]]]), hidden)
                    best = int(logits[0, 0, 0].argmax())
                    picked.append(forced[k + 1] if forced[k + 1] >= 0 else best)
            table[:9, p + 1] = torch.tensor(picked)
            table[10:, p + 1] = frame[10:] if p > 0 else LM.audio_start
            if p >= count:
                chosen.append([int(table[0, p]), int(table[1, p]), *picked[2:]])
    given = len(clip) - 1
    voice = Voice(
        "recorded",
        torch.stack(recorded[:given]),
        table[:, given].int().numpy(),
        np.where(np.isin(np.arange(17), late), table[:, given + 1].int().numpy(), -2).astype(np.int32),
    )

    ours = unit(3, prefill_columns=chunk)
    prompt = build_prompt(LM, voice, persona)
    assert prompt.count == count
    for slot in (1, 2):  # the second time the voice's columns are copied in
        ours.reset(slot)
        ours.begin_prompt(slot, prompt)
        while not ours.feed_prompt(slot):
            pass
        assert ours.column(slot) == count
    for f in range(live):
        for slot in (1, 2):  # the user's codes are given, so that the language model alone is compared
            ours._views["user_frame"][slot] = user[f].int().numpy()
        outputs = ours.run([(1, None), (2, None)])
        found = ours.engine.outputs.host["tokens"]
        assert found[0].tolist() == chosen[f], f
        assert found[1].tolist() == chosen[f], f
        assert all(output.pcm is not None for output in outputs)
