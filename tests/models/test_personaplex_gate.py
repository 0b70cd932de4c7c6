"""Where an answer of PersonaPlex begins and ends: the rule of ``speech_gate``, frame by frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_duplex.models.personaplex.speech_gate import GateSettings, SpeechGate

WORD, PAD, LAST_PAD = 17, 3, 0
LOUD, MIDDLE, QUIET = 0.1, 0.007, 0.001
SETTINGS = GateSettings(onset_energy=0.01, onset_frames=3, quiet_energy=0.004, quiet_frames=4, mute_frames=6)


def verdicts(gate: SpeechGate, *frames: tuple[int, float]) -> str:
    """L, S and E for listen, speak and end."""
    return "".join(gate.step(*frame)[0].upper() for frame in frames)


def test_quiet_is_listening() -> None:
    assert verdicts(SpeechGate(SETTINGS), *[(PAD, QUIET), (LAST_PAD, QUIET)] * 10) == "L" * 20


def test_a_word_opens_at_once_and_enough_quiet_ends() -> None:
    frames = [(PAD, QUIET), (WORD, QUIET), (PAD, LOUD), *[(PAD, QUIET)] * 6]
    assert verdicts(SpeechGate(SETTINGS), *frames) == "LSSSSSELL"


@pytest.mark.parametrize("token", [0, 1, 2, 3])
def test_control_tokens_are_no_words(token: int) -> None:
    assert verdicts(SpeechGate(SETTINGS), (token, QUIET)) == "L"


def test_sound_without_words_opens_after_some_frames_in_a_row() -> None:
    assert verdicts(SpeechGate(SETTINGS), *[(PAD, LOUD)] * 4) == "LLSS"
    assert verdicts(SpeechGate(SETTINGS), *[(PAD, LOUD), (PAD, LOUD), (PAD, QUIET)] * 4) == "L" * 12


def test_between_the_levels_nothing_opens_and_nothing_ends() -> None:
    assert verdicts(SpeechGate(SETTINGS), *[(PAD, MIDDLE)] * 20) == "L" * 20
    assert verdicts(SpeechGate(SETTINGS), (WORD, LOUD), *[(PAD, MIDDLE)] * 20) == "S" * 21


def test_a_pause_shorter_than_the_limit_does_not_end() -> None:
    pause = [(PAD, QUIET)] * 3
    assert verdicts(SpeechGate(SETTINGS), (WORD, LOUD), *pause, (PAD, LOUD), *pause, (WORD, QUIET), *pause) == "S" * 12


def test_what_is_said_after_a_cut_is_not_heard_until_it_ends() -> None:
    gate = SpeechGate(SETTINGS)
    assert verdicts(gate, (WORD, LOUD)) == "S"
    gate.cut()
    assert verdicts(gate, (WORD, LOUD), *[(PAD, QUIET)] * 4) == "LLLLL"
    assert gate.state == "listening"
    assert verdicts(gate, (WORD, LOUD)) == "S"


def test_a_cut_does_not_mute_for_ever() -> None:
    gate = SpeechGate(SETTINGS)
    verdicts(gate, (WORD, LOUD))
    gate.cut()
    assert verdicts(gate, *[(WORD, LOUD)] * 8) == "LLLLLLSS"


def test_a_cut_of_nothing_mutes_nothing() -> None:
    gate = SpeechGate(SETTINGS)
    gate.cut()
    assert verdicts(gate, (WORD, LOUD)) == "S"


frames = st.tuples(st.sampled_from([WORD, PAD, LAST_PAD]), st.sampled_from([LOUD, MIDDLE, QUIET]))


@given(st.lists(st.one_of(frames, st.none()), max_size=80))
def test_answers_are_whole(steps: list[tuple[int, float] | None]) -> None:
    """Between two answers there is an end or a cut; an end closes what was open; the last frames of one are quiet."""
    gate = SpeechGate(SETTINGS)
    speaking, tail = False, []
    for step in steps:
        if step is None:
            gate.cut()
            speaking = False
            continue
        verdict = gate.step(*step)
        tail.append(step)
        if verdict == "end":
            assert speaking
            assert all(token != WORD and energy < SETTINGS.quiet_energy for token, energy in tail[-4:])
        if speaking:
            assert verdict != "listen"
        speaking = verdict == "speak"
