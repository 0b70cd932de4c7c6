"""English text to IPA symbols, written the way espeak's American English voice writes them.

Piper voices are trained on that alphabet, so they can be driven without espeak (GPL): words are looked
up in the CMU Pronouncing Dictionary (126 000 words with stress), unknown ones are guessed by
:mod:`duplex_gpu.letter_sounds`, and the ARPAbet sounds become IPA by the tables below.  One character is one
symbol.  Stress marks stand right before the vowel.
"""

from __future__ import annotations

import functools
import lzma
from collections.abc import Mapping, Sequence
from importlib import resources

import attrs

from duplex_gpu.letter_sounds import guess_sounds
from duplex_gpu.spoken_text import spoken_tokens

__all__ = ["INVENTORY", "EnglishPhonemizer", "Word"]

PRIMARY, SECONDARY = "ˈ", "ˌ"

VOWELS = {
    "AA": "ɑː", "AE": "æ", "AH": "ʌ", "AO": "ɔː", "AW": "aʊ", "AY": "aɪ", "EH": "ɛ", "ER": "ɜː", "EY": "eɪ",
    "IH": "ɪ", "IY": "iː", "OW": "oʊ", "OY": "ɔɪ", "UH": "ʊ", "UW": "uː",
}  # fmt: skip
UNSTRESSED_VOWELS = {"AH": "ə", "ER": "ɚ", "IY": "i"}
CONSONANTS = {
    "B": "b", "CH": "tʃ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "dʒ", "K": "k", "L": "l",
    "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v",
    "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
FLAP = "ɾ"  # the t of "city"
INITIAL_SCHWA = "ɐ"  # the a of "about"

WEAK_FORMS = {
    "the": "ðə", "a": "ɐ", "an": "ɐn", "and": "ænd", "of": "ʌv", "to": "tə", "for": "fɔːɹ", "in": "ɪn", "on": "ɔn",
    "at": "æt", "it": "ɪt", "is": "ɪz", "was": "wʌz", "are": "ɑːɹ", "be": "biː", "that": "ðæt", "this": "ðɪs",
    "with": "wɪð", "as": "æz", "you": "juː", "your": "jʊɹ", "he": "hiː", "she": "ʃiː", "we": "wiː", "they": "ðeɪ",
    "my": "maɪ", "his": "hɪz", "her": "hɜː", "its": "ɪts", "their": "ðɛɹ", "can": "kæn", "could": "kʊd",
    "would": "wʊd", "should": "ʃʊd", "have": "hæv", "has": "hɐz", "had": "hæd", "do": "duː", "does": "dʌz",
    "but": "bʌt", "or": "ɔːɹ", "from": "fɹʌm", "by": "baɪ", "if": "ɪf", "will": "wɪl", "were": "wɜː", "am": "æm",
    "than": "ðɐn", "i": "aɪ", "i'm": "aɪm", "i'll": "aɪl", "it's": "ɪts", "you're": "jʊɹ",
}  # fmt: skip
"""Words without stress inside a sentence."""
BEFORE_VOWEL = {"the": "ðɪ", "to": "tʊ", "her": "hɜːɹ", "were": "wɜːɹ"}

LETTER_NAMES = {
    "A": "ˈeɪ", "B": "bˈiː", "C": "sˈiː", "D": "dˈiː", "E": "ˈiː", "F": "ˈɛf", "G": "dʒˈiː", "H": "ˈeɪtʃ",
    "I": "ˈaɪ", "J": "dʒˈeɪ", "K": "kˈeɪ", "L": "ˈɛl", "M": "ˈɛm", "N": "ˈɛn", "O": "ˈoʊ", "P": "pˈiː",
    "Q": "kjˈuː", "R": "ˈɑːɹ", "S": "ˈɛs", "T": "tˈiː", "U": "jˈuː", "V": "vˈiː", "W": "dˈʌbəljˌuː", "X": "ˈɛks",
    "Y": "wˈaɪ", "Z": "zˈiː",
}  # fmt: skip

PAUSES = frozenset(".?!;:,")

INVENTORY: frozenset[str] = frozenset(
    "".join(
        [
            PRIMARY, SECONDARY, FLAP, INITIAL_SCHWA, " ", *PAUSES,
            *VOWELS.values(), *UNSTRESSED_VOWELS.values(), *CONSONANTS.values(),
            *WEAK_FORMS.values(), *BEFORE_VOWEL.values(), *LETTER_NAMES.values(),
        ]
    )
)  # fmt: skip
"""Every symbol that can come out: a voice must know all of them."""

IPA_VOWEL_LETTERS = frozenset("ɑæʌɔaɛɜeɪioʊuəɚɐ")


@attrs.frozen
class Word:
    """One token of the text: ``text[start:end]``, said as ``symbols``."""

    start: int
    end: int
    symbols: str
    """IPA, one character a symbol; a space between the words of a token such as "3:07"."""
    pause: str
    """One of ``. ? ! ; : ,`` that follows, or ``""``."""


@functools.cache
def _dictionary() -> Mapping[str, str]:
    """Word -> ARPAbet sounds with stress digits, separated by spaces.  The first pronunciation of each."""
    packed = resources.files("duplex_gpu").joinpath("data/cmudict.dict.xz").read_bytes()
    entries: dict[str, str] = {}
    for line in lzma.decompress(packed).decode("utf-8").splitlines():
        word, _, sounds = line.partition(" ")
        if not word.endswith(")"):  # "word(2)" is a second pronunciation
            entries[word] = sounds.partition(" #")[0]
    return entries


class EnglishPhonemizer:
    """American English.  Deterministic; the dictionary is loaded once per process (0.2 s, 25 MB)."""

    def __init__(self) -> None:
        self._sounds = _dictionary()

    def phonemes(self, text: str) -> list[Word]:
        """The words of ``text`` in order, with their places in it.  Characters that cannot be said belong to none."""
        tokens = spoken_tokens(text)
        words: list[Word] = []
        next_starts_with_vowel = False
        for token in reversed(tokens):  # backwards: how "the" is said depends on the word after it
            spoken: list[str] = []
            for part in reversed(token.words):
                symbols = self._symbols(part, before_vowel=next_starts_with_vowel and not (token.pause and not spoken))
                next_starts_with_vowel = symbols.lstrip(PRIMARY + SECONDARY)[:1] in IPA_VOWEL_LETTERS
                spoken.append(symbols)
            words.append(Word(token.start, token.end, " ".join(reversed(spoken)).strip(), token.pause))
        words.reverse()
        return words

    def lookup(self, word: str) -> Sequence[str] | None:
        """ARPAbet sounds of a lower-case word in the dictionary, or ``None``."""
        sounds = self._sounds.get(word)
        return None if sounds is None else sounds.split()

    def _symbols(self, word: str, *, before_vowel: bool) -> str:
        if word in LETTER_NAMES:
            return LETTER_NAMES[word]
        if before_vowel and word in BEFORE_VOWEL:
            return BEFORE_VOWEL[word]
        if word in WEAK_FORMS:
            return WEAK_FORMS[word]
        return ipa(self.lookup(word) or guess_sounds(word, self.lookup))


def ipa(sounds: Sequence[str]) -> str:
    """ARPAbet with stress digits to IPA.  ``("HH", "AH0", "L", "OW1")`` -> ``həlˈoʊ``."""
    symbols: list[str] = []
    for index, sound in enumerate(sounds):
        name, stress = sound.rstrip("012"), sound[-1]
        if name not in VOWELS:
            flapped = name == "T" and _between_vowels(sounds, index)
            symbols.append(FLAP if flapped else CONSONANTS[name])
            continue
        if stress in "12":
            symbols.append(PRIMARY if stress == "1" else SECONDARY)
            symbols.append(VOWELS[name])
        elif name == "AH" and index == 0:
            symbols.append(INITIAL_SCHWA)
        else:
            symbols.append(UNSTRESSED_VOWELS.get(name, VOWELS[name]))
        if name == "ER" and index + 1 < len(sounds) and _is_vowel(sounds[index + 1]):
            symbols.append(CONSONANTS["R"])
    return "".join(symbols)


def _is_vowel(sound: str) -> bool:
    return sound[-1] in "012"


def _between_vowels(sounds: Sequence[str], index: int) -> bool:
    """Whether a T stands between a vowel (or R) and an unstressed vowel, where Americans tap it."""
    if index == 0 or index + 1 >= len(sounds):
        return False
    before, after = sounds[index - 1], sounds[index + 1]
    return (_is_vowel(before) or before == "R") and after.endswith("0")
