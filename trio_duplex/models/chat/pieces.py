"""Text and samples of an answer → pieces of speech in which the text follows the sound.  Pure.

Backends write faster than they speak: a whole answer's text may be there before its first second of sound.  If it went
out at once, an interruption could not tell what had been heard (contract 14.3 cuts text in proportion to the audio
*so far*).  So until the sound is complete, text goes out at the pace at which it is usually spoken, and when it is
complete, what is left goes with what is left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from trio_duplex.models.plugin import Speech
from trio_duplex.samples import int16_from_float

__all__ = ["PieceCutter"]

FloatAudio = npt.NDArray[np.float32]

TAIL_MS: Final = 20
"""Held back until more follows, so that the last piece of an answer has sound to carry its end."""
WIDE_CHARACTER: Final = 3.5
"""How much longer an East Asian character takes to say than a letter."""
_TOKEN: Final = re.compile(r"\s*\S+\s*")


def _weight(text: str) -> float:
    """Its length in letters, as far as speaking it goes."""
    return sum(WIDE_CHARACTER if unicodedata.east_asian_width(c) in "WF" else 1.0 for c in text)


class PieceCutter:
    """:meth:`add_text` and :meth:`add_sound` in any order, then :meth:`ready`; at the end :meth:`finish`.

    Pieces are at most ``piece_ms`` of int16 at ``rate_hz``; none is lost, and their texts join to the text.
    """

    def __init__(self, rate_hz: int, *, piece_ms: int, chars_per_s: float) -> None:
        self._rate_hz = rate_hz
        self._chars_per_s = chars_per_s
        self._piece_samples = max(1, rate_hz * piece_ms // 1000)
        self._tail_samples = rate_hz * TAIL_MS // 1000
        self._blocks: list[FloatAudio] = []
        self._samples = 0  # waiting
        self._given = 0
        self._text = ""  # waiting
        self._said = 0.0  # weight of the text that went out

    @property
    def waiting_text(self) -> int:
        """Characters that wait for their sound."""
        return len(self._text)

    def add_text(self, text: str) -> None:
        """More text."""
        self._text += text

    def add_sound(self, audio: FloatAudio) -> None:
        """More samples, float32[n] in [-1, 1]."""
        if len(audio):
            self._blocks.append(audio)
            self._samples += len(audio)

    def ready(self) -> Iterator[Speech]:
        """The pieces whose sound is there, made one by one as they are asked for."""
        while self._samples > self._tail_samples:
            samples = min(self._piece_samples, self._samples - self._tail_samples)
            audio = self._take(samples)
            yield Speech(audio=int16_from_float(audio), text=self._words(self._due()))

    def finish(self) -> Iterator[Speech]:
        """The rest, its text spread over its sound; the last one ends the turn. Nothing for an empty answer."""
        text_weight, end_s = _weight(self._text), (self._given + self._samples) / self._rate_hz
        left_s = end_s - self._given / self._rate_hz
        said = self._said
        while self._samples > self._piece_samples:
            audio = self._take(self._piece_samples)
            gone = 1.0 - (end_s - self._given / self._rate_hz) / left_s
            yield Speech(audio=int16_from_float(audio), text=self._words(said + text_weight * gone))
        if self._samples or self._text:
            audio, text = self._take(self._samples), self._text
            self._text = ""
            yield Speech(audio=int16_from_float(audio), text=text, end_of_turn=True)

    def _due(self) -> float:
        """The weight of text that is spoken by the end of the sound given so far."""
        return self._given / self._rate_hz * self._chars_per_s

    def _words(self, due: float) -> str:
        """Whole words (single characters where there are none) from the waiting text, up to ``due``.

        A word goes out with the sound in which it begins.
        """
        end = 0
        for match in _TOKEN.finditer(self._text):
            token = match.group()
            if self._said >= due:
                break
            wide = any(unicodedata.east_asian_width(c) in "WF" for c in token)
            for part in token if wide else (token,):
                if self._said >= due:
                    break
                self._said += _weight(part)
                end += len(part)
        words, self._text = self._text[:end], self._text[end:]
        return words

    def _take(self, samples: int) -> FloatAudio:
        """The next samples; they count as given."""
        whole = self._blocks[0] if len(self._blocks) == 1 else np.concatenate([np.zeros(0, np.float32), *self._blocks])
        taken, rest = whole[:samples], whole[samples:]
        self._blocks = [rest] if len(rest) else []
        self._samples -= len(taken)
        self._given += len(taken)
        return taken
