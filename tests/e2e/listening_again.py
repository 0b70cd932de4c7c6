"""Recognising what was said, sentence by sentence, and counting the words that are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

from duplex_gpu.moonshine import MoonshineRecognizer
from duplex_gpu.numbers import cardinal
from trio_duplex.showcase.facts import Answer

Samples = npt.NDArray[np.float32]


def sentences(answer: Answer) -> Iterator[tuple[str, Samples]]:
    """Each whole sentence of the transcript with the stretch of audio that the server's marks give it (16 kHz)."""
    marks = sorted({mark for delta in answer.deltas for mark in delta.marks})
    chars, times = [0, *(c for c, _ in marks)], [0, *(ms for _, ms in marks)]
    audio = np.frombuffer(answer.pcm, "<i2").astype(np.float32) / 32768
    for match in re.finditer(r"\S.*?[.!?](?=\s|$)", answer.said):
        if match.end() > chars[-1]:
            return  # not spoken any more
        begin, end = (round(np.interp(at, chars, times) * answer.rate_hz / 1000) for at in match.span())
        yield match.group(), resample_poly(audio[begin:end], 16_000, answer.rate_hz).astype(np.float32)


def words(text: str) -> list[str]:
    """What counts: letters without case, numbers in words."""
    spelled = re.sub(r"\d+", lambda m: f" {cardinal(int(m.group()))} ", text.lower().replace("-", " "))
    return re.findall(r"[a-z']+", spelled)


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """The edit distance in words."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def recognise(recognizer: MoonshineRecognizer, audio: Samples) -> str:
    """The words in float32[n] at 16 kHz."""
    quiet = np.zeros(3_200, np.float32)
    return recognizer.transcribe(np.concatenate((quiet, audio, quiet)), lambda: False) or ""
