"""What must hold of the demo's conversation, as a table of checks over its log. Pure.

A check returns what is broken, one line each; an empty list is a kept promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import numpy as np

from trio_duplex.showcase.event_log import EventLog
from trio_duplex.showcase.facts import Answer, answers, epoch_of, user_turns

__all__ = ["PROMISES", "Promise", "Verdict", "heard_chars", "judge"]

Check = Callable[["Record"], Iterator[str]]

AFTER_TERMINAL: Final = frozenset(
    {
        "rate_limits.updated",
        "output_audio_buffer.cleared",
        "playback.acknowledged",
        "conversation.item.truncated",
        "conversation.item.retrieved",
        "conversation.item.deleted",
    }
)
"""What may still name an interrupted answer or its epoch: answers to the client's own commands."""

SPEECH_RMS: Final = 300.0
"""A 20 ms frame louder than this (int16) is sound; a third of an answer's frames must be."""
BARGE_IN_REASONS: Final = frozenset({"barge_in", "turn_detected"})


@attrs.frozen
class Record:
    """A finished conversation as the checks see it."""

    log: EventLog
    answers: list[Answer]

    @property
    def first(self) -> Answer | None:
        """The answer that was interrupted."""
        return self.answers[0] if self.answers else None

    @property
    def second(self) -> Answer | None:
        """The answer to the interruption."""
        return self.answers[1] if len(self.answers) > 1 else None


@attrs.frozen
class Promise:
    """Something that must hold; ``text`` says it in the positive."""

    text: str
    check: Check


@attrs.frozen
class Verdict:
    """A promise and what is broken about it (nothing when it was kept)."""

    promise: Promise
    broken: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Nothing is broken."""
        return not self.broken


def judge(log: EventLog) -> list[Verdict]:
    """Every promise with its verdict, in the table's order."""
    record = Record(log, answers(log))
    return [Verdict(promise, tuple(promise.check(record))) for promise in PROMISES]


# --- checks -----------------------------------------------------------------------------------------------------------


def two_answers(record: Record) -> Iterator[str]:
    """One to the question, one to the interruption."""
    if len(record.answers) != 2:
        yield f"there were {len(record.answers)} answers"


def first_was_interrupted(record: Record) -> Iterator[str]:
    """Cancelled, by the user's voice."""
    first = record.first
    if first is None:
        yield "there was no answer to interrupt"
        return
    if first.status != "cancelled":
        yield f"the first answer ended {first.status}"
    if first.reason not in BARGE_IN_REASONS:
        yield f"its reason is {first.reason}"


def second_was_completed(record: Record) -> Iterator[str]:
    """To its end."""
    second = record.second
    if second is None or second.status != "completed":
        yield f"the second answer ended {second.status if second else 'before it began'}"


def one_terminal_each(record: Record) -> Iterator[str]:
    """Exactly one ``response.done``, followed at once by ``rate_limits.updated``."""
    server = [entry.type for entry in record.log.server_events()]
    for answer in record.answers:
        if len(answer.dones) != 1:
            yield f"{answer.response_id} has {len(answer.dones)} terminal events"
    for place, kind in enumerate(server):
        if kind == "response.done" and server[place + 1 : place + 2] != ["rate_limits.updated"]:
            yield f"event {place + 2} after a response.done is {server[place + 1 : place + 2]}"


def silence_after_the_terminal(record: Record) -> Iterator[str]:
    """Nothing of an interrupted answer or its epoch follows its terminal."""
    for answer in record.answers:
        if answer.status != "cancelled":
            continue
        place = record.log.entries.index(answer.dones[0])
        for entry in record.log.entries[place + 1 :]:
            if entry.side != "server" or entry.type in AFTER_TERMINAL:
                continue
            if entry.event.get("response_id") == answer.response_id or epoch_of(entry.event) == answer.epoch:
                yield f"{entry.type} of epoch {answer.epoch} came after its terminal"


def transcripts_join(record: Record) -> Iterator[str]:
    """The deltas are the done transcript, and every chunk of audio has its text."""
    for answer in record.answers:
        if answer.said != answer.transcript_done:
            yield f"the deltas of {answer.response_id} say {answer.said!r}, the end says {answer.transcript_done!r}"
        if len(answer.deltas) != len(answer.transcript_deltas):
            yield f"{answer.response_id}: {len(answer.deltas)} audio and {len(answer.transcript_deltas)} text deltas"


def numbers_are_gapless(record: Record) -> Iterator[str]:
    """``server_event_seq`` counts from 1 by 1."""
    numbers = [entry.event.get("server_event_seq") for entry in record.log.server_events()]
    for place, number in enumerate(numbers, 1):
        if number != place:
            yield f"event {place} has the number {number}"
            return


def ledger_holds(record: Record) -> Iterator[str]:
    """generated ≥ sent ≥ played and committed, and no cursor falls while an answer runs."""
    for answer in record.answers:
        last = {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0}
        for delta in answer.deltas:
            cursors = delta.playback or {}
            if set(cursors) != set(last):
                yield f"{answer.response_id}: a delta without a ledger"
                return
            if not cursors["generated_ms"] >= cursors["sent_ms"] >= max(cursors["played_ms"], cursors["committed_ms"]):
                yield f"{answer.response_id}: {cursors}"
            fallen = [name for name, value in last.items() if cursors[name] < value]
            if fallen:
                yield f"{answer.response_id}: {', '.join(fallen)} fell"
            last = cursors
        received_ms = int(answer.audio_ms)
        told_ms = answer.deltas[-1].end_ms if answer.deltas else 0
        if told_ms != received_ms:
            yield f"{answer.response_id}: {received_ms} ms of audio came, the server counts {told_ms} ms"


def everything_was_acknowledged(record: Record) -> Iterator[str]:
    """The whole second answer was played, and the server knows it."""
    second = record.second
    if second is None:
        yield "there is no second answer"
        return
    accepted = [
        entry.event["event"]
        for entry in record.log.server_events()
        if entry.type == "playback.acknowledged"
        and entry.event.get("event", {}).get("item_id") == f"item_{second.response_id}"
    ]
    cursors = accepted[-1]["playback"] if accepted else {}
    if not accepted or cursors["committed_ms"] != int(second.audio_ms):
        yield f"of {second.audio_ms:.0f} ms the server counts {cursors.get('committed_ms', 0)} ms as heard"


def history_is_honest(record: Record) -> Iterator[str]:
    """The stored text of the first answer ends where it stopped to be heard; the second is there as a whole."""
    stored = {
        entry.event["item"]["id"]: "".join(part.get("transcript") or "" for part in entry.event["item"]["content"])
        for entry in record.log.server_events()
        if entry.type == "conversation.item.retrieved"
    }
    for answer in record.answers:
        text = stored.get(f"item_{answer.response_id}")
        if text is None:
            yield f"item_{answer.response_id} cannot be retrieved"
        elif not answer.said.startswith(text):
            yield f"{text!r} is not what was said"
        elif answer.status == "completed" and text.rstrip() != answer.said.rstrip():
            yield f"the completed answer is stored as {text!r}"
        elif answer.status == "cancelled":
            most = heard_chars(answer, answer.acked_ms)
            # What had been acknowledged well before the terminal must have been kept.
            least = heard_chars(answer, answer.acked_before((answer.done_s or 0.0) - 0.1))
            if len(text) > most:
                yield f"{len(text)} characters are stored, {most} were heard"
            if len(text) < len(answer.said[:least].rstrip()):
                yield f"{len(text)} characters are stored, {least} were acknowledged"


def heard_chars(answer: Answer, at_ms: float) -> int:
    """How many characters had been said after ``at_ms`` of the audio: linear between the server's marks."""
    marks = sorted({mark for delta in answer.deltas for mark in delta.marks}, key=lambda mark: (mark[1], mark[0]))
    times = [0, *(at for _, at in marks), int(answer.audio_ms)]
    chars = [0, *(count for count, _ in marks), len(answer.said)]
    return int(np.interp(at_ms, times, chars) + 1e-9)


def answers_sound(record: Record) -> Iterator[str]:
    """There is speech in the audio."""
    for answer in record.answers:
        frame = answer.rate_hz // 50
        samples = np.frombuffer(answer.pcm, "<i2").astype(np.float64)
        frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
        level = np.sqrt(np.square(frames).mean(axis=1)) if len(frames) else np.zeros(1)
        loud = float((level > SPEECH_RMS).mean())
        if loud < 1 / 3:
            yield f"only {loud:.0%} of {answer.response_id} is louder than silence"


def user_was_understood(record: Record) -> Iterator[str]:
    """Both turns were transcribed."""
    turns = user_turns(record.log)
    if len(turns) != 2:
        yield f"there were {len(turns)} user turns"
    for number, turn in enumerate(turns, 1):
        if not turn.transcript.strip():
            yield f"user turn {number} has no transcript"


def no_errors(record: Record) -> Iterator[str]:
    """The server refused nothing."""
    for entry in record.log.server_events():
        if entry.type == "error":
            error = entry.event.get("error")
            yield str(error.get("code") if isinstance(error, dict) else error)


def closed_in_good_order(record: Record) -> Iterator[str]:
    """``session.closed`` is the last word."""
    last = list(record.log.server_events())[-1:]
    if not last or last[0].type != "session.closed" or last[0].event.get("reason") != "session_close":
        yield f"the last event is {last[0].event if last else None}"


PROMISES: Final[tuple[Promise, ...]] = (
    Promise("two answers were given", two_answers),
    Promise("both user turns were transcribed", user_was_understood),
    Promise("the first answer was cut by the interruption", first_was_interrupted),
    Promise("nothing of an interrupted epoch follows its terminal", silence_after_the_terminal),
    Promise("the second answer was completed", second_was_completed),
    Promise("every answer has exactly one terminal", one_terminal_each),
    Promise("transcript deltas join to the final transcript", transcripts_join),
    Promise("the answers hold speech", answers_sound),
    Promise("server event numbers have no gap", numbers_are_gapless),
    Promise("generated ≥ sent ≥ heard, and no cursor falls", ledger_holds),
    Promise("the second answer was heard to its end", everything_was_acknowledged),
    Promise("history holds what was heard and no more", history_is_honest),
    Promise("no request was refused", no_errors),
    Promise("the session closed in good order", closed_in_good_order),
)
