"""What a log says about a conversation, as plain values: turns, answers, epochs, decisions. Pure."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from trio_duplex.client import AudioDelta, wrap_event
from trio_duplex.showcase.event_log import Entry, EventLog
from trio_duplex.showcase.speaker import Played

__all__ = [
    "Answer",
    "Delta",
    "Epoch",
    "UserTurn",
    "answers",
    "decisions",
    "epoch_of",
    "epochs",
    "playing",
    "speech_spans",
    "user_turns",
]

Json = dict[str, Any]
Decision = Literal["listen", "speak"]


@attrs.frozen
class Delta:
    """One chunk of audio as it came: ``end_ms`` is the cumulative length that the server names, None if it does not.

    ``marks`` are (characters said, ms of audio), cumulative; ``playback`` is the server's ledger at that moment.
    """

    at_s: float
    audio: bytes = attrs.field(repr=False)
    end_ms: int | None
    marks: tuple[tuple[int, int], ...] = attrs.field(repr=False)
    playback: Json | None = attrs.field(repr=False)


@attrs.define(eq=False)
class Answer:
    """One response, from its ``response.created`` on. Times are ``trio.current_time()`` seconds."""

    response_id: str
    created_s: float
    epoch: int | None = None
    rate_hz: int = 24_000
    deltas: list[Delta] = attrs.field(factory=list, repr=False)
    transcript_deltas: list[str] = attrs.field(factory=list, repr=False)
    transcript_done: str | None = None
    dones: list[Entry] = attrs.field(factory=list, repr=False)
    acks: list[Entry] = attrs.field(factory=list, repr=False)
    """The client's ``playback.ack`` events."""

    @property
    def pcm(self) -> bytes:
        """All of its audio, PCM16 mono."""
        return b"".join(delta.audio for delta in self.deltas)

    @property
    def audio_ms(self) -> float:
        """Length of its audio."""
        return len(self.pcm) * 1000 / (2 * self.rate_hz)

    @property
    def said(self) -> str:
        """The join of its transcript deltas."""
        return "".join(self.transcript_deltas)

    @property
    def done_s(self) -> float | None:
        """When its terminal event came."""
        return self.dones[0].at_s if self.dones else None

    @property
    def status(self) -> str | None:
        """``completed``, ``cancelled``, ``failed``; None while it is open."""
        return self.dones[0].event["response"].get("status") if self.dones else None

    @property
    def reason(self) -> str | None:
        """Why it ended early."""
        details = self.dones[0].event["response"].get("status_details") if self.dones else None
        return details.get("reason") if isinstance(details, dict) else None

    @property
    def acked_ms(self) -> int:
        """How far the client said that it was heard."""
        return max((int(entry.event.get("played_ms", 0)) for entry in self.acks), default=0)

    def acked_before(self, at_s: float) -> int:
        """How far the client had said so by ``at_s``."""
        return max((int(e.event.get("played_ms", 0)) for e in self.acks if e.at_s <= at_s), default=0)


@attrs.frozen
class UserTurn:
    """A committed user turn and what was heard in it ("" for nothing)."""

    item_id: str
    committed_s: float
    transcript: str


@attrs.frozen
class Epoch:
    """A stretch of time under one epoch number."""

    number: int
    from_s: float
    until_s: float


def answers(log: EventLog) -> list[Answer]:
    """Every response in the order of its ``response.created``."""
    found: dict[str, Answer] = {}
    for entry in log.entries:
        if entry.side == "client" and entry.type == "playback.ack":
            answer = found.get(str(entry.event.get("response_id")))
            if answer is not None:
                answer.acks.append(entry)
        if entry.side != "server":
            continue
        response_id = wrap_event(entry.event).response_id
        if response_id is None:
            continue
        if entry.type == "response.created" and response_id not in found:
            found[response_id] = Answer(response_id, entry.at_s, epoch=epoch_of(entry.event))
        answer = found.get(response_id)
        if answer is not None:
            _account(answer, entry)
    return list(found.values())


def _account(answer: Answer, entry: Entry) -> None:
    event = entry.event
    match entry.type:
        case "response.output_audio.delta":
            typed = wrap_event(event)
            assert isinstance(typed, AudioDelta)
            metadata = event.get("metadata") or {}
            marks = tuple((m["text_chars"], m["audio_end_ms"]) for m in metadata.get("audio_text_marks") or ())
            answer.rate_hz = typed.sample_rate_hz or answer.rate_hz
            answer.deltas.append(
                Delta(entry.at_s, typed.audio or b"", typed.audio_duration_ms, marks, metadata.get("playback"))
            )
        case "response.output_audio_transcript.delta":
            answer.transcript_deltas.append(str(event.get("delta", "")))
        case "response.output_audio_transcript.done":
            answer.transcript_done = str(event.get("transcript", ""))
        case "response.done":
            answer.dones.append(entry)


def epoch_of(event: Json) -> int | None:
    """The epoch that an event is stamped with (of a cancelled terminal: the one that it ended)."""
    response = event.get("response") or {}
    metadata = event.get("metadata") or response.get("metadata") or {}
    for place in (event, metadata, metadata.get("duplex_event") or {}, event.get("event") or {}):
        for key in ("cancelled_epoch", "epoch"):
            value = place.get(key)
            if isinstance(value, int):
                return value
    return None


def user_turns(log: EventLog) -> list[UserTurn]:
    """Every committed turn in order."""
    transcripts: dict[str, str] = {}
    commits: list[tuple[str, float]] = []
    for entry in log.server_events():
        item_id = entry.event.get("item_id")
        if not isinstance(item_id, str):
            continue
        if entry.type == "input_audio_buffer.committed":
            commits.append((item_id, entry.at_s))
        elif entry.type == "conversation.item.input_audio_transcription.completed":
            transcripts[item_id] = str(entry.event.get("transcript", ""))
    return [UserTurn(item_id, at_s, transcripts.get(item_id, "")) for item_id, at_s in commits]


def epochs(log: EventLog) -> list[Epoch]:
    """The epochs over time: one ends with the terminal event that names the next, or when a higher number is seen."""
    starts: list[tuple[int, float]] = []
    last_s = 0.0
    for entry in log.server_events():
        last_s = entry.at_s
        number = epoch_of(entry.event)
        if entry.type == "response.done":
            number = entry.event.get("response", {}).get("metadata", {}).get("epoch", number)
        if entry.type == "session.created":
            number = 0
        if number is not None and (not starts or number > starts[-1][0]):
            starts.append((number, entry.at_s))
    ends = [start_s for _, start_s in starts[1:]] + [last_s]
    return [Epoch(number, start_s, end_s) for (number, start_s), end_s in zip(starts, ends, strict=False)]


def decisions(log: EventLog) -> list[tuple[float, Decision]]:
    """What the model decided unit by unit: to listen, or (one per chunk of audio) to speak."""
    found: list[tuple[float, Decision]] = []
    for entry in log.server_events():
        if entry.type == "response.listen":
            found.append((entry.at_s, "listen"))
        elif entry.type == "response.output_audio.delta":
            found.append((entry.at_s, "speak"))
    return found


def speech_spans(log: EventLog) -> list[tuple[float, float]]:
    """When the user's recordings held speech: (start, end) in ``trio.current_time()`` seconds."""
    return [
        (
            e.event["started_s"] + e.event["speech_start_ms"] / 1000,
            e.event["started_s"] + e.event["speech_end_ms"] / 1000,
        )
        for e in log.entries
        if e.type == "microphone.began"
    ]


def playing(log: EventLog, answer: Answer) -> Played:
    """How the answer sounded, from the times at which its chunks came and the moment the loudspeaker was silenced."""
    played = Played(answer.response_id, answer.rate_hz)
    for delta in answer.deltas:
        played.add(delta.audio, delta.at_s)
    for entry in log.entries:
        if entry.type == "speaker.silenced" and entry.event.get("response_id") == answer.response_id:
            played.stopped_s = entry.at_s
    return played
