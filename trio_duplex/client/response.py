"""One assistant response as its consumer sees it, and the demultiplexer that feeds it (contract section 21.3)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import attrs
import trio

from .buffers import BUFFER_SIZE, BufferIterator, RingBuffer
from .errors import DuplexProtocolError
from .events import (
    AudioDelta,
    DuplexEvent,
    ErrorEvent,
    ListenDecision,
    ResponseCreated,
    ResponseDone,
    SpeakDecision,
    TextDelta,
    TranscriptDelta,
)
from .values import AudioFormat

_SAMPLE_BYTES = {
    "pcm16": 2,
    "pcm": 2,
    "pcm_s16le": 2,
    "pcm_f32le": 4,
    "g711_ulaw": 1,
    "g711_alaw": 1,
}


_Chunk = tuple[bytes, int]
"""Audio and its bytes per second."""


class _Position:
    """Sums chunks into whole milliseconds without rounding each one."""

    __slots__ = ("_bytes", "_ms", "_rate")

    def __init__(self) -> None:
        self._ms = 0.0
        self._bytes = 0
        self._rate = 1

    def add(self, byte_count: int, bytes_per_s: int) -> None:
        if bytes_per_s != self._rate:
            self._ms += self._bytes * 1000 / self._rate
            self._bytes = 0
            self._rate = bytes_per_s
        self._bytes += byte_count

    @property
    def ms(self) -> int:
        return int(self._ms + self._bytes * 1000 / self._rate)


@attrs.define(eq=False)
class ReceivedAudio:
    """What arrived of one response, kept a while beyond its end so that late acks can be bounded."""

    item_id: str
    position: _Position = attrs.field(factory=_Position)
    announced_ms: int = 0

    @property
    def ms(self) -> int:
        return max(self.position.ms, self.announced_ms)


class ResponseHandle:
    """One assistant response. Made by the client; delivered by `DuplexClient.responses()`.

    Audio is kept in a ring of 1024 chunks: who does not read loses the oldest, and nothing else suffers.
    """

    response_id: str | None
    """The server's id; None for a listen decision without one."""
    decision: str | None
    """None until known, then "speak" or "listen"."""
    created_event: ResponseCreated | None
    """The `response.created` that began it, if it was seen."""
    done_event: ResponseDone | None
    """The terminal event; None before it, and when the session ended first."""

    def __init__(self, response_id: str | None, audio_format: AudioFormat) -> None:
        self.response_id = response_id
        self.decision = None
        self.created_event = None
        self.done_event = None
        self._format = audio_format
        self._transcript: list[str] = []
        self._text: list[str] = []
        self._chunks: RingBuffer[_Chunk] = RingBuffer()
        self._played = _Position()
        self._received = ReceivedAudio(f"item_{response_id}")
        self._delivered = False
        self._finished = trio.Event()

    def __repr__(self) -> str:
        state = "finished" if self.finished else "open"
        return f"<ResponseHandle {self.response_id!r} decision={self.decision!r} {state}>"

    @property
    def transcript(self) -> str:
        """What was said so far."""
        return "".join(self._transcript)

    @property
    def text(self) -> str:
        """Text-modality output so far."""
        return "".join(self._text)

    @property
    def played_ms(self) -> int:
        """Length of the chunks taken from `audio()` so far, in ms."""
        return self._played.ms

    @property
    def finished(self) -> bool:
        """True after the terminal event, a listen decision, or the end of the session (`done_event` None)."""
        return self._finished.is_set()

    @property
    def dropped_chunks(self) -> int:
        """How many audio chunks fell out of the buffer unread."""
        return self._chunks.dropped

    def audio(self) -> AudioIterator:
        """Async iterator over the decoded chunks, ending with the response. Chunks are taken, not copied."""
        return AudioIterator(self)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the response is finished; TimeoutError after `timeout_s`. Cancellation changes nothing."""
        with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
            await self._finished.wait()
        if not self.finished:
            raise TimeoutError(f"response {self.response_id} did not finish within {timeout_s} s")

    # Fed by ResponseTracker only.

    def _add_audio(self, event: AudioDelta) -> None:
        received = self._received
        if (item_id := event.item_id) is not None:
            received.item_id = item_id
        if (announced_ms := event.audio_duration_ms) is not None:
            received.announced_ms = max(received.announced_ms, announced_ms)
        audio = event.audio
        if not audio:
            return
        size = _SAMPLE_BYTES.get(event.format or self._format.encoding, 2)
        bytes_per_s = max(1, size * (event.sample_rate_hz or self._format.sample_rate_hz))
        received.position.add(len(audio), bytes_per_s)
        self._chunks.put((audio, bytes_per_s))

    def _finish(self) -> None:
        self._chunks.end()
        self._finished.set()


class AudioIterator:
    """Async iterator over one response's audio; see `ResponseHandle.audio`."""

    __slots__ = ("_handle",)

    def __init__(self, handle: ResponseHandle) -> None:
        self._handle = handle

    def __aiter__(self) -> AudioIterator:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk of audio bytes. Cancellation loses none."""
        try:
            chunk = await self._handle._chunks.take()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        audio, bytes_per_s = chunk
        self._handle._played.add(len(audio), bytes_per_s)
        return audio


class ResponseTracker:
    """Turns the event stream into handles. Synchronous; called by the client's reader.

    Everything it keeps is bounded: 1024 undelivered handles or errors, 1024 open responses, 1024 remembered ids.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._open: OrderedDict[str, ResponseHandle] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._received: OrderedDict[str, ReceivedAudio] = OrderedDict()
        self.queue: RingBuffer[ResponseHandle | DuplexProtocolError] = RingBuffer()
        self.consumer_waiting = False

    def received_ms(self, *, response_id: str | None = None, item_id: str | None = None) -> int | None:
        """How much audio of that response (or assistant item) arrived, in ms; None for an unknown one."""
        if response_id is not None:
            known = self._received.get(response_id)
            return None if known is None else known.ms
        for known in reversed(self._received.values()):
            if known.item_id == item_id:
                return known.ms
        return None

    def feed(self, event: DuplexEvent) -> None:
        feeder = _FEEDERS.get(type(event))
        if feeder is not None:
            feeder(self, event)

    def end(self) -> None:
        """The session is over: every open handle finishes with `done_event` None."""
        for handle in self._open.values():
            handle._finish()
        self._open.clear()
        self.queue.end()

    def _handle(self, response_id: str | None) -> ResponseHandle | None:
        """The open handle of this id, made if new; None for a response that is already over."""
        if response_id is None:
            return None
        handle = self._open.get(response_id)
        if handle is None:
            if response_id in self._finished:
                return None
            handle = self._open[response_id] = ResponseHandle(response_id, self._format)
            self._received[response_id] = handle._received
            if len(self._received) > BUFFER_SIZE:
                self._received.popitem(last=False)
            if len(self._open) > BUFFER_SIZE:
                # A server that never ends its responses must not fill our memory.
                oldest = next(iter(self._open))
                self._close(oldest, self._open[oldest])
        return handle

    def _deliver(self, handle: ResponseHandle) -> None:
        if not handle._delivered:
            handle._delivered = True
            self.queue.put(handle)

    def _close(self, response_id: str, handle: ResponseHandle) -> None:
        handle._finish()
        self._open.pop(response_id, None)
        self._remember_finished(response_id)

    def _remember_finished(self, response_id: str) -> None:
        """Later events of this id, such as the `response.done` after a listen decision, are ignored."""
        self._finished[response_id] = None
        if len(self._finished) > BUFFER_SIZE:
            self._finished.popitem(last=False)

    def _on_created(self, event: DuplexEvent) -> None:
        assert isinstance(event, ResponseCreated)
        handle = self._handle(event.response_id)
        if handle is not None:
            handle.created_event = event

    def _on_speak(self, event: DuplexEvent) -> None:
        handle = self._handle(event.response_id)
        if handle is not None:
            handle.decision = "speak"
            self._deliver(handle)

    def _on_audio(self, event: DuplexEvent) -> None:
        assert isinstance(event, AudioDelta)
        handle = self._handle(event.response_id)
        if handle is not None:
            handle._add_audio(event)
            self._deliver(handle)

    def _on_transcript(self, event: DuplexEvent) -> None:
        handle = self._handle(event.response_id)
        if handle is not None:
            handle._transcript.append(event.text or "")
            self._deliver(handle)

    def _on_text(self, event: DuplexEvent) -> None:
        handle = self._handle(event.response_id)
        if handle is not None:
            handle._text.append(event.text or "")
            self._deliver(handle)

    def _on_listen(self, event: DuplexEvent) -> None:
        response_id = event.response_id
        handle = None if response_id is None else self._open.get(response_id)
        if handle is None:
            handle = ResponseHandle(response_id, self._format)
            handle.decision = "listen"
            handle._finish()
            if response_id is not None:
                self._remember_finished(response_id)
            self.queue.put(handle)
            return
        assert response_id is not None
        if handle.decision is None:
            handle.decision = "listen"
        self._deliver(handle)
        self._close(response_id, handle)

    def _on_done(self, event: DuplexEvent) -> None:
        assert isinstance(event, ResponseDone)
        response_id = event.response_id
        handle = self._handle(response_id)
        if handle is None or response_id is None:
            return
        handle.done_event = event
        if handle.decision is None:
            handle.decision = "speak"
        self._deliver(handle)
        self._close(response_id, handle)

    def _on_error(self, event: DuplexEvent) -> None:
        assert isinstance(event, ErrorEvent)
        self.queue.put(event.to_exception())


_FEEDERS: dict[type[DuplexEvent], Callable[[ResponseTracker, DuplexEvent], None]] = {
    ResponseCreated: ResponseTracker._on_created,
    SpeakDecision: ResponseTracker._on_speak,
    AudioDelta: ResponseTracker._on_audio,
    TranscriptDelta: ResponseTracker._on_transcript,
    TextDelta: ResponseTracker._on_text,
    ListenDecision: ResponseTracker._on_listen,
    ResponseDone: ResponseTracker._on_done,
    ErrorEvent: ResponseTracker._on_error,
}


class ResponseIterator:
    """What `DuplexClient.responses()` returns: one consumer at a time, raising each server error once."""

    __slots__ = ("_inner", "_tracker")

    def __init__(self, tracker: ResponseTracker, at_end: Callable[[], Exception | None]) -> None:
        self._tracker = tracker
        self._inner = BufferIterator(tracker.queue, at_end)

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> ResponseHandle:
        """The next response. Cancellation loses none.

        Raises DuplexProtocolError for each `error` event (iterate again to go on), DuplexSessionClosedError after an
        unexpected end, RuntimeError if another task is already waiting here.
        """
        if self._tracker.consumer_waiting:
            raise RuntimeError("responses() has one consumer at a time, and another task is waiting on it")
        self._tracker.consumer_waiting = True
        try:
            found = await self._inner.__anext__()
        finally:
            self._tracker.consumer_waiting = False
        if isinstance(found, DuplexProtocolError):
            raise found
        return found
