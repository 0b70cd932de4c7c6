"""Transcript pieces, byte by byte where need be, and the persona's wrapping."""

from __future__ import annotations

import pytest

from duplex_gpu.personaplex.prompts import wrap_persona
from duplex_gpu.personaplex.text import TextModelError, TextPieces, Transcript

PIECES: list[str | bytes] = ["", "<s>", "", "", " He", "llo", " wor", "ld", b"\xe2", b"\x82", b"\xac", b"\xff", "!"]


def said(*tokens: int) -> list[str]:
    transcript = Transcript(TextPieces(PIECES))
    return [transcript.add(token) for token in tokens]


def test_silent_ids_carry_nothing():
    assert said(3, 0, 4, 3, 5, 0, 6, 7) == ["", "", " He", "", "llo", "", " wor", "ld"]


def test_bytes_wait_until_their_character_is_whole():
    assert said(8, 3, 9, 10, 12) == ["", "", "", "€", "!"]


def test_broken_bytes_become_replacement_characters_and_text_goes_on():
    assert said(8, 4) == ["", "\ufffd He"]
    assert said(11, 12) == ["\ufffd", "!"]


def test_ids_outside_the_vocabulary_are_silent():
    assert said(5000, -4) == ["", ""]


def test_a_reset_forgets_half_a_character():
    transcript = Transcript(TextPieces(PIECES))
    transcript.add(8)
    transcript.reset()
    assert transcript.add(4) == " He"


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        (" You are kind. ", "<system> You are kind. <system>"),
        ("<system> x <system>", "<system> x <system>"),
        ("<system> only opened", "<system> <system> only opened <system>"),
        ("<system>", "<system> <system> <system>"),
    ],
)
def test_persona_tags(text: str, wrapped: str):
    assert wrap_persona(text) == wrapped


def test_pieces_alone_cannot_encode():
    with pytest.raises(TextModelError):
        TextPieces(PIECES).encode("hello")
