"""A loudspeaker: answers wait in a buffer until the device takes them, and only what it played is acknowledged.

The clock is the device's own: it counts the frames that it asked for. A frame handed over at count ``n`` is in the air
once the count has passed ``n`` by the latency that the device reports. So no acknowledgement can be ahead of the ear,
whatever the network and our threads do (contract 14).
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any, Final

import attrs
import numpy as np
import trio

from trio_duplex.client import AudioDelta, DuplexClient, DuplexConnectionError, DuplexSessionClosedError
from trio_duplex.live.device import SAMPLE_BYTES, Device
from trio_duplex.live.sound import Flags, Sound, SoundError
from trio_duplex.resampling import Resampler

__all__ = ["Answer", "Loudspeaker"]

ACK_EVERY_S: Final = 0.2
LOOK_EVERY_S: Final = 0.05
HOLD_MS: Final = 60
"""So long the first audio waits for the next, since many servers send at the pace of speech: small delays of the
network would be heard as clicks."""
PLAIN: Final = (None, "pcm16", "pcm", "pcm_s16le", "audio/pcm")
"""Formats that are what we asked for."""
FULL_SCALE: Final = 32768.0


@attrs.define(eq=False)
class Answer:
    """One response on its way into the air. Frames are the device's.

    ``runs``: pairs of (device count, frames) that were handed over without a pause. ``ended``: no more audio will come.
    ``cut``: it was interrupted, nothing more of it is played.
    """

    response_id: str
    item_id: str
    runs: list[tuple[int, int]] = attrs.field(factory=list, repr=False)
    taken: int = 0
    received: int = 0
    ended: bool = False
    cut: bool = False
    acked_ms: int = -1
    acked_at_s: float = float("-inf")
    settled: bool = False
    resampler: Resampler | None = attrs.field(default=None, repr=False)

    def take(self, at: int, frames: int) -> None:
        """The device took ``frames`` at its count ``at``."""
        self.taken += frames
        if self.runs and sum(self.runs[-1]) == at:
            self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + frames)
        else:
            self.runs.append((at, frames))

    def heard(self, count: int) -> int:
        """Frames in the air when the device's air is at ``count``."""
        return sum(min(frames, max(0, count - at)) for at, frames in self.runs)


@attrs.define(eq=False)
class Loudspeaker(Device):
    """Plays the answers of one client one after the other.

    ``underflows``: how often the device ran dry because our thread was late. The buffer holds what the server sent
    ahead, which the server bounds.
    """

    underflows: int = attrs.field(default=0, init=False)
    _answers: dict[str, Answer] = attrs.field(factory=dict, init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False, repr=False)
    # Shared with the device's thread, under the lock; it is held for copying one block at most.
    _queue: deque[tuple[Answer, memoryview]] = attrs.field(factory=deque, init=False, repr=False)
    _count: int = attrs.field(default=0, init=False)
    _hold_until: int = attrs.field(default=0, init=False)
    _last: Answer | None = attrs.field(default=None, init=False)

    def open(self, sound: Sound, device: int | str | None, wanted_hz: int) -> None:
        """Open the device. Raises :class:`SoundError`."""
        self._open = sound.open_output(device, wanted_hz, self._fill, self._on_end)

    @property
    def latency_frames(self) -> int:
        """Between the callback and the air."""
        return max(0, round(self._opened.stream.latency * self.rate_hz))

    # In the device's thread.

    def _fill(self, samples: memoryview, frames: int, _times: Any, flags: Flags) -> None:
        self.calls += 1
        if flags.output_underflow:
            self.underflows += 1
        size, at = frames * SAMPLE_BYTES, 0
        with self._lock:
            while at < size and self._queue and self._released():
                answer, pcm = self._queue.popleft()
                piece = pcm[: size - at]
                samples[at : at + len(piece)] = piece
                answer.take(self._count + at // SAMPLE_BYTES, len(piece) // SAMPLE_BYTES)
                self._last = answer
                at += len(piece)
                if len(piece) < len(pcm):
                    self._queue.appendleft((answer, pcm[len(piece) :]))
            self._count += frames
        if at < size:
            samples[at:size] = bytes(size - at)

    def _released(self) -> bool:
        return self._count >= self._hold_until or self._queue[0][0].ended

    # In Trio's thread.

    def expect(self, response_id: str) -> None:
        """A response has begun; it may be interrupted before it sounds."""
        self._answers.setdefault(response_id, Answer(response_id, f"item_{response_id}"))

    def play(self, delta: AudioDelta) -> None:
        """Audio arrived. Raises :class:`SoundError` for a format that was not asked for. Never blocks for long."""
        audio, response_id = delta.audio, delta.response_id
        if not audio or response_id is None:
            return
        if delta.format not in PLAIN:
            raise SoundError(f"the server sends {delta.format!r}, which cannot be played; 'pcm16' was asked for")
        self.expect(response_id)
        answer = self._answers[response_id]
        answer.item_id = delta.item_id or answer.item_id
        self._queue_up(answer, self._at_our_rate(answer, audio, delta.sample_rate_hz))

    def _queue_up(self, answer: Answer, pcm: bytes) -> None:
        if answer.cut or not pcm:
            return
        answer.received += len(pcm) // SAMPLE_BYTES
        with self._lock:
            sounding = self._last is not None and sum(self._last.runs[-1]) == self._count
            if not self._queue and not sounding:
                self._hold_until = self._count + self.rate_hz * HOLD_MS // 1000
            self._queue.append((answer, memoryview(pcm)))
        self._news.set()

    def _at_our_rate(self, answer: Answer, audio: bytes, rate_hz: int | None) -> bytes:
        audio = audio[: len(audio) - len(audio) % SAMPLE_BYTES]
        if answer.resampler is None:
            if rate_hz is None or rate_hz == self.rate_hz:
                return audio
            answer.resampler = Resampler(rate_hz, self.rate_hz)
        samples = np.frombuffer(audio, "<i2").astype(np.float32)
        return _int16(answer.resampler.push(samples / np.float32(FULL_SCALE)))

    def end(self, response_id: str) -> None:
        """No more audio of this response will come."""
        answer = self._answers.get(response_id)
        if answer is None or answer.ended:
            return
        if answer.resampler is not None:
            self._queue_up(answer, _int16(answer.resampler.flush()))
        answer.ended = True
        if not answer.received:
            del self._answers[response_id]
        self._news.set()

    def cut(self, response_id: str | None = None) -> None:
        """Play nothing more of this response, or of all that have begun; later audio of theirs is ignored.

        What the device has taken already still sounds, for as long as its latency.
        """
        chosen = [a for a in self._answers.values() if response_id in (None, a.response_id) and not self._is_over(a)]
        with self._lock:
            for answer in chosen:
                answer.cut = True
            self._queue = deque(entry for entry in self._queue if not entry[0].cut)
        self._news.set()

    def _is_over(self, answer: Answer) -> bool:
        """All of it was handed to the device: there is nothing to cut."""
        return answer.ended and answer.taken == answer.received

    def heard_ms(self, response_id: str) -> int:
        """How much of a response is in the air by now; 0 for one that is unknown or settled."""
        answer = self._answers.get(response_id)
        return 0 if answer is None else self._frames_heard(answer) * 1000 // self.rate_hz

    def _frames_heard(self, answer: Answer) -> int:
        with self._lock:
            return answer.heard(self._count - self.latency_frames)

    async def run(self, client: DuplexClient) -> None:
        """Acknowledge until cancelled or the session has ended. Cancellation: no further acks."""
        while True:
            await self._next_news()
            sounding = True
            while sounding:
                try:
                    sounding = await self._acknowledge(client, last=False)
                except DuplexSessionClosedError:
                    return
                await trio.sleep(LOOK_EVERY_S if sounding else 0)

    async def finish(self, client: DuplexClient) -> None:
        """Once the device is silent: the last word on everything that did not sound to its end.

        Cancellation: no further acks.
        """
        try:
            await self._acknowledge(client, last=True)
        except DuplexSessionClosedError:
            return

    async def _acknowledge(self, client: DuplexClient, *, last: bool) -> bool:
        """The acks that are due; whether anything is still open. Raises DuplexSessionClosedError."""
        for answer in list(self._answers.values()):
            if answer.received and not answer.settled:
                try:
                    await self._acknowledge_one(client, answer, last=last)
                except DuplexConnectionError:
                    continue  # the connection is being resumed: said again with the next look
            if answer.settled and answer.ended:
                self._answers.pop(answer.response_id, None)
        return any(answer.received and not answer.settled for answer in self._answers.values())

    async def _acknowledge_one(self, client: DuplexClient, answer: Answer, *, last: bool) -> None:
        frames = self._frames_heard(answer)
        ms = frames * 1000 // self.rate_hz
        over = self._is_over(answer)
        if (answer.cut or (last and not over)) and (last or frames == answer.taken):
            # Not before the device has emptied itself: what it took will be heard.
            await client.truncate_item(answer.item_id, ms)
            answer.acked_ms, answer.settled = ms, True
        elif over and (last or frames == answer.taken):
            await client.ack_playback(ms, response_id=answer.response_id)
            answer.acked_ms, answer.settled = ms, True
        elif ms > answer.acked_ms and trio.current_time() - answer.acked_at_s >= ACK_EVERY_S:
            await client.ack_playback(ms, response_id=answer.response_id)
            answer.acked_ms, answer.acked_at_s = ms, trio.current_time()


def _int16(samples: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    return bytes(np.clip(np.rint(samples * FULL_SCALE), -32768, 32767).astype("<i2").tobytes())
