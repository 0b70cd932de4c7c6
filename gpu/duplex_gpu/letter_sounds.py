"""How an English word that no dictionary holds is probably said.

Three attempts, from good to fair: a known word with a known ending (``unpluggable``, ``demos``), two
known words written as one (``barge`` + ``in``), and letter rules.  Sounds are ARPAbet symbols with stress
digits, as in the CMU dictionary.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from importlib import resources

import attrs

__all__ = ["guess_sounds"]

Lookup = Callable[[str], Sequence[str] | None]

VOWEL_LETTERS = "aeiouy"
VOWEL_SOUNDS = frozenset(
    ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"),
)
HISSES = frozenset(("S", "Z", "SH", "ZH", "CH", "JH"))
VOICELESS = frozenset(("P", "T", "K", "F", "TH"))

ENDINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ness", ("N", "AH0", "S")),
    ("less", ("L", "AH0", "S")),
    ("ment", ("M", "AH0", "N", "T")),
    ("able", ("AH0", "B", "AH0", "L")),
    ("ful", ("F", "AH0", "L")),
    ("ing", ("IH0", "NG")),
    ("est", ("AH0", "S", "T")),
    ("ist", ("IH0", "S", "T")),
    ("ism", ("IH2", "Z", "AH0", "M")),
    ("ish", ("IH0", "SH")),
    ("er", ("ER0",)),
    ("or", ("ER0",)),
    ("ly", ("L", "IY0")),
    ("y", ("IY0",)),
)
BEGINNINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("under", ("AH2", "N", "D", "ER0")),
    ("over", ("OW2", "V", "ER0")),
    ("non", ("N", "AA2", "N")),
    ("pre", ("P", "R", "IY2")),
    ("mis", ("M", "IH0", "S")),
    ("dis", ("D", "IH0", "S")),
    ("un", ("AH0", "N")),
    ("re", ("R", "IY0")),
)


@attrs.frozen
class LetterRule:
    """Letters, what must stand before and after them, and their sounds."""

    before: re.Pattern[str] | None
    letters: str
    after: re.Pattern[str] | None
    sounds: tuple[str, ...]

    def fits(self, word: str, at: int) -> bool:
        """Whether the rule covers ``word`` from ``at`` on."""
        return (
            word.startswith(self.letters, at)
            and (self.before is None or self.before.search(word[:at]) is not None)
            and (self.after is None or self.after.match(word[at + len(self.letters) :]) is not None)
        )


@functools.cache
def letter_rules() -> tuple[LetterRule, ...]:
    """The rules of ``data/letter_rules.txt``."""
    text = resources.files("duplex_gpu").joinpath("data/letter_rules.txt").read_text("utf-8")
    rules = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            before, letters, after, sounds = (field.strip() for field in line.split("|"))
            rules.append(
                LetterRule(
                    re.compile(f"(?:{before})$") if before else None,
                    letters,
                    re.compile(after) if after else None,
                    tuple(sounds.split()),
                )
            )
    return tuple(rules)


def guess_sounds(word: str, lookup: Lookup) -> tuple[str, ...]:
    """ARPAbet sounds of a lower-case word of ``a-z`` and apostrophes; ``lookup`` is the dictionary."""
    return _inflected(word, lookup) or _derived(word, lookup) or _compound(word, lookup) or _by_rule(word)


def _inflected(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    for ending in ("'s", "s'", "es", "s"):
        if word.endswith(ending) and (stem := lookup(word[: -len(ending)])):
            return (*stem, *_plural(stem[-1]))
    if word.endswith("ed"):
        for stem_letters in (word[:-2], word[:-1], word[:-3] if word[-3:-2] == word[-4:-3] else ""):
            if stem_letters and (stem := lookup(stem_letters)):
                return (*stem, *(("IH0", "D") if stem[-1] in ("T", "D") else ("T",) if _dull(stem[-1]) else ("D",)))
    return None


def _plural(last: str) -> tuple[str, ...]:
    return ("IH0", "Z") if last in HISSES else ("S",) if last in VOICELESS else ("Z",)


def _dull(last: str) -> bool:
    return last in VOICELESS or last in ("S", "SH", "CH")


def _derived(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    for letters, sounds in ENDINGS:
        stem_letters = word.removesuffix(letters)
        if stem_letters == word or len(stem_letters) < 3:
            continue
        doubled = stem_letters[:-1] if stem_letters[-1] == stem_letters[-2] else ""
        for candidate in (stem_letters, stem_letters + "e", doubled, stem_letters[:-1] + "y"):
            if len(candidate) >= 3 and (stem := lookup(candidate)):
                return (*stem, *sounds)
    for letters, sounds in BEGINNINGS:
        if word.startswith(letters) and len(word) >= len(letters) + 3 and (stem := lookup(word[len(letters) :])):
            return (*sounds, *stem)
    return None


def _compound(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    """Two known words of three letters or more; the split nearest to the middle."""
    for cut in sorted(range(3, len(word) - 2), key=lambda cut: abs(2 * cut - len(word))):
        halves = word[:cut], word[cut:]
        if not all(any(letter in VOWEL_LETTERS for letter in half) for half in halves):
            continue  # "mph" is in the dictionary, but spelled out
        if (first := lookup(halves[0])) and (second := lookup(halves[1])):
            return (*first, *(sound.replace("1", "2") for sound in second))
    return None


def _by_rule(word: str) -> tuple[str, ...]:
    letters = "".join(letter for letter in word if "a" <= letter <= "z")
    sounds: list[str] = []
    at = 0
    while at < len(letters):
        rule = next(rule for rule in letter_rules() if rule.fits(letters, at))  # every letter alone has a rule
        sounds += rule.sounds
        at += len(rule.letters)
    return _stressed(sounds)


def _stressed(sounds: Sequence[str]) -> tuple[str, ...]:
    """Stress on the last syllable but one (two syllables) or but two, as in most English names and nouns."""
    vowels = [index for index, sound in enumerate(sounds) if sound in VOWEL_SOUNDS]
    stressed = vowels[max(0, len(vowels) - 3)] if len(vowels) > 2 else vowels[0] if vowels else -1
    return tuple(
        f"{sound}{int(index == stressed)}" if sound in VOWEL_SOUNDS else sound for index, sound in enumerate(sounds)
    )
