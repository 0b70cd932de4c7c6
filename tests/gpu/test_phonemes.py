"""Words to sounds: the dictionary, weak forms, letters, guesses, and the symbols that may come out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_gpu.letter_sounds import VOWEL_SOUNDS, guess_sounds, letter_rules
from duplex_gpu.phonemes import CONSONANTS, INVENTORY, EnglishPhonemizer, ipa


@pytest.fixture(scope="module")
def phonemizer() -> EnglishPhonemizer:
    return EnglishPhonemizer()


def said(phonemizer: EnglishPhonemizer, text: str) -> str:
    return " ".join(word.symbols + word.pause for word in phonemizer.phonemes(text))


# Written from the public descriptions of espeak's American English symbols.
@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("Hello, world!", "həlˈoʊ, wˈɜːld!"),
        ("the city", "ðə sˈɪɾi"),
        ("the apple", "ðɪ ˈæpəl"),
        ("The. Apple", "ðə. ˈæpəl"),
        ("about", "ɐbˈaʊt"),
        ("water", "wˈɔːɾɚ"),
        ("hurry", "hˈɜːɹi"),
        ("judge", "dʒˈʌdʒ"),
        ("church", "tʃˈɜːtʃ"),
        ("thinking", "θˈɪŋkɪŋ"),
        ("C A T", "sˈiː ˈeɪ tˈiː"),
        ("a cat", "ɐ kˈæt"),
        ("3:07", "θɹˈiː ˈoʊ sˈɛvən"),
    ],
)
def test_symbols(phonemizer: EnglishPhonemizer, text: str, symbols: str) -> None:
    assert said(phonemizer, text) == symbols


def test_spans_point_into_the_text(phonemizer: EnglishPhonemizer) -> None:
    text = "  It's 3:07 pm, OK? "
    assert [text[word.start : word.end] for word in phonemizer.phonemes(text)] == ["It's", "3:07 pm", "OK"]


@settings(deadline=None)  # a busy machine is no bug
@given(st.text(max_size=40))
def test_every_symbol_belongs_to_the_inventory(text: str) -> None:
    for word in EnglishPhonemizer().phonemes(text):
        assert word.symbols
        assert set(word.symbols + word.pause) <= INVENTORY


@settings(deadline=None)  # a busy machine is no bug
@given(st.from_regex(r"[a-z']{1,20}", fullmatch=True))
def test_any_word_gets_sounds(word: str) -> None:
    sounds = guess_sounds(word, lambda _: None)
    for sound in sounds:
        assert sound in CONSONANTS or (sound[:-1] in VOWEL_SOUNDS and sound[-1] in "012")
    assert set(ipa(sounds)) <= INVENTORY


def test_every_letter_alone_has_a_rule() -> None:
    for letter in "abcdefghijklmnopqrstuvwxyz":
        assert any(rule.letters == letter and not rule.before and not rule.after for rule in letter_rules()), letter


@pytest.mark.parametrize(
    ("word", "sounds"),
    [
        ("wugs", "W AH1 G Z"),
        ("wuggish", "W AH1 G IH0 SH"),
        ("blatted", "B L AE1 T IH0 D"),
        ("blat's", "B L AE1 T S"),
        ("unwug", "AH0 N W AH1 G"),
        ("wugblat", "W AH1 G B L AE2 T"),
    ],
)
def test_known_words_inside_unknown_ones(word: str, sounds: str) -> None:
    known = {"wug": ["W", "AH1", "G"], "blat": ["B", "L", "AE1", "T"]}
    assert " ".join(guess_sounds(word, known.get)) == sounds


def test_guesses_are_decent(phonemizer: EnglishPhonemizer) -> None:
    """Words of the dictionary, hidden from it one at a time: most sounds must come out right."""
    wrong = total = 0
    entries = sorted(word for word in phonemizer._sounds if word.isalpha() and len(word) > 3)
    for word in entries[::150]:
        expected = [sound.rstrip("012") for sound in phonemizer.lookup(word) or ()]

        def hidden(other: str, word: str = word) -> object:
            return None if other == word else phonemizer.lookup(other)

        got = [sound.rstrip("012") for sound in guess_sounds(word, hidden)]  # type: ignore[arg-type]
        row = list(range(len(got) + 1))
        for i, one in enumerate(expected, 1):
            diagonal, row[0] = row[0], i
            for j, other in enumerate(got, 1):
                diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
        wrong += row[-1]
        total += len(expected)
    assert total > 4000
    assert wrong / total < 0.18  # 0.15 when this was written
