"""Where a text may be cut so that its beginning can be spoken before the rest is synthesised."""

from __future__ import annotations

import itertools
import re

import attrs

from duplex_gpu.spoken_text import spoken_tokens

__all__ = ["Clause", "split_clauses"]

FIRST_CHARS = 40
"""A first clause longer than this is cut at a conjunction or, if there is none, between two words."""
MIN_CHARS = 12
"""Shorter pieces join the next one: a pause after every word sounds halting."""
MAX_CHARS = 160

CUT_BEFORE = re.compile(
    r"\s+(?=(?:and|but|or|so|because|then|that|which|who|where|when|while|if|with|from|for|about|than|is|are|was)\b)",
    re.IGNORECASE,
)


@attrs.frozen
class Clause:
    """``text == whole[start:end]``; the clauses of a text follow each other without gaps."""

    start: int
    end: int
    text: str


def split_clauses(text: str) -> list[Clause]:
    """Cut after punctuation (not inside numbers, times or abbreviations); the first clause is short.

    Joining the clauses' texts gives ``text`` back.  Clauses without anything to say join their neighbour;
    a text with nothing to say gives no clause.
    """
    cuts: list[int] = []
    start = 0
    tokens = spoken_tokens(text)
    for token, following in itertools.pairwise(tokens):
        if token.pause and following.start - start >= MIN_CHARS:
            start = following.start
            cuts.append(start)
    pieces = _pieces(text, cuts) if tokens else []
    result: list[Clause] = []
    for piece in pieces:
        limit = MAX_CHARS if result else FIRST_CHARS
        while len(piece.text.strip()) > limit and (cut := _cut_inside(piece.text, limit)):
            result.append(Clause(piece.start, piece.start + cut, piece.text[:cut]))
            piece = Clause(piece.start + cut, piece.end, piece.text[cut:])
            limit = MAX_CHARS
        result.append(piece)
    return result


def _pieces(text: str, cuts: list[int]) -> list[Clause]:
    edges = [0, *cuts, len(text)]
    return [Clause(start, end, text[start:end]) for start, end in itertools.pairwise(edges)]


def _cut_inside(text: str, limit: int) -> int | None:
    """A place to cut at or before ``limit``: before the last conjunction there, else before the last word."""
    for pattern in (CUT_BEFORE, re.compile(r"\s+(?=\S)")):
        places = [match.end() for match in pattern.finditer(text, MIN_CHARS, limit + 1)]
        if places and len(text) - places[-1] >= MIN_CHARS:
            return places[-1]
    return None
