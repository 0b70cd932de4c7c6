"""Text follows sound, nothing is lost, and an answer keeps its distance to real time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.chat.pace import Pace
from trio_duplex.models.chat.pieces import PieceCutter
from trio_duplex.models.plugin import Speech

RATE = 24_000
SENTENCE = "Once upon a time there was a server. "


def sound(ms: int, level: float = 0.25) -> np.ndarray:
    return np.full(RATE * ms // 1000, level, np.float32)


def cutter(piece_ms: int = 200) -> PieceCutter:
    return PieceCutter(RATE, piece_ms=piece_ms, chars_per_s=15.0)


def joined(pieces: Sequence[Speech]) -> tuple[int, str]:
    return sum(len(p.audio) for p in pieces), "".join(p.text for p in pieces)


def test_text_that_is_there_early_waits_for_its_sound() -> None:
    cut = cutter()
    cut.add_text(SENTENCE * 10)
    cut.add_sound(sound(1020))
    pieces = list(cut.ready())
    samples, text = joined(pieces)
    assert samples == RATE
    # A second is fifteen letters; the word in which it ends goes out with its beginning.
    assert SENTENCE.startswith(text)
    assert 15 <= len(text) <= 15 + len("server. ")
    assert not any(p.end_of_turn for p in pieces)


def test_what_is_left_is_spread_over_what_is_left() -> None:
    cut = cutter()
    cut.add_text("a b c d e f g h i j ")
    cut.add_sound(sound(20))
    assert list(cut.ready()) == []
    cut.add_sound(sound(980))
    last = list(cut.finish())
    assert joined(last) == (RATE, "a b c d e f g h i j ")
    assert [p.text for p in last] == ["a b ", "c d ", "e f ", "g h ", "i j "]
    assert [p.end_of_turn for p in last] == [False] * 4 + [True]


def test_late_text_goes_with_the_next_sound() -> None:
    cut = cutter()
    cut.add_sound(sound(1020))
    assert joined(list(cut.ready())) == (RATE, "")
    cut.add_text("Late. ")
    cut.add_sound(sound(200))
    assert [p.text for p in cut.ready()] == ["Late. "]


def test_characters_without_spaces_are_cut_too() -> None:
    cut = cutter()
    cut.add_text("从前有一个服务器它一直在说话")
    cut.add_sound(sound(1020))
    _, text = joined(list(cut.ready()))
    assert 4 <= len(text) <= 6  # four to five of them a second


def test_text_without_any_sound_is_still_said() -> None:
    cut = cutter()
    cut.add_text("Only words.")
    (only,) = cut.finish()
    assert (len(only.audio), only.text, only.end_of_turn) == (0, "Only words.", True)
    assert list(cutter().finish()) == []


WORK = st.lists(st.one_of(st.integers(0, 700), st.text("ab 你.", max_size=30)), max_size=12)


@settings(derandomize=True, database=None, deadline=None)
@given(WORK, st.sampled_from([20, 100, 200, 2000]))
def test_nothing_is_lost_doubled_or_out_of_order(work: list[int | str], piece_ms: int) -> None:
    cut = cutter(piece_ms)
    pieces: list[Speech] = []
    samples, text = 0, ""
    for number, step in enumerate(work, start=1):
        if isinstance(step, str):
            cut.add_text(step)
            text += step
        else:
            cut.add_sound(sound(step, number / 1000))
            samples += RATE * step // 1000
        pieces += cut.ready()
    pieces += cut.finish()
    assert joined(pieces) == (samples, text)
    assert all(len(p.audio) <= RATE * piece_ms // 1000 for p in pieces)
    audio = np.concatenate([np.zeros(0, np.int16), *[p.audio for p in pieces]])
    assert (np.diff(audio) >= 0).all()
    assert [p.end_of_turn for p in pieces[:-1]] == [False] * len(pieces[:-1])
    assert not pieces or pieces[-1].end_of_turn
    assert not samples or len(pieces[-1].audio)


# --- pace -----------------------------------------------------------------------------------------------------------


async def passing(pace: Pace, durations: Sequence[float], gaps: dict[int, float] | None = None) -> list[float]:
    begun_s = trio.current_time()
    times = []
    for number, duration_s in enumerate(durations):
        if gaps and number in gaps:
            await trio.sleep(gaps[number])
        await pace.wait(duration_s)
        times.append(trio.current_time() - begun_s)
    return times


async def test_the_lead_goes_out_at_once_and_then_real_time_rules(autojump_clock: trio.testing.MockClock) -> None:
    times = await passing(Pace(1.0), [0.2] * 10)
    assert times == pytest.approx([0, 0, 0, 0, 0, 0.2, 0.4, 0.6, 0.8, 1.0])


async def test_a_gap_is_made_up_for(autojump_clock: trio.testing.MockClock) -> None:
    times = await passing(Pace(0.4), [0.2] * 6, {3: 5.0})
    assert times == pytest.approx([0, 0, 0.2, 5.2, 5.2, 5.4])


async def test_without_lead_pieces_touch(autojump_clock: trio.testing.MockClock) -> None:
    assert await passing(Pace(0.0), [0.2] * 4) == pytest.approx([0, 0.2, 0.4, 0.6])
