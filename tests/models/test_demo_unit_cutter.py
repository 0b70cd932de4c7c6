"""However the voice cuts its sound, the units are the same and no word or sample is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.demo.engine import Clip
from trio_duplex.models.demo.unit_cutter import UnitCutter
from trio_duplex.models.plugin import Speech

CLAUSES = st.lists(
    st.tuples(
        st.text(st.sampled_from("ab ,.'é"), min_size=1, max_size=30),
        st.lists(st.integers(0, 9_000), max_size=4),  # samples of the pieces
        st.lists(st.floats(0, 1), max_size=6),  # marks, as shares of text and sound
    ),
    min_size=1,
    max_size=4,
)


def cut(clauses: list[tuple[str, list[Clip]]], clip_rate_hz: int, output_rate_hz: int) -> list[Speech]:
    cutter = UnitCutter(clip_rate_hz, output_rate_hz, 96)
    said: list[Speech] = []
    for number, (text, clips) in enumerate(clauses, start=1):
        cutter.begin_clause(text)
        for clip in clips:
            said += cutter.add(clip)
        said += cutter.end_clause(last=number == len(clauses))
    return said


def clips_of(text: str, sizes: list[int], shares: list[float], rate_hz: int) -> list[Clip]:
    total_ms = 1000.0 * sum(sizes) / rate_hz
    marks = sorted((round(share * len(text)), share * total_ms) for share in shares)
    clips, end = [], 0
    for size in sizes:
        begin, end = end, end + size
        of_piece = tuple(m for m in marks if 1000.0 * begin / rate_hz < m[1] <= 1000.0 * end / rate_hz)
        clips.append(Clip(np.full(size, 500, np.int16), of_piece))
    return clips


@given(CLAUSES, st.sampled_from([(22_050, 24_000), (16_000, 24_000), (24_000, 24_000), (22_050, 16_000)]))
@settings(derandomize=True, database=None, deadline=None)
def test_nothing_is_lost(clauses: list[tuple[str, list[int], list[float]]], rates: tuple[int, int]) -> None:
    clip_rate_hz, output_rate_hz = rates
    said = cut([(text, clips_of(text, sizes, shares, clip_rate_hz)) for text, sizes, shares in clauses], *rates)
    answer = "".join(text for text, _, _ in clauses)
    samples = sum(sum(sizes) for _, sizes, _ in clauses)
    unit = output_rate_hz * 96 // 1000
    assert "".join(speech.text for speech in said) == answer
    assert sum(len(speech.audio) for speech in said) == -(-samples * output_rate_hz // clip_rate_hz)
    assert all(len(speech.audio) == unit for speech in said[:-1])
    assert [speech.end_of_turn for speech in said] == [False] * (len(said) - 1) + [True]
    marks = [(mark.text_chars, mark.audio_end_ms) for speech in said for mark in speech.marks]
    assert marks == sorted(marks)
    assert all(0 <= chars <= len(answer) for chars, _ in marks)
    assert marks[-1][0] == len(answer)
    assert marks[-1][1] <= round(1000 * samples / clip_rate_hz)


def test_a_word_over_the_edge_of_two_pieces_goes_with_its_beginning() -> None:
    rate_hz = 24_000
    first = Clip(np.zeros(rate_hz // 10, np.int16), ((3, 50.0),))  # 100 ms: "one" ends at 50
    second = Clip(np.zeros(rate_hz // 10, np.int16), ((7, 200.0),))
    said = cut([("one two", [first, second])], rate_hz, rate_hz)
    assert [speech.text for speech in said] == ["one two", "", ""]
    assert [[(m.text_chars, m.audio_end_ms) for m in speech.marks] for speech in said] == [[(3, 50)], [(7, 200)], []]


def test_the_last_full_unit_is_the_end_of_the_turn() -> None:
    clip = Clip(np.zeros(2 * 2_304, np.int16), ((4, 192.0),))
    said = cut([("word", [clip])], 24_000, 24_000)
    assert [(len(speech.audio), speech.end_of_turn) for speech in said] == [(2_304, False), (2_304, True)]


def test_no_seam_between_pieces_and_clauses() -> None:
    """A tone cut into pieces comes out as the tone."""
    rate_hz = 22_050
    tone = np.round(8_000 * np.sin(2 * np.pi * 440 * np.arange(rate_hz) / rate_hz)).astype(np.int16)
    pieces = [Clip(part) for part in np.split(tone, [1_000, 1_001, 9_999, 15_000])]
    said = cut([("a ", pieces[:2]), ("b", pieces[2:])], rate_hz, 24_000)
    audio = np.concatenate([speech.audio for speech in said]).astype(float)
    expected = 8_000 * np.sin(2 * np.pi * 440 * np.arange(len(audio)) / 24_000)
    assert np.abs(audio - expected)[100:-100].max() < 10
