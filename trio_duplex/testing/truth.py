"""What a wire log alone cannot show: the model's side of a session against the log of its client.

Used by the rig at its end; also usable by hand with any scripted session and the log that its client recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from duplex_protocol.values import Json
from trio_duplex.testing.checks_playback import heard_chars
from trio_duplex.testing.history import Violation
from trio_duplex.testing.scripted_model import ScriptedSession
from trio_duplex.testing.wire_log import OUTPUT_DELTAS, Answer, WireLog, kind, member

__all__ = ["check_model_side", "check_replies", "check_sockets"]

ROUNDING_MS = 1.0


def check_model_side(
    model: ScriptedSession, log: Sequence[Json], *, sent: Sequence[Json] = (), undisturbed: bool = False
) -> tuple[Violation, ...]:
    """What the scripted model was asked and fed, against the client's log.

    ``history_is_what_was_heard``: an answer's request never holds assistant words beyond what was heard of them when
    it began, and holds only what the user really said. ``input_used_once``: the model was fed no more audio than the
    client sent (``sent``: its events); with ``undisturbed`` (no fault, no cancellation, no refusal) exactly as much.
    ``one_request_per_answer``: no response was generated twice. ``interrupts_in_order``: every epoch is left once.
    Pure.
    """
    wire_log = WireLog(list(log))
    return tuple(
        [
            *_history(model, wire_log),
            *_requests(model, wire_log),
            *_interrupts(model),
            *_input(model, sent, undisturbed),
        ]
    )


def _history(model: ScriptedSession, log: WireLog) -> Iterator[Violation]:
    name = "history_is_what_was_heard"
    said = {str(e.get("transcript")) for _, e in log.of("conversation.item.input_audio_transcription.completed")}
    # Of items that a client made out of audio only the commit tells the words; turns not understood have none.
    said |= {str(member(e, "event", "transcript")) for _, e in log.of("input_audio_buffer.committed")} | {""}
    for request in model.requests:
        answer = log.answer(request.response_id)
        until = _asked_by(log, answer) if answer is not None else len(log.events)
        for entry in request.history:
            old = log.answer(entry.item_id.removeprefix("item_"))
            spoken = entry.text.removeprefix(_typed(log, entry.item_id)).strip()
            if entry.role == "user" and entry.item_id in _committed(log) and spoken not in said:
                yield Violation(name, (until,), f"the model was told that the user said {entry.text!r}")
            if old is None or old.end is None or old.end > until:
                continue
            written = log.join(old, "response.output_text.delta")  # text is read the moment it comes
            words = log.join(old, "response.output_audio_transcript.delta") + written
            if not words.startswith(entry.text):
                yield Violation(name, (old.end,), f"history says {entry.text!r}, the answer was {words!r}")
            cut = not written and (log.status(old) == "cancelled" or _policy(log) == "ack_only")
            if cut and len(entry.text) > (limit := _heard(log, old.id, until)):
                text = f"history holds {len(entry.text)} characters of {old.id}, {limit} were heard"
                yield Violation(name, (old.end, until), text)


def _asked_by(log: WireLog, answer: Answer) -> int:
    """Where in the log the model had surely been asked: its first words, else the answer's end."""
    return next((i for i in answer.own if kind(log.events[i]) in OUTPUT_DELTAS), answer.end or len(log.events))


def _typed(log: WireLog, item_id: str) -> str:
    """The text that a client typed into an item of a turn-based lane, empty for none."""
    for _, event in log.of("conversation.item.added"):
        if member(event, "item", "id") == item_id:
            parts = member(event, "item", "content") or []
            return " ".join(p["text"] for p in parts if p.get("type") == "input_text" and p.get("text"))
    return ""


def _committed(log: WireLog) -> set[str]:
    return {str(e.get("item_id")) for _, e in log.of("input_audio_buffer.committed")}


def _policy(log: WireLog) -> object:
    """The playback policy that the session object names last."""
    policies = [member(e, "session", "playback_commit_policy") for _, e in log.of("session.created", "session.updated")]
    return policies[-1] if policies else None


def _heard(log: WireLog, response_id: str, until: int) -> int:
    """Characters of an answer that can have been heard by position ``until``: the furthest committed cursor counts."""
    committed, generated = 0, 0
    marks: list[tuple[int, int]] = []
    words = ""
    for event in log.events[:until]:
        if kind(event) == "response.output_audio.delta" and event.get("response_id") == response_id:
            generated = member(event, "metadata", "audio_duration_ms") or generated
            wire_marks = member(event, "metadata", "audio_text_marks") or []
            marks = [(m["text_chars"], m["audio_end_ms"]) for m in wire_marks]
        elif kind(event) == "response.output_audio_transcript.delta" and event.get("response_id") == response_id:
            words += str(event.get("delta", ""))
        elif kind(event) == "playback.acknowledged" and member(event, "event", "item_id") == f"item_{response_id}":
            committed = max(committed, member(event, "event", "playback", "committed_ms") or 0)
    return heard_chars(words, committed, marks, generated)


def _requests(model: ScriptedSession, log: WireLog) -> Iterator[Violation]:
    ids = [request.response_id for request in model.requests]
    for response_id in {i for i in ids if ids.count(i) > 1}:
        yield Violation("one_request_per_answer", (), f"{response_id} was generated twice")
    for request in model.requests:
        answer = log.answer(request.response_id)
        epoch = None
        if answer is not None:
            epoch = member(log.events[answer.begin], "response", "metadata", "duplex_event", "epoch")
        if epoch is not None and epoch != request.epoch:
            text = f"asked in epoch {request.epoch}, announced in epoch {epoch}"
            yield Violation("one_request_per_answer", (), text)


def _interrupts(model: ScriptedSession) -> Iterator[Violation]:
    rising = list(takewhile(lambda pair: pair[0] == pair[1], enumerate(model.interrupts)))
    if len(rising) != len(model.interrupts):
        text = f"the model was told to leave epochs {model.interrupts}"
        yield Violation("interrupts_in_order", (), text)


def _input(model: ScriptedSession, sent: Sequence[Json], undisturbed: bool) -> Iterator[Violation]:
    appended = [e for e in sent if e.get("type") == "input_audio_buffer.append"]
    if not appended:
        return
    chars = sum(len(str(e["audio"]).rstrip("=")) for e in appended)
    sent_ms = chars * 3 / 4 / 2 * 1000 / model.plugin.options.input_rate_hz
    if model.submitted_ms > sent_ms + ROUNDING_MS * len(appended):
        text = f"the model was fed {model.submitted_ms:.0f} ms of {sent_ms:.0f} ms that were sent"
        yield Violation("input_used_once", (), text)
    if undisturbed and model.submitted_ms < sent_ms - ROUNDING_MS * len(appended):
        text = f"of {sent_ms:.0f} ms only {model.submitted_ms:.0f} ms reached the model"
        yield Violation("input_used_once", (), text)


Socket = tuple[Sequence[Json], Sequence[Json]]
"""What one socket sent and what it received."""


def check_sockets(sockets: Sequence[Socket]) -> tuple[Violation, ...]:
    """What holds for the sockets of one session together, in order of connecting (contract 15).

    ``replay_from_cursor``: after ``session.resume`` the first numbered event is the one after the client's last.
    ``token_rotated``: no two announcements of a session carry the same resume token. Pure.
    """
    problems: list[Violation] = []
    tokens: dict[str, int] = {}
    for which, (sent, received) in enumerate(sockets):
        asked = (
            sent[0].get("last_received_server_event_seq") if sent and sent[0].get("type") == "session.resume" else None
        )
        numbers = [e["server_event_seq"] for e in received if "server_event_seq" in e]
        if isinstance(asked, int) and numbers and numbers[0] != asked + 1:
            text = f"socket {which} had everything up to {asked} and was sent {numbers[0]}"
            problems.append(Violation("replay_from_cursor", (), text))
        for event in received:
            token = event.get("resume_token") if event.get("type") in ("session.created", "session.resumed") else None
            if isinstance(token, str):
                if token in tokens:
                    text = f"sockets {tokens[token]} and {which} were given the same token"
                    problems.append(Violation("token_rotated", (), text))
                tokens[token] = which
    return tuple(problems)


REPLIES = {
    "session.heartbeat": "session.heartbeat_ack",
    "playback.ack": "playback.acknowledged",
    "conversation.item.retrieve": "conversation.item.retrieved",
    "conversation.item.delete": "conversation.item.deleted",
    "conversation.item.truncate": "conversation.item.truncated",
    "input_audio_buffer.clear": "input_audio_buffer.cleared",
    "session.update": "session.updated",
}


def check_replies(sent: Sequence[Json], log: Sequence[Json]) -> tuple[Violation, ...]:
    """``commands_answered``: every command of an undisturbed run got its reply, or one error that names it (O13).

    Replies that also have other causes may be more than the commands, never fewer. Pure.
    """
    refused = {member(e, "error", "event_id") for e in log if kind(e) == "error"}
    problems = []
    for command, reply in REPLIES.items():
        asked = sum(e.get("type") == command and e.get("event_id") not in refused for e in sent)
        given = sum(kind(e) == reply for e in log)
        if given < asked:
            problems.append(Violation("commands_answered", (), f"{asked} x {command}, but {given} x {reply}"))
    return tuple(problems)
