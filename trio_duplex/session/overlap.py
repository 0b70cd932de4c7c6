"""What to do with input that overlaps an active answer (contract 11): one pure function from facts to a decision.

Evaluated once per append. The rows of the contract's table are the functions of :data:`ROWS`, in their order; the
first one that has an opinion decides.  Nothing here knows a session, a clock or samples.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Final, Literal

import attrs

Action = Literal["drop", "listen", "barge_in"]
Vad = Literal["silent", "onset", "active"]

INTERRUPT_WORDS: Final = frozenset({"barge_in", "interrupt", "cancel"})
LISTEN_WORDS: Final = frozenset({"listen", "continue", "continue_output", "ack"})
DROP_WORDS: Final = frozenset({"drop", "ignore", "silence"})

SHORT_ACKS: Final = frozenset(
    {
        *("嗯", "嗯嗯", "对", "对的", "好", "好的", "继续", "继续说", "可以", "是的"),
        *("yes", "yeah", "yep", "ok", "okay", "continue", "go on", "right", "keep going", "please continue"),
    }
)
"""Words that acknowledge without asking anything."""


@attrs.frozen(kw_only=True)
class Overlap:
    """One append while an answer is active, and the rules of its session. Times in ms.

    ``accumulated_ms`` is the overlapping speech before this append. ``vad`` is what the server's detector says of the
    append, None without one: ``onset`` an utterance begins in it, ``active`` one that began earlier goes on.
    """

    policy: str
    short_ack_ms: float
    barge_in_ms: float
    auto_response: bool
    can_barge_in: bool
    speech: bool
    duration_ms: float
    accumulated_ms: float = 0.0
    action_word: str | None = None
    force_barge_in: bool = False
    force_listen: bool = False
    transcript: str | None = None
    vad: Vad | None = None

    @property
    def asks_to_interrupt(self) -> bool:
        """The event itself asks for a barge-in."""
        return self.force_barge_in or self.action_word in INTERRUPT_WORDS

    @property
    def total_ms(self) -> float:
        """The overlapping speech with this append."""
        return self.accumulated_ms + (self.duration_ms if self.speech else 0.0)


@attrs.frozen(kw_only=True)
class Decision:
    """How the append is handled.

    ``buffer``: its audio is kept as user input. ``defer``: it waits for the answer to end. ``accumulated_ms`` is the
    accumulator afterwards. ``forget``: the overlap was no input; an item that it opened is closed and forgotten.
    """

    action: Action
    reason: str
    buffer: bool
    defer: bool = False
    force_listen: bool = False
    overlap_ms: float = 0.0
    accumulated_ms: float = 0.0
    forget: bool = False
    cancel_reason: str | None = None


def normalised(words: str) -> str:
    """Trimmed, case-folded, without punctuation, single spaces."""
    kept = "".join(c for c in words.casefold() if not unicodedata.category(c).startswith("P"))
    return " ".join(kept.split())


def is_short_ack(transcript: str | None) -> bool:
    """Whether these words only acknowledge."""
    return transcript is not None and normalised(transcript) in SHORT_ACKS


def decide(overlap: Overlap) -> Decision:
    """The decision of the first row of the table that has one."""
    for row in ROWS:
        decision = row(overlap)
        if decision is not None:
            return decision
    raise AssertionError("the last row always decides")


# --- the rows -----------------------------------------------------------------------------------------------------


def _interrupt(o: Overlap, reason: str) -> Decision:
    cancel = "turn_detected" if o.vad == "onset" and reason == "server_vad_speech_started" else "barge_in"
    return Decision(action="barge_in", reason=reason, buffer=True, overlap_ms=o.total_ms, cancel_reason=cancel)


def _unable(o: Overlap) -> Decision:
    return Decision(
        action="listen",
        reason="barge_in_unsupported",
        buffer=o.speech,
        defer=True,
        overlap_ms=o.total_ms,
        accumulated_ms=o.total_ms,
    )


def _asked_in_vain(o: Overlap) -> Decision | None:
    """1: the model cannot be interrupted."""
    return _unable(o) if o.asks_to_interrupt and not o.can_barge_in else None


def _client_word(o: Overlap) -> Decision | None:
    """2a, 2b, 2c: the client's own word; it always ends the accumulation."""
    reason = "client_overlap_action"
    if o.action_word in INTERRUPT_WORDS:
        return _interrupt(o, reason)
    if o.action_word in LISTEN_WORDS:
        kept = o.action_word == "listen" and o.speech and o.total_ms > o.short_ack_ms
        return Decision(action="listen", reason=reason, buffer=kept, defer=True, overlap_ms=o.total_ms, forget=not kept)
    if o.action_word in DROP_WORDS:
        return Decision(action="drop", reason=reason, buffer=False, overlap_ms=o.total_ms, forget=True)
    return None


def _client_force(o: Overlap) -> Decision | None:
    """3."""
    return _interrupt(o, "client_force_barge_in") if o.force_barge_in else None


def _auto(o: Overlap) -> Decision | None:
    """4: the model hears everything anyway; only a barge-in is ours to decide."""
    if not o.auto_response:
        return None
    if o.speech and o.policy == "barge_in_on_speech" and o.can_barge_in and o.vad in (None, "onset"):
        return _interrupt(o, "barge_in_on_speech" if o.vad is None else "server_vad_speech_started")
    return Decision(
        action="listen",
        reason="auto_response_continuous",
        buffer=True,
        force_listen=o.vad == "active",
        overlap_ms=o.total_ms,
        accumulated_ms=o.total_ms,
    )


def _client_listens(o: Overlap) -> Decision | None:
    """5."""
    if not o.force_listen:
        return None
    return Decision(
        action="listen",
        reason="client_force_listen",
        buffer=o.speech,
        defer=True,
        force_listen=True,
        overlap_ms=o.total_ms,
    )


def _silence(o: Overlap) -> Decision | None:
    """6: never removes speech that is buffered already."""
    if o.speech:
        return None
    return Decision(
        action="drop",
        reason="silence_or_noise",
        buffer=False,
        overlap_ms=o.accumulated_ms,
        accumulated_ms=o.accumulated_ms,
    )


def _short_ack_words(o: Overlap) -> Decision | None:
    """7."""
    if not is_short_ack(o.transcript):
        return None
    return Decision(
        action="listen", reason="short_ack_transcript", buffer=False, defer=True, overlap_ms=o.total_ms, forget=True
    )


def _listen_only(o: Overlap) -> Decision | None:
    """8, with the reasons of the contract's note."""
    if o.policy == "barge_in_on_speech":
        return None
    if o.total_ms <= o.short_ack_ms:
        reason = "short_ack"
    else:
        reason = "accumulating_overlap_speech" if o.total_ms < o.barge_in_ms else "long_overlap_speech"
    return Decision(
        action="listen",
        reason=reason,
        buffer=True,
        defer=True,
        force_listen=True,
        overlap_ms=o.total_ms,
        accumulated_ms=o.total_ms,
    )


def _interrupting(o: Overlap) -> Decision | None:
    """9."""
    if not o.can_barge_in:
        return _unable(o)
    if o.vad == "active":
        return Decision(
            action="listen",
            reason="server_vad_utterance_active",
            buffer=True,
            force_listen=True,
            overlap_ms=o.total_ms,
            accumulated_ms=o.total_ms,
        )
    return _interrupt(o, "policy_barge_in_on_speech" if o.vad is None else "server_vad_speech_started")


ROWS: Final[tuple[Callable[[Overlap], Decision | None], ...]] = (
    _asked_in_vain,
    _client_word,
    _client_force,
    _auto,
    _client_listens,
    _silence,
    _short_ack_words,
    _listen_only,
    _interrupting,
)
