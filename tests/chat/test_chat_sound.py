"""A backend's audio on its way to the unit's rate: never more than a few ms of work in one piece (contract 24, 9)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
import trio

from tests.chat.chat_server import omni_audio, omni_text
from trio_duplex.models.chat.chunks import Audio, read_chunk
from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.chat.session import Answer
from trio_duplex.models.chat.sound import SLICE_SAMPLES, SoundError, SoundReader
from trio_duplex.models.plugin import Speech
from trio_duplex.resampling import Resampler
from trio_duplex.samples import float_from_int16

OUTPUT_HZ = 24_000


def ramp(samples: int) -> np.ndarray:
    """Samples that show a swapped or a lost piece."""
    return (np.arange(samples) % 20_000).astype("<i2")


def audio_of(chunk: dict[str, Any]) -> Audio:
    (part,) = [part for part in read_chunk(orjson.dumps(chunk)) if isinstance(part, Audio)]
    return part


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_long_chunk_comes_in_slices_that_join_to_the_whole(rate_hz: int, channels: int) -> None:
    mono = ramp(300_001)
    data = np.repeat(mono, channels).astype("<i2").tobytes()
    reader = SoundReader(OUTPUT_HZ, bare_rate_hz=OUTPUT_HZ)
    slices = list(reader.push(audio_of(omni_audio(data, rate_hz, channels=channels))))
    assert len(slices) == -(-len(mono) // SLICE_SAMPLES)
    assert max(len(s) for s in slices) <= SLICE_SAMPLES * OUTPUT_HZ / rate_hz + 100
    whole = Resampler(rate_hz, OUTPUT_HZ)
    expected = [whole.push(float_from_int16(mono)), whole.flush()]
    assert np.allclose(np.concatenate([*slices, reader.flush()]), np.concatenate(expected), atol=1e-5)


def test_a_chunk_that_is_wrong_is_refused_before_anything_of_it_is_taken() -> None:
    reader = SoundReader(OUTPUT_HZ, bare_rate_hz=OUTPUT_HZ)
    data = ramp(100_000).tobytes()
    with pytest.raises(SoundError):
        reader.push(audio_of(omni_audio(data, 48_000, frame_count=99_999)))
    taken = np.concatenate(list(reader.push(audio_of(omni_audio(data, OUTPUT_HZ)))))
    assert len(taken) == 100_000
    with pytest.raises(SoundError):
        reader.push(audio_of(omni_audio(data, 48_000)))  # the rate may not change


def test_a_sample_cut_between_two_raw_chunks_is_put_together() -> None:
    data = ramp(50_000).tobytes()
    reader = SoundReader(OUTPUT_HZ, bare_rate_hz=OUTPUT_HZ)
    got: list[np.ndarray] = []
    for begin, end in pairwise([0, 1, 40_001, 40_002, len(data)]):
        got += reader.push(Audio(data[begin:end], required=False))
    assert np.array_equal(np.concatenate(got), float_from_int16(ramp(50_000)))


# --- in an answer -------------------------------------------------------------------------------------------------


def answering(said: list[Speech]) -> Answer:
    options = ChatOptions(url="http://localhost:9", model="m", max_lead_ms=600_000)
    return Answer(options, said.append, text_only=False)


async def test_others_run_between_the_slices_and_order_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    slices, ticks = 40, 0
    mono = ramp(SLICE_SAMPLES * slices)
    said: list[Speech] = []
    answer = answering(said)

    async def others(task_status: trio.TaskStatus[None]) -> None:
        nonlocal ticks
        task_status.started()
        while not said:
            await trio.lowlevel.checkpoint()
            ticks += 1

    async with trio.open_nursery() as nursery:
        await nursery.start(others)
        await answer.take(orjson.dumps(omni_text("One two three.")))
        assert await answer.take(orjson.dumps(omni_audio(mono.tobytes())))
    assert ticks >= slices
    await answer.finish()
    assert np.array_equal(np.concatenate([s.audio for s in said]), mono)
    assert "".join(s.text for s in said) == "One two three."
    assert [s.end_of_turn for s in said] == [False] * (len(said) - 1) + [True]


async def test_cancelled_between_two_slices_nothing_more_is_said(autojump_clock: trio.testing.MockClock) -> None:
    said: list[Speech] = []
    answer = answering(said)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer.take, orjson.dumps(omni_audio(ramp(SLICE_SAMPLES * 100).tobytes(), 48_000)))
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert said == []
