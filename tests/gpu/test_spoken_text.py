"""Text as spoken words: what stands in the text, what is said, and where it stands."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_gpu.numbers import cardinal, digits, ordinal, year
from duplex_gpu.spoken_text import spoken_tokens


def said(text: str) -> str:
    return " ".join(" ".join(token.words) + token.pause for token in spoken_tokens(text))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It's 3:07 pm.", "it's three oh seven P M."),
        ("3:00, 12:30, 9:05 a.m.", "three o'clock, twelve thirty, nine oh five A M"),
        ("In 1984, 1905, 1900, 2005 and 2024.", "in nineteen eighty four, nineteen oh five, nineteen hundred, two thousand five and twenty twenty four."),  # noqa: E501
        ("1,984 and 19845", "one thousand nine hundred eighty four and nineteen thousand eight hundred forty five"),
        ("Pi is 3.14, not 0.5.", "pi is three point one four, not zero point five."),
        ("The 1st, 2nd, 3rd, 12th, 20th and 21st", "the first, second, third, twelfth, twentieth and twenty first"),
        ("50% of $3.50", "fifty percent of three dollars and fifty cents"),
        ("$1, $0.99, $2 million", "one dollar, ninety nine cents, two million dollars"),
        ("£2.01 or £0.50", "two pounds and one penny or fifty pence"),
        ("-5 and 7-5", "minus five and seven five"),
        ("15 + 27 = 42", "fifteen plus twenty seven equals forty two"),
        ("C A T spells cat", "C A T spells cat"),
        ("C, A, T.", "C, A, T."),
        ("c-a-t", "C A T"),
        ("A cat and I", "a cat and i"),
        ("plan B", "plan B"),
        ("the M's", "the m's"),
        ("BBC", "B B C"),
        ("U.S. Army", "U S. army"),
        ("in the U.S. today", "in the U S today"),
        ("Dr. Smith and Mrs. Jones", "doctor smith and missus jones"),
        ("He said no.", "he said no."),
        ("No. 5", "number five"),
        ("e.g. this, etc.", "for example this, et cetera."),
        ("5 km at 20°C, 1 kg", "five kilometers at twenty degrees celsius, one kilogram"),
        ("60 mph", "sixty miles per hour"),
        ("agent 007", "agent zero zero seven"),
        ("version 1.2.3", "version one point two point three"),
        ("1/2 or 4/7", "one half or four over seven"),
        ("café — naïve…", "cafe, naive,"),
        ("“Hello,” she said", "hello, she said"),
        ("Really?! Yes!", "really? yes!"),
        ("don’t", "don't"),
        ("", ""),
        ("... ?!", ""),
        ("日本 🙂", ""),
    ],
)  # fmt: skip
def test_said(text: str, spoken: str) -> None:
    assert said(text) == spoken


@settings(deadline=None)  # a busy machine is no bug
@given(st.text(alphabet=st.sampled_from("abcAI 0123456789.,:;?!$%°/-'’\"()éß日\n@+=kmp"), max_size=60))
def test_tokens_lie_in_order_inside_the_text(text: str) -> None:
    end = 0
    for token in spoken_tokens(text):
        assert end <= token.start < token.end <= len(text)
        assert text[token.start : token.end].strip() == text[token.start : token.end]
        assert token.words
        assert token.pause in ("", *".?!;:,")
        for word in token.words:
            assert word.isascii()
            assert word.replace("'", "").isalpha()
            assert word.islower() or len(word) == 1
        end = token.end


def parse_cardinal(words: list[str]) -> int:
    """The inverse of ``cardinal``, written independently: scales multiply what came before them."""
    small = {cardinal(value): value for value in [*range(20), *range(20, 100, 10)]}
    total = group = 0
    for word in words:
        if word == "hundred":
            group *= 100
        elif word in (scales := {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}):
            total += group * scales[word]
            group = 0
        else:
            group += small[word]
    return total + group


@settings(deadline=None)  # a busy machine is no bug
@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_cardinals_can_be_read_back(value: int) -> None:
    assert parse_cardinal(cardinal(value).split()) == value


def test_numbers_at_their_edges() -> None:
    assert cardinal(-3) == "minus three"
    assert cardinal(10**15) == "one" + " zero" * 15
    assert ordinal(100) == "one hundredth"
    assert year(2000) == "two thousand"
    assert year(2010) == "twenty ten"
    assert digits("90") == "nine zero"
