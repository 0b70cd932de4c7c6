"""The conversation: items in insertion order, and the history as it truly happened (contract 7.2, 14.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import attrs

from duplex_protocol.values import ContentPart, Item
from trio_duplex.models.plugin import HistoryEntry

KEPT_SOUND_BYTES: Final = 64 * 1024 * 1024
"""Sound of user turns that a session remembers: more than half an hour of speech at 16 kHz."""
KEPT_ITEM_BYTES: Final = 64 * 1024 * 1024
"""What a client may store as items, in the form in which it sent them."""


@attrs.define(eq=False)
class ItemRecord:
    """An item and what of it belongs to history.

    ``history_text`` None: not (yet) part of the history. ``reserved``: an assistant entry that later acks may still
    fill in place. ``cut_ms``: a client truncated the item here; it stays cut. ``wav``: the sound of a user turn, kept
    for turn-based models while it is among the newest (:meth:`Conversation.keep_sound`).
    """

    item: Item
    history_text: str | None = None
    reserved: bool = False
    cut_ms: float | None = None
    stored_bytes: int = 0
    wav: bytes | None = attrs.field(default=None, repr=False)


class Conversation:
    """Items chained in insertion order. Finishing an item never moves the tail; deleting closes the gap."""

    def __init__(self) -> None:
        self._records: dict[str, ItemRecord] = {}
        self._order: list[str] = []
        self._sounds: deque[ItemRecord] = deque()
        self._sound_bytes = 0
        self._stored_bytes = 0

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
        record = ItemRecord(item, history_text, stored_bytes=stored_bytes(item))
        self._records[item.id] = record
        self._stored_bytes += record.stored_bytes
        if at_start:
            self._order.insert(0, item.id)
        elif after is not None:
            self._order.insert(self._order.index(after) + 1, item.id)
        else:
            self._order.append(item.id)
        return record

    def has_room(self, item: Item) -> bool:
        """Whether an item that a client sends is to be stored, given what clients stored already."""
        return self._stored_bytes + stored_bytes(item) <= KEPT_ITEM_BYTES

    def keep_sound(self, record: ItemRecord, wav: bytes | None) -> None:
        """Keep the sound of a turn; the oldest ones are forgotten for it, their words stay."""
        record.wav = wav
        if wav is None:
            return
        self._sounds.append(record)
        self._sound_bytes += len(wav)
        while self._sound_bytes > KEPT_SOUND_BYTES and len(self._sounds) > 1:
            self._forget_sound(self._sounds.popleft())

    def _forget_sound(self, record: ItemRecord) -> None:
        self._sound_bytes -= len(record.wav or b"")
        record.wav = None

    def delete(self, item_id: str) -> None:
        """Remove an item and its history entry or reserved slot. The id must be known."""
        record = self._records.pop(item_id)
        self._order.remove(item_id)
        self._stored_bytes -= record.stored_bytes
        if record in self._sounds:
            self._sounds.remove(record)
            self._forget_sound(record)

    def history(self) -> tuple[HistoryEntry, ...]:
        """The history as the model may see it, oldest first."""
        calls = self.calls()
        entries = (history_entry(self._records[item_id], calls) for item_id in self._order)
        return tuple(entry for entry in entries if entry is not None)

    def calls(self) -> dict[str | None, Item]:
        """The function calls by their ids."""
        return {r.item.call_id: r.item for r in self._records.values() if r.item.type == "function_call"}

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


def history_entry(record: ItemRecord, calls: Mapping[str | None, Item]) -> HistoryEntry | None:
    """What a model may see of an item; None for what is not (yet) part of the history."""
    item = record.item
    if record.history_text is None:
        return None
    if item.type != "function_call_output":
        return HistoryEntry(item.id, item.role or "user", record.history_text, item.call_id, record.wav)
    call = calls.get(item.call_id)
    name, arguments = (call.name, call.arguments) if call is not None else (None, None)
    return HistoryEntry(item.id, "tool", record.history_text, item.call_id, name=name, arguments=arguments)


def stored_bytes(item: Item) -> int:
    """About how many bytes an item holds of what its client sent: words, and parts as they came."""
    return sum(_size(value) for value in (item.output, item.arguments, *(part.raw for part in item.content)))


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(_size(one) for one in inner)


def item_text(item: Item) -> str:
    """The words of a message item: its text parts and transcripts, joined by a space."""
    words = [part.text if part.text is not None else part.transcript for part in item.content]
    return " ".join(w for w in words if w)


def untranscribed_part(item: Item) -> int | None:
    """Index of the first audio part; None if there is none, or if one has its words already."""
    audio = [k for k, part in enumerate(item.content) if part.type == "input_audio"]
    return audio[0] if audio and not any(item.content[k].transcript for k in audio) else None


def with_transcript(item: Item, index: int, transcript: str) -> Item:
    """The item with these words in part ``index``; empty words: nothing was said."""
    content = list(item.content)
    is_speech = content[index].is_speech if transcript else False
    content[index] = attrs.evolve(content[index], transcript=transcript, is_speech=is_speech)
    return attrs.evolve(item, content=tuple(content))


def user_audio_item(item_id: str, transcript: str | None, *, is_speech: bool | None = None) -> Item:
    """The user item that a commit of audio makes."""
    part = ContentPart("input_audio", transcript=transcript, is_speech=is_speech)
    return Item(id=item_id, role="user", status="completed", content=(part,))
