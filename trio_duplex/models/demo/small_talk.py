"""Talking about what somebody said, for long enough to be interrupted: counted, reversed, spelled. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from duplex_gpu.numbers import cardinal, ordinal

__all__ = ["capital", "sentence_of", "speaking_time_s", "spell", "talk_about"]

TALK_S: Final = 10.0
"""How long the talk after the repetition should take, by :func:`speaking_time_s` (the promise is eight seconds)."""

WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Deliberately quick speech, so that the true time is longer: seconds per syllable-like bit, letter, and sentence.
VOWELS_S: Final = 0.13
LETTER_S: Final = 0.25
PAUSE_S: Final = 0.15


def talk_about(text: str) -> str:
    """ "You said: …" and then at least eight seconds about it."""
    words = WORD.findall(text)
    parts = [f"You said: {sentence_of(text)}"]
    talked_s = 0.0
    for sentence in _remarks(words):
        if talked_s >= TALK_S:
            break
        parts.append(sentence)
        talked_s += speaking_time_s(sentence)
    return " ".join(parts)


def speaking_time_s(text: str) -> float:
    """A low estimate of how long a voice takes to say ``text``."""
    time_s = PAUSE_S * len(re.findall(r"[.!?:]", text))
    for word in WORD.findall(text):
        time_s += LETTER_S if len(word) == 1 else VOWELS_S * max(1, len(re.findall(r"[aeiouy]+", word.lower())))
    return time_s


def spell(word: str) -> str:
    """``"tree"`` → "T, R, E, E"."""
    return ", ".join(letter.upper() for letter in word if letter.isalnum())


def sentence_of(text: str) -> str:
    """``text`` with a full stop at its end, unless it ends as a sentence does."""
    body = text.strip().rstrip(",;:-–— ")
    return body if body.endswith((".", "!", "?", "…")) else body + "."


def capital(text: str) -> str:
    """``text`` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _remarks(words: list[str]) -> Iterator[str]:
    """Endless: after everything that can be said about the words, they are spelled again and again."""
    count, letters = len(words), sum(len(word) for word in words)
    yield f"That is {_amount(count, 'word')} with {_amount(letters, 'letter')}."
    if count > 1:
        longest = max(words, key=len)
        yield f"The longest word is {longest}, with {_amount(len(longest), 'letter')}."
        yield f"The first word is {words[0]}, and the last word is {words[-1]}."
    vowels = sum(len(re.findall(r"[aeiou]", word.lower())) for word in words)
    yield f"I hear {_amount(vowels, 'vowel')} in it."
    if 1 < count <= 12:
        yield f"Said backwards it goes: {' '.join(reversed(words))}."
    while True:
        for number, word in enumerate(words, 1):
            yield f"The {ordinal(number)} word is spelled {spell(word)}."
        yield "Let me go through it once more."


def _amount(number: int, noun: str) -> str:
    return f"{cardinal(number) if number else 'no'} {noun}{'' if number == 1 else 's'}"
