"""A virtual loudspeaker: plays what arrived as time passes, and tells the server how far it got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import trio

from trio_duplex.client import AudioDelta, DuplexClient, DuplexClientError, wrap_event
from trio_duplex.showcase.event_log import Entry, EventLog

__all__ = ["Played", "Speaker", "Stretch"]

ACK_EVERY_S: Final = 0.2
BYTES_PER_SAMPLE: Final = 2


@attrs.frozen
class Stretch:
    """Audio that sounds without a pause: from ``start_s`` (``trio.current_time()``), for ``duration_s``."""

    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When its last sample sounds."""
        return self.start_s + self.duration_s


@attrs.define(eq=False)
class Played:
    """How one response sounds: chunks one after the other, each as soon as it is there and the one before is over.

    ``stopped_s``: the loudspeaker was silenced then, and what was left was thrown away.
    """

    response_id: str
    rate_hz: int
    pcm: bytearray = attrs.field(factory=bytearray, repr=False)
    stretches: list[Stretch] = attrs.field(factory=list, repr=False)
    ends: trio.Event = attrs.field(factory=trio.Event)
    """No more audio will come."""
    stopped_s: float | None = None
    acked_ms: int = -1

    @property
    def received_ms(self) -> float:
        """Length of the audio that arrived."""
        return len(self.pcm) * 1000 / (BYTES_PER_SAMPLE * self.rate_hz)

    @property
    def end_s(self) -> float:
        """When the last sample that arrived will have sounded."""
        return self.stretches[-1].end_s if self.stretches else 0.0

    def add(self, audio: bytes, at_s: float) -> None:
        """A chunk arrived."""
        if self.stopped_s is not None:
            return
        self.pcm += audio
        duration_s = len(audio) / (BYTES_PER_SAMPLE * self.rate_hz)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and at_s <= last.end_s:
            self.stretches[-1] = Stretch(last.start_s, last.duration_s + duration_s)
        else:
            self.stretches.append(Stretch(at_s, duration_s))

    def heard(self, at_s: float) -> Iterator[Stretch]:
        """What sounded by ``at_s``."""
        limit_s = at_s if self.stopped_s is None else min(at_s, self.stopped_s)
        for stretch in self.stretches:
            if stretch.start_s < limit_s:
                yield Stretch(stretch.start_s, min(stretch.duration_s, limit_s - stretch.start_s))

    def played_ms(self, at_s: float) -> float:
        """How much of it sounded by ``at_s``."""
        return sum(stretch.duration_s for stretch in self.heard(at_s)) * 1000

    @property
    def gaps_s(self) -> list[float]:
        """The pauses in which audio was missing."""
        return [b.start_s - a.end_s for a, b in zip(self.stretches, self.stretches[1:], strict=False)]


@attrs.define(eq=False)
class Speaker:
    """Listens to a log for audio; :meth:`run` acknowledges every ``ack_every_s`` while something sounds.

    An interruption (the answer is cancelled, or the server decided for a barge-in) silences it at once.
    """

    client: DuplexClient
    log: EventLog
    ack_every_s: float = ACK_EVERY_S
    played: dict[str, Played] = attrs.field(factory=dict)
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _done: dict[str, trio.Event] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.log.listeners.append(self._on_entry)

    def _on_entry(self, entry: Entry) -> None:
        if entry.side != "server":
            return
        kind = entry.type
        if kind == "response.output_audio.delta":
            self._on_audio(entry)
        elif kind == "overlap.decision" and entry.event.get("action") == "barge_in":
            for played in self.played.values():
                self._silence(played, entry.at_s)
        elif kind == "response.done":
            self._on_done(entry)

    def _on_done(self, entry: Entry) -> None:
        played = self.played.get(wrap_event(entry.event).response_id or "")
        if played is None:
            return
        if entry.event.get("response", {}).get("status") == "cancelled":
            self._silence(played, entry.at_s)
        played.ends.set()
        self._wake.set()

    def _on_audio(self, entry: Entry) -> None:
        event = wrap_event(entry.event)
        assert isinstance(event, AudioDelta)
        response_id, audio = event.response_id, event.audio
        if response_id is None or not audio:
            return
        if response_id not in self.played:
            self.played[response_id] = Played(response_id, event.sample_rate_hz or 24_000)
            self._done[response_id] = trio.Event()
            self.log.note("speaker.began", response_id=response_id, at_s=entry.at_s)
        self.played[response_id].add(audio, entry.at_s)
        self._wake.set()

    def _silence(self, played: Played, at_s: float) -> None:
        if played.stopped_s is None and played.end_s > at_s:
            played.stopped_s = at_s
            self.log.note(
                "speaker.silenced", response_id=played.response_id, played_ms=int(played.played_ms(at_s)), at_s=at_s
            )
            self._wake.set()

    async def run(self) -> None:
        """Acknowledge until cancelled or the session has ended. Cancellation: no further acks."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            sounding = True
            while sounding:
                try:
                    sounding = await self._acknowledge()
                except DuplexClientError:
                    return
                await trio.sleep(self.ack_every_s if sounding else 0)

    async def _acknowledge(self) -> bool:
        """One ack per response that got further; whether anything still sounds."""
        sounding = False
        for played in list(self.played.values()):
            now_s = trio.current_time()
            over = played.stopped_s is not None or now_s >= played.end_s
            played_ms = int(played.played_ms(now_s) + 1e-6)  # whole milliseconds, as the wire counts them
            if played_ms > played.acked_ms:
                played.acked_ms = played_ms
                await self.client.ack_playback(played_ms, response_id=played.response_id)
            if over and played.ends.is_set():
                self._done[played.response_id].set()
            else:
                sounding = True
        return sounding

    async def wait_played(self, response_id: str, ms: float) -> bool:
        """Wait until ``ms`` of a response have sounded; False if it ended or was silenced before.

        The response must have begun to sound. Cancellation: only stops waiting.
        """
        played = self.played[response_id]
        while True:
            now_s = trio.current_time()
            missing_ms = ms - played.played_ms(now_s)
            if missing_ms <= 0:
                return True
            if played.stopped_s is not None or (played.ends.is_set() and now_s >= played.end_s):
                return False
            await trio.sleep(max(missing_ms / 1000, 0.005))

    async def wait_finished(self, response_id: str) -> None:
        """Wait until a response has ended, sounded to its end and been acknowledged. Cancellation: stops waiting."""
        await self._done[response_id].wait()
