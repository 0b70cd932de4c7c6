"""How far an answer may run ahead of real time.

Backends make audio faster than it plays.  It is not all sent on: an answer keeps at most ``lead_s`` ahead of its
listener and the rest stays unread at the backend, because TCP holds it there.  So an interruption finds unsent audio
to drop and a generation to stop, memory is bounded whatever the answer's length, and a short gap of the backend is not
heard.
"""

from __future__ import annotations

import math

import trio

__all__ = ["Pace"]


class Pace:
    """:meth:`wait` before each piece.

    An answer that comes slower than it plays is never held up; after a gap the lead is built up anew.
    """

    def __init__(self, lead_s: float) -> None:
        self._lead_s = lead_s
        self._played_by_s = -math.inf  # when all that was let through will have been played

    async def wait(self, duration_s: float) -> None:
        """Return when a piece of this length may go out. Cancellation: a checkpoint, nothing is counted."""
        # A piece longer than the lead waits for the end of what was let through, not longer.
        await trio.sleep_until(self._played_by_s + duration_s - max(self._lead_s, duration_s))
        self._played_by_s = max(self._played_by_s, trio.current_time()) + duration_s
