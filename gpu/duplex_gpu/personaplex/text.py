"""Text ids to transcript pieces, and persona text to ids."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TYPE_CHECKING

from duplex_gpu.personaplex.config import PAD_TEXT

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SILENT_IDS = frozenset({0, PAD_TEXT})
"""End-of-padding and padding: most columns hold one of them and carry no text."""
_WORD_START = "▁"


class TextModelError(RuntimeError):
    """The sentencepiece model is missing or unreadable, or the sentencepiece package is not installed."""


class TextPieces:
    """The text vocabulary as pieces: plain strings, or single bytes of which several make a character."""

    def __init__(self, pieces: list[str | bytes], processor: SentencePieceProcessor | None = None) -> None:
        self._pieces = pieces
        self._processor = processor

    @classmethod
    def load(cls, path: Path) -> TextPieces:
        """Read the published sentencepiece model. Raises `TextModelError`."""
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise TextModelError("the sentencepiece package is needed to read the text model") from error
        try:
            processor = SentencePieceProcessor()
            processor.Load(str(path))
        except (OSError, RuntimeError) as error:
            raise TextModelError(f"{path}: missing or not a sentencepiece model") from error
        pieces: list[str | bytes] = []
        for token in range(processor.get_piece_size()):
            piece = processor.id_to_piece(token)
            if processor.is_byte(token):
                pieces.append(bytes([int(piece[3:5], 16)]))
            elif processor.is_control(token) or processor.is_unknown(token):
                pieces.append("")
            else:
                pieces.append(piece.replace(_WORD_START, " "))
        return cls(pieces, processor)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Plain encoding without begin or end markers. Raises `TextModelError` when only pieces are known."""
        if self._processor is None:
            raise TextModelError("no text model is loaded, so text cannot be turned into tokens")
        return [int(token) for token in self._processor.encode(text)]

    def piece(self, token: int) -> str | bytes:
        """The piece of a token: empty for silent, control and unknown ids."""
        if token in SILENT_IDS or not 0 <= token < len(self._pieces):
            return ""
        return self._pieces[token]


class Transcript:
    """One session's text, token by token; bytes of an unfinished character wait for the rest."""

    def __init__(self, pieces: TextPieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text this token adds, often nothing."""
        if token in SILENT_IDS:
            return ""
        piece = self._pieces.piece(token)
        if isinstance(piece, bytes):
            return self._decoder.decode(piece)
        if not piece:
            return ""
        broken = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return broken + piece

    def reset(self) -> None:
        """Forget unfinished bytes."""
        self._decoder.reset()
