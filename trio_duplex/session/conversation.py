"""The conversation: items in insertion order, and the history as it truly happened (contract 7.2, 14.2)."""

from __future__ import annotations

from typing import Literal

import attrs

from duplex_protocol.values import ContentPart, Item, Role
from trio_duplex.models.plugin import HistoryEntry


@attrs.define(eq=False)
class ItemRecord:
    """An item and what of it belongs to history.

    ``history_text`` None: not (yet) part of the history. ``reserved``: an assistant entry that later acks may still
    fill in place. ``cut_ms``: a client truncated the item here; it stays cut. ``wav``: the sound of a user turn, kept
    for turn-based models.
    """

    item: Item
    history_text: str | None = None
    reserved: bool = False
    cut_ms: float | None = None
    wav: bytes | None = attrs.field(default=None, repr=False)


class Conversation:
    """Items chained in insertion order. Finishing an item never moves the tail; deleting closes the gap."""

    def __init__(self) -> None:
        self._records: dict[str, ItemRecord] = {}
        self._order: list[str] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def tail_id(self) -> str | None:
        """Id of the last item, None for an empty conversation."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str) -> ItemRecord | None:
        """The record of ``item_id``, None if unknown."""
        return self._records.get(item_id)

    def predecessor(self, item_id: str) -> str | None:
        """Id of the item before ``item_id`` in insertion order, None if it is the first (or unknown)."""
        if item_id not in self._records:
            return None
        index = self._order.index(item_id)
        return self._order[index - 1] if index else None

    def add(
        self, item: Item, *, history_text: str | None = None, at_start: bool = False, after: str | None = None
    ) -> ItemRecord:
        """Append an item, or place it at the start or after another one (which must be known)."""
        record = ItemRecord(item, history_text)
        self._records[item.id] = record
        if at_start:
            self._order.insert(0, item.id)
        elif after is not None:
            self._order.insert(self._order.index(after) + 1, item.id)
        else:
            self._order.append(item.id)
        return record

    def delete(self, item_id: str) -> None:
        """Remove an item and its history entry or reserved slot. The id must be known."""
        del self._records[item_id]
        self._order.remove(item_id)

    def history(self) -> tuple[HistoryEntry, ...]:
        """The history as the model may see it, oldest first."""
        entries = []
        for item_id in self._order:
            record = self._records[item_id]
            if record.history_text is None:
                continue
            role: Role | Literal["tool"] = (
                "tool" if record.item.type == "function_call_output" else record.item.role or "user"
            )
            entries.append(HistoryEntry(item_id, role, record.history_text, record.item.call_id, record.wav))
        return tuple(entries)

    @property
    def history_len(self) -> int:
        """Number of history entries."""
        return sum(r.history_text is not None for r in self._records.values())

    def function_calls(self) -> dict[str, bool]:
        """Call ids the model made → whether an output for it is stored."""
        calls = {r.item.call_id: False for r in self._records.values() if r.item.type == "function_call"}
        for record in self._records.values():
            if record.item.type == "function_call_output" and record.item.call_id in calls:
                calls[record.item.call_id] = True
        return {call_id: done for call_id, done in calls.items() if call_id is not None}


def item_text(item: Item) -> str:
    """The words of a message item: its text parts and transcripts, joined by a space."""
    words = [part.text if part.text is not None else part.transcript for part in item.content]
    return " ".join(w for w in words if w)


def user_audio_item(item_id: str, transcript: str | None, *, is_speech: bool | None = None) -> Item:
    """The user item that a commit of audio makes."""
    part = ContentPart("input_audio", transcript=transcript, is_speech=is_speech)
    return Item(id=item_id, role="user", status="completed", content=(part,))
