"""A live microphone made of recordings: one chunk per 32 ms for ever, with a faint noise where nobody speaks."""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trio_duplex.client import DuplexClient, DuplexClientError
from trio_duplex.showcase.event_log import EventLog
from trio_duplex.showcase.recordings import Recording

__all__ = ["Microphone", "Utterance"]

CHUNK_MS: Final = 32
NOISE_RMS: Final = 12.0
"""About -69 dB of full scale: a quiet room."""
NOISE_LOOP_S: Final = 7


@attrs.define(eq=False)
class Utterance:
    """A recording on its way through the microphone. Times, in ``trio.current_time()`` seconds, hold once ``begun``."""

    recording: Recording
    started_s: float = 0.0
    begun: trio.Event = attrs.field(factory=trio.Event)
    finished: trio.Event = attrs.field(factory=trio.Event)

    @property
    def speech_started_s(self) -> float:
        """When the first loud sample was spoken."""
        return self.started_s + self.recording.speech_start_ms / 1000

    @property
    def speech_ended_s(self) -> float:
        """When the last loud sample was spoken."""
        return self.started_s + self.recording.speech_end_ms / 1000


@attrs.define(eq=False)
class Microphone:
    """Streams to one client in real time. A chunk is sent when its last sample has been "recorded", as a live one is.

    ``late_ms`` keeps how much later than that each chunk was handed to the client: the generator's own fault.
    """

    client: DuplexClient
    log: EventLog
    rate_hz: int = 16_000
    chunk_ms: int = CHUNK_MS
    late_ms: list[float] = attrs.field(factory=list, repr=False)
    started_s: float | None = None
    _waiting: deque[Utterance] = attrs.field(factory=deque)

    def say(self, recording: Recording) -> Utterance:
        """Speak a recording after those that wait already; it begins with the next chunk."""
        if recording.rate_hz != self.rate_hz:
            raise ValueError(f"{recording.name} has {recording.rate_hz} Hz, the microphone {self.rate_hz} Hz")
        utterance = Utterance(recording)
        self._waiting.append(utterance)
        return utterance

    async def run(self) -> None:
        """Stream until cancelled or until the session has ended. Cancellation: stops between or inside chunks."""
        size = self.rate_hz * self.chunk_ms // 1000
        noise = _room_noise(self.rate_hz)
        begun = trio.current_time()
        self.started_s = trio.current_time()
        spoken: Utterance | None = None
        offset = 0
        place = 0
        while True:
            if spoken is None and self._waiting:
                spoken, offset = self._waiting.popleft(), 0
                spoken.started_s = self.started_s + place / self.rate_hz
                spoken.begun.set()
                self.log.note(
                    "microphone.began",
                    recording=spoken.recording.name,
                    speech_start_ms=spoken.recording.speech_start_ms,
                    speech_end_ms=spoken.recording.speech_end_ms,
                    started_s=spoken.started_s,
                )
            chunk = noise[np.arange(place, place + size) % len(noise)].copy()
            if spoken is not None:
                part = spoken.recording.samples[offset : offset + size]
                chunk[: len(part)] = np.clip(chunk[: len(part)].astype(np.int32) + part, -32768, 32767)
                offset += size
            place += size
            due = begun + place / self.rate_hz
            await trio.sleep_until(due)
            self.late_ms.append((trio.current_time() - due) * 1000)
            try:
                await self.client.append_audio(chunk.tobytes())
            except DuplexClientError:
                return
            if spoken is not None and offset >= len(spoken.recording.samples):
                self.log.note("microphone.ended", recording=spoken.recording.name)
                spoken.finished.set()
                spoken = None


def _room_noise(rate_hz: int) -> npt.NDArray[np.int16]:
    """The same few seconds of noise in every run: int16[n]."""
    loop = np.random.default_rng(20).normal(0.0, NOISE_RMS, rate_hz * NOISE_LOOP_S)
    samples: npt.NDArray[np.int16] = loop.round().astype(np.int16)
    return samples
