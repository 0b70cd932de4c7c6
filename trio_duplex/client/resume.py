"""Taking up a session on a new connection after the old one was lost (contract 21.4 "Resume", section 15)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import orjson
import trio

from .buffers import BUFFER_SIZE
from .errors import DuplexConnectionError
from .events import DuplexEvent, ErrorEvent, SessionResumed
from .session_state import SessionState, parse_frame
from .transport import TRANSPORT_FAILURES, WebSocketTransport
from .values import ReconnectPolicy

FATAL_RESUME_CODES = frozenset(
    {
        "invalid_session_resume",
        "session_resume_expired",
        "unsupported_session_resume",
        "invalid_resume_token",
        "session_resume_conflict",
    }
)
"""Trying again cannot help after one of these."""


@attrs.frozen
class Resumed:
    """A connection that carries the session again. `kept` came before `event` and is dispatched after it."""

    transport: WebSocketTransport
    attempt: int
    event: SessionResumed
    kept: tuple[DuplexEvent, ...]


@attrs.frozen
class _Refused:
    text: str
    fatal: bool


async def resume_session(
    policy: ReconnectPolicy,
    state: SessionState,
    *,
    open_transport: Callable[[], Awaitable[WebSocketTransport]],
    discard: Callable[[], Awaitable[None]],
    timeout_s: float,
) -> Resumed | str:
    """Try up to `policy.max_attempts` times; the text says why it did not work.

    Each attempt (connecting included) has `timeout_s`. `discard` closes what a failed attempt left open. Cancellation
    leaves an open transport to its registry.
    """
    why = "resume not attempted"
    for attempt in range(1, policy.max_attempts + 1):
        await trio.sleep(policy.delay(attempt))
        outcome: Resumed | _Refused = _Refused("resume timed out", False)
        with trio.move_on_after(timeout_s):
            outcome = await _attempt(state, attempt, open_transport)
        if isinstance(outcome, Resumed):
            return outcome
        await discard()
        why = outcome.text
        if outcome.fatal:
            return why
    return why


async def _attempt(
    state: SessionState, attempt: int, open_transport: Callable[[], Awaitable[WebSocketTransport]]
) -> Resumed | _Refused:
    kept: deque[DuplexEvent] = deque(maxlen=BUFFER_SIZE)
    try:
        transport = await open_transport()
        await transport.send(orjson.dumps(state.resume_request()).decode())
        while True:
            event = parse_frame(await transport.recv(), time.monotonic())
            if event is None:
                continue
            if isinstance(event, SessionResumed):
                return Resumed(transport, attempt, event, tuple(kept))
            if event.type == "session.resync_required":
                return _Refused(f"resync required: {event.raw.get('reason')}", True)
            if isinstance(event, ErrorEvent):
                return _Refused(f"resume refused: {event.to_exception()}", event.code in FATAL_RESUME_CODES)
            kept.append(event)
    except DuplexConnectionError as error:
        return _Refused(str(error), False)
    except TRANSPORT_FAILURES as error:
        return _Refused(str(error) or type(error).__name__, False)
