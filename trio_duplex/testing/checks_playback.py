"""Invariants of sound and of playback truth: samples, durations, marks, the ledger, what was heard (14, 24a; O7)."""

from __future__ import annotations

import binascii
import itertools
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import attrs

from duplex_protocol.values import Json
from trio_duplex.testing.wire_log import Answer, Finding, WireLog, found, kind, member

SAMPLE_BYTES = {"pcm16": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1}
"""Bytes of one sample per format name of an audio delta; other formats (wav) are not counted here."""

DURATION_TOLERANCE_MS = 1
"""Milliseconds are rounded down per answer."""

MARK_TOLERANCE_MS = 20
"""A mark is at the model's time; a resampler may hold back a few milliseconds of the sound until the end."""


def whole_samples(log: WireLog) -> Iterator[Finding]:
    """Every audio delta is strict base64 of whole samples (case A1)."""
    plain_bytes = 1 if _plain_format(log).startswith("audio/pc") and _plain_format(log) != "audio/pcm" else 2
    for index, event in log.of("response.output_audio.delta"):
        size = _bytes_of(event)
        sample = SAMPLE_BYTES.get(str(event.get("format")), 1) if "format" in event else plain_bytes
        if size is None:
            yield found("the audio is not base64", index)
        elif size % sample:
            yield found(f"{size} bytes are not whole samples of {sample} bytes", index)


def _plain_format(log: WireLog) -> str:
    """The output format that a plain-view session object names."""
    for _, event in log.of("session.created", "session.updated"):
        name = member(event, "session", "audio", "output", "format", "type")
        if isinstance(name, str):
            return name
    return "audio/pcm"


def _bytes_of(event: Json) -> int | None:
    try:
        return len(b64decode(str(event.get("delta", "")), validate=True))
    except binascii.Error:
        return None


def one_format_per_answer(log: WireLog) -> Iterator[Finding]:
    """Format and rate never change under a running answer: settings of a running step are not touched."""
    for answer in log.answers:
        first: tuple[object, object] | None = None
        for index, event in _audio(log, answer):
            shape = (event.get("format"), event.get("sample_rate_hz"))
            if first is not None and shape != first:
                yield found(f"{answer.id} began as {first} and went on as {shape}", index)
            first = first or shape


def _audio(log: WireLog, answer: Answer) -> Iterator[tuple[int, Json]]:
    return ((i, log.events[i]) for i in answer.own if kind(log.events[i]) == "response.output_audio.delta")


def durations_cumulative(log: WireLog) -> Iterator[Finding]:
    """``audio_duration_ms`` is cumulative, never falls and is the duration of the bytes that were sent (O7)."""
    for answer in log.answers:
        samples, last = 0, 0
        for index, event in _audio(log, answer):
            claimed = member(event, "metadata", "audio_duration_ms")
            if not isinstance(claimed, int):
                continue
            if claimed < last:
                yield found(f"the duration falls from {last} to {claimed} ms", index)
            last = claimed
            rate, sample = event.get("sample_rate_hz"), SAMPLE_BYTES.get(str(event.get("format")))
            if not isinstance(rate, int) or sample is None:
                continue
            samples += (_bytes_of(event) or 0) // sample
            if abs(samples * 1000 / rate - claimed) > DURATION_TOLERANCE_MS:
                yield found(f"{claimed} ms are claimed, {samples * 1000 / rate:.0f} ms were sent", index)
        stated = _content(log, answer).get("audio_duration_ms")
        if last and stated is not None and stated != last:
            yield found(f"the final item says {stated} ms, the last delta {last} ms", answer.end or answer.begin)


def _content(log: WireLog, answer: Answer) -> Json:
    """The audio part of an ended answer's final item, empty where there is none."""
    if answer.end is None:
        return {}
    output = member(log.events[answer.end], "response", "output")
    content = member(output[0], "content") if isinstance(output, list) and output else None
    for part in content if isinstance(content, list) else ():
        if member(part, "type") == "output_audio":
            return dict(part)
    return {}


def marks_cumulative(log: WireLog) -> Iterator[Finding]:
    """``audio_text_marks`` are cumulative: both columns rise, and no mark lies beyond the sound or the words so far."""
    for answer in log.answers:
        words, last = "", -1
        for index, event in _audio(log, answer):
            if index + 1 < len(log.events):
                words += str(log.events[index + 1].get("delta", ""))
            points = _marks(member(event, "metadata", "audio_text_marks"))
            duration = member(event, "metadata", "audio_duration_ms")
            if any(b[0] < a[0] or b[1] < a[1] for a, b in itertools.pairwise(points)):
                yield found("a mark falls behind the one before it", index)
            if points and isinstance(duration, int) and points[-1][1] > duration + MARK_TOLERANCE_MS:
                yield found(f"a mark at {points[-1][1]} ms in {duration} ms of audio", index)
            if points and points[-1][0] > len(words) and index + 1 < len(log.events):
                yield found(f"a mark at character {points[-1][0]} of {len(words)}", index)
            if points and points[-1][1] < last:
                yield found("the marks were cut back", index)
            last = points[-1][1] if points else last


def _marks(value: Any) -> list[tuple[int, int]]:
    """(characters, ms) of a wire list of marks."""
    if not isinstance(value, list):
        return []
    pairs = [(member(mark, "text_chars"), member(mark, "audio_end_ms")) for mark in value]
    return [(c, t) for c, t in pairs if isinstance(c, int) and isinstance(t, int)]


@attrs.define
class _Ledger:
    """What the log has shown of one answer's cursors."""

    generated: int = 0
    sent: int = 0
    played: int = 0
    committed: int = 0
    cap: int | None = None
    explicit: bool = False


def ledger(log: WireLog) -> Iterator[Finding]:
    """generated ≥ sent ≥ max(played, committed); cursors never fall without a reason (contract 24a).

    committed ≤ played unless the client named a ``committed_ms``; only a truncating ack lowers committed, and nothing
    passes the smallest cap afterwards; a cancel may take back what no socket was given.
    """
    books: dict[str, _Ledger] = {}
    for index, event in enumerate(log.events):
        name = kind(event)
        if name == "response.output_audio.delta":
            owner, values = event.get("response_id"), member(event, "metadata", "playback")
        elif name == "response.done":
            owner, values = event.get("response_id"), member(event, "response", "metadata", "playback")
        elif name == "playback.acknowledged":
            item = member(event, "event", "item_id")
            owner, values = str(item).removeprefix("item_"), member(event, "event", "playback")
            owner = owner if item is not None else None
        else:
            continue
        if not isinstance(owner, str) or not isinstance(values, dict):
            continue
        yield from _entry(books.setdefault(owner, _Ledger()), event, values, index)


def _entry(book: _Ledger, event: Json, values: Json, index: int) -> Iterator[Finding]:
    """One snapshot against the ones before it."""
    numbers = [values.get(f"{word}_ms") for word in ("generated", "sent", "played", "committed")]
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        yield found(f"cursors {values} are not whole milliseconds", index)
        return
    generated, sent, played, committed = (int(n) for n in numbers if n is not None)
    ack = event.get("event") if kind(event) == "playback.acknowledged" else None
    if isinstance(ack, dict):
        wanted = ack.get("committed_ms") or 0
        book.explicit = book.explicit or wanted > max(ack.get("played_ms") or 0, played)
        if ack.get("truncate") and committed <= min(wanted, sent):
            book.cap = committed if book.cap is None else min(book.cap, committed)
    if not generated >= sent >= max(played, committed):
        yield found(f"generated {generated}, sent {sent}, played {played}, committed {committed}", index)
    if committed > played and not book.explicit:
        yield found(f"committed {committed} ms is beyond played {played} ms, which no ack asked for", index)
    if book.cap is not None and committed > book.cap:
        yield found(f"committed {committed} ms passes the cut at {book.cap} ms", index)
    ended = kind(event) == "response.done"
    if generated < book.generated or (sent < book.sent and not ended):
        yield found(f"generated or sent falls to {generated}/{sent} ms", index)
    if played < min(book.played, sent):
        yield found(f"played falls from {book.played} to {played} ms", index)
    if committed < min(book.committed, sent) and book.cap is None:
        yield found(f"committed falls from {book.committed} to {committed} ms without a truncating ack", index)
    book.generated, book.sent, book.played, book.committed = generated, sent, played, committed


def sent_is_what_was_sent(log: WireLog) -> Iterator[Finding]:
    """``sent_ms`` at the end of an answer is the audio that really went out: retracted deltas do not count (24a)."""
    for answer in log.answers:
        if answer.end is None or answer.is_call:
            continue
        sent = member(log.events[answer.end], "response", "metadata", "playback", "sent_ms")
        durations = [member(e, "metadata", "audio_duration_ms") for _, e in _audio(log, answer)]
        last = durations[-1] if durations else 0
        if isinstance(sent, int) and isinstance(last, int) and sent != last:
            yield found(f"{sent} ms are booked as sent, {last} ms went out", answer.end)


def heard_text_only(log: WireLog) -> Iterator[Finding]:
    """A cancelled answer's item holds only words that were heard: the transcript cut at ``committed_ms`` (14.3, T4)."""
    for answer in log.answers:
        part = _content(log, answer)
        if answer.end is None or log.status(answer) != "cancelled" or not part:
            continue
        shown = str(part.get("transcript") or "")
        words = log.join(answer, "response.output_audio_transcript.delta")
        if not words.startswith(shown):
            yield found("the cut transcript is not a beginning of what was said", answer.end)
        committed = member(log.events[answer.end], "response", "metadata", "committed_ms")
        generated = member(log.events[answer.end], "response", "metadata", "playback", "generated_ms")
        if not isinstance(committed, int) or not isinstance(generated, int):
            continue
        limit = heard_chars(words, committed, _marks(part.get("audio_text_marks")), generated)
        if len(shown) > limit:
            yield found(f"{len(shown)} characters are shown, {limit} were heard by {committed} ms", answer.end)


def heard_chars(words: str, at_ms: int, marks: list[tuple[int, int]], duration_ms: int) -> int:
    """How many characters can have been heard by ``at_ms``: straight lines between the marks (contract 14.3)."""
    if at_ms <= 0:
        return 0
    points = [(0, 0), *marks, (len(words), max(duration_ms, marks[-1][1] if marks else 0))]
    for (c0, t0), (c1, t1) in itertools.pairwise(points):
        if at_ms < t1:
            return int(c0 + (min(c1, len(words)) - c0) * (at_ms - t0) / (t1 - t0))
    return len(words)


CHECKS = {
    "whole_samples": whole_samples,
    "one_format_per_answer": one_format_per_answer,
    "durations_cumulative": durations_cumulative,
    "marks_cumulative": marks_cumulative,
    "ledger": ledger,
    "sent_is_what_was_sent": sent_is_what_was_sent,
    "heard_text_only": heard_text_only,
}
