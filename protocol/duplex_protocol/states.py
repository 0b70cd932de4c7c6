"""State tables: what a session accepts in which state, and the life of a response (contract 8.1, 7 O4–O15).

Pure functions over literal tables; an illegal move raises and changes nothing, because there is nothing to change.
"""

from __future__ import annotations

from typing import Final, Literal

from duplex_protocol import commands as c
from duplex_protocol.errors import LocalProtocolError
from duplex_protocol.values import SessionState, TurnState

# --- session ----------------------------------------------------------------------------------------------------------

SESSION_MOVES: Final[dict[tuple[SessionState, str], SessionState]] = {
    ("open", "close_begins"): "closing",
    ("closing", "close_begins"): "closing",  # idempotent: whoever comes first decides the reason
    ("closing", "resources_released"): "closed",
}
"""(state, what happens) → state. ``closing`` begins with the first of close, fatal error, expiry, timeout, loss."""

COMMANDS: Final[tuple[type[c.Command], ...]] = (
    c.UpdateSession,
    c.Heartbeat,
    c.AckEvents,
    c.CloseSession,
    c.AppendAudio,
    c.CommitInput,
    c.ClearInput,
    c.CancelInput,
    c.AppendText,
    c.CreateItem,
    c.RetrieveItem,
    c.DeleteItem,
    c.TruncateItem,
    c.CreateResponse,
    c.CancelResponse,
    c.ClearOutput,
    c.BargeIn,
    c.SignalTurn,
    c.AckPlayback,
)

ALLOWED: Final[dict[SessionState, frozenset[type[c.Command]]]] = {
    "open": frozenset(COMMANDS),
    # A close that repeats itself and a late journal acknowledgement ask for nothing that could still go wrong.
    "closing": frozenset({c.CloseSession, c.AckEvents}),
    "closed": frozenset({c.CloseSession, c.AckEvents}),
}
"""Which commands a session takes in which state; the others are ``session_closed``."""


def refusal(state: SessionState, command: type[c.Command]) -> str | None:
    """The error code with which ``command`` is refused in ``state``; None = allowed."""
    return None if command in ALLOWED[state] else "session_closed"


def next_session_state(state: SessionState, happening: str) -> SessionState:
    """The state after ``happening``; raises :class:`LocalProtocolError` for an illegal move."""
    after = SESSION_MOVES.get((state, happening))
    if after is None:
        raise LocalProtocolError(f"a session that is {state} cannot take the move {happening!r}")
    return after


# --- turn -------------------------------------------------------------------------------------------------------------

TURN_STATE_AFTER: Final[dict[str, TurnState]] = {
    "opened": "idle",
    "audio_appended": "user_speaking",
    "text_appended": "user_speaking",
    "committed": "user_committed",
    "response_begun": "assistant_generating",
    "first_audio_out": "assistant_playing",
    "response_ended": "idle",
    "input_cleared": "idle",
    "cancelled": "barge_in",
    "close_begins": "idle",
}
"""What happens → ``turn_state``. Every happening is possible in every turn state: it is a word, not a guard."""

# --- response ---------------------------------------------------------------------------------------------------------

ResponsePhase = Literal["created", "speaking", "done"]
ResponseMove = Literal["create", "speak", "audio", "text", "listen", "finish"]

RESPONSE_MOVES: Final[dict[tuple[ResponsePhase | None, ResponseMove], ResponsePhase]] = {
    (None, "create"): "created",
    ("created", "speak"): "speaking",
    ("created", "audio"): "speaking",
    ("created", "text"): "speaking",
    ("created", "listen"): "created",
    ("created", "finish"): "done",
    ("speaking", "speak"): "speaking",
    ("speaking", "audio"): "speaking",
    ("speaking", "text"): "speaking",
    ("speaking", "listen"): "speaking",
    ("speaking", "finish"): "done",
}
"""(phase, what happens) → phase; None = no such response yet. Nothing leads out of ``done`` (O14, O15)."""


def next_response_phase(phase: ResponsePhase | None, move: ResponseMove) -> ResponsePhase:
    """The phase after ``move``; raises :class:`LocalProtocolError` for an illegal move."""
    after = RESPONSE_MOVES.get((phase, move))
    if after is None:
        raise LocalProtocolError(f"a response that is {phase or 'not there'} cannot take the move {move!r}")
    return after
