"""The client's exceptions (contract section 21.1) and the helper that keeps them out of exception groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio


class DuplexClientError(Exception):
    """Base of everything this client raises on purpose, `TimeoutError` and `ValueError` apart."""


class DuplexConnectionError(DuplexClientError):
    """The transport failed: refused, lost, or (while a resume is under way) absent."""


class DuplexProtocolError(DuplexClientError):
    """The server answered with an `error` event.

    `code` is the wire code or None, `event_id` names the client event that caused it (None if the server did not
    say), `raw` is the event as it came.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        event_id: str | None = None,
        raw: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.event_id = event_id
        self.raw: dict[str, Any] = {} if raw is None else raw

    def __str__(self) -> str:
        return self.message if self.code is None else f"{self.code}: {self.message}"


class DuplexSessionClosedError(DuplexClientError):
    """The session ended while somebody waited for it, or a call came after its end."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"duplex session closed: {reason}")
        self.reason = reason


def sole_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception a nursery's group is about, or the group itself when there are several.

    `trio.Cancelled` beside a real error is the noise of tearing down and gives way to it, as in a program without
    the inner nursery. Only Cancelled inside: one of them. A group inside the group is somebody's own and stays.
    """
    real = [member for member in group.exceptions if not isinstance(member, trio.Cancelled)]
    if len(real) == 1:
        return real[0]
    return group if real else group.exceptions[0]


@contextmanager
def unwrapped() -> Iterator[None]:
    """Let a nursery's lone exception leave as itself, so that callers can catch the documented type."""
    try:
        yield
    except BaseExceptionGroup as group:
        lone = sole_exception(group)
        if lone is group:
            raise
        # The original traceback and context say more than the group that carried them.
        context = lone.__context__
        try:
            raise lone
        finally:
            lone.__context__ = context
            del lone, context
