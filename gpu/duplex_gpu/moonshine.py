"""Speech recognition with Moonshine tiny (English), straight through onnxruntime.

Moonshine is an encoder over raw 16 kHz samples (one vector per 384 samples) and a decoder that
writes one sub-word token at a time, keeping its attention keys and values between tokens.  Both come
as ``.ort`` files (int8 weights, MIT) in the moonshine-voice 0.0.73 wheel.  Decoding is greedy, so the
same samples always give the same words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from duplex_gpu.onnx_session import open_session
from duplex_gpu.weights import MOONSHINE_DECODER, MOONSHINE_ENCODER, MOONSHINE_TOKENIZER, WeightsCorrupt, weight_path

__all__ = ["SAMPLE_RATE_HZ", "MoonshineRecognizer", "MoonshineTokenizer", "repeated_tail"]

SAMPLE_RATE_HZ = 16_000
MIN_SAMPLES = SAMPLE_RATE_HZ // 2
"""Shorter audio is padded with silence: the encoder needs 895 samples for one vector, and guesses wildly from few."""
SILENCE_PEAK = 0.001
"""Audio that never leaves ±0.001 (-60 dBFS) holds no words."""
MAX_SAMPLES = 60 * SAMPLE_RATE_HZ
TOKENS_PER_S = 6.5
"""The rate above which the model's authors consider a transcript as invented."""
SPARE_TOKENS = 6
START_TOKEN, END_TOKEN = 1, 2
LAYERS, HEADS, HEAD_WIDTH = 6, 8, 36
MAX_REPEATS = 4

Audio = NDArray[np.float32]


class MoonshineTokenizer:
    """Token ids to text.

    The file is the vocabulary in id order: each token is a length (one byte below 128, else two bytes, the
    low seven bits first) and that many bytes.  ``▁`` stands for a space; ids 3 to 258 are the single bytes.
    """

    def __init__(self, path: Path) -> None:
        """Raises :class:`~duplex_gpu.weights.WeightsCorrupt` if the file ends inside a token."""
        data = path.read_bytes()
        self.vocabulary: list[bytes] = []
        at = 0
        while at < len(data):
            length = data[at]
            at += 1
            if length >= 128:
                if at >= len(data):
                    raise WeightsCorrupt(f"{path} ends inside the length of token {len(self.vocabulary)}")
                length = (length - 128) + 128 * data[at]
                at += 1
            if at + length > len(data):
                raise WeightsCorrupt(f"{path} ends inside token {len(self.vocabulary)}")
            self.vocabulary.append(data[at : at + length])
            at += length

    def text(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, without the special ones (``<s>`` and the like), trimmed."""
        pieces = []
        for token in tokens:
            piece = self.vocabulary[token]
            if not (len(piece) > 2 and piece.startswith(b"<") and piece.endswith(b">")):
                pieces.append(piece)
        return b"".join(pieces).decode("utf-8", errors="replace").replace("▁", " ").strip()


class MoonshineRecognizer:
    """One recogniser; use it from one thread at a time."""

    def __init__(self) -> None:
        """Load about 44 MB.  Raises ``WeightsMissing`` or ``WeightsCorrupt`` (:mod:`duplex_gpu.weights`)."""
        self._tokenizer = MoonshineTokenizer(weight_path(MOONSHINE_TOKENIZER))
        self._encoder = open_session(weight_path(MOONSHINE_ENCODER))
        self._decoder = open_session(weight_path(MOONSHINE_DECODER))
        names = [f"{layer}.{{}}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
        self._own = [name.format("decoder") for name in names]
        self._cross = [name.format("encoder") for name in names]

    def warm_up(self) -> None:
        """One run over a hum, so that the first utterance does not pay for first-time allocations."""
        self.transcribe(np.sin(np.arange(SAMPLE_RATE_HZ, dtype=np.float32)), lambda: False)

    def transcribe(self, audio: Audio, should_stop: Callable[[], bool]) -> str | None:
        """The words of ``float32[n]`` samples at 16 kHz in [-1, 1]; at most 60 s; ``""`` for no words.

        ``should_stop`` is asked before each model run (some milliseconds apart); ``None`` if it said yes.
        The time is about 10 ms per second of audio plus 3 ms per token.  Raises ``ValueError`` for other shapes.
        """
        if audio.ndim != 1 or audio.dtype != np.float32 or len(audio) > MAX_SAMPLES:
            raise ValueError(f"audio is float32[at most {MAX_SAMPLES}], not {audio.dtype}{list(audio.shape)}")
        if should_stop():
            return None
        if not len(audio) or np.abs(audio).max() < SILENCE_PEAK:
            return ""  # the network hears "You" in silence
        tokens_at_most = math.ceil(TOKENS_PER_S * len(audio) / SAMPLE_RATE_HZ) + SPARE_TOKENS
        if len(audio) < MIN_SAMPLES:
            audio = np.pad(audio, (0, MIN_SAMPLES - len(audio)))
        tokens = self._decode(audio, tokens_at_most, should_stop)
        return None if tokens is None else self._tokenizer.text(tokens)

    def _decode(self, audio: Audio, tokens_at_most: int, should_stop: Callable[[], bool]) -> list[int] | None:
        mask = np.ones((1, len(audio)), np.int64)
        [hidden] = self._encoder.run(None, {"input_values": audio[None], "attention_mask": mask})
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        feeds = {
            "encoder_hidden_states": value(hidden),
            "encoder_attention_mask": value(mask),  # of the samples: the decoder thins it out itself
            "use_cache_branch": value(np.array([False])),
        }
        empty = value(np.zeros((1, HEADS, 0, HEAD_WIDTH), np.float32))
        feeds |= {f"past_key_values.{name}": empty for name in self._own + self._cross}
        kept = self._own + self._cross  # the first run computes the keys of the audio, the later ones only their own
        tokens: list[int] = []
        token = START_TOKEN
        while len(tokens) < tokens_at_most:
            if should_stop():
                return None
            feeds["input_ids"] = value(np.array([[token]], np.int64))
            outputs = self._decoder.run_with_ort_values(["logits", *(f"present.{name}" for name in kept)], feeds)
            token = int(outputs[0].numpy()[0, -1].argmax())
            if token == END_TOKEN:
                break
            tokens.append(token)
            if (loop := repeated_tail(tokens)) is not None:
                return tokens[: len(tokens) - (MAX_REPEATS - 1) * loop]
            feeds |= {f"past_key_values.{name}": output for name, output in zip(kept, outputs[1:], strict=True)}
            if kept is not self._own:
                kept = self._own
                feeds["use_cache_branch"] = value(np.array([True]))
        return tokens


def repeated_tail(tokens: Sequence[int]) -> int | None:
    """If the tokens end in the same 1 to 8 tokens ``MAX_REPEATS`` times over, how many tokens those are.

    Greedy decoders fall into such loops on noise.  People do say a word three times, seldom more.
    """
    for length in range(1, 9):
        needed = MAX_REPEATS * length
        if len(tokens) < needed:
            return None
        tail = tokens[-needed:]
        if all(tail[index] == tail[index - length] for index in range(length, needed)):
            return length
    return None
