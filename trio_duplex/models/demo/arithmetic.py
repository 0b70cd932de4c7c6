"""Sums said aloud: "what is twelve plus seven", "3.5 times 4", "divide ten by four" → words for the answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from duplex_gpu.numbers import cardinal, decimal

__all__ = ["answer_sum", "number_at", "spoken_number"]

SMALL: Final = {cardinal(value): value for value in (*range(20), *range(20, 100, 10))}
SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Longest first; the value is the sign and how the answer names it.
OPERATORS: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (("multiplied", "by"), "*", "times"),
    (("divided", "by"), "/", "divided by"),
    (("plus",), "+", "plus"),
    (("and",), "+", "plus"),
    (("minus",), "-", "minus"),
    (("less",), "-", "minus"),
    (("times",), "*", "times"),
    (("over",), "/", "divided by"),
    (("+",), "+", "plus"),
    (("-",), "-", "minus"),
    (("−",), "-", "minus"),
    (("*",), "*", "times"),
    (("×",), "*", "times"),
    (("x",), "*", "times"),
    (("÷",), "/", "divided by"),
    (("/",), "/", "divided by"),
)
# "add two and three": the verb, the words between its two numbers, the sign, and whether the numbers change places.
VERBS: Final[dict[str, tuple[tuple[str, ...], str, bool]]] = {
    "add": (("and", "to", "plus"), "+", False),
    "subtract": (("from",), "-", True),
    "multiply": (("by", "and", "with", "times"), "*", False),
    "divide": (("by",), "/", False),
}
SPOKEN_SIGNS: Final = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
TOKEN: Final = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[a-z']+|[-+*/×÷−]")
DIGITS: Final = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?")
MAX_OPERANDS: Final = 20
TOO_LARGE: Final = 10**15

Sum = tuple[list[Fraction], list[str]]


def answer_sum(text: str) -> str | None:
    """The answer to the first sum in ``text`` as a sentence, or None when there is none in it."""
    tokens = TOKEN.findall(text.lower().replace("ty-", "ty "))
    found = _verb_sum(tokens) or _infix_sum(tokens)
    if found is None:
        return None
    numbers, signs = found
    asked = spoken_number(numbers[0]) + "".join(
        f" {SPOKEN_SIGNS[sign]} {spoken_number(number)}" for sign, number in zip(signs, numbers[1:], strict=True)
    )
    result = _evaluate(numbers, signs)
    if result is None:
        return "I cannot divide by zero, and neither can you."
    if abs(result) >= TOO_LARGE:
        return f"{_capital(asked)} is more than I can count."
    about = "" if (result * 1000).denominator == 1 else "about "
    return f"{_capital(asked)} is {about}{spoken_number(result)}."


def number_at(tokens: Sequence[str], start: int) -> tuple[Fraction, int] | None:
    """The number that begins at ``tokens[start]`` (lower case; digits or words) and the index after it."""
    if start >= len(tokens):
        return None
    if DIGITS.fullmatch(tokens[start]):
        return Fraction(tokens[start].replace(",", "")), start + 1
    total = group = 0
    at = start
    while at < len(tokens):
        word = tokens[at]
        if word in SMALL and (group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and SMALL[word] < 10)):
            group += SMALL[word]
        elif word == "hundred" and 0 < group < 100:
            group *= 100
        elif word in ("a", "an") and at == start and tokens[at + 1 : at + 2] and tokens[at + 1] in {"hundred", *SCALES}:
            group = 1
        elif word in SCALES and group:
            total, group = total + group * SCALES[word], 0
        elif word == "and" and at > start and tokens[at - 1] in {"hundred", *SCALES} and _small(tokens, at + 1):
            pass
        else:
            break
        at += 1
        if word == "zero":
            break
    if at == start:
        return None
    value = Fraction(total + group)
    if tokens[at : at + 1] == ["point"] and _digit(tokens, at + 1):
        scale = Fraction(1)
        at += 1
        while _digit(tokens, at):
            scale /= 10
            value += SMALL[tokens[at]] * scale
            at += 1
    return value, at


def spoken_number(value: Fraction) -> str:
    """Words for a number, rounded to three decimal places."""
    rounded = round(value * 1000)
    whole, thousandths = divmod(abs(rounded), 1000)
    words = decimal(f"{whole}.{thousandths:03d}".rstrip("0")) if thousandths else cardinal(whole)
    return f"minus {words}" if rounded < 0 else words


def _small(tokens: Sequence[str], at: int) -> bool:
    return at < len(tokens) and SMALL.get(tokens[at], 0) > 0


def _digit(tokens: Sequence[str], at: int) -> bool:
    return at < len(tokens) and SMALL.get(tokens[at], 10) < 10


def _signed_number_at(tokens: Sequence[str], start: int) -> tuple[Fraction, int] | None:
    if start < len(tokens) and tokens[start] in ("minus", "negative", "-", "−"):
        found = number_at(tokens, start + 1)
        return None if found is None else (-found[0], found[1])
    return number_at(tokens, start)


def _operator_at(tokens: Sequence[str], start: int) -> tuple[str, int] | None:
    for words, sign, _ in OPERATORS:
        if tuple(tokens[start : start + len(words)]) == words:
            return sign, start + len(words)
    return None


def _infix_sum(tokens: Sequence[str]) -> Sum | None:
    """The first run of number, operator, number, …; "and" alone is no reason to call it a sum."""
    start = 0
    while start < len(tokens):
        first = _signed_number_at(tokens, start)
        if first is None:
            start += 1
            continue
        value, at = first
        numbers, signs, told = [value], list[str](), False
        while len(numbers) < MAX_OPERANDS and (operator := _operator_at(tokens, at)) is not None:
            number = _signed_number_at(tokens, operator[1])
            if number is None:
                break
            told = told or tokens[at] != "and"
            signs.append(operator[0])
            numbers.append(number[0])
            at = number[1]
        if signs and (told or "sum" in tokens[:start]):
            return numbers, signs
        start = at
    return None


def _verb_sum(tokens: Sequence[str]) -> Sum | None:
    for index, word in enumerate(tokens):
        if word not in VERBS:
            continue
        between, sign, swapped = VERBS[word]
        first = _signed_number_at(tokens, index + 1)
        if first is None or first[1] >= len(tokens) or tokens[first[1]] not in between:
            continue
        second = _signed_number_at(tokens, first[1] + 1)
        if second is not None:
            numbers = [first[0], second[0]]
            return (numbers[::-1] if swapped else numbers), [sign]
    return None


def _evaluate(numbers: Sequence[Fraction], signs: Sequence[str]) -> Fraction | None:
    """Products before sums; None for a division by zero."""
    terms = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "/" and number == 0:
            return None
        match sign:
            case "+":
                terms.append(number)
            case "-":
                terms.append(-number)
            case "*":
                terms[-1] *= number
            case _:
                terms[-1] /= number
    return sum(terms, Fraction(0))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
