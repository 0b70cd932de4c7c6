"""Hearing without a clock: whatever is appended, committed and dropped in whatever order, turns never overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.demo.hearing import Committed, Hearing, Started, Stopped, Tape, TurnOver, UnitHeard
from trio_duplex.models.plugin import Turn
from trio_duplex.turn_detection import EndpointerSettings

MAX_MS = 2_000
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 6_000)),
        st.tuples(st.just("judge"), st.integers(1, 12)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("drop"), st.just(0)),
        st.tuples(st.just("owner"), st.integers(0, 1)),
    ),
    max_size=60,
)


@given(STEPS, st.randoms(use_true_random=False), st.booleans())
@settings(derandomize=True, database=None, deadline=None)
def test_turns_are_disjoint_and_complete(steps: list[tuple[str, int]], chance: object, owns: bool) -> None:
    hearing = Hearing(
        EndpointerSettings(silence_duration_ms=96, early_silence_ms=32),
        owns_turns=owns,
        unit_frames=3,
        max_utterance_ms=MAX_MS,
    )
    appended = judged = 0
    waiting: list[float] = []  # frames at the detector, by their probability
    commits: list[Turn] = []
    decisions: list[object] = []

    def judge(count: int) -> None:
        nonlocal judged
        for _ in range(min(count, len(waiting))):
            judged += 1
            decisions.extend(hearing.judge(waiting.pop(0)))

    for step, number in [*steps, ("append", 512), ("judge", 10_000)]:
        if step == "append":
            # Sample n of the stream has the value n, so that audio can be told by its content.
            hearing.append(np.arange(appended, appended + number, dtype=np.float32))
            appended += number
            while (frame := hearing.next_frame()) is not None:
                assert len(frame) == 512
                assert frame[0] % 512 == 0
                waiting.append(chance.choice([0.1, 0.4, 0.9, 0.9]))  # type: ignore[attr-defined]
        elif step == "judge":
            judge(number)
        elif step == "commit":
            turn = hearing.commit()
            assert turn.audio_end_ms == appended // 16
            if turn.speech:
                commits.append(turn)
            decisions += hearing.due()
        elif step == "drop":
            hearing.drop()
            decisions += hearing.due()
        else:
            hearing.reconfigure(EndpointerSettings(silence_duration_ms=96), owns_turns=bool(number))

    committed = [decision for decision in decisions if isinstance(decision, Committed)]
    assert [decision.turn for decision in committed] == commits
    assert sum(isinstance(decision, UnitHeard) for decision in decisions) == judged // 3 == appended // 512 // 3
    end_ms, speaking = 0, False
    for decision in decisions:
        match decision:
            case Started(audio_start_ms):
                assert audio_start_ms >= end_ms
                speaking = True
            case Stopped(audio_end_ms):
                assert speaking
                assert audio_end_ms >= end_ms
                speaking = False
            case TurnOver(turn, audio) | Committed(turn, audio):
                assert end_ms <= turn.audio_start_ms <= turn.audio_end_ms
                end_ms, speaking = turn.audio_end_ms, False
                if audio is not None:
                    assert 0 < len(audio) <= MAX_MS * 16
                    assert np.array_equal(np.diff(audio), np.ones(len(audio) - 1))  # no gap inside
                    assert int(audio[-1] + 1) // 16 == turn.audio_end_ms
            case _:
                pass


def test_memory_is_bounded_while_nobody_speaks() -> None:
    hearing = Hearing(EndpointerSettings(), owns_turns=True, unit_frames=3, max_utterance_ms=60_000)
    for _ in range(600):
        hearing.append(np.zeros(16_000, np.float32))
        while hearing.next_frame() is not None:
            hearing.judge(0.0)
    kept = sum(len(block) for _, block in hearing._tape._blocks)
    assert kept <= 4 * 16_000


def test_tape_gives_what_is_there() -> None:
    tape = Tape()
    tape.append(np.arange(40_000, dtype=np.float32))
    tape.append(np.arange(40_000, 40_010, dtype=np.float32))
    assert tape.between(15_990, 16_010).tolist() == list(range(15_990, 16_010))
    assert tape.between(39_999, 50_000).tolist() == list(range(39_999, 40_010))
    tape.forget_before(16_001)
    assert tape.between(0, 16_002).tolist() == [16_000.0, 16_001.0]
    assert len(tape.between(3, 3)) == 0
