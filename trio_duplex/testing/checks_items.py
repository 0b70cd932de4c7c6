"""Invariants of the conversation's items and of speech events: the chain, commits, starts and stops (7.2, O12, O18)."""

from __future__ import annotations

from collections.abc import Iterator

from trio_duplex.testing.wire_log import Finding, WireLog, found, kind, member


def item_chain(log: WireLog) -> Iterator[Finding]:
    """Items form one chain in insertion order; every event names the true predecessor (7.2).

    ``added`` may repeat a client's own word for a client's item; an assistant's item and a committed one enter at the
    end. Finishing an item never moves the end; deleting closes the gap.
    """
    order: list[str] = []
    if not any(e.get("server_event_seq") == 1 for e in log.events):
        return
    clients_own = _client_items(log)
    for index, event in enumerate(log.events):
        name = kind(event)
        item_id = member(event, "item", "id") or event.get("item_id")
        if not isinstance(item_id, str):
            continue
        named = event.get("previous_item_id")
        if name == "conversation.item.added":
            if item_id in order:
                yield found(f"{item_id} was added twice", index)
                continue
            tail = order[-1] if order else None
            if item_id not in clients_own and named != tail:
                yield found(f"{item_id} enters after {named}, the last item is {tail}", index)
            at_start = item_id in clients_own and named is None and order and _begins(log, item_id)
            order.insert(0 if at_start else len(order), item_id)
        elif name == "conversation.item.deleted":
            if item_id not in order:
                yield found(f"{item_id} was deleted but is not in the conversation", index)
            else:
                order.remove(item_id)
        elif name in ("conversation.item.done", "input_audio_buffer.committed") and item_id in order:
            at = order.index(item_id)
            before = order[at - 1] if at else None
            if named != before and item_id not in clients_own:
                yield found(f"{name} puts {item_id} after {named}; it stands after {before}", index)


def _client_items(log: WireLog) -> set[str]:
    """Items that came by ``conversation.item.create``: neither committed from audio nor the answer's own."""
    own = {a.item_id for a in log.answers}
    own |= {str(e.get("item_id")) for _, e in log.of("input_audio_buffer.committed")}
    own |= {str(member(e, "item", "id")) for _, e in log.of("response.output_item.added")}
    return {str(member(e, "item", "id")) for _, e in log.of("conversation.item.added")} - own


def _begins(log: WireLog, item_id: str) -> bool:
    """Whether a client's item was put at the start: its ``done`` names no predecessor either."""
    for _, event in log.of("conversation.item.done"):
        if member(event, "item", "id") == item_id:
            return event.get("previous_item_id") is None
    return False


def items_announced_and_finished(log: WireLog) -> Iterator[Finding]:
    """Every ``added`` is followed at once by its ``created``, and gets exactly one ``done`` by the session's end."""
    added: dict[str, int] = {}
    done: dict[str, int] = {}
    deleted: set[str] = set()
    for index, event in enumerate(log.events):
        name, item_id = kind(event), str(member(event, "item", "id"))
        if name == "conversation.item.added":
            added[item_id] = index
            after = log.events[index + 1] if index + 1 < len(log.events) else None
            if after is not None and (
                kind(after) != "conversation.item.created"
                or after.get("item") != event.get("item")
                or after.get("previous_item_id") != event.get("previous_item_id")
            ):
                yield found(f"the announcement of {item_id} is not repeated under its beta name", index)
        elif name == "conversation.item.done":
            if item_id in done:
                yield found(f"{item_id} was finished twice", done[item_id], index)
            done[item_id] = index
        elif name == "conversation.item.deleted":
            deleted.add(str(event.get("item_id")))
    if log.terminal is not None or log.complete:
        for item_id, index in added.items():
            if item_id not in done and item_id not in deleted:
                yield found(f"{item_id} was never finished", index)


def speech_in_order(log: WireLog) -> Iterator[Finding]:
    """started, stopped, committed: each at most once per item, in this order, with one id (O12)."""
    stage: dict[str, tuple[int, int]] = {}
    steps = {
        "input_audio_buffer.speech_started": 1,
        "input_audio_buffer.speech_stopped": 2,
        "input_audio_buffer.committed": 3,
    }
    for index, event in log.of(*steps):
        if event.get("item_id") is None:
            continue  # a commit of nothing makes no item (10.2)
        name, item_id = kind(event), str(event.get("item_id"))
        step = steps[name]
        before, where = stage.get(item_id, (0, index))
        if step <= before:
            yield found(f"{name} of {item_id} comes too late", where, index)
        elif step == 2 and before != 1 and _from_start(log):
            yield found(f"{item_id} stopped speaking without having started", index)
        elif step == 3 and before == 1:
            yield found(f"{item_id} was committed while speech had not stopped", where, index)
        stage[item_id] = (step, index)


def _from_start(log: WireLog) -> bool:
    return any(e.get("server_event_seq") == 1 for e in log.events)


def commits_counted(log: WireLog) -> Iterator[Finding]:
    """``turn_id`` counts commits that made a turn: it never falls and rises by at most one (8.3)."""
    last: int | None = None
    for index, event in log.of("input_audio_buffer.committed"):
        turn = member(event, "event", "turn_id")
        if not isinstance(turn, int):
            continue
        if last is not None and not last <= turn <= last + 1:
            yield found(f"turn {turn} follows turn {last}", index)
        last = turn


def transcription_of_known_items(log: WireLog) -> Iterator[Finding]:
    """A transcription names a committed item and comes once for it."""
    committed = {str(e.get("item_id")) for _, e in log.of("input_audio_buffer.committed")}
    committed |= {str(member(e, "item", "id")) for _, e in log.of("conversation.item.added")}
    seen: dict[str, int] = {}
    for index, event in log.of("conversation.item.input_audio_transcription.completed"):
        item_id = str(event.get("item_id"))
        if item_id not in committed and _from_start(log):
            yield found(f"{item_id} was transcribed but never committed", index)
        if item_id in seen:
            yield found(f"{item_id} was transcribed twice", seen[item_id], index)
        seen[item_id] = index


CHECKS = {
    "item_chain": item_chain,
    "items_announced_and_finished": items_announced_and_finished,
    "speech_in_order": speech_in_order,
    "commits_counted": commits_counted,
    "transcription_of_known_items": transcription_of_known_items,
}
