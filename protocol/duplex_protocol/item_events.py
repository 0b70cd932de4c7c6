"""``conversation.item.create``: the client's item, checked part by part (contract 2.2, 3.1, 10.3, 19)."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import attrs

from duplex_protocol import readers
from duplex_protocol.audio_formats import encoding_of, rate_of, split_format
from duplex_protocol.commands import CreateItem, ItemAudio
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.rows import Field, FieldTable, Said
from duplex_protocol.values import ContentPart, Item, ItemStatus, Json, Role

_AUDIO_PARAM: Final = "item.content.audio"

PartType = Literal["input_text", "input_audio", "output_text", "output_audio"]

PART_TYPES: Final[dict[tuple[str, bool], PartType]] = {
    ("input_text", False): "input_text",
    ("input_text", True): "output_text",
    ("text", False): "input_text",
    ("text", True): "output_text",
    ("output_text", False): "input_text",
    ("output_text", True): "output_text",
    ("input_audio", False): "input_audio",
    ("audio", False): "input_audio",
    ("audio", True): "output_audio",
    ("output_audio", True): "output_audio",
}
"""(part type as sent, item is the assistant's) → the part type we keep; what is not here is refused."""

ITEM_TYPES: Final = ("message", "function_call", "function_call_output")
ITEM_STATUSES: Final = ("completed", "incomplete", "in_progress")
ROLES: Final = ("user", "assistant", "system")


def _one_of(*words: str) -> readers.Reader:
    def read(value: Any, param: str) -> str:
        if value not in words:
            raise RemoteProtocolError("bad_event", f"{param} must be one of {', '.join(words)}", param=param)
        return cast(str, value)

    return read


def _output_part(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise readers.wrong_kind(param, "a string", value, code="invalid_function_call_output")
    return value


def _parts(value: Any, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise readers.wrong_kind(param, "an array", value)
    return value


_BASE_FIELDS: Final = FieldTable(
    Field("id", readers.name),
    Field("type", _one_of(*ITEM_TYPES), note="default message"),
    Field("status", _one_of(*ITEM_STATUSES), note="default completed"),
)
ITEM_FIELDS: Final[dict[str, FieldTable]] = {
    "message": FieldTable(
        Field("role", _one_of(*ROLES), note="default user"),
        Field("content", _parts, note="a user message needs at least one usable part"),
    ),
    "function_call": FieldTable(
        Field("call_id", readers.name, missing="bad_event"),
        Field("name", readers.name, missing="bad_event"),
        Field("arguments", readers.text),
    ),
    "function_call_output": FieldTable(
        Field("call_id", _output_part, missing="invalid_function_call_output"),
        Field("output", _output_part, missing="invalid_function_call_output"),
    ),
}
_PART_FIELDS: Final = FieldTable(
    Field("text", readers.text),
    Field("transcript", readers.text),
    Field("format", readers.anything),
    Field("sample_rate_hz", readers.anything, ("sample_rate",)),
)


@attrs.frozen
class _ReadPart:
    part: ContentPart
    audio: ItemAudio | None = None


@attrs.frozen
class ReadItem:
    """A client's item and its decoded audio parts, in order."""

    item: Item
    audio: tuple[ItemAudio, ...] = ()


@attrs.frozen
class ItemReference:
    """An item of the conversation, by its id."""

    id: str


def create(said: Said) -> CreateItem:
    """The command of ``conversation.item.create``; nothing happens unless the whole item is right."""
    read = read_item(said["item"])
    return CreateItem(
        event_id=said.event_id,
        item=read.item,
        previous_item_id=said["previous_item_id"],
        previous_item_named=said["previous_item_id"] is not None,
        audio=read.audio,
    )


def read_context(value: Any, param: str) -> tuple[ReadItem | ItemReference, ...]:
    """``response.input``: an array of items and references. Raises what its items do, always with ``param``."""
    if not isinstance(value, list):
        raise readers.wrong_kind(param, "an array", value)
    return tuple(_context_item(one, param) for one in value)


def _context_item(raw: Any, param: str) -> ReadItem | ItemReference:
    if not isinstance(raw, dict):
        raise readers.wrong_kind(param, "an array of objects", raw)
    if raw.get("type") == "item_reference":
        return ItemReference(readers.name(raw.get("id"), param))
    try:
        return read_item(raw)
    except RemoteProtocolError as error:
        error.param = param
        raise


def read_item(raw: Json) -> ReadItem:
    """One item. Raises :class:`RemoteProtocolError` with a ``param`` that begins with ``item``."""
    base = _BASE_FIELDS.read(raw, "item.")
    kind = base.get("type", "message")
    values = ITEM_FIELDS[kind].read(raw, "item.")
    role: Role | None = values.get("role", "user") if kind == "message" else None
    read = [_part(part, role) for part in values.get("content", ())]
    if role == "user" and not any(_usable(one) for one in read):
        raise RemoteProtocolError("bad_event", "a user message needs text or audio", param="item.content")
    item = Item(
        id=base.get("id", ""),
        type=kind,
        role=role,
        status=cast(ItemStatus, base.get("status", "completed")),
        content=tuple(one.part for one in read),
        call_id=values.get("call_id"),
        name=values.get("name"),
        arguments=values.get("arguments", "") if kind == "function_call" else None,
        output=values.get("output"),
    )
    return ReadItem(item, tuple(one.audio for one in read if one.audio is not None))


def _usable(read: _ReadPart) -> bool:
    return bool(read.audio or read.part.text or read.part.transcript)


def _part(raw: Any, role: Role | None) -> _ReadPart:
    if not isinstance(raw, dict):
        raise readers.wrong_kind("item.content", "an array of objects", raw)
    sent_type = raw.get("type")
    if sent_type == "input_image":
        raise RemoteProtocolError("invalid_input_modality", "images in items are not supported", param="item.content")
    part_type = PART_TYPES.get((sent_type, role == "assistant")) if isinstance(sent_type, str) else None
    if part_type is None or (role == "system" and part_type != "input_text"):
        raise RemoteProtocolError("bad_event", f"a {role} item cannot hold such a part", param="item.content.type")
    values = _PART_FIELDS.read(raw, "item.content.")
    audio = _audio(raw, values) if part_type == "input_audio" else None
    return _ReadPart(
        ContentPart(part_type, text=values.get("text"), transcript=values.get("transcript"), raw=raw), audio
    )


def _audio(raw: Json, values: dict[str, Any]) -> ItemAudio | None:
    """The audio of an ``input_audio`` part; a part with only a transcript has none.

    A rate inside a format object is refused as ``unsupported_audio_format``, a plain one as ``bad_audio`` (2.2).
    """
    sent = raw.get("audio") if raw.get("audio") is not None else raw.get("data")
    if sent is None and values.get("transcript"):
        return None
    if not isinstance(sent, str) or not sent:
        raise RemoteProtocolError("bad_audio", "an input_audio part needs base64 audio", param=_AUDIO_PARAM)
    word, object_rate = split_format(values.get("format"))
    encoding = None if word is None else encoding_of(word, param=_AUDIO_PARAM)
    rate: int | None = None
    if values.get("sample_rate_hz") is not None:
        rate = rate_of(values["sample_rate_hz"], code="bad_audio", param=_AUDIO_PARAM)
    elif object_rate is not None:
        rate = rate_of(object_rate, code="unsupported_audio_format", param=_AUDIO_PARAM)
    return ItemAudio(audio=readers.strict_base64(sent, _AUDIO_PARAM), encoding=encoding, rate_hz=rate)
