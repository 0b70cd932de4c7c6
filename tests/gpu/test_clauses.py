"""Cutting text into clauses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_gpu.clauses import FIRST_CHARS, MAX_CHARS, MIN_CHARS, split_clauses
from duplex_gpu.spoken_text import spoken_tokens


def texts(text: str) -> list[str]:
    return [clause.text for clause in split_clauses(text)]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Hello!", ["Hello!"]),
        ("That is all. Thank you.", ["That is all. ", "Thank you."]),
        ("Yes, of course.", ["Yes, of course."]),
        ("It costs 3.50 at 3:07 pm, e.g. here.", ["It costs 3.50 at 3:07 pm, ", "e.g. here."]),
        (
            "You said turn on the kitchen lights and open the door to the garden",
            ["You said turn on the kitchen lights ", "and open the door to the garden"],
        ),
        ("", []),
        ("?!", []),
    ],
)
def test_cuts(text: str, clauses: list[str]) -> None:
    assert texts(text) == clauses


@settings(deadline=None)  # a busy machine is no bug
@given(st.lists(st.sampled_from(["and", "lights", "a", "3.14", "Mr.", "house,", "door.", "why?", "\n"]), max_size=60))
def test_nothing_is_lost_and_the_first_clause_is_short(pieces: list[str]) -> None:
    text = " ".join(pieces)
    clauses = split_clauses(text)
    if spoken_tokens(text):
        assert "".join(clause.text for clause in clauses) == text
    for clause in clauses:
        assert text[clause.start : clause.end] == clause.text
        assert spoken_tokens(clause.text)
        assert len(clause.text.strip()) <= MAX_CHARS
    if len(clauses) > 1:
        assert len(clauses[0].text.strip()) <= FIRST_CHARS + MIN_CHARS


def test_a_long_word_is_not_cut() -> None:
    word = "a" * 300
    assert texts(f"{word} ok") == [f"{word} ok"]
