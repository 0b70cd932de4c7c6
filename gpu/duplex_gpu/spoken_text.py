"""English text as the words one would read aloud: numbers, years, times, money, units, spelled letters.

Each token keeps its place in the text, so that audio can be mapped back to characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import attrs

from duplex_gpu.numbers import cardinal, decimal, digits, money, ordinal, time_of_day, year

__all__ = ["SpokenToken", "spoken_tokens"]


@attrs.frozen
class SpokenToken:
    """Some characters of the text and how they are spoken."""

    start: int
    end: int
    """``text[start:end]`` is the token without the punctuation after it."""
    words: tuple[str, ...]
    """Lower-case words; one upper-case letter means the name of that letter."""
    pause: str = ""
    """The strongest of ``. ! ? ; : ,`` that stands between this token and the next, or nothing."""


ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "prof": "professor", "sr": "senior", "jr": "junior",
    "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department", "no": "number", "st": "saint",
    "mt": "mount", "ft": "fort", "ave": "avenue", "blvd": "boulevard", "inc": "incorporated", "ltd": "limited",
    "jan": "january", "feb": "february", "aug": "august", "sept": "september", "oct": "october", "nov": "november",
    "dec": "december", "mon": "monday", "tue": "tuesday", "wed": "wednesday", "thu": "thursday", "fri": "friday",
    "e.g": "for example", "i.e": "that is",
}  # fmt: skip
"""With a full stop after them (which then is no end of a sentence)."""

UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "kg": "kilogram", "g": "gram",
    "mg": "milligram", "l": "liter", "ml": "milliliter", "ms": "millisecond", "s": "second", "min": "minute",
    "h": "hour", "hz": "hertz", "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz", "kb": "kilobyte",
    "mb": "megabyte", "gb": "gigabyte", "tb": "terabyte", "mph": "mile per hour", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "ft": "foot", "°c": "degree celsius", "°f": "degree fahrenheit", "°": "degree",
}  # fmt: skip
"""After a number."""
PLURALS = {"foot": "feet"} | {name: name for name in ("hertz", "kilohertz", "megahertz", "gigahertz")}

SYMBOLS = {
    "+": "plus", "=": "equals", "×": "times", "*": "times", "÷": "divided by", "&": "and", "@": "at", "%": "percent",
    "#": "number", "/": "slash", "<": "less than", ">": "greater than", "~": "about", "°": "degrees", "_": "underscore",
}  # fmt: skip

FRACTIONS = {"1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters"}

NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
TOKEN = re.compile(
    rf"""
      (?P<time>   \b\d{{1,2}}:[0-5]\d (?: \s? [ap] (?:\.m\.|m\b) )? )
    | (?P<money>  [$£€] (?:{NUMBER}) (?:\.\d+)? (?: \s (?:thousand|million|billion|trillion)\b )? )
    | (?P<ordinal> (?:{NUMBER}) (?:st|nd|rd|th)\b )
    | (?P<version> \d+ (?:\.\d+){{2,}} )
    | (?P<fraction> \b\d+/\d+\b )
    | (?P<number> (?: (?<![\w.)])[-−] )? (?:{NUMBER}) (?:\.\d+)? )
    | (?P<unit>   (?<=\d) \s? (?: {"|".join(sorted(UNITS, key=len, reverse=True))} ) (?![\w°]) )
    | (?P<abbreviation> \b (?:{"|".join(sorted((re.escape(key) for key in ABBREVIATIONS), key=len, reverse=True))}) \.
                  (?= \s*[\w\d,;:?!)] | \s*$ ) )
    | (?P<dotted> (?: [A-Za-z]\. ){{2,}} )
    | (?P<word>   [^\W\d_]+ (?: ['’] [^\W\d_]+ )* ['’]? )
    | (?P<pause>  [,.;:?!…—–]+ | (?<=\s)-(?=\s) )
    | (?P<symbol> [+=×*÷&@%\#/<>~°_] )
    """,
    re.VERBOSE | re.IGNORECASE,
)

PAUSES = ".?!;:,"  # from strong to weak, the first three end a sentence
AMBIGUOUS_ABBREVIATIONS = {"no", "st", "dec", "mon", "fri", "wed", "ms", "inc", "ltd", "etc", "ave", "sr", "jr"}


def spoken_tokens(text: str) -> list[SpokenToken]:
    """The speakable tokens of ``text`` in order; characters that cannot be spoken belong to none."""
    found = [match for match in TOKEN.finditer(text) if match.lastgroup is not None]
    tokens: list[SpokenToken] = []
    for index, match in enumerate(found):
        kind, raw = str(match.lastgroup), match.group()
        if kind == "pause":
            _pause_after_last(tokens, raw)
            continue
        start = match.start() + (len(raw) - len(raw.lstrip()))
        words: Sequence[str]
        pause = ""
        if kind == "word":
            words = _word(raw, _neighbours(found, index))
        elif kind == "dotted":
            words = tuple(raw.replace(".", "").upper())
            pause = "." if _ends_sentence(text, match.end()) else ""
        elif kind == "abbreviation":
            words, pause = _abbreviation(text, match)
        elif kind == "unit":
            words = _unit(raw.strip(), singular=_is_one(found, index))
        else:
            words = _numeric(kind, raw).split()
        if words:
            tokens.append(SpokenToken(start, match.end(), tuple(words), pause))
    return tokens


def _numeric(kind: str, raw: str) -> str:
    plain = raw.replace(",", "").replace("−", "-")
    match kind:
        case "time":
            return time_of_day(plain)
        case "money":
            return money(plain)
        case "ordinal":
            return ordinal(int(plain[:-2]))
        case "version":
            return " point ".join(cardinal(int(part)) for part in plain.split("."))
        case "fraction":
            above, below = plain.split("/")
            return FRACTIONS.get(plain) or f"{cardinal(int(above))} over {cardinal(int(below))}"
        case "number":
            return _number(plain, grouped="," in raw)
        case _:
            return SYMBOLS[raw]


def _number(plain: str, *, grouped: bool) -> str:
    if plain.startswith("-"):
        return "minus " + _number(plain[1:], grouped=grouped)
    if "." in plain:
        return decimal(plain)
    if len(plain) > 15 or (len(plain) > 1 and plain[0] == "0"):
        return digits(plain)
    value = int(plain)
    return year(value) if len(plain) == 4 and not grouped and 1100 <= value <= 2099 else cardinal(value)


def _word(raw: str, neighbours: Sequence[str]) -> tuple[str, ...]:
    word = "".join(
        char for char in unicodedata.normalize("NFKD", raw.replace("’", "'")) if char == "'" or char.isalpha()
    )
    word = word.strip("'") if len(word) > 1 else word
    if not word.isascii() or not word:
        return ()
    if len(word) == 1:
        # "A" and "I" are words, unless they stand among letters that are spelled out.
        spelled = word.lower() not in "ai" or any(len(near) == 1 and near.lower() not in "ai" for near in neighbours)
        return (word.upper(),) if spelled else (word.lower(),)
    if word.isupper() and len(word) <= 5 and not set("AEIOUY") & set(word):
        return tuple(word.replace("'", ""))
    return (word.lower(),)


def _neighbours(found: Sequence[re.Match[str]], index: int) -> list[str]:
    """The nearest words on both sides, across commas and hyphens."""
    near = []
    for step in (-1, 1):
        at = index + step
        while 0 <= at < len(found) and found[at].lastgroup == "pause" and found[at].group() in ",-–—":
            at += step
        if 0 <= at < len(found) and found[at].lastgroup == "word":
            near.append(found[at].group())
    return near


def _abbreviation(text: str, match: re.Match[str]) -> tuple[Sequence[str], str]:
    key = match.group()[:-1].lower()
    ends = _ends_sentence(text, match.end())
    if key in AMBIGUOUS_ABBREVIATIONS and (ends or not text[match.end() :].strip()):
        # "I said no." is no number, "on Elm St." no saint.
        full = {"etc": "et cetera", "ltd": "limited", "inc": "incorporated", "st": "street"}.get(key, key)
        return full.split(), "."
    return ABBREVIATIONS[key].split(), ""


def _ends_sentence(text: str, end: int) -> bool:
    """Whether a full stop just before ``end`` also ends a sentence: nothing or a capital letter follows."""
    rest = text[end:].lstrip("\"')”’")
    return not rest.strip() or (rest[0].isspace() and rest.lstrip()[:1].isupper())


def _unit(raw: str, *, singular: bool) -> list[str]:
    first, *rest = UNITS[raw.lower()].split()
    return [first if singular else PLURALS.get(first, first + "s"), *rest]


def _is_one(found: Sequence[re.Match[str]], index: int) -> bool:
    return index > 0 and found[index - 1].group() == "1"


def _pause_after_last(tokens: list[SpokenToken], raw: str) -> None:
    if not tokens:
        return
    marks = [mark if mark in PAUSES else "," for mark in raw] + ([tokens[-1].pause] if tokens[-1].pause else [])
    strongest = "?" if "?" in marks else "!" if "!" in marks else min(marks, key=PAUSES.index)
    tokens[-1] = attrs.evolve(tokens[-1], pause="," if "…" in raw and strongest == "," else strongest)
