"""Invariants of the session as a whole: numbers, ids, its first and its last event, epochs (contract 7, 8, 13, 24a)."""

from __future__ import annotations

from collections.abc import Iterator

from trio_duplex.testing.wire_log import (
    OUTPUT_DELTAS,
    SESSION_TERMINALS,
    Finding,
    WireLog,
    epoch_of,
    found,
    kind,
    member,
)

UNNUMBERED = frozenset({"session.resumed", "session.replaced", "session.resync_required", "error"})
"""Events that may lack a number: those that belong to a socket. An error only before a session was announced."""


def sequence_gapless(log: WireLog) -> Iterator[Finding]:
    """``server_event_seq`` starts at 1 (after a resume: anywhere) and rises by one with every event (15.1)."""
    last: int | None = None
    resumed = bool(log.events) and "server_event_seq" not in log.events[0]
    for index, event in enumerate(log.events):
        seq = event.get("server_event_seq")
        if seq is None:
            first_again = kind(event) == "session.created" and index == 0
            allowed = kind(event) in UNNUMBERED and (kind(event) != "error" or last is None)
            if not (allowed or first_again):
                yield found(f"{kind(event)} carries no number", index)
            continue
        if not isinstance(seq, int) or isinstance(seq, bool):
            yield found(f"the number {seq!r} is no integer", index)
        elif last is None and seq != 1 and not resumed:
            yield found(f"the log begins with number {seq}", index)
        elif last is not None and seq != last + 1:
            yield found(f"number {seq} follows {last}", index)
        last = seq if isinstance(seq, int) else last


def event_ids_unique(log: WireLog) -> Iterator[Finding]:
    """Every event has its own ``event_id``."""
    seen: dict[str, int] = {}
    for index, event in enumerate(log.events):
        event_id = event.get("event_id")
        if not isinstance(event_id, str) or not event_id:
            yield found(f"{kind(event)} has no event_id", index)
        elif event_id in seen:
            yield found(f"event_id {event_id} is used twice", seen[event_id], index)
        else:
            seen[event_id] = index


def session_announced_first(log: WireLog) -> Iterator[Finding]:
    """``session.created`` comes once and precedes every other numbered event (O2)."""
    numbered = [(i, e) for i, e in enumerate(log.events) if "server_event_seq" in e]
    if numbered and numbered[0][1]["server_event_seq"] == 1 and kind(numbered[0][1]) != "session.created":
        yield found(f"the first event is {kind(numbered[0][1])}", numbered[0][0])
    created = [i for i, e in numbered if kind(e) == "session.created"]
    if len(created) > 1:
        yield found("the session was announced more than once", *created)


def one_session_terminal(log: WireLog) -> Iterator[Finding]:
    """A session has exactly one terminal event, ``session.closed`` or ``session.expired``, and it is the last (O16)."""
    terminals = [i for i, _ in log.of(*SESSION_TERMINALS)]
    if len(terminals) > 1:
        yield found("the session ended more than once", *terminals)
    if terminals:
        later = [i for i in range(terminals[0] + 1, len(log.events)) if i not in terminals]
        if later:
            yield found(f"{kind(log.events[later[0]])} came after the session's end", terminals[0], later[0])
    elif log.complete:
        yield found("the session's terminal event is missing", len(log.events))


def epochs_never_fall(log: WireLog) -> Iterator[Finding]:
    """The epoch on the wire only grows (8.2): an event of an older epoch never follows one of a newer."""
    highest, where = -1, 0
    for index, event in enumerate(log.events):
        epoch = epoch_of(event)
        if epoch is None:
            continue
        if epoch < highest:
            yield found(f"{kind(event)} of epoch {epoch} after one of epoch {highest}", where, index)
        elif epoch > highest:
            highest, where = epoch, index


def epoch_ends_with_its_terminal(log: WireLog) -> Iterator[Finding]:
    """A cancelled answer's terminal is stamped with its own epoch and names the next; nothing is said in the old one.

    (Contract 24a: settle, terminal with the old stamp, number + 1, without a checkpoint in between.)
    """
    ended: dict[int, int] = {}
    for index, event in enumerate(log.events):
        name = kind(event)
        epoch = epoch_of(event)
        said = name in OUTPUT_DELTAS or name in ("response.created", "response.speak", "response.listen")
        if said and epoch in ended:
            yield found(f"{name} of epoch {epoch} after that epoch's terminal", ended[epoch], index)
        cancelled = member(event, "response", "metadata", "cancelled_epoch")
        if name != "response.done" or not isinstance(cancelled, int):
            continue
        following = member(event, "response", "metadata", "epoch")
        if following != cancelled + 1:
            yield found(f"the terminal ends epoch {cancelled} but names {following} as the next", index)
        answer = log.answer(event.get("response_id"))
        begun = epoch_of(log.events[answer.begin]) if answer is not None else None
        if begun is not None and begun != cancelled:
            yield found(f"the answer began in epoch {begun} and was cancelled in {cancelled}", index)
        ended[cancelled] = index


def one_epoch_per_answer(log: WireLog) -> Iterator[Finding]:
    """All events of an answer are stamped with the epoch it began under."""
    for answer in log.answers:
        begun = epoch_of(log.events[answer.begin])
        for index in answer.own:
            event = log.events[index]
            epoch = epoch_of(event)
            if epoch is not None and epoch != begun and kind(event) != "playback.acknowledged":
                yield found(f"{kind(event)} of epoch {epoch} in an answer of epoch {begun}", answer.begin, index)


def barge_in_settles_first(log: WireLog) -> Iterator[Finding]:
    """After the decision to barge in, the answer's terminal comes before any other output or commit (O19, O20)."""
    open_answer: str | None = None
    decision: int | None = None
    for index, event in enumerate(log.events):
        name = kind(event)
        answer = log.answer(event.get("response_id")) if name == "response.created" else None
        if name == "response.created" and answer is not None and not answer.is_call:
            open_answer = answer.id
        elif name == "overlap.decision" and event.get("action") == "barge_in" and open_answer is not None:
            decision = index
        elif name == "response.done" and event.get("response_id") == open_answer:
            open_answer = decision = None
        if decision is not None and (name in OUTPUT_DELTAS or name == "input_audio_buffer.committed"):
            yield found(f"{name} between the barge-in and the terminal of the answer it ended", decision, index)


CHECKS = {
    "sequence_gapless": sequence_gapless,
    "event_ids_unique": event_ids_unique,
    "session_announced_first": session_announced_first,
    "one_session_terminal": one_session_terminal,
    "epochs_never_fall": epochs_never_fall,
    "epoch_ends_with_its_terminal": epoch_ends_with_its_terminal,
    "one_epoch_per_answer": one_epoch_per_answer,
    "barge_in_settles_first": barge_in_settles_first,
}
