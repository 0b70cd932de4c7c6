"""The context of its own that a client may give one response (``response.input``) → what the model sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.item_events import ItemReference, ReadItem
from duplex_protocol.values import Item
from trio_duplex.models.plugin import HistoryEntry
from trio_duplex.session.commits import wav_of
from trio_duplex.session.conversation import ItemRecord, history_entry, item_text
from trio_duplex.session.item_audio import decode_item_audio
from trio_duplex.session.response_options import CONTEXT_PARAM

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


async def context_of(
    session: Session, given: tuple[ReadItem | ItemReference, ...] | None
) -> tuple[HistoryEntry, ...] | None:
    """The history that one response is to answer, None for the conversation's. Nothing of it is stored.

    Raises with ``param`` ``response.input``: ``unsupported_native_response_options`` for a model that knows its own
    conversation only, ``item_not_found``, ``invalid_input_modality`` for sound without words where the model cannot
    hear it, ``bad_audio``, ``unsupported_audio_format``. Cancellation: nothing happened.
    """
    if given is None:
        return None
    if not session.traits.own_context:
        raise RemoteProtocolError(
            "unsupported_native_response_options", "this model answers its conversation only", param=CONTEXT_PARAM
        )
    calls = session.conversation.calls()
    calls |= {one.item.call_id: one.item for one in given if isinstance(one, ReadItem) and _is_call(one.item)}
    entries: list[HistoryEntry] = []
    for one in given:
        record = _stored(session, one) if isinstance(one, ItemReference) else await _brought(session, one)
        entry = history_entry(record, calls)
        if entry is not None:
            entries.append(entry)
    return tuple(entries)


def _is_call(item: Item) -> bool:
    return item.type == "function_call"


def _stored(session: Session, reference: ItemReference) -> ItemRecord:
    record = session.conversation.get(reference.id)
    if record is None:
        raise RemoteProtocolError("item_not_found", f"there is no item {reference.id}", param=CONTEXT_PARAM)
    return record


async def _brought(session: Session, read: ReadItem) -> ItemRecord:
    """An item that only this response sees. Cancellation: nothing happened."""
    item = read.item
    if item.type == "function_call_output":
        return ItemRecord(item, item.output or "")
    if item.type == "function_call":
        return ItemRecord(item)
    wav = None
    if session.traits.turn_based:
        try:
            wav = wav_of(session, await decode_item_audio(session, read.audio))
        except RemoteProtocolError as error:
            error.param = CONTEXT_PARAM
            raise
    elif any(part.type == "input_audio" and not part.transcript for part in item.content):
        raise RemoteProtocolError(
            "invalid_input_modality", "this model reads a context: sound in it needs its words", param=CONTEXT_PARAM
        )
    words = item_text(item)
    return ItemRecord(item, words if words or wav is not None else None, wav=wav)
