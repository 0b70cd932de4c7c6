"""What all sessions of a hub did, as numbers that only grow; the metrics page and ``statistics()`` read them."""

from __future__ import annotations

from collections import Counter

import attrs

from duplex_protocol.values import Deadlines


@attrs.define(eq=False)
class Tally:
    """Plain counters of one hub. Words are our own codes and reasons, never a client's, so their number is bounded.

    ``openings_refused``: by code, at the gate and in the handshake (resumes too). ``errors``: ``error`` events of
    established sessions by code. ``ended``: sessions by reason. ``responses``: by terminal status. ``resumes``: by the
    code of their refusal, ``journal_gap``, or ``ok``. Deadlines are those of ended sessions.
    """

    openings_refused: Counter[str] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    ended: Counter[str] = attrs.field(factory=Counter)
    responses: Counter[str] = attrs.field(factory=Counter)
    resumes: Counter[str] = attrs.field(factory=Counter)
    journal_overflows: int = 0
    readers_left_behind: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    deadline_units: int = 0
    deadline_misses: int = 0

    def session_ended(self, reason: str, deadlines: Deadlines | None) -> None:
        """A session is over and out of the directory."""
        self.ended[reason] += 1
        if deadlines is not None:
            self.deadline_units += deadlines.units
            self.deadline_misses += deadlines.missed
