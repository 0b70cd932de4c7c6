"""A wire log with the look-ups that the history checks share: whose event is it, which answer, which epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import attrs

from duplex_protocol.values import Json

OUTPUT_DELTAS = frozenset(
    {
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
    }
)

SESSION_TERMINALS = frozenset({"session.closed", "session.expired"})


@attrs.frozen
class Finding:
    """What a check found: positions in the log and an explanation."""

    indexes: tuple[int, ...]
    explanation: str


def found(explanation: str, *indexes: int) -> Finding:
    """A finding in one line."""
    return Finding(indexes, explanation)


def member(value: Any, *path: str) -> Any:
    """``value[a][b]…``, None wherever something on the way is missing or no object."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def kind(event: Json) -> str:
    """The event's type, empty when it has none."""
    name = event.get("type")
    return name if isinstance(name, str) else ""


def response_of(event: Json) -> str | None:
    """The response that an event belongs to, in either view."""
    named = event.get("response_id") or member(event, "response", "id")
    return named if isinstance(named, str) and named else None


@attrs.frozen
class Answer:
    """One response of the log: where it begins and ends, and the positions of its own events in between.

    ``is_call``: the pseudo response of a tool call, which may run beside an audio response (contract 19).
    ``ends``: positions of its ``response.done``; more than one is a violation.
    """

    id: str
    begin: int
    ends: tuple[int, ...]
    own: tuple[int, ...]
    is_call: bool

    @property
    def end(self) -> int | None:
        """Position of its first ``response.done``, None while it is open."""
        return self.ends[0] if self.ends else None

    @property
    def item_id(self) -> str:
        """The assistant item of an audio or text answer."""
        return f"item_{self.id}"


@attrs.define(eq=False)
class WireLog:
    """The events of one client, oldest first. ``complete``: the client stayed to the session's end."""

    events: list[Json]
    complete: bool = False

    def of(self, *kinds: str) -> Iterator[tuple[int, Json]]:
        """Positions and events of these types."""
        return ((i, e) for i, e in enumerate(self.events) if kind(e) in kinds)

    @cached_property
    def duplex(self) -> bool:
        """Whether this is the duplex view (it names the incarnation beside the session object)."""
        for _, event in self.of("session.created"):
            return "incarnation" in event
        return any("response_id" in e for _, e in self.of("response.created", "response.done"))

    @cached_property
    def terminal(self) -> int | None:
        """Position of the session's first terminal event."""
        return next((i for i, _ in self.of(*SESSION_TERMINALS)), None)

    @cached_property
    def answers(self) -> list[Answer]:
        """All responses, in order of their creation; a repeated ``response.created`` of an id counts once."""
        begins: dict[str, int] = {}
        ends: dict[str, list[int]] = {}
        own: dict[str, list[int]] = {}
        calls: set[str] = set()
        for index, event in enumerate(self.events):
            response_id = response_of(event)
            if response_id is None:
                continue
            name = kind(event)
            if name == "response.created":
                begins.setdefault(response_id, index)
            elif name == "response.done":
                ends.setdefault(response_id, []).append(index)
            elif name == "response.output_item.added" and member(event, "item", "type") == "function_call":
                calls.add(response_id)
            own.setdefault(response_id, []).append(index)
        return [
            Answer(rid, at, tuple(ends.get(rid, ())), tuple(own[rid]), rid in calls)
            for rid, at in sorted(begins.items(), key=lambda pair: pair[1])
        ]

    def answer(self, response_id: str | None) -> Answer | None:
        """The response with this id."""
        return self._by_id.get(response_id) if response_id is not None else None

    @cached_property
    def _by_id(self) -> dict[str, Answer]:
        return {answer.id: answer for answer in self.answers}

    def join(self, answer: Answer, delta: str) -> str:
        """The deltas of one type of an answer, joined."""
        events = (self.events[i] for i in answer.own)
        return "".join(str(e.get("delta", "")) for e in events if kind(e) == delta)

    def status(self, answer: Answer) -> str | None:
        """The status word of an ended answer."""
        if answer.end is None:
            return None
        status = member(self.events[answer.end], "response", "status")
        return status if isinstance(status, str) else None


def epoch_of(event: Json) -> int | None:
    """The epoch an event is stamped with (duplex view), None where it shows none.

    A cancelled answer's terminal carries the epoch it ends; ``input_audio_buffer.cleared`` and others show none.
    """
    name = kind(event)
    metadata = member(event, "response", "metadata")
    if name == "response.created":
        value = member(metadata, "duplex_event", "epoch")
    elif name == "response.done":
        value = member(metadata, "cancelled_epoch")
        value = member(metadata, "epoch") if value is None else value
    elif name in ("response.output_audio.delta", "response.speak"):
        value = member(event, "metadata", "epoch")
    elif name in ("input_audio_buffer.committed", "playback.acknowledged"):
        value = member(event, "event", "epoch")
    elif name in ("response.listen", "overlap.decision"):
        value = event.get("epoch")
    else:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
