"""What a caller sent and what came back, with times → latencies.  Pure.

Times are ``trio.current_time()`` seconds, latencies milliseconds.  Every sample keeps when its cause happened, so that
a window of the run can be cut out afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from trio_duplex.benchmark.plan import CHUNK_S, Utterance

__all__ = ["MEASURES", "Answer", "Counts", "Record", "Samples"]

Json = dict[str, Any]

MEASURES: Final = {
    "decision": "append → decision",
    "first_audio": "end of speech → first audio",
    "interruption": "onset of speech → last audio",
    "cancel": "cancel → terminal",
    "packet_interval": "between two packets of audio",
    "underrun": "gap in the sound",
    "sender_late": "the generator's own lateness",
}
"""The measures by name, all in ms, and what they are called in a report."""

ANSWER_WITHIN_S: Final = 3.0
"""A question that ends nearer than this to the end of the window is not counted: its answer may lie behind it."""
CANCELLED_WITHIN_S: Final = 1.0
"""The same for a cancel and its terminal event."""
HEARD_GAP_S: Final = 0.001


@attrs.define
class Answer:
    """One response as it came."""

    response_id: str
    created_s: float
    first_audio_s: float | None = None
    last_audio_s: float | None = None
    audio_ms: float = 0.0
    sounds_until_s: float = 0.0
    """When a loudspeaker that plays what it gets as it gets it runs dry."""
    done_s: float | None = None
    status: str | None = None


@attrs.define
class Counts:
    """How often within the window. ``asked``: utterances; ``interruptions_due``: those that met a sounding answer."""

    asked: int = 0
    answered: int = 0
    answered_early: int = 0
    """Answers that began before the caller had finished: a pause was taken for the end."""
    interruptions_due: int = 0
    interruptions: int = 0
    cancels: int = 0
    cancelled: int = 0
    underruns: int = 0
    audio_ms: float = 0.0
    errors: int = 0

    def add(self, other: Counts) -> None:
        """Add another caller's."""
        for field in attrs.fields(Counts):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


Samples = dict[str, list[float]]
"""The measures of :data:`MEASURES`, in ms."""


@attrs.define
class Record:
    """One caller's: feed it while the session runs, read :meth:`samples` and :meth:`counts` afterwards.

    ``unit_ms``: how often the model decides.  ``started_s``: when its first chunk began.
    """

    started_s: float
    unit_ms: int
    utterances: Sequence[Utterance] = ()
    answers: dict[str, Answer] = attrs.field(factory=dict)
    cancels: dict[str, float] = attrs.field(factory=dict)
    error_codes: list[tuple[float, str]] = attrs.field(factory=list)
    _samples: dict[str, list[tuple[float, float]]] = attrs.field(factory=lambda: {name: [] for name in MEASURES})
    _units: int | None = 0
    """Units that were decided; None: unknown, because no decisions are told while an answer goes on."""

    # --- while it runs ----------------------------------------------------------------------------------------------

    def sent(self, due_s: float, at_s: float) -> None:
        """A chunk went out."""
        self._note("sender_late", due_s, at_s - due_s)

    def cancelled(self, at_s: float) -> str | None:
        """The plan wants the answer cancelled: which one that is, None if there is none."""
        open_answers = [answer for answer in self.answers.values() if answer.done_s is None]
        if not open_answers:
            return None
        response_id = open_answers[-1].response_id
        self.cancels.setdefault(response_id, at_s)
        return response_id

    def sounding(self, at_s: float) -> tuple[str, float] | None:
        """The answer that is being played and how many ms of it were."""
        for answer in reversed(self.answers.values()):
            if answer.first_audio_s is not None and at_s < answer.sounds_until_s and answer.status != "cancelled":
                return answer.response_id, max(0.0, answer.audio_ms - 1000 * (answer.sounds_until_s - at_s))
        return None

    def came(self, event: Json, at_s: float) -> None:
        """An event of the server."""
        kind = event.get("type")
        if kind == "response.output_audio.delta":
            self._audio(event, at_s)
        elif kind == "response.listen":
            self._listened(event, at_s)
        elif kind == "response.created":
            response_id = _response_id(event)
            self.answers[response_id] = Answer(response_id, at_s)
            self._units = None
        elif kind == "response.done":
            answer = self.answers.get(_response_id(event))
            if answer is not None and answer.done_s is None:
                answer.done_s = at_s
                answer.status = str(event.get("response", {}).get("status"))
            self._units = None
        elif kind == "input_audio_buffer.speech_started":
            self._units = None
        elif kind == "error":
            error = event.get("error")
            code = error.get("code") if isinstance(error, dict) else event.get("code")
            self.error_codes.append((at_s, str(code)))

    def _audio(self, event: Json, at_s: float) -> None:
        answer = self.answers.get(_response_id(event))
        if answer is None:
            return
        metadata = event.get("metadata")
        total_ms = metadata.get("audio_duration_ms") if isinstance(metadata, dict) else None
        if not isinstance(total_ms, int | float):
            total_ms = answer.audio_ms + len(event.get("delta", "")) * 3 / 4 / 2 / 24  # 16-bit samples at 24 kHz
        duration_s = (total_ms - answer.audio_ms) / 1000
        answer.audio_ms = total_ms
        if answer.last_audio_s is None:
            answer.first_audio_s = at_s
            answer.sounds_until_s = at_s
        else:
            self._note("packet_interval", at_s, at_s - answer.last_audio_s)
            gap_s = at_s - answer.sounds_until_s
            if gap_s > HEARD_GAP_S:
                self._note("underrun", at_s, gap_s)
        answer.last_audio_s = at_s
        answer.sounds_until_s = max(at_s, answer.sounds_until_s) + duration_s

    def _listened(self, event: Json, at_s: float) -> None:
        """Match decisions with units: by counting; after a stretch without any, with the last unit that is due."""
        if _listen_reason(event) != "model_listen":
            return
        if self._units is None:
            self._units = max(0, math.floor((at_s - self.started_s) * 1000 / self.unit_ms + 1e-6) - 1)
            while self._units > 0 and self._due_s(self._units + 1) > at_s:
                self._units -= 1
        self._units += 1
        due_s = self._due_s(self._units)
        self._note("decision", due_s, at_s - due_s)

    def _due_s(self, unit: int) -> float:
        """When the chunk was due that completes unit ``unit`` (from 1)."""
        return self.started_s + math.ceil(unit * self.unit_ms / 1000 / CHUNK_S - 1e-6) * CHUNK_S

    def _note(self, name: str, at_s: float, latency_s: float) -> None:
        self._samples[name].append((at_s, latency_s * 1000))

    # --- afterwards -------------------------------------------------------------------------------------------------

    def samples(self, begin_s: float, end_s: float) -> Samples:
        """Everything whose cause lies in the window."""
        found = {
            name: [latency_ms for at_s, latency_ms in noted if begin_s <= at_s < end_s]
            for name, noted in self._samples.items()
        }
        for utterance, later in self._counted(begin_s, end_s):
            answer = self._answer_to(utterance, later)
            if answer is not None and answer.first_audio_s is not None:
                found["first_audio"].append((answer.first_audio_s - utterance.speech_ended_s) * 1000)
            target = self._interrupted_by(utterance)
            if target is not None and self._was_interrupted(target) and target.last_audio_s is not None:
                found["interruption"].append((target.last_audio_s - utterance.speech_started_s) * 1000)
        for response_id, at_s in self.cancels.items():
            done_s = self.answers[response_id].done_s
            if begin_s <= at_s < end_s - CANCELLED_WITHIN_S and done_s is not None:
                found["cancel"].append((done_s - at_s) * 1000)
        return found

    def counts(self, begin_s: float, end_s: float) -> Counts:
        """How often what happened in the window."""
        counts = Counts(
            underruns=sum(begin_s <= at_s < end_s for at_s, _ in self._samples["underrun"]),
            errors=sum(begin_s <= at_s < end_s for at_s, _ in self.error_codes),
        )
        for utterance, later in self._counted(begin_s, end_s):
            counts.asked += 1
            counts.answered += self._answer_to(utterance, later) is not None
            counts.answered_early += any(
                answer.first_audio_s is not None
                and utterance.speech_started_s <= answer.first_audio_s < utterance.speech_ended_s
                for answer in self.answers.values()
            )
            target = self._interrupted_by(utterance)
            counts.interruptions_due += target is not None
            counts.interruptions += target is not None and self._was_interrupted(target)
        for answer in self.answers.values():
            if answer.first_audio_s is not None and begin_s <= answer.first_audio_s < end_s:
                counts.audio_ms += answer.audio_ms
        for response_id, at_s in self.cancels.items():
            if begin_s <= at_s < end_s - CANCELLED_WITHIN_S:
                counts.cancels += 1
                counts.cancelled += self.answers[response_id].done_s is not None
        return counts

    def _counted(self, begin_s: float, end_s: float) -> Iterable[tuple[Utterance, float]]:
        """The utterances of the window, each with the time at which the next one begins."""
        starts = [utterance.speech_started_s for utterance in self.utterances[1:]] + [math.inf]
        for utterance, later in zip(self.utterances, starts, strict=False):
            if begin_s <= utterance.speech_started_s and utterance.speech_ended_s + ANSWER_WITHIN_S <= end_s:
                yield utterance, later

    def _answer_to(self, utterance: Utterance, later_s: float) -> Answer | None:
        """The first answer that began to sound after its end, before the next one."""
        for answer in self.answers.values():
            if answer.first_audio_s is not None and utterance.speech_ended_s <= answer.first_audio_s < later_s:
                return answer
        return None

    def _interrupted_by(self, utterance: Utterance) -> Answer | None:
        """The answer that was on its way when an interrupting utterance began."""
        if not utterance.interrupts:
            return None
        for answer in self.answers.values():
            began_s, done_s = answer.first_audio_s, answer.done_s
            if began_s is not None and began_s < utterance.speech_started_s <= (math.inf if done_s is None else done_s):
                return answer
        return None

    def _was_interrupted(self, answer: Answer) -> bool:
        return answer.status == "cancelled" and answer.response_id not in self.cancels


def _response_id(event: Json) -> str:
    response = event.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    return str(event.get("response_id") or inner or "")


def _listen_reason(event: Json) -> str | None:
    response = event.get("response")
    metadata = response.get("metadata") if isinstance(response, dict) else None
    reason = metadata.get("reason") if isinstance(metadata, dict) else None
    return reason if isinstance(reason, str) else None
