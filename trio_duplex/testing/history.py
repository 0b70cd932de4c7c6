"""The history checker: does a recorded wire log keep the promises? One pure function, for any run, ours or yours.

A log is the list of events that one client saw, oldest first, as parsed JSON objects: of one socket, or of several
sockets of the same session joined by :func:`merge_logs`. Both views of the realtime dialect can be checked; what a
view does not show (epochs, ledgers) is simply not there to be wrong.

    violations = check_history(log, complete=True)
    assert not violations, "\\n".join(map(str, violations))

What each invariant says is the docstring of its function in the ``checks_*`` modules; :data:`INVARIANTS` is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from duplex_protocol.values import Json
from trio_duplex.testing import checks_items, checks_playback, checks_responses, checks_session
from trio_duplex.testing.wire_log import Finding, WireLog

__all__ = ["INVARIANTS", "Merged", "Violation", "check_history", "merge_logs"]


@attrs.frozen
class Violation:
    """One broken promise: which, at which positions of the log, and why, in words."""

    invariant: str
    indexes: tuple[int, ...]
    explanation: str

    def __str__(self) -> str:
        where = ", ".join(map(str, self.indexes))
        return f"{self.invariant} at [{where}]: {self.explanation}"


Check = Callable[[WireLog], Iterator[Finding]]

INVARIANTS: dict[str, Check] = {
    **checks_session.CHECKS,
    **checks_responses.CHECKS,
    **checks_playback.CHECKS,
    **checks_items.CHECKS,
}
"""Name of the invariant → the function that finds what breaks it."""


def check_history(log: Sequence[Json], *, complete: bool = False) -> tuple[Violation, ...]:
    """Everything in ``log`` that breaks an invariant, in order of appearance; empty when all promises were kept.

    ``complete``: the client was connected to the end of the session, so the terminal event must be there (a plain-view
    client sees it only when it asked for it with ``session.close``).

    The log is not changed; a log with holes or foreign objects gives findings, never an exception. Pure: no clock, no
    tasks.
    """
    wire_log = WireLog(list(log), complete=complete)
    found = [
        Violation(name, finding.indexes, finding.explanation)
        for name, check in INVARIANTS.items()
        for finding in check(wire_log)
    ]
    return tuple(sorted(found, key=lambda v: v.indexes[:1]))


@attrs.frozen
class Merged:
    """The log of one session as its client knows it after resuming, and what was wrong with the replays."""

    log: list[Json]
    violations: tuple[Violation, ...]


def merge_logs(logs: Sequence[Sequence[Json]]) -> Merged:
    """Join the logs of successive sockets of one session by ``server_event_seq``: replay is exactly-once.

    Unnumbered events (``session.resumed``, ``session.replaced``) belong to a socket, not to the session, and are left
    out. An event that two sockets carried must be the same in every field. Each socket's own numbers must rise one by
    one. Pure.
    """
    seen: dict[int, tuple[int, Json]] = {}
    problems: list[Violation] = []
    merged: list[Json] = []
    for which, log in enumerate(logs):
        last: int | None = None
        for index, event in enumerate(log):
            seq = event.get("server_event_seq")
            if not isinstance(seq, int):
                continue
            if last is not None and seq != last + 1:
                text = f"socket {which} carried number {seq} after {last}"
                problems.append(Violation("replay_in_order", (index,), text))
            last = seq
            if seq not in seen:
                seen[seq] = (which, event)
            elif seen[seq][1] != event:
                other, before = seen[seq]
                text = f"number {seq} is {before.get('type')} on socket {other} and {event.get('type')} here"
                problems.append(Violation("replay_exactly_once", (index,), text))
    merged.extend(seen[seq][1] for seq in sorted(seen))
    return Merged(merged, tuple(problems))
