"""Endpointing: from a probability of speech per 32 ms frame to onsets and ends of utterances (contract section 9).

A pure state machine without samples, clock or network: the same object serves a model that owns its turns and a
server-side detector.  One endpointer belongs to one stream of audio; its clock is the audio that it was fed.

An utterance opens when ``min_speech_duration_ms`` of consecutive frames reach the threshold.  It closes on a frame
below the *exit* threshold, once the silence timer has reached ``silence_duration_ms``.  The timer starts with the
first frame below exit (that frame counts); a frame between the two thresholds lets it run but cannot close the
utterance, and a frame at or above the threshold sets it back.
"""

from __future__ import annotations

from typing import Final

import attrs

from duplex_protocol.values import TurnDetection

__all__ = [
    "FRAME_MS",
    "FRAME_SAMPLES",
    "SAMPLE_RATE_HZ",
    "EarlySilence",
    "Endpointer",
    "EndpointerSettings",
    "Offset",
    "Onset",
    "SpeechResumed",
    "TurnEvent",
]

SAMPLE_RATE_HZ: Final = 16_000
FRAME_SAMPLES: Final = 512
FRAME_MS: Final = 32

DEFAULT_MIN_SPEECH_MS: Final = 96
EXIT_BELOW_THRESHOLD: Final = 0.15
LOWEST_EXIT: Final = 0.01


@attrs.frozen(kw_only=True)
class EndpointerSettings:
    """The numbers of contract section 9, in milliseconds and probabilities.

    ``early_silence_ms`` (None: never) is when :class:`EarlySilence` is told, for those who start work on an answer
    before the end is certain; it should be less than ``silence_duration_ms`` to be of use.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    min_speech_duration_ms: int = DEFAULT_MIN_SPEECH_MS
    early_silence_ms: int | None = None

    @classmethod
    def of(cls, detection: TurnDetection | None, *, early_silence_ms: int | None = None) -> EndpointerSettings:
        """What a client's ``server_vad`` asks for; the defaults for None and for ``semantic_vad`` (no numbers)."""
        if detection is None or detection.kind == "semantic_vad":
            return cls(early_silence_ms=early_silence_ms)
        min_speech_ms = detection.min_speech_duration_ms
        return cls(
            threshold=detection.threshold,
            prefix_padding_ms=detection.prefix_padding_ms,
            silence_duration_ms=detection.silence_duration_ms,
            min_speech_duration_ms=DEFAULT_MIN_SPEECH_MS if min_speech_ms is None else min_speech_ms,
            early_silence_ms=early_silence_ms,
        )

    @property
    def exit_threshold(self) -> float:
        """Below this a frame is silence."""
        return max(self.threshold - EXIT_BELOW_THRESHOLD, LOWEST_EXIT)


@attrs.frozen
class Onset:
    """An utterance has begun.  ``audio_start_ms`` is its first frame less the prefix, never before the last reset."""

    audio_start_ms: int


@attrs.frozen
class EarlySilence:
    """The silence inside an utterance has reached ``early_silence_ms``; told once per silence."""


@attrs.frozen
class SpeechResumed:
    """After :class:`EarlySilence`: the utterance goes on after all."""


@attrs.frozen
class Offset:
    """The utterance has ended.  ``audio_end_ms`` is the end of the audio heard so far, trailing silence included."""

    audio_end_ms: int


TurnEvent = Onset | EarlySilence | SpeechResumed | Offset


class Endpointer:
    """See the module's text.  Times are milliseconds of audio since the endpointer was made."""

    def __init__(self, settings: EndpointerSettings | None = None) -> None:
        self._settings = settings or EndpointerSettings()
        self._clock_ms = 0
        self._reset_ms = 0
        self._active = False
        self._candidate_ms: int | None = None  # start of the first of the frames that may become an onset
        self._silence_ms: int | None = None  # start of the first frame of the running silence timer
        self._early_told = False

    @property
    def settings(self) -> EndpointerSettings:
        """The settings in force."""
        return self._settings

    @property
    def clock_ms(self) -> int:
        """The end of the last frame."""
        return self._clock_ms

    @property
    def active(self) -> bool:
        """Whether an utterance is open."""
        return self._active

    def feed(self, probability: float) -> tuple[TurnEvent, ...]:
        """One frame's probability of speech in [0, 1] → what it means, in order."""
        start_ms = self._clock_ms
        self._clock_ms += FRAME_MS
        return self._feed_active(start_ms, probability) if self._active else self._feed_idle(start_ms, probability)

    def reset(self) -> None:
        """Forget the open utterance or candidate (commit, clear, barge-in); the clock goes on."""
        self._active = False
        self._candidate_ms = None
        self._silence_ms = None
        self._early_told = False
        self._reset_ms = self._clock_ms

    def reconfigure(self, settings: EndpointerSettings) -> None:
        """Later frames are judged by ``settings``; an open utterance or candidate stays open."""
        self._settings = settings

    def close(self) -> Offset | None:
        """End the open utterance now, however loud it is (a bound on its length); None when none is open."""
        return self._end() if self._active else None

    def _feed_idle(self, start_ms: int, probability: float) -> tuple[TurnEvent, ...]:
        if probability < self._settings.threshold:
            self._candidate_ms = None
            return ()
        if self._candidate_ms is None:
            self._candidate_ms = start_ms
        if self._clock_ms - self._candidate_ms < self._settings.min_speech_duration_ms:
            return ()
        first_ms = self._candidate_ms - self._settings.prefix_padding_ms
        self._active = True
        self._candidate_ms = None
        return (Onset(max(first_ms, self._reset_ms)),)

    def _feed_active(self, start_ms: int, probability: float) -> tuple[TurnEvent, ...]:
        if probability >= self._settings.threshold:
            resumed = self._early_told
            self._silence_ms = None
            self._early_told = False
            return (SpeechResumed(),) if resumed else ()
        below_exit = probability < self._settings.exit_threshold
        if self._silence_ms is None:
            if not below_exit:
                return ()
            self._silence_ms = start_ms
        silent_for_ms = self._clock_ms - self._silence_ms
        if below_exit and silent_for_ms >= self._settings.silence_duration_ms:
            return (self._end(),)
        early_ms = self._settings.early_silence_ms
        if early_ms is None or self._early_told or silent_for_ms < early_ms:
            return ()
        self._early_told = True
        return (EarlySilence(),)

    def _end(self) -> Offset:
        self._active = False
        self._silence_ms = None
        self._early_told = False
        return Offset(self._clock_ms)
