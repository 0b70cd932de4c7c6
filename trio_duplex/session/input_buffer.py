"""What of the user's input is not committed yet: the open item, and its audio where the session holds it back."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from trio_duplex.models.plugin import FloatAudio
from trio_duplex.session.ids import IdSource

MERGED_SAMPLES: Final = 65_536
"""Held blocks grow up to about this size: many tiny appends must cost neither memory nor time per block."""


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text, at most."""
    return len(text) if text.isascii() else 4 * len(text)


@attrs.define(eq=False)
class InputBuffer:
    """The open input item. Times in ms.

    ``item_id`` is allocated at its first speech or at the commit, whichever is first. ``appends`` counts the events
    since the last commit, ``audio_ms`` their audio; ``speech_ms`` is what the session judged to be speech,
    ``overlap_ms`` the part of it that overlapped an active answer. ``start_ms`` is where its kept audio begins on the
    session's clock. ``held`` and ``frames`` are input that the model has not seen, ``text`` what was typed.
    ``words_bytes``: about how much text and hints hold. ``failed``: an append was lost, so that a commit would seal a
    torso.
    """

    item_id: str | None = None
    speech_started: bool = False
    speech_stopped: bool = False
    audio_ms: float = 0.0
    appends: int = 0
    speech_ms: float = 0.0
    overlap_ms: float = 0.0
    start_ms: float | None = None
    end_hint_ms: float | None = None
    failed: bool = False
    transcript_hints: list[str] = attrs.field(factory=list)
    held: list[FloatAudio] = attrs.field(factory=list)
    frames: list[tuple[str, ...]] = attrs.field(factory=list)
    text: list[str] = attrs.field(factory=list)
    words_bytes: int = 0

    @property
    def empty(self) -> bool:
        """Nothing was appended since the last commit or clear."""
        return self.appends == 0 and not self.text

    @property
    def held_samples(self) -> int:
        """Samples held back from the model."""
        return sum(len(block) for block in self.held)

    def open_item(self, ids: IdSource) -> str:
        """The open item's id, allocated now if there is none."""
        if self.item_id is None:
            self.item_id = ids.item()
        return self.item_id

    def hold(self, samples: FloatAudio, frames: tuple[str, ...]) -> None:
        """Keep input back from the model."""
        held = self.held
        held.append(samples)
        # As in a binary counter: a block joins the one before once it is as long, so n appends copy n log n samples.
        while len(held) > 1 and len(held[-2]) <= min(len(held[-1]), MERGED_SAMPLES):
            held[-2:] = [np.concatenate(held[-2:])]
        if frames:
            self.frames.append(frames)

    def add_text(self, text: str) -> None:
        """Add typed text."""
        if text:
            self.text.append(text)
            self.words_bytes += text_bytes(text)

    def take_audio(self) -> FloatAudio:
        """The held audio as one block; it is no longer held."""
        audio = np.concatenate(self.held) if self.held else np.zeros(0, np.float32)
        self.held = []
        return audio

    def add_hint(self, hint: str) -> None:
        """Add a transcript hint; a consecutive repeat of the same hint is ignored (contract 9.2)."""
        if not self.transcript_hints or self.transcript_hints[-1] != hint:
            self.transcript_hints.append(hint)
            self.words_bytes += text_bytes(hint)

    @property
    def hinted_transcript(self) -> str | None:
        """The stripped join of the hints, None when there is none."""
        return " ".join(self.transcript_hints).strip() or None

    def only_overlapped(self, at_most_ms: float) -> bool:
        """Its speech all overlapped an answer, and there is not more than this (case c of contract 10.1)."""
        return 0 < self.speech_ms <= at_most_ms and self.overlap_ms >= self.speech_ms

    def reset(self) -> None:
        """Start the next item."""
        self.__init__()  # type: ignore[misc]
