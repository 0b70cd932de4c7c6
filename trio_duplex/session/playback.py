"""The playback ledger: what of an answer was generated, sent, heard and may be remembered (contract 14, 24a)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs

from duplex_protocol.values import Playback, TextMark


def merge_marks(known: tuple[TextMark, ...], new: Iterable[TextMark]) -> tuple[TextMark, ...]:
    """Merge cumulative marks: sorted by time, deduplicated, both columns non-decreasing (contract 14.3, 1).

    ``known`` is what a merge gave before.
    """
    new = tuple(new)
    if known and len(new) == 1:  # one more mark behind the others: what every delta of a long answer brings
        last, mark = known[-1], new[0]
        if mark.audio_end_ms > last.audio_end_ms and mark.text_chars >= last.text_chars:
            return (*known, mark)
    merged: list[TextMark] = []
    for mark in sorted({*known, *new}, key=lambda m: (m.audio_end_ms, m.text_chars)):
        chars = max(mark.text_chars, merged[-1].text_chars) if merged else mark.text_chars
        fixed = TextMark(chars, mark.audio_end_ms)
        if not merged or fixed != merged[-1]:
            merged.append(fixed)
    return tuple(merged)


def cut_text(text: str, at_ms: float, *, marks: tuple[TextMark, ...], duration_ms: float) -> str:
    """The part of ``text`` that was spoken by ``at_ms`` (contract 14.3).

    With marks: linear between neighbours from (0, 0), after the last one to (whole text, ``duration_ms``). Without:
    proportional. Without a duration: all or nothing. Trailing white space is stripped.
    """
    if marks:
        chars = _interpolate(text, at_ms, marks, duration_ms)
    elif duration_ms > 0:
        chars = int(len(text) * min(1.0, max(0.0, at_ms) / duration_ms))
    else:
        chars = len(text) if at_ms > 0 else 0
    return text[:chars].rstrip()


def _interpolate(text: str, at_ms: float, marks: tuple[TextMark, ...], duration_ms: float) -> int:
    points = [(0, 0), *((m.audio_end_ms, min(m.text_chars, len(text))) for m in marks)]
    points.append((max(int(duration_ms), points[-1][0]), len(text)))
    if at_ms <= 0:
        return 0
    for (t0, c0), (t1, c1) in itertools.pairwise(points):
        if at_ms < t1:
            return c0 + int((c1 - c0) * (at_ms - t0) / (t1 - t0))
    return len(text)


@attrs.define
class PlaybackLedger:
    """The four cursors of one response, in milliseconds.

    Invariant (24a): generated ≥ sent ≥ max(played, committed); committed ≤ played unless the client named a
    ``committed_ms``; only a truncating ack lowers committed, and no later ack passes the smallest cap.
    """

    generated_ms: int = 0
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0
    cap_ms: int | None = None

    def sent(self, duration_ms: int) -> None:
        """Audio up to ``duration_ms`` was generated and accepted into the output path."""
        self.generated_ms = max(self.generated_ms, duration_ms)
        self.sent_ms = max(self.sent_ms, duration_ms)

    def unsent(self, kept_ms: int) -> None:
        """Audio beyond ``kept_ms`` was removed from the output path before any socket took it."""
        self.sent_ms = min(self.sent_ms, kept_ms)
        self.played_ms = min(self.played_ms, self.sent_ms)
        self.committed_ms = min(self.committed_ms, self.sent_ms)

    def acknowledge(self, played_ms: float | None, committed_ms: float | None, *, truncate: bool) -> None:
        """One ack: cumulative, clamped to what was sent; a truncating one may lower committed and caps later ones."""
        played = min(max(0, int(played_ms or 0)), self.sent_ms)
        wanted = committed_ms if committed_ms is not None else played_ms
        committed = min(max(0, int(wanted or 0)), self.sent_ms)
        self.played_ms = max(self.played_ms, played)
        if truncate:
            self.cap_ms = committed if self.cap_ms is None else min(self.cap_ms, committed)
            self.committed_ms = self.cap_ms
            return
        self.committed_ms = max(self.committed_ms, committed)
        if self.cap_ms is not None:
            self.committed_ms = min(self.committed_ms, self.cap_ms)

    @property
    def fully_played(self) -> bool:
        """Everything that was sent has been committed."""
        return self.committed_ms >= self.sent_ms

    def snapshot(self) -> Playback:
        """The wire's value."""
        return Playback(self.generated_ms, self.sent_ms, self.played_ms, self.committed_ms)
