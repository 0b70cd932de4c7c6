"""What callers say and when: fixed in advance, and the messages say the same."""

from __future__ import annotations

import numpy as np
import orjson
import pybase64
import pytest

from trio_duplex.benchmark.plan import CHUNK_MS, CHUNK_S, RATE_HZ, Plan, Say, Sounds, plan_of
from trio_duplex.showcase.recordings import Recording, speech_bounds

LOUD = Recording.of("loud", np.where(np.arange(RATE_HZ) % 2, 8_000, -8_000).astype(np.int16), RATE_HZ)


def heard(plan: Plan, offset: int, chunks: int) -> np.ndarray:
    """What a server gets."""
    sounds = Sounds(plan)
    parts = []
    for chunk in range(chunks):
        event = orjson.loads(sounds.message(chunk, plan.place(chunk, offset)))
        assert (event["type"], event["sample_rate_hz"]) == ("input_audio_buffer.append", RATE_HZ)
        parts.append(np.frombuffer(pybase64.b64decode(event["audio"]), "<i2"))
        assert len(parts[-1]) == RATE_HZ * CHUNK_MS // 1000
    return np.concatenate(parts)


def test_the_messages_say_what_the_plan_says() -> None:
    plan = Plan(cycle_chunks=100, says=(Say(10, LOUD), Say(60, LOUD, interrupts=True)))
    sound = heard(plan, 7, 250)
    utterances = [u for u in plan.utterances(0.0, 7, 250 * CHUNK_S) if u.speech_ended_s < 250 * CHUNK_S]
    assert [u.interrupts for u in utterances] == [False, True, False, True, False]
    assert utterances[0].speech_started_s == pytest.approx(17 * CHUNK_S)
    loud = np.zeros(len(sound), bool)
    for utterance in utterances:
        begin, end = (round(s * RATE_HZ) for s in (utterance.speech_started_s, utterance.speech_ended_s))
        loud[begin:end] = True
    assert (np.abs(sound[loud]) > 7_000).mean() > 0.99
    # Each recording has exactly the length of its speech here, so nothing else is loud.
    assert np.abs(sound[~loud].astype(int)).max() < 200


def test_scenarios() -> None:
    assert list(plan_of("listen").utterances(0.0, 0, 60.0)) == []
    question = plan_of("question")
    assert len(question.says) == len(question.cancels) == 1
    barge_in = plan_of("barge-in")
    first, second = barge_in.says
    assert (first.interrupts, second.interrupts) == (False, True)
    assert second.at_chunk * CHUNK_S >= first.recording.duration_ms / 1000 + 3
    assert barge_in.cancels[0] * CHUNK_S >= second.at_chunk * CHUNK_S + second.recording.duration_ms / 1000 + 4
    assert barge_in.cancels[0] < barge_in.cycle_chunks


def test_the_bundled_recordings_are_heard_as_speech_where_the_plan_says() -> None:
    plan = plan_of("question")
    (utterance,) = plan.utterances(0.0, 0, plan.cycle_chunks * CHUNK_S)
    bounds = speech_bounds(heard(plan, 0, plan.says[0].chunks), RATE_HZ)
    assert bounds is not None
    assert bounds[0] / 1000 == pytest.approx(utterance.speech_started_s, abs=0.02)
    assert bounds[1] / 1000 == pytest.approx(utterance.speech_ended_s, abs=0.02)
