"""Turn detection by the server for models that do not detect speech themselves (contract 9).

Frames go to a scorer that the hub provides, probabilities come back; what they mean is the endpointer's business.
Scoring is awaited in the session's one consumer, so that a verdict stands before anything after its append is looked
at, and an update or a commit always meets the detector in the state of all audio before it.
"""

from __future__ import annotations

from collections import deque

import attrs
import numpy as np

from duplex_protocol.values import TurnDetection
from trio_duplex.models.plugin import FloatAudio
from trio_duplex.resampling import Resampler
from trio_duplex.turn_detection import (
    FRAME_MS,
    FRAME_SAMPLES,
    SAMPLE_RATE_HZ,
    Endpointer,
    EndpointerSettings,
    Offset,
    Onset,
)
from trio_duplex.vad_scorer import VadStream


@attrs.frozen
class SpeechBegan:
    """An utterance began; ``audio_start_ms`` on the session's audio clock, prefix included."""

    audio_start_ms: int


@attrs.frozen(eq=False)
class SpeechEnded:
    """An utterance ended; ``audio`` is all of it at 16 kHz: prefix, speech and the silence that closed it."""

    audio_start_ms: int
    audio_end_ms: int
    audio: FloatAudio = attrs.field(repr=False)


@attrs.frozen(eq=False)
class Heard:
    """What one append meant: its events in order, and whether an utterance is open after it."""

    events: tuple[SpeechBegan | SpeechEnded, ...]
    active: bool
    probability: float

    @property
    def onset(self) -> bool:
        """An utterance begins in it."""
        return any(isinstance(event, SpeechBegan) for event in self.events)

    @property
    def speech(self) -> bool:
        """It holds speech: an utterance is open after it, or was open in it."""
        return self.active or bool(self.events)


class Detector:
    """One session's detector. ``origin_ms`` is where the session's audio clock stands when it is made."""

    def __init__(
        self, stream: VadStream, detection: TurnDetection, *, model_rate_hz: int, origin_ms: float = 0.0
    ) -> None:
        self.detection = detection
        self._stream = stream
        self._endpointer = Endpointer(EndpointerSettings.of(detection))
        self._model_rate_hz = model_rate_hz
        self._resampler: Resampler | None = None
        self._tail = np.zeros(0, np.float32)
        self._origin_ms = origin_ms
        self._frames: deque[FloatAudio] = deque()  # of the open utterance, else of the window before a next one
        self._utterance_ms = 0  # where the open utterance begins, on the endpointer's clock
        self.input_rate_hz: int | None = None

    @property
    def active(self) -> bool:
        """Whether an utterance is open."""
        return self._endpointer.active

    @property
    def held_samples(self) -> int:
        """Samples of the open utterance (or of the window before the next one)."""
        return len(self._frames) * FRAME_SAMPLES

    async def hear(self, samples: FloatAudio) -> Heard:
        """Samples at the model's rate → what they mean. Raises :class:`VadFailed`.

        Cancellation and failure: the samples are lost; call :meth:`reset`.
        """
        if self._model_rate_hz != SAMPLE_RATE_HZ:
            if self._resampler is None:
                self._resampler = Resampler(self._model_rate_hz, SAMPLE_RATE_HZ)
            samples = self._resampler.push(samples)
        joined = np.concatenate([self._tail, samples])
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        frames = [joined[at : at + FRAME_SAMPLES] for at in range(0, whole, FRAME_SAMPLES)]
        scores = await self._stream.score(frames) if frames else ()
        self._tail = joined[whole:]
        events: list[SpeechBegan | SpeechEnded] = []
        for frame, score in zip(frames, scores, strict=True):
            events += self._judge(frame, score)
        return Heard(tuple(events), self.active, max(scores, default=0.0))

    def _judge(self, frame: FloatAudio, score: float) -> list[SpeechBegan | SpeechEnded]:
        self._frames.append(frame)
        events: list[SpeechBegan | SpeechEnded] = []
        for event in self._endpointer.feed(score):
            if isinstance(event, Onset):
                self._utterance_ms = event.audio_start_ms
                self._keep_ms(self._endpointer.clock_ms - event.audio_start_ms)
                events.append(SpeechBegan(int(event.audio_start_ms + self._origin_ms)))
            elif isinstance(event, Offset):
                events.append(self._ended(event.audio_end_ms))
        if not self.active:
            settings = self._endpointer.settings
            self._keep_ms(settings.prefix_padding_ms + settings.min_speech_duration_ms + FRAME_MS)
        return events

    def _ended(self, audio_end_ms: int) -> SpeechEnded:
        audio = np.concatenate(self._frames) if self._frames else np.zeros(0, np.float32)
        self._frames.clear()
        return SpeechEnded(
            int(self._utterance_ms + self._origin_ms), int(audio_end_ms + self._origin_ms), np.asarray(audio)
        )

    def _keep_ms(self, newest_ms: float) -> None:
        keep = -int(-newest_ms // FRAME_MS)
        while len(self._frames) > max(keep, 0):
            self._frames.popleft()

    def close_utterance(self) -> SpeechEnded | None:
        """The client ends its turn in the middle of an utterance: that utterance, None when none is open."""
        ended = self._ended(self._endpointer.clock_ms) if self.active else None
        self.reset()
        return ended

    def reset(self) -> None:
        """Forget utterance, candidate and stream state; the clock goes on (commit, clear, barge-in)."""
        self._origin_ms += len(self._tail) * 1000 / SAMPLE_RATE_HZ
        self._tail = np.zeros(0, np.float32)
        self._frames.clear()
        self._resampler = None
        self.input_rate_hz = None
        self._endpointer.reset()
        self._stream.reset()

    def close(self) -> None:
        """Give the place in the scorer back."""
        self._stream.close()
