"""From pieces of synthesised clauses to units of an answer, each with the words whose sound begins in it.  Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from duplex_protocol.values import TextMark
from trio_duplex.models.demo.engine import Clip
from trio_duplex.models.plugin import Speech
from trio_duplex.resampling import Resampler
from trio_duplex.samples import float_from_int16, int16_from_float

__all__ = ["UnitCutter"]

TOKEN = re.compile(r"\s*\S+\s*")


@attrs.frozen
class _Word:
    text: str
    begins_ms: float
    mark: TextMark


class UnitCutter:
    """For each clause :meth:`begin_clause`, :meth:`add` for its pieces, :meth:`end_clause`, which knows the last one.

    Units are exactly ``unit_ms`` long, only the last one of the answer holds what is left; none is lost.  Texts join
    to the clauses' texts; texts and marks count from the beginning of the answer.
    """

    def __init__(self, clip_rate_hz: int, output_rate_hz: int, unit_ms: int) -> None:
        self._clip_rate_hz = clip_rate_hz
        self._output_rate_hz = output_rate_hz
        self._unit_samples = output_rate_hz * unit_ms // 1000
        self._slice_samples = max(1, clip_rate_hz * unit_ms // 1000)
        self._resampler = Resampler(clip_rate_hz, output_rate_hz)
        self._waiting: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self._taken = 0  # samples of all clips so far
        self._given = 0  # samples of all units so far
        self._words: deque[_Word] = deque()
        # The clause at hand:
        self._clause = ""
        self._clause_open = False
        self._base_chars = 0
        self._base_ms = 0.0
        self._known_chars = 0  # of the clause: up to the end of the last word whose sound is complete
        self._known_ms = 0.0
        self._told_chars = 0  # of the clause: in words that were or will be handed out

    def begin_clause(self, text: str) -> None:
        """The pieces that follow belong to ``text``."""
        self._base_chars += len(self._clause)
        self._base_ms = 1000.0 * self._taken / self._clip_rate_hz
        self._clause, self._clause_open = text, True
        self._known_chars = self._told_chars = 0
        self._known_ms = 0.0

    def add(self, clip: Clip) -> Iterator[Speech]:
        """The units that ``clip`` completes, made one by one as they are asked for."""
        for characters, ends_ms in clip.marks:
            self._know(characters, ends_ms)
        self._taken += len(clip.audio)
        for begin in range(0, len(clip.audio), self._slice_samples):
            piece = self._resampler.push(float_from_int16(clip.audio[begin : begin + self._slice_samples]))
            self._waiting = np.concatenate([self._waiting, piece])
            # The last unit must know that it is the last: a full one waits for the sample that follows it.
            while len(self._waiting) > self._unit_samples:
                yield self._unit(self._unit_samples)

    def end_clause(self, *, last: bool) -> Iterator[Speech]:
        """The clause is complete; ``last``: so is the answer, and all units that are left come."""
        if self._known_chars < len(self._clause):
            self._know(len(self._clause), 1000.0 * self._taken / self._clip_rate_hz - self._base_ms)
        self._clause_open = False
        if last:
            self._waiting = np.concatenate([self._waiting, self._resampler.flush()])
            while len(self._waiting) > self._unit_samples:
                yield self._unit(self._unit_samples)
            yield self._unit(len(self._waiting), last=True)

    def _know(self, characters: int, ends_ms: float) -> None:
        mark = TextMark(self._base_chars + characters, round(self._base_ms + ends_ms))
        begins_ms = self._base_ms + self._known_ms
        told = max(self._told_chars, characters)
        self._words.append(_Word(self._clause[self._told_chars : told], begins_ms, mark))
        self._known_chars, self._known_ms, self._told_chars = characters, ends_ms, told

    def _unit(self, samples: int, *, last: bool = False) -> Speech:
        audio, self._waiting = self._waiting[:samples], self._waiting[samples:]
        self._given += samples
        end_ms = 1000.0 * self._given / self._output_rate_hz
        text, marks = "", []
        while self._words and (last or self._words[0].begins_ms < end_ms):
            word = self._words.popleft()
            text += word.text
            marks.append(word.mark)
        if not self._words and self._clause_open and self._base_ms + self._known_ms < end_ms:
            text += self._begun_word()
        return Speech(audio=int16_from_float(audio), text=text, marks=tuple(marks), end_of_turn=last)

    def _begun_word(self) -> str:
        """The word whose sound has begun but whose end is in a piece that is still to come, unless it was told."""
        if self._told_chars > self._known_chars:
            return ""
        match = TOKEN.match(self._clause, self._told_chars)
        if match is None:
            return ""
        self._told_chars = match.end()
        return match.group()
