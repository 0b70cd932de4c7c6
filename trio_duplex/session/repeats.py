"""Appends that a client sends again because it lost its socket and cannot know whether they arrived (contract 22).

The same append (its ``event_id`` and its audio) counts once. Only across a resume: within one visit everything that is
sent is meant, also by a client that gives all its events one id.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from duplex_protocol.commands import AppendAudio

STRIDE: Final = 61
"""One byte in so many stands, with the length, for the whole append: every append of every session is looked at."""


class AdmittedAppends:
    """The last ``most`` appends that were admitted, and during which visit of a socket."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._visits: OrderedDict[Hashable, int] = OrderedDict()
        self._first_visit: float = math.inf

    def repeats(self, append: AppendAudio, visit: int) -> bool:
        """Whether it was admitted during an earlier visit; that one is forgotten then, so a third one counts again."""
        if visit <= self._first_visit:
            return False  # nearly always: nobody came back yet
        key = _key(append)
        if key is None or self._visits.get(key, visit) >= visit:
            return False
        del self._visits[key]
        return True

    def admitted(self, append: AppendAudio, visit: int) -> None:
        """It goes to the session now; the oldest one is forgotten."""
        key = _key(append)
        if key is None:
            return
        self._first_visit = min(self._first_visit, visit)
        self._visits[key] = visit
        self._visits.move_to_end(key)
        if len(self._visits) > self._most:
            self._visits.popitem(last=False)


def _key(append: AppendAudio) -> Hashable | None:
    if append.event_id is None:
        return None
    audio = append.audio
    return append.event_id, len(audio), hash(audio[:STRIDE]), hash(audio[::STRIDE]), hash(audio[-STRIDE:])
