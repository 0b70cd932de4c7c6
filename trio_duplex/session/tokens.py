"""Resume tokens: only digests are kept, compared in constant time, rotated at each resume (contract 15.2)."""

from __future__ import annotations

import hashlib
import hmac


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class ResumeTokens:
    """The current token of a session, and the one just used, which stays good once more while detached.

    The spare exists because a socket may die after the server rotated the token and before the client heard of it; it
    is dropped when the client speaks on the new socket, which proves that it was told.
    """

    def __init__(self) -> None:
        self._current: bytes | None = None
        self._spare: bytes | None = None

    def issue(self, token: str) -> None:
        """``token`` is now the current one."""
        self._current = _digest(token)

    def matches(self, token: str, *, detached: bool) -> bool:
        """Whether ``token`` may resume now; the spare only while no socket is attached."""
        digest = _digest(token)
        current = self._current is not None and hmac.compare_digest(digest, self._current)
        spare = self._spare is not None and hmac.compare_digest(digest, self._spare)
        return current or (spare and detached)

    def rotate(self, used: str, fresh: str) -> None:
        """A resume with ``used`` was accepted."""
        self._spare = _digest(used)
        self._current = _digest(fresh)

    def confirm(self) -> None:
        """The client was heard on the new socket: the spare is void."""
        self._spare = None
