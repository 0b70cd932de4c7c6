"""Invariants of responses: one at a time, one terminal, closed brackets, paired words (contract 5.1, 7)."""

from __future__ import annotations

from collections.abc import Iterator

from trio_duplex.testing.wire_log import Answer, Finding, WireLog, found, kind, member, response_of

AFTER_TERMINAL = frozenset(
    {
        "output_audio_buffer.cleared",
        "playback.acknowledged",
        "conversation.item.truncated",
        "conversation.item.deleted",
        "conversation.item.retrieved",
        "error",
    }
)
"""What may still name an ended answer: answers to the client's own commands (contract 24a)."""

ORDER = (
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
)
"""The terminal sequence of contract 5.1; any step but the last three may be missing."""

MAY_COME_EARLY = frozenset({"response.output_audio.done", "response.output_text.done", "response.done"})
"""A turn-based model ends its audio and its text when it knows of it, before the answer ends."""


def one_active_response(log: WireLog) -> Iterator[Finding]:
    """At most one answer is active; a new one starts only after the terminal of the one before (O9)."""
    running: Answer | None = None
    for answer in log.answers:
        if answer.is_call:
            continue
        if running is not None and (running.end is None or running.end > answer.begin):
            yield found(f"{answer.id} began while {running.id} was active", running.begin, answer.begin)
        running = answer


def response_ids_unique(log: WireLog) -> Iterator[Finding]:
    """``response.created`` exactly once per response, its first event; an id is never used again (O4, O14)."""
    begun: dict[str, int] = {}
    for index, event in enumerate(log.events):
        response_id = response_of(event)
        if response_id is None:
            continue
        if kind(event) == "response.created":
            if response_id in begun:
                yield found(f"response id {response_id} is used twice", begun[response_id], index)
            begun.setdefault(response_id, index)
        elif response_id not in begun and kind(event) not in AFTER_TERMINAL and _whole(log):
            yield found(f"{kind(event)} names {response_id}, which was never created", index)


def _whole(log: WireLog) -> bool:
    """Whether the log starts at the session's beginning."""
    return any(kind(e) == "session.created" and e.get("server_event_seq") == 1 for e in log.events[:3])


def one_terminal_per_response(log: WireLog) -> Iterator[Finding]:
    """Every ``response.created`` gets exactly one ``response.done``, and before the session's end (O8, O15)."""
    for answer in log.answers:
        if len(answer.ends) > 1:
            yield found(f"{answer.id} has {len(answer.ends)} terminals", *answer.ends)
        if answer.end is None and (log.terminal is not None or log.complete):
            yield found(f"{answer.id} has no terminal", answer.begin)


def nothing_after_terminal(log: WireLog) -> Iterator[Finding]:
    """After ``response.done`` nothing of that answer follows but replies to the client's own commands (24a)."""
    ended: dict[str, int] = {}
    for index, event in enumerate(log.events):
        name = kind(event)
        response_id = response_of(event)
        item_id = event.get("item_id") or member(event, "item", "id")
        if name == "response.done":
            if response_id is not None:
                ended.setdefault(response_id, index)
        elif name not in AFTER_TERMINAL:
            owner = response_id if response_id is not None else str(item_id).removeprefix("item_")
            if owner in ended:
                yield found(f"{name} after the terminal of {owner}", ended[owner], index)


def brackets_closed(log: WireLog) -> Iterator[Finding]:
    """Whatever was opened in an answer (item, parts) is closed before its terminal, also on a cancel (case P7)."""
    for answer in log.answers:
        if answer.end is None:
            continue
        opened: dict[tuple[str, object], int] = {}
        item_id: object = None
        span = [i for i in range(answer.begin, answer.end) if _touches(log, i, answer)]
        for index in span:
            event = log.events[index]
            name = kind(event)
            bracket, _, end = name.rpartition(".")
            key: object = event.get("content_index") if bracket == "response.content_part" else None
            if end == "added" and bracket in ("response.output_item", "response.content_part", "conversation.item"):
                opened[bracket, key] = index
                item_id = member(event, "item", "id") or item_id
            elif end == "done" and (bracket, key) in opened:
                del opened[bracket, key]
            elif end == "done" and bracket in ("response.output_item", "response.content_part", "conversation.item"):
                yield found(f"{name} closes what was not open in {answer.id}", index)
        for (bracket, _), index in opened.items():
            yield found(f"{bracket} of {answer.id} was never closed", index, answer.end)


def _touches(log: WireLog, index: int, answer: Answer) -> bool:
    """Whether an event belongs to an answer's brackets: by its response id, or by its item."""
    event = log.events[index]
    if response_of(event) == answer.id:
        return True
    if not kind(event).startswith("conversation.item."):
        return False
    named = member(event, "item", "id")
    own = {
        member(log.events[i], "item", "id") for i in answer.own if kind(log.events[i]) == "response.output_item.added"
    }
    return named in own


def terminal_sequence(log: WireLog) -> Iterator[Finding]:
    """An answer ends in the order of contract 5.1, in one piece, ``rate_limits.updated`` right after."""
    for answer in log.answers:
        if answer.end is None:
            continue
        following = log.events[answer.end + 1 : answer.end + 2]
        if following and kind(following[0]) != "rate_limits.updated":
            yield found(f"{kind(following[0])} directly after the terminal of {answer.id}", answer.end, answer.end + 1)
        if answer.is_call:
            continue
        step = len(ORDER) - 1
        index = answer.end
        while step > 0:
            index -= 1
            name = kind(log.events[index]) if index > answer.begin else ""
            earlier = [s for s in range(step) if ORDER[s] == name]
            if not earlier:
                break
            if step >= len(ORDER) - 2 and ORDER[step - 1] != name:
                yield found(f"{name} where {ORDER[step - 1]} belongs, in the end of {answer.id}", index)
                break
            step = earlier[-1]
        early = [
            i
            for i in answer.own
            if i < index and kind(log.events[i]) in ORDER and kind(log.events[i]) not in MAY_COME_EARLY
        ]
        if early:
            yield found(f"the end of {answer.id} is in pieces", *early, answer.end)


def audio_has_its_words(log: WireLog) -> Iterator[Finding]:
    """Every audio delta is followed at once by exactly one transcript delta of the same answer (O6)."""
    for index, event in log.of("response.output_audio.delta"):
        if index + 1 == len(log.events):
            continue
        after = log.events[index + 1]
        if kind(after) != "response.output_audio_transcript.delta" or response_of(after) != response_of(event):
            yield found(f"an audio delta is followed by {kind(after)}", index, index + 1)


def transcript_joins(log: WireLog) -> Iterator[Finding]:
    """The transcript at the end is the exact join of its deltas, also on a cancel (O6, case T5); so is written text."""
    for answer in log.answers:
        words = log.join(answer, "response.output_audio_transcript.delta")
        text = log.join(answer, "response.output_text.delta")
        done = False
        for index in answer.own:
            event = log.events[index]
            name = kind(event)
            if name == "response.output_audio_transcript.done":
                done = True
                if event.get("transcript") != words:
                    yield found(f"the transcript is {event.get('transcript')!r}, its deltas say {words!r}", index)
            elif name == "response.content_part.done" and member(event, "part", "type") == "audio":
                if member(event, "part", "transcript") != words:
                    yield found("the audio part's transcript is not the join of the deltas", index)
            elif name == "response.output_text.done" and event.get("text") != text:
                yield found("the written text is not the join of its deltas", index)
        if answer.end is not None and words and not done and not answer.is_call:
            yield found(f"{answer.id} spoke, but its transcript was never concluded", answer.end)


def final_item_agrees(log: WireLog) -> Iterator[Finding]:
    """``output_item.done``, ``conversation.item.done`` and ``response.done`` show the same item."""
    for answer in log.answers:
        if answer.end is None or answer.is_call:
            continue
        output = member(log.events[answer.end], "response", "output")
        final = output[0] if isinstance(output, list) and output else None
        if final is None:
            yield found(f"the terminal of {answer.id} carries no item", answer.end)
            continue
        status = log.status(answer)
        if log.duplex and final.get("status") != status:
            yield found(f"item status {final.get('status')!r} in a response that is {status!r}", answer.end)
        for index in range(max(answer.begin, answer.end - 2), answer.end):
            event = log.events[index]
            if kind(event) in ("response.output_item.done", "conversation.item.done") and event.get("item") != final:
                yield found(f"{kind(event)} shows another item than the terminal", index, answer.end)


def speak_before_audio(log: WireLog) -> Iterator[Finding]:
    """``response.speak`` at most once per answer, before its first audio (O5)."""
    for answer in log.answers:
        speaks = [i for i in answer.own if kind(log.events[i]) == "response.speak"]
        audio = [i for i in answer.own if kind(log.events[i]) == "response.output_audio.delta"]
        if len(speaks) > 1:
            yield found(f"{answer.id} decided to speak more than once", *speaks)
        if speaks and audio and speaks[0] > audio[0]:
            yield found(f"{answer.id} decided to speak after its first audio", audio[0], speaks[0])


def listen_ends_its_response(log: WireLog) -> Iterator[Finding]:
    """A listen decision that names a response is followed by that response's end, with nothing committed (O10, P4)."""
    for index, event in log.of("response.listen"):
        answer = log.answer(event.get("response_id")) if event.get("response_id") else None
        if answer is None:
            continue
        deltas = [i for i in answer.own if i > index and kind(log.events[i]).endswith(".delta")]
        if deltas:
            yield found(f"{answer.id} went on after the decision to listen", index, deltas[0])
        if answer.end is not None and member(log.events[answer.end], "response", "metadata", "committed"):
            yield found(f"{answer.id} only listened but committed text", index, answer.end)


def commit_before_answer(log: WireLog) -> Iterator[Finding]:
    """``input_audio_buffer.committed`` of a turn precedes the first output of the answer it causes (O11)."""
    committed: set[object] = set()
    for index, event in enumerate(log.events):
        if kind(event) == "input_audio_buffer.committed":
            committed.add(member(event, "event", "turn_id"))
        elif kind(event) == "response.created" and _whole(log):
            turn = member(event, "response", "metadata", "duplex_event", "turn_id")
            if isinstance(turn, int) and turn > 0 and turn not in committed:
                yield found(f"the answer to turn {turn} began before its commit", index)


CHECKS = {
    "one_active_response": one_active_response,
    "response_ids_unique": response_ids_unique,
    "one_terminal_per_response": one_terminal_per_response,
    "nothing_after_terminal": nothing_after_terminal,
    "brackets_closed": brackets_closed,
    "terminal_sequence": terminal_sequence,
    "audio_has_its_words": audio_has_its_words,
    "transcript_joins": transcript_joins,
    "final_item_agrees": final_item_agrees,
    "speak_before_audio": speak_before_audio,
    "listen_ends_its_response": listen_ends_its_response,
    "commit_before_answer": commit_before_answer,
}
