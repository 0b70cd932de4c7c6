"""When a unit of input is fed: the network's only notion of time is one unit every 80 ms, whatever the client sends.

Three rules over one number, the moment at which the next unit is *expected* (the model's own clock):

* a unit that came is fed at once, unless the model is more than ``lead_units`` ahead of the clock: then it waits, and
  what waits is worked off two percent faster than real time, so that a client's quick crystal adds no delay for ever;
* when none came for ``patience_s`` after it was expected, silence is fed, and from then on every 80 ms;
* after a pause the clock starts anew where the input does.

Pure: times are handed in, seconds of one clock.
"""

from __future__ import annotations

import attrs

__all__ = ["CATCH_UP", "UnitClock"]

CATCH_UP = 0.98
_TINY_S = 1e-6


@attrs.define
class UnitClock:
    """One session's clock. ``expected_s`` is when the next unit is expected."""

    period_s: float
    expected_s: float
    patience_s: float
    lead_units: int = 2
    _silent: bool = False

    def may_feed(self, now_s: float) -> bool:
        """Whether a unit that came may be fed now."""
        return now_s >= self.release_s - _TINY_S

    @property
    def release_s(self) -> float:
        """From when on the next unit may be fed."""
        return self.expected_s - self.lead_units * self.period_s

    @property
    def silence_s(self) -> float:
        """When silence is due if nothing comes."""
        return self.expected_s if self._silent else self.expected_s + self.patience_s

    def fed(self, now_s: float, *, waiting: bool = False) -> None:
        """A unit of the client was fed; ``waiting``: more of them are waiting already."""
        self._silent = False
        self.expected_s = max(now_s, self.expected_s) + self.period_s * (CATCH_UP if waiting else 1.0)

    def filled(self, now_s: float) -> None:
        """A unit of silence was fed. One late wake-up does not shift the beat; a long sleep is not made up for."""
        beat_s = self.silence_s
        self._silent = True
        self.expected_s = (beat_s if now_s - beat_s < self.period_s else now_s) + self.period_s
