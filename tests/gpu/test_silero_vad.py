"""The batched VAD against the official network, and its slots against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from duplex_gpu.silero_vad import FRAME_SAMPLES, SileroVadStep
from duplex_gpu.weights import SILERO_VAD_JIT, weight_path

pytestmark = pytest.mark.speech

Frame = NDArray[np.float32]
Recordings = dict[str, NDArray[np.float32]]


def frames(audio: NDArray[np.float32]) -> list[Frame]:
    return [audio[at : at + FRAME_SAMPLES] for at in range(0, len(audio) - FRAME_SAMPLES + 1, FRAME_SAMPLES)]


@pytest.fixture(scope="module")
def official() -> torch.jit.ScriptModule:
    return torch.jit.load(str(weight_path(SILERO_VAD_JIT)))  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture(scope="module")
def expected(official: torch.jit.ScriptModule, recordings: Recordings) -> dict[str, list[float]]:
    """What the official network says about each frame of each recording."""
    result = {}
    for name, audio in recordings.items():
        official.reset_states()
        with torch.inference_mode():
            result[name] = [official(torch.from_numpy(frame.copy())[None], 16_000).item() for frame in frames(audio)]
    return result


DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def step(request: pytest.FixtureRequest) -> SileroVadStep:
    step = SileroVadStep(8, device=request.param)
    step.warm_up()
    return step


def test_alone_equals_the_official_network(
    step: SileroVadStep, recordings: Recordings, expected: dict[str, list[float]]
) -> None:
    for name, audio in recordings.items():
        step.reset(3)
        got = [step.run([(3, frame)])[0] for frame in frames(audio)]
        np.testing.assert_allclose(got, expected[name], atol=1e-5)
    assert max(max(values) for values in expected.values()) > 0.9  # there was speech to find
    assert min(min(values) for values in expected.values()) < 0.1


def test_batched_equals_alone(step: SileroVadStep, recordings: Recordings, expected: dict[str, list[float]]) -> None:
    """All recordings at once, each in its slot, in an order that changes, leaving the batch as they end."""
    slots = {name: 7 - number for number, name in enumerate(recordings)}
    for slot in slots.values():
        step.reset(slot)
    got: dict[str, list[float]] = {name: [] for name in recordings}
    for at in range(max(len(values) for values in expected.values())):
        live = [name for name in recordings if at < len(expected[name])]
        live = live[at % len(live) :] + live[: at % len(live)]
        rows = [(slots[name], frames(recordings[name])[at]) for name in live]
        for name, probability in zip(live, step.run(rows), strict=True):
            got[name].append(probability)
    for name in recordings:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-5)


def test_rows_that_sit_out_are_unchanged_bit_for_bit(step: SileroVadStep, recordings: Recordings) -> None:
    audio = frames(recordings["goforward.raw"])
    for slot in range(8):
        step.reset(slot)
    for frame in audio[10:20]:
        step.run([(slot, frame) for slot in range(8)])
    sitting_out = [0, 2, 3, 6]
    before = {slot: step.state(slot) for slot in sitting_out}
    for frame in audio[20:40]:
        step.run([(slot, frame) for slot in (7, 1, 5, 4)])
    step.reset(5)
    step.warm_up()
    for slot in sitting_out:
        for was, now in zip(before[slot], step.state(slot), strict=True):
            assert torch.equal(was, now)


def test_reset_forgets_everything(step: SileroVadStep, recordings: Recordings) -> None:
    audio = frames(recordings["librivox_0880.wav"])[:30]
    step.reset(1)
    first = [step.run([(1, frame)])[0] for frame in audio]
    carried_on = step.run([(1, audio[0])])[0]
    step.reset(1)
    assert [step.run([(1, frame)])[0] for frame in audio] == first
    assert carried_on != first[0]


@pytest.mark.parametrize(
    "payload",
    [
        np.zeros(FRAME_SAMPLES - 1, np.float32),
        np.zeros(FRAME_SAMPLES, np.float64),
        np.zeros((1, FRAME_SAMPLES), np.float32),
        np.full(FRAME_SAMPLES, np.nan, np.float32),
        np.full(FRAME_SAMPLES, np.inf, np.float32),
    ],
    ids=["short", "float64", "two axes", "nan", "inf"],
)
def test_a_bad_frame_is_refused_before_any_slot_moves(step: SileroVadStep, payload: Frame) -> None:
    step.run([(0, np.full(FRAME_SAMPLES, 0.1, np.float32))])
    before = step.state(0)
    with pytest.raises(ValueError, match=r"frame|shape"):
        step.run([(0, np.full(FRAME_SAMPLES, 0.2, np.float32)), (1, payload)])
    for was, now in zip(before, step.state(0), strict=True):
        assert torch.equal(was, now)
