"""The objects inside server events: items, parts, responses, native events as JSON; each for both views.

The duplex view shows the seed's words, the plain view OpenAI's (contract 3.3, 5, 25; item and response vocabulary).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import orjson

from duplex_protocol.events import FunctionCallDone, InputCommitted, ResponseDone
from duplex_protocol.values import ContentPart, Deadlines, Item, Json

View = Literal["duplex", "plain"]

PLAIN_ITEM_STATUS: Final[dict[str, str]] = {"cancelled": "incomplete", "failed": "incomplete"}
"""Item status words that OpenAI does not have; every other word stays."""

PLAIN_REASONS: Final[dict[str, str]] = {
    "barge_in": "turn_detected",
    "turn_detected": "turn_detected",
    "client_cancelled": "client_cancelled",
    "output_audio_buffer_clear": "client_cancelled",
    "new_response": "client_cancelled",
    "timeout": "client_cancelled",
    "session_close": "client_cancelled",
    "disconnect": "client_cancelled",
    "max_output_tokens": "max_output_tokens",
    "content_filter": "content_filter",
}
"""Native reason words of a response that did not complete → OpenAI's four."""

LENGTH_REASONS: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
"""``finish_reason`` words that say the token limit ended the answer."""


def part(content: ContentPart, view: View) -> Json:
    """One content part of an item. Parts made by a client come back as sent, in the plain view without audio."""
    if view == "plain":
        return _plain_part(content)
    if content.raw is not None:
        return content.raw
    shape: Json = {"type": content.type}
    if content.type in ("input_text", "output_text"):
        shape["text"] = content.text or ""
        return shape
    shape["transcript"] = content.transcript
    if content.is_speech is not None:
        shape["is_speech"] = content.is_speech
    if content.audio_duration_ms is not None:
        shape["audio_duration_ms"] = content.audio_duration_ms
    if content.audio_text_marks:
        shape["audio_text_marks"] = [mark.as_wire() for mark in content.audio_text_marks]
    return shape


def _plain_part(content: ContentPart) -> Json:
    if content.type in ("input_text", "output_text"):
        return {"type": content.type, "text": content.text or ""}
    return {"type": content.type, "transcript": content.transcript}


def item(value: Item, view: View) -> Json:
    """A ``realtime.item``."""
    status = value.status if view == "duplex" else PLAIN_ITEM_STATUS.get(value.status, value.status)
    shape: Json = {"id": value.id, "object": "realtime.item", "type": value.type}
    if value.type == "message":
        shape |= {"role": value.role, "status": status, "content": [part(one, view) for one in value.content]}
    elif value.type == "function_call":
        shape |= {
            "status": status,
            "name": value.name or "",
            "call_id": value.call_id or "",
            "arguments": value.arguments or "",
        }
    else:
        shape |= {"status": status, "call_id": value.call_id or "", "output": value.output or ""}
    return shape


def untranscribed(value: Item) -> Json:
    """A plain-view user item whose transcript follows in an event of its own: the transcript is null here."""
    shape = item(value, "plain")
    for one in shape.get("content", ()):
        if one["type"] == "input_audio":
            one["transcript"] = None
    return shape


def open_message(item_id: str) -> Json:
    """The assistant item of a response that just started."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def item_frame(kind: str, previous_item_id: str | None, shape: Json) -> Json:
    """``conversation.item.added``, ``created`` or ``done`` around an item's shape."""
    return {"type": kind, "previous_item_id": previous_item_id, "item": shape}


def plain_metadata(metadata: Json | None) -> dict[str, str] | None:
    """A client's metadata with string values only; other values become their JSON text."""
    if metadata is None:
        return None
    return {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in metadata.items()}


def plain_modalities(modalities: tuple[str, ...]) -> list[str]:
    """OpenAI's output modality: audio (with its transcript) or text."""
    return ["audio"] if "audio" in modalities or not modalities else ["text"]


def response_status(event: ResponseDone, view: View) -> tuple[str, Json | None]:
    """``(status, status_details)`` of a finished response."""
    if view == "duplex":
        if event.status == "completed":
            return "completed", None
        return event.status, {"type": event.status, "reason": event.reason}
    if event.status == "completed" and event.finish_reason in LENGTH_REASONS:
        return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
    if event.status == "completed":
        return "completed", None
    if event.status == "failed":
        return "failed", {"type": "failed", "error": {"type": "server_error", "code": event.reason}}
    unnamed = "max_output_tokens" if event.status == "incomplete" else "client_cancelled"
    return event.status, {"type": event.status, "reason": PLAIN_REASONS.get(event.reason or "", unnamed)}


def answer_item(event: ResponseDone, view: View) -> Json:
    """The item of a finished response; the plain view calls one that the token limit ended incomplete too."""
    shape = item(event.item, view)
    if response_status(event, view)[0] == "incomplete":
        shape["status"] = "incomplete"
    return shape


# --- native events as JSON: the native dialect sends them, the duplex view shows some inside others -------------------


def optional(**members: Any) -> Json:
    """The members that are not None."""
    return {key: value for key, value in members.items() if value is not None}


def deadlines(account: Deadlines | None) -> Json:
    """The extension member ``deadlines``; nothing when the model keeps no account."""
    return {} if account is None else {"deadlines": account.as_wire()}


def native_input_committed(event: InputCommitted) -> Json:
    """``input.committed`` (contract 4.3); both names of the item id are sent (23.1)."""
    shape: Json = {
        "type": "input.committed",
        "session_id": event.session_id,
        "turn_id": event.turn_id,
        "epoch": event.epoch,
        "history_len": event.history_len,
        "native_audio": event.native_audio,
        "message": event.message,
        "realtime_item_id": event.item.id,
        "item_id": event.item.id,
    }
    shape |= optional(
        transcript=event.transcript,
        overlap_deferred=event.overlap_deferred,
        response_create_deferred=event.response_create_deferred,
        is_speech=event.is_speech,
    )
    for name in ("empty", "no_response", "overlap_ack"):
        if getattr(event, name):
            shape[name] = True
    return shape


def native_response_done(event: ResponseDone) -> Json:
    """``response.done``, or ``audio.cancelled`` for a cancelled response (contract 4.3)."""
    if event.status == "cancelled":
        return {
            "type": "audio.cancelled",
            "session_id": event.session_id,
            "response_id": event.response_id,
            "reason": event.reason,
            "cancelled_epoch": event.epoch,
            "epoch": event.epoch if event.next_epoch is None else event.next_epoch,
            "committed_ms": event.playback.committed_ms,
            "playback": event.playback.as_wire(),
            **deadlines(event.deadlines),
        }
    shape: Json = {
        "type": "response.done",
        "session_id": event.session_id,
        "response_id": event.response_id,
        "epoch": event.epoch,
        "committed": event.committed,
        "playback": event.playback.as_wire(),
    }
    if event.status != "completed":
        shape |= {"status": event.status, "status_details": response_status(event, "duplex")[1]}
    return shape | optional(finish_reason=event.finish_reason) | deadlines(event.deadlines)


def native_function_call(event: FunctionCallDone) -> Json:
    """``function_call.done`` (contract 4.3)."""
    return {
        "type": "function_call.done",
        "session_id": event.session_id,
        "epoch": event.epoch,
        "call_id": event.call_id,
        "name": event.name,
        "arguments": event.arguments,
    }
