"""Identifiers (contract 7.1), from one seedable source so that a test's history is its seed."""

from __future__ import annotations

import random
import secrets


class IdSource:
    """Makes ids and resume tokens. ``seed`` None draws from the operating system."""

    def __init__(self, seed: int | None = None) -> None:
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._seeded = seed is not None
        # An event's id is a name, nobody's secret: it must not cost a system call for each of thousands a second.
        self._event_bits = (random.Random(secrets.randbits(256)) if seed is None else self._random).getrandbits

    def hex(self, digits: int) -> str:
        """``digits`` random hexadecimal digits."""
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def session(self) -> str:
        """A session id for a client that named none."""
        return f"duplex-{self.hex(32)}"

    def item(self) -> str:
        """A user item's id."""
        return f"item_{self.hex(32)}"

    def response(self) -> str:
        """A response id; never reused (O14)."""
        return f"resp_{self.hex(24)}"

    def event(self) -> str:
        """A server event's id."""
        return f"event_{self._event_bits(128):032x}"

    def resume_token(self) -> str:
        """32 random bytes as URL-safe text (contract 15.2); drawn from the system unless the source is seeded."""
        if self._seeded:
            return f"rt_{self.hex(64)}"
        return f"rt_{secrets.token_urlsafe(32)}"
