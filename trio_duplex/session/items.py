"""Conversation items on request: create, retrieve, delete, truncate (contract 3, 10.3, 14.4, 19)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import attrs

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Item
from trio_duplex.models.plugin import GenerationFailed, TakesToolOutputs
from trio_duplex.session import acks
from trio_duplex.session.conversation import ItemRecord, item_text
from trio_duplex.session.item_audio import commit_item_audio, decode_item_audio
from trio_duplex.session.work import Work, merged

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

MAX_TOOL_RESULTS: Final = 8
"""Tool results that may wait for an answer (contract 16.3)."""


async def create_item(session: Session, command: cmd.CreateItem) -> None:
    """Store an item; it never interrupts and never creates a response.

    Cancellation: the session is ending; the item may be lost.
    """
    item = command.item
    if not item.id:
        item = attrs.evolve(item, id=session.ids.item())
    elif session.conversation.get(item.id) is not None:
        raise RemoteProtocolError("item_exists", f"item {item.id} exists already", param="item.id")
    if not session.conversation.has_room(item):
        raise RemoteProtocolError("input_backpressure", "this conversation holds too much; delete items of it")
    if item.type == "function_call_output":
        await hand_over_tool_output(session, item)
    audio = await decode_item_audio(session, command.audio)
    session.touch(lease=True)
    text = (item.output or "") if item.type == "function_call_output" else item_text(item)
    in_history = item.type == "function_call_output" or (item.type == "message" and bool(text))
    shown, predecessor = place(session, command, item, text if in_history else None)
    waits = audio is not None and not (session.traits.turn_based and session.detector is not None)
    session.emit(ev.ItemCreated(item=item, previous_item_id=shown, predecessor_id=predecessor, done=not waits))
    if audio is not None:
        commit_item_audio(session, item, audio, announce=waits)
    elif item.type == "function_call_output":
        session.tool_results_waiting += 1
        session.tool_answer_unasked = True
        session.unanswered = merged(session.unanswered, Work(stored=True))
    elif item.role == "user":
        session.unanswered = merged(session.unanswered, Work(stored=True))


def place(
    session: Session, command: cmd.CreateItem, item: Item, history_text: str | None
) -> tuple[str | None, str | None]:
    """Put the item into the conversation; returns (the previous item that is shown, its predecessor).

    The chain is insertion order and the client's word is repeated verbatim (7.2). Clients of the plain view mean the
    place: ``root`` is the beginning, and a known id is what the item comes after.
    """
    named = command.previous_item_id
    tail = session.conversation.tail_id
    if not session.strict and named == "root":
        session.conversation.add(item, history_text=history_text, at_start=True)
        return named, None
    if not session.strict and named is not None and session.conversation.get(named) is not None:
        session.conversation.add(item, history_text=history_text, after=named)
        return named, named
    session.conversation.add(item, history_text=history_text)
    return (named if named is not None else tail), tail


async def hand_over_tool_output(session: Session, item: Item) -> None:
    """A tool result must answer an open call of this session; the model gets it before it is stored (contract 19).

    Cancellation: the session is ending.
    """
    calls = session.conversation.function_calls()
    if not item.call_id or item.call_id not in calls:
        raise RemoteProtocolError(
            "invalid_function_call_output", "call_id names no function call of this session", param="item.call_id"
        )
    if calls[item.call_id]:
        raise RemoteProtocolError("invalid_function_call_output", "this call was answered already", param="item.output")
    if session.tool_results_waiting >= MAX_TOOL_RESULTS:
        raise RemoteProtocolError(
            "function_response_backlog", f"{MAX_TOOL_RESULTS} tool results wait for the model already"
        )
    if isinstance(session.model, TakesToolOutputs):
        try:
            await session.model.take_tool_output(item.call_id, item.output or "")
        except GenerationFailed as error:
            raise RemoteProtocolError(error.code, error.message) from None


def known(session: Session, item_id: str) -> ItemRecord:
    """The record of a named item. Raises ``missing_item_id`` / ``item_not_found``."""
    if not item_id:
        raise RemoteProtocolError("missing_item_id", "item_id is required", param="item_id")
    record = session.conversation.get(item_id)
    if record is None:
        raise RemoteProtocolError("item_not_found", f"there is no item {item_id}", param="item_id")
    return record


async def retrieve_item(session: Session, command: cmd.RetrieveItem) -> None:
    """The item as last echoed. Cancellation: there is no checkpoint."""
    session.emit(ev.ItemRetrieved(item=known(session, command.item_id).item))


async def delete_item(session: Session, command: cmd.DeleteItem) -> None:
    """Remove an item, its history entry or its reserved slot, and what of it still waited for an answer.

    Cancellation: there is no checkpoint.
    """
    record = known(session, command.item_id)
    session.touch(lease=True)
    session.conversation.delete(command.item_id)
    if session.unanswered is not None:
        session.unanswered = session.unanswered.without(command.item_id)
    if session.deferred is not None:
        session.deferred = session.deferred.without(command.item_id)
    if session.waiting is not None and session.waiting.turn.item_id == command.item_id:
        session.waiting = None
    response = session.responses.get(record.item.id.removeprefix("item_"))
    if response is not None and response.done:
        response.played.set()
        response.interrupted = True
    session.emit(ev.ItemDeleted(item_id=command.item_id))


async def truncate_item(session: Session, command: cmd.TruncateItem) -> None:
    """Cut an assistant item at what was heard (contract 14.4); then as a truncating ack.

    Cancellation: there is no checkpoint.
    """
    record = known(session, command.item_id)
    item = record.item
    if item.type != "message" or item.role != "assistant":
        raise RemoteProtocolError("bad_event", "only assistant messages can be truncated", param="item_id")
    if command.audio_end_ms < 0:
        raise RemoteProtocolError("bad_event", "audio_end_ms must not be negative", param="audio_end_ms")
    response = session.responses.get(item.id.removeprefix("item_"))
    if command.content_index < 0 or (item.content and command.content_index >= len(item.content)):
        raise RemoteProtocolError("bad_event", "content_index is out of range", param="content_index")
    if item.content and item.content[command.content_index].type != "output_audio":
        raise RemoteProtocolError("bad_event", "this content part is not audio", param="content_index")
    duration = response.ledger.generated_ms if response is not None else None
    # Clients round up to a whole ms; the strict view refuses only what lies clearly beyond the audio.
    if duration is not None and duration > 0 and command.audio_end_ms > duration + 1 and session.strict:
        raise RemoteProtocolError(
            "bad_event", f"audio_end_ms is beyond the {duration} ms of audio there are", param="audio_end_ms"
        )
    session.touch(lease=True)
    at_ms = int(min(command.audio_end_ms, duration) if duration else command.audio_end_ms)
    record.cut_ms = at_ms if record.cut_ms is None else min(record.cut_ms, at_ms)
    if response is not None and item.content:
        record.item = cut_item(item, command.content_index, response.heard_text(record.cut_ms))
    session.emit(
        ev.ItemTruncated(item_id=item.id, content_index=command.content_index, audio_end_ms=int(command.audio_end_ms))
    )
    if response is None:
        return
    ack = cmd.AckPlayback(played_ms=at_ms, committed_ms=at_ms, response_id=response.id, truncate=True)
    if session.capabilities.supports_audio_truncate:
        acks.acknowledge(session, ack, response, asked=False)
    else:
        # Only the wire item is cut: such a model remembers what it said (14.4).
        acks.say_acknowledged(session, ack, response, written=False, asked=False)


def cut_item(item: Item, content_index: int, transcript: str) -> Item:
    """The item with one audio part's transcript replaced."""
    content = list(item.content)
    content[content_index] = attrs.evolve(content[content_index], transcript=transcript)
    return attrs.evolve(item, content=tuple(content))


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.CreateItem: create_item,
    cmd.RetrieveItem: retrieve_item,
    cmd.DeleteItem: delete_item,
    cmd.TruncateItem: truncate_item,
}
