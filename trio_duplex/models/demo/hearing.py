"""Hearing: from a stream of samples to utterances and turns.  No Trio, no networks: samples and probabilities in.

Three positions run along the tape of input samples: what came in, what was handed to the detector (whole frames of
512), and what the detector has judged.  Everything is decided at the third one, in the order of the frames; so a
commit or a clear takes effect exactly at its place in the audio, although frames before it may still be under way.
"""

from __future__ import annotations

from collections import deque

import attrs
import numpy as np
import numpy.typing as npt

from trio_duplex.models.plugin import Turn
from trio_duplex.turn_detection import (
    FRAME_MS,
    FRAME_SAMPLES,
    EarlySilence,
    Endpointer,
    EndpointerSettings,
    Offset,
    Onset,
    SpeechResumed,
)

__all__ = ["Committed", "Decision", "Hearing", "Paused", "Resumed", "Started", "Stopped", "TurnOver", "UnitHeard"]

FloatAudio = npt.NDArray[np.float32]

SAMPLES_PER_MS = FRAME_SAMPLES // FRAME_MS
RECOGNISER_PREFIX_MS = 300
"""Recognition gets at least this much before the first frame of speech, whatever prefix the client chose."""
TAPE_BLOCK = 16_000
IDLE_TAPE_MS = 2_000
"""What is kept of silence while the model ends turns itself, for a client that commits although nothing was said."""


@attrs.frozen
class Started:
    """An onset."""

    audio_start_ms: int


@attrs.frozen(eq=False)
class Paused:
    """The speaker may have finished: ``audio`` is the utterance so far."""

    audio: FloatAudio = attrs.field(repr=False)


@attrs.frozen
class Resumed:
    """The speaker had not finished."""


@attrs.frozen
class Stopped:
    """The end of an utterance."""

    audio_end_ms: int


@attrs.frozen(eq=False)
class TurnOver:
    """The model ends the turn (after :class:`Stopped`)."""

    turn: Turn
    audio: FloatAudio = attrs.field(repr=False)


@attrs.frozen(eq=False)
class Committed:
    """The audio of a turn which the client ended is all judged; None when no frame of it held speech."""

    turn: Turn
    audio: FloatAudio | None = attrs.field(repr=False)


@attrs.frozen
class UnitHeard:
    """Another unit of input was judged."""


Decision = Started | Paused | Resumed | Stopped | TurnOver | Committed | UnitHeard


class Tape:
    """The recent part of an endless stream of samples, addressed by position since its beginning."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, FloatAudio]] = deque()
        self.end = 0

    def append(self, audio: FloatAudio) -> None:
        """Add samples, which must not be changed afterwards."""
        for begin in range(0, len(audio), TAPE_BLOCK):
            block = audio[begin : begin + TAPE_BLOCK]
            self._blocks.append((self.end, block))
            self.end += len(block)

    def between(self, begin: int, end: int) -> FloatAudio:
        """The samples of ``[begin, end)`` that are still there."""
        parts: list[FloatAudio] = []
        for place, block in reversed(self._blocks):  # most often the newest samples are wanted
            if place + len(block) <= begin:
                break
            if place < end:
                parts.append(block[max(0, begin - place) : end - place])
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, np.float32)

    def forget_before(self, position: int) -> None:
        """Samples before ``position`` may be dropped (in blocks, so some of them stay a little longer)."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= position:
            self._blocks.popleft()


@attrs.frozen(eq=False)
class _Cut:
    """Where a client ended (``turn``) or dropped (None) what it had said; ``frame`` is the number of whole frames."""

    frame: int
    end: int
    turn: Turn | None


class Hearing:
    """See the module's text.  ``owns_turns``: the model ends turns itself, else only the client's commits do."""

    def __init__(
        self, settings: EndpointerSettings, *, owns_turns: bool, unit_frames: int, max_utterance_ms: int
    ) -> None:
        self._endpointer = Endpointer(settings)
        self._owns_turns = owns_turns
        self._unit_frames = unit_frames
        self._max_utterance = max_utterance_ms * SAMPLES_PER_MS
        self._tape = Tape()
        self._sent = 0  # frames handed out
        self._judged = 0  # frames judged
        self._cuts: deque[_Cut] = deque()
        # Since the last turn, in samples or ms of the stream:
        self._turn_begin = 0
        self._speech_begin: int | None = None  # where recognition should begin; None before the first onset
        self._audio_start_ms = 0  # as announced with the first onset
        self._quiet = True  # every frame was silence

    @property
    def backlog_ms(self) -> int:
        """Input that the detector has not judged."""
        return (self._tape.end - self._judged * FRAME_SAMPLES) // SAMPLES_PER_MS

    def reconfigure(self, settings: EndpointerSettings, *, owns_turns: bool) -> None:
        """Judge later frames by other rules."""
        self._endpointer.reconfigure(settings)
        self._owns_turns = owns_turns

    def append(self, audio: FloatAudio) -> None:
        """Input samples, any number."""
        self._tape.append(audio)

    def next_frame(self) -> FloatAudio | None:
        """The next whole frame for the detector."""
        begin = self._sent * FRAME_SAMPLES
        if begin + FRAME_SAMPLES > self._tape.end:
            return None
        self._sent += 1
        return self._tape.between(begin, begin + FRAME_SAMPLES)

    def commit(self) -> Turn:
        """The client ends its turn here; :class:`Committed` follows when all of it has been judged.

        The turn's ``speech`` is false when all of it is judged already and nothing was said; nothing follows then.
        """
        if self._cuts:
            begin_ms = self._cuts[-1].end // SAMPLES_PER_MS
        elif self._speech_begin is None:
            begin_ms = self._turn_begin // SAMPLES_PER_MS
        else:
            begin_ms = self._audio_start_ms
        turn = Turn(audio_start_ms=begin_ms, audio_end_ms=self._tape.end // SAMPLES_PER_MS)
        if self._quiet and not self._cuts and self._tape.end // FRAME_SAMPLES == self._judged:
            turn.speech, turn.transcript = False, ""
            self._cut(None)
        else:
            self._cut(turn)
        return turn

    def drop(self) -> None:
        """The client takes back what it said since the last turn."""
        self._cut(None)

    def _cut(self, turn: Turn | None) -> None:
        self._cuts.append(_Cut(self._tape.end // FRAME_SAMPLES, self._tape.end, turn))

    def due(self) -> list[Decision]:
        """Cuts whose audio is all judged; to be asked after :meth:`commit` and :meth:`drop` too."""
        decisions: list[Decision] = []
        while self._cuts and self._cuts[0].frame <= self._judged:
            cut = self._cuts.popleft()
            if cut.turn is not None:
                audio = None if self._quiet else self._utterance(cut.end)
                decisions.append(Committed(cut.turn, audio))
            self._begin_turn(cut.end)
        return decisions

    def judge(self, probability: float) -> list[Decision]:
        """The detector's word on the next frame → what it means, in order."""
        begin = self._judged * FRAME_SAMPLES
        self._judged += 1
        if probability >= self._endpointer.settings.exit_threshold:
            self._quiet = False
        decisions: list[Decision] = []
        for event in self._endpointer.feed(probability):
            match event:
                case Onset(audio_start_ms):
                    decisions.append(self._onset(begin, audio_start_ms))
                case EarlySilence():
                    decisions.append(Paused(self._utterance(begin + FRAME_SAMPLES)))
                case SpeechResumed():
                    decisions.append(Resumed())
                case Offset(audio_end_ms):
                    decisions += self._offset(audio_end_ms)
        if self._owns_turns and self._too_long() and (offset := self._endpointer.close()) is not None:
            decisions += self._offset(offset.audio_end_ms)
        if self._cuts:
            decisions.clear()  # said before a commit or a clear that was already made: no longer news
        decisions += self.due()
        if self._judged % self._unit_frames == 0:
            decisions.append(UnitHeard())
        self._forget()
        return decisions

    def _onset(self, frame_begin: int, audio_start_ms: int) -> Started:
        # A cut may lie inside the frame at which the endpointer was reset.
        started = Started(max(audio_start_ms, self._turn_begin // SAMPLES_PER_MS))
        if self._speech_begin is not None:
            return started
        settings = self._endpointer.settings
        candidate_frames = max(1, -(-settings.min_speech_duration_ms // FRAME_MS))
        candidate = frame_begin - (candidate_frames - 1) * FRAME_SAMPLES
        prefix_ms = max(settings.prefix_padding_ms, RECOGNISER_PREFIX_MS)
        self._speech_begin = max(candidate - prefix_ms * SAMPLES_PER_MS, self._turn_begin)
        self._audio_start_ms = started.audio_start_ms
        return started

    def _offset(self, audio_end_ms: int) -> list[Decision]:
        stopped: list[Decision] = [Stopped(audio_end_ms)]
        if not self._owns_turns or self._cuts:
            return stopped
        turn = Turn(audio_start_ms=self._audio_start_ms, audio_end_ms=audio_end_ms)
        judged = self._judged * FRAME_SAMPLES
        over = TurnOver(turn, self._utterance(judged))
        self._begin_turn(judged)
        return [*stopped, over]

    def _utterance(self, end: int) -> FloatAudio:
        begin = self._turn_begin if self._speech_begin is None else self._speech_begin
        return self._tape.between(max(begin, end - self._max_utterance), end)

    def _too_long(self) -> bool:
        if self._speech_begin is None:
            return False
        return self._judged * FRAME_SAMPLES - self._speech_begin >= self._max_utterance

    def _begin_turn(self, position: int) -> None:
        self._turn_begin = position
        self._speech_begin = None
        self._quiet = True
        self._endpointer.reset()

    def _forget(self) -> None:
        judged = self._judged * FRAME_SAMPLES
        idle = self._owns_turns and self._speech_begin is None and not self._cuts
        keep = IDLE_TAPE_MS * SAMPLES_PER_MS if idle else self._max_utterance
        begin = self._turn_begin if self._speech_begin is None else self._speech_begin
        # Never beyond what was judged: a turn may begin inside a frame that is still to be handed out.
        self._tape.forget_before(min(max(begin, judged - keep), judged))
