"""`EventCollector`: keeps what a session said, for assertions and measurements (contract section 21.5)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import trio

from .events import AudioDelta, DuplexEvent, wrap_event
from .timing import global_timing_summary, timing_summary
from .values import PCM16_BYTES_PER_SAMPLE

RECEIVED_AT_KEY = "_client_received_at_s"

_TEXT_TYPES = frozenset(
    {
        "response.output_audio_transcript.delta",
        "response.audio_transcript.delta",
        "response.output_text.delta",
        "response.text.delta",
    }
)

RawEvent = Mapping[str, Any]


class EventSource(Protocol):
    """What can be collected from: a `DuplexClient`, or anything with the same `events()`."""

    def events(self) -> AsyncIterable[DuplexEvent]: ...


@attrs.define(eq=False)
class EventCollector:
    """Everything received, unbounded on purpose: make one per measurement, not one per year.

    Times are `time.monotonic()` readings, so they can be compared with the caller's own.
    """

    events: list[dict[str, Any]] = attrs.field(factory=list, init=False)
    """Copies of the wire dictionaries, each with `_client_received_at_s`."""
    event_received_at_s: list[float] = attrs.field(factory=list, init=False)
    """When each of them came."""
    response_audio: dict[str, list[bytes]] = attrs.field(factory=dict, init=False)
    """Response id → its chunks."""
    response_ids: list[str] = attrs.field(factory=list, init=False)
    """In the order of their `response.created`."""
    output_sample_rate_hz: int = attrs.field(default=24_000, init=False)
    """Follows the audio deltas."""
    _done: set[str] = attrs.field(factory=set, init=False)

    async def consume(
        self, client: EventSource, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Collect until the session ends. With `nursery.start` nothing after the start is missed.

        Ends like `DuplexClient.events`; cancellation keeps what was collected.
        """
        events = client.events()
        task_status.started()
        async for event in events:
            self.add(event)

    def add(self, event: DuplexEvent | RawEvent, *, received_at_s: float | None = None) -> None:
        """Take one event in; without a time, the client's reading of it or the present one counts."""
        typed = event if isinstance(event, DuplexEvent) else wrap_event(dict(event))
        if received_at_s is None:
            received_at_s = typed.received_at_s
        if received_at_s is None:
            received_at_s = time.monotonic()
        self.events.append({**typed.raw, RECEIVED_AT_KEY: received_at_s})
        self.event_received_at_s.append(received_at_s)
        response_id = typed.response_id
        if isinstance(typed, AudioDelta):
            self.output_sample_rate_hz = typed.sample_rate_hz or self.output_sample_rate_hz
            if response_id is not None and typed.audio:
                self.response_audio.setdefault(response_id, []).append(typed.audio)
        elif response_id is not None and typed.type == "response.created":
            if response_id not in self.response_ids:
                self.response_ids.append(response_id)
        elif response_id is not None and typed.type == "response.done":
            self._done.add(response_id)

    @staticmethod
    def response_id(event: DuplexEvent | RawEvent) -> str | None:
        """Top-level `response_id`, else `response.id`."""
        return (event if isinstance(event, DuplexEvent) else DuplexEvent(dict(event))).response_id

    def count(self, event_type: str) -> int:
        """How many events of this type came."""
        return sum(event.get("type") == event_type for event in self.events)

    def audio_bytes(self, response_id: str | None = None) -> bytes:
        """Audio of one response, or of all in the order in which they began to sound."""
        if response_id is not None:
            return b"".join(self.response_audio.get(response_id, ()))
        return b"".join(chunk for chunks in self.response_audio.values() for chunk in chunks)

    def audio_ms(self, response_id: str) -> float:
        """Length of a response's audio, taken as PCM16 at the present output rate, in ms."""
        byte_count = sum(map(len, self.response_audio.get(response_id, ())))
        return byte_count * 1000 / (PCM16_BYTES_PER_SAMPLE * self.output_sample_rate_hz)

    def heard_response_ids(self) -> list[str]:
        """Every response that was created or sounded, each once."""
        return list(dict.fromkeys([*self.response_ids, *self.response_audio]))

    def errors(self) -> list[dict[str, Any]]:
        """All `error` events."""
        return [event for event in self.events if event.get("type") == "error"]

    def response_is_done(self, response_id: str) -> bool:
        """Whether its `response.done` came."""
        return response_id in self._done

    def response_text(self, response_id: str) -> str:
        """Transcript and text deltas of a response, joined."""
        return "".join(
            event["delta"]
            for event in self.events
            if event.get("type") in _TEXT_TYPES
            and self.response_id(event) == response_id
            and isinstance(event.get("delta"), str)
        )

    def first_received_at(self, *types: str, after_s: float = 0.0) -> float | None:
        """When the first event of these types came at or after `after_s`."""
        for event, received_at_s in zip(self.events, self.event_received_at_s, strict=True):
            if received_at_s >= after_s and event.get("type") in types:
                return received_at_s
        return None

    def last_received_at(self, event_type: str) -> float | None:
        """When the last event of this type came."""
        for event, received_at_s in zip(reversed(self.events), reversed(self.event_received_at_s), strict=True):
            if event.get("type") == event_type:
                return received_at_s
        return None

    def timing_summary(
        self,
        *,
        after_s: float,
        input_committed_at_s: float | None = None,
        response_id: str | None = None,
        measurement_origin: str | None = None,
    ) -> dict[str, Any]:
        """Latency of one response received from `after_s` on; see `timing.timing_summary` for the keys."""
        return timing_summary(
            self.events,
            sample_rate_hz=self.output_sample_rate_hz,
            after_s=after_s,
            input_committed_at_s=input_committed_at_s,
            response_id=response_id,
            measurement_origin=measurement_origin,
        )

    def global_timing_summary(
        self,
        *,
        after_s: float,
        window_started_at_s: float,
        response_ids: Sequence[str],
        measurement_origin: str,
    ) -> dict[str, Any]:
        """Latency over several responses as one; see `timing.global_timing_summary` for the keys."""
        return global_timing_summary(
            self.events,
            sample_rate_hz=self.output_sample_rate_hz,
            after_s=after_s,
            window_started_at_s=window_started_at_s,
            response_ids=response_ids,
            measurement_origin=measurement_origin,
        )
