"""Voice and persona prompts as columns of tokens: what is fed before the first live frame."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO

import attrs
import numpy as np
import numpy.typing as npt
import torch

from duplex_gpu.personaplex.config import (
    CODES,
    PAD_TEXT,
    SILENCE_CODES,
    SINE_CODES,
    SPACER_FRAMES,
    STREAMS,
    TOKENS,
    LMConfig,
)
from duplex_gpu.personaplex.layout import VOICES_ARCHIVE, VOICES_FOLDER

_RING = 4
_OPEN_TAG = _CLOSE_TAG = "<system>"

IntArray = npt.NDArray[np.int32]


class PromptError(ValueError):
    """A prompt cannot be used; `code` is unknown_voice, bad_voice, persona_too_long or no_text_model."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(eq=False)
class Voice:
    """A voice prompt: summed input embeddings of its first columns, and the tokens around where they end.

    `embeddings` float32 [columns, dim]; `at_end` int32 [17] is column `columns`, all known; `delayed` int32 [17] is
    the column after it, of which only the delayed codes (agent and user 1-7) are known.
    """

    name: str
    embeddings: torch.Tensor
    at_end: IntArray
    delayed: IntArray

    @property
    def frames(self) -> int:
        """Frames of the voice clip: one more than stored columns."""
        return int(self.embeddings.shape[0]) + 1


@attrs.frozen(eq=False)
class Prompt:
    """Everything fed before the first live frame.

    `columns` int32 [count - given, 17] follows on the `given` columns that come as the voice's embeddings. `agent_late`
    and `user_late` int32 [7] are the last prompt frame's codes 1-7, which the delay puts into the first live column.
    `cached` columns depend on the voice alone.
    """

    voice: Voice | None
    columns: IntArray
    agent_late: IntArray
    user_late: IntArray
    cached: int

    @property
    def given(self) -> int:
        return 0 if self.voice is None else self.voice.embeddings.shape[0]

    @property
    def count(self) -> int:
        """Columns in all."""
        return self.given + len(self.columns)


def wrap_persona(text: str) -> str:
    """The persona between its tags, unless it already has both."""
    text = text.strip()
    if text.startswith(_OPEN_TAG) and text.endswith(_CLOSE_TAG) and len(text) >= len(_OPEN_TAG) + len(_CLOSE_TAG):
        return text
    return f"{_OPEN_TAG} {text} {_CLOSE_TAG}"


def build_prompt(config: LMConfig, voice: Voice | None, persona_tokens: Sequence[int]) -> Prompt:
    """Lay the prompt out: voice, spacer, persona (a column per token), spacer, with the one-column delay of codes 1-7.

    Without a voice the first column is the start column. Raises `PromptError` (`persona_too_long`) when the columns
    leave no room in the context for at least one live second.
    """
    spacer = [PAD_TEXT] * SPACER_FRAMES
    text = [*spacer, *persona_tokens, *spacer] if persona_tokens else spacer
    quiet = np.array(SILENCE_CODES, np.int32) % config.audio_vocab
    sine = np.array(SINE_CODES, np.int32) % config.audio_vocab
    frames = np.empty((len(text), STREAMS), np.int32)
    frames[:, 0] = text
    frames[:, 1 : 1 + CODES] = quiet
    frames[:, 1 + CODES :] = sine
    delayed = [*range(2, TOKENS), *range(TOKENS + 1, STREAMS)]
    columns = frames.copy()
    columns[1:, delayed] = frames[:-1, delayed]
    if voice is None:
        columns[0, 0] = config.text_start
        columns[0, 1:] = config.audio_start
        columns[1:2, delayed] = config.audio_start
    else:
        columns[0, delayed] = voice.delayed[delayed]
        columns = np.concatenate([voice.at_end[None], columns])
    given = 0 if voice is None else voice.embeddings.shape[0]
    count = given + columns.shape[0]
    if count > config.context - 13:
        raise PromptError(
            "persona_too_long", f"the prompts take {count} columns, the context holds {config.context} in all"
        )
    cached = given + SPACER_FRAMES if voice is not None else 0
    return Prompt(voice, columns, frames[-1, 2:TOKENS].copy(), frames[-1, TOKENS + 1 :].copy(), cached)


def load_voice(name: str, data: IO[bytes], config: LMConfig) -> Voice:
    """Read one voice prompt (a torch file, loaded with `weights_only=True`: it can hold tensors but no code).

    Raises `PromptError` (`bad_voice`) for anything but the documented content.
    """
    try:
        raw = torch.load(data, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise PromptError("bad_voice", f"voice {name}: not a readable tensor file ({type(error).__name__})") from error
    embeddings = raw.get("embeddings") if isinstance(raw, dict) else None
    cache = raw.get("cache") if isinstance(raw, dict) else None
    if not isinstance(embeddings, torch.Tensor) or not isinstance(cache, torch.Tensor):
        raise PromptError("bad_voice", f"voice {name}: tensors 'embeddings' and 'cache' are wanted")
    if embeddings.dim() != 4 or embeddings.shape[1:] != (1, 1, config.dim) or embeddings.shape[0] < 1:
        raise PromptError(
            "bad_voice", f"voice {name}: embeddings are {list(embeddings.shape)}, wanted [T, 1, 1, {config.dim}]"
        )
    if tuple(cache.shape) != (1, STREAMS, _RING):
        raise PromptError("bad_voice", f"voice {name}: cache is {list(cache.shape)}, wanted [1, {STREAMS}, {_RING}]")
    count = embeddings.shape[0]
    ring = cache[0].to(torch.int32).numpy()
    at_end, delayed = ring[:, count % _RING].copy(), ring[:, (count + 1) % _RING].copy()
    late = [*range(2, TOKENS), *range(TOKENS + 1, STREAMS)]
    codes = np.concatenate([at_end[1:], delayed[late]])
    if not 0 <= int(at_end[0]) <= config.text_vocab or codes.min() < 0 or codes.max() > config.audio_vocab:
        raise PromptError("bad_voice", f"voice {name}: the token ring holds ids outside the vocabularies")
    return Voice(name, embeddings[:, 0, 0].float(), at_end, delayed)


class VoiceShelf:
    """The voices of a checkpoint folder: files of `voices/`, or members of `voices.tgz` read without unpacking."""

    def __init__(self, folder: Path, config: LMConfig) -> None:
        self._config = config
        self._openers: dict[str, Callable[[], IO[bytes]]] = {}
        self._loaded: dict[str, Voice] = {}
        loose = folder / VOICES_FOLDER
        archive = folder / VOICES_ARCHIVE
        if loose.is_dir():
            for path in sorted(loose.glob("*.pt")):
                self._openers[path.stem] = _file_opener(path)
        elif archive.is_file():
            try:
                self._openers.update(_archive_openers(archive))
            except (tarfile.TarError, OSError, EOFError) as error:
                raise PromptError("bad_voice", f"{archive}: not a readable archive ({error})") from error

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._openers)

    def voice(self, name: str) -> Voice:
        """The voice of that name. Raises `PromptError` (`unknown_voice` or `bad_voice`)."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        opener = self._openers.get(name)
        if opener is None:
            known = ", ".join(self._openers) or "none"
            raise PromptError("unknown_voice", f"unknown voice {name!r}; this checkpoint has {known}")
        with opener() as data:
            voice = load_voice(name, data, self._config)
        self._loaded[name] = voice
        return voice


def _file_opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


def _archive_openers(archive: Path) -> Mapping[str, Callable[[], IO[bytes]]]:
    found: dict[str, Callable[[], IO[bytes]]] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".pt"):
                source = tar.extractfile(member)
                if source is not None:
                    content = source.read()
                    found[Path(member.name).stem] = _bytes_opener(content)
    return dict(sorted(found.items()))


def _bytes_opener(content: bytes) -> Callable[[], IO[bytes]]:
    return lambda: BytesIO(content)
