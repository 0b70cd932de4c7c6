"""Text frames to JSON objects and back: the only place where wire bytes are touched (contract 1.2, 6, case H8).

Incoming: one frame must be one JSON object with a ``type``, of bounded size, depth and member count, and without
non-finite numbers. Outgoing: compact UTF-8 JSON; a ``bytes`` value anywhere in a frame is audio and becomes base64 text
in the moment of encoding, so that a delta which is dropped before it is taken never costs an encoding.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import orjson
import pybase64

from duplex_protocol.dialect import MAX_EVENT_BYTES
from duplex_protocol.errors import LocalProtocolError, RemoteProtocolError
from duplex_protocol.values import Json

MAX_EVENT_ID_CHARS: Final = 512
MAX_PATH_CHARS: Final = 256
MAX_DEPTH: Final = 64
MAX_MEMBERS: Final = 50_000
"""Members of all objects and arrays of one event together."""

_CONTAINERS: Final = (dict, list)
# The id of a frame that cannot be parsed as a whole is read only where it certainly is the event's own: as the first
# member, or as the second one after "type".
_LEADING_ID: Final = re.compile(r'\s*\{\s*(?:"type"\s*:\s*"[^"\\]*"\s*,\s*)?"event_id"\s*:\s*"([^"\\]{1,512})"\s*[,}]')
_NUMBER_START: Final = frozenset("0123456789-NI")


def parse(text: str | bytes) -> Json:
    """One inbound frame → its JSON object, whose ``type`` is a non-empty string.

    Raises :class:`RemoteProtocolError` ``event_too_large`` (over 15 MiB of UTF-8), ``invalid_json`` or ``bad_event``
    (not an object, no type, a bad ``event_id``, too deep, too many members, or a number that is not finite, with
    ``param`` naming the field), each with the client's ``event_id`` when it can be read.
    """
    if _utf8_size(text) > MAX_EVENT_BYTES:
        raise RemoteProtocolError(
            "event_too_large", f"one event may have {MAX_EVENT_BYTES} UTF-8 bytes", event_id=_leading_event_id(text)
        )
    if len(text) > MAX_MEMBERS and _crowded(text):
        raise RemoteProtocolError(
            "bad_event", f"an event may have {MAX_MEMBERS} members", event_id=_leading_event_id(text)
        )
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _not_json(text, error) from None
    if not isinstance(event, dict):
        raise RemoteProtocolError("bad_event", "an event must be a JSON object")
    event_id = event.get("event_id")
    if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS):
        raise RemoteProtocolError(
            "bad_event", f"event_id must be a string of at most {MAX_EVENT_ID_CHARS} characters", param="event_id"
        )
    kind = event.get("type")
    if not isinstance(kind, str) or not kind:
        raise RemoteProtocolError("bad_event", "an event needs a string 'type'", param="type", event_id=event_id)
    _check_shape(event, event_id)
    return event


def encode(frame: Json, *, event_id: str, server_event_seq: int | None) -> bytes:
    """One projected frame → the bytes of its text frame.

    ``bytes`` values become base64 text here. The result never holds a NaN or infinity: orjson writes null for them.
    Raises :class:`LocalProtocolError` when the frame holds something that JSON cannot say.
    """
    whole: Json = {"type": frame["type"], "event_id": event_id, **frame}
    if server_event_seq is not None:
        whole["server_event_seq"] = server_event_seq
    try:
        return orjson.dumps(whole, default=_base64_text)
    except orjson.JSONEncodeError as error:
        raise LocalProtocolError(f"frame {frame['type']!r} cannot be encoded: {error}") from error


def _base64_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return pybase64.b64encode_as_string(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _utf8_size(text: str | bytes) -> int:
    """UTF-8 bytes of a frame, or a lower bound that is enough to accept it."""
    if isinstance(text, bytes) or text.isascii() or len(text) * 4 <= MAX_EVENT_BYTES:
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def _crowded(text: str | bytes) -> bool:
    """Whether a long frame certainly has too many members, told before millions of them are made into objects.

    In JSON every comma outside a string stands between two members, and every bracket but the first opens one; what
    is not JSON may be refused by this instead. Frames that are one long string cost a few scans.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b",") + data.count(b"[") + data.count(b"{") <= MAX_MEMBERS:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if data.count(b'"') > 4 * (MAX_MEMBERS + 1):  # a member is a key and a value at most
        return True
    outside = b"".join(data.split(b'"')[::2])
    return outside.count(b",") > MAX_MEMBERS or outside.count(b"[") + outside.count(b"{") > MAX_MEMBERS + 1


def _leading_event_id(text: str | bytes) -> str | None:
    head = text[:4096]
    if isinstance(head, bytes):
        head = head.decode("utf-8", "replace")
    match = _LEADING_ID.match(head)
    return match.group(1) if match else None


def _not_json(text: str | bytes, error: orjson.JSONDecodeError) -> RemoteProtocolError:
    """The refusal of a frame that orjson does not take, telling non-finite numbers and depth apart from garbage."""
    event_id = _leading_event_id(text)
    if "depth limit" in error.msg:
        return RemoteProtocolError("bad_event", f"an event may nest {MAX_DEPTH} levels deep", event_id=event_id)
    found = _non_finite(text, error.pos)
    if found is not None:
        path, known_id = found
        return RemoteProtocolError(
            "bad_event", f"{path or 'a number'} is not a finite number", param=path or None, event_id=known_id
        )
    return RemoteProtocolError("invalid_json", f"the frame is not JSON: {error.msg}", event_id=event_id)


def _non_finite(text: str | bytes, position: int) -> tuple[str, str | None] | None:
    """``(path, event_id)`` of the first number that is not finite, None when that is not what is wrong.

    Only a frame whose fault sits on a number or on the words NaN and Infinity is read again, by the slower parser.
    """
    try:
        words = text.decode("utf-8") if isinstance(text, bytes) else text
        if words[position : position + 1] not in _NUMBER_START:
            return None
        event = json.loads(words)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    event_id = event.get("event_id")
    known_id = event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS else None
    todo: list[tuple[str, Any]] = [("", event)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path.removeprefix("session.")[:MAX_PATH_CHARS], known_id
        if isinstance(value, dict):
            todo += [(f"{path}.{key}" if path else str(key), member) for key, member in reversed(value.items())]
        elif isinstance(value, list):
            todo += [(f"{path}[{index}]", member) for index, member in reversed(list(enumerate(value)))]
    return None


def _check_shape(event: Json, event_id: str | None) -> None:
    """Bound the nesting depth and the members of an event, level by level (flat events cost one pass)."""
    level: list[Any] = [value for value in event.values() if value.__class__ in _CONTAINERS]
    depth, members = 1, len(event)
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RemoteProtocolError("bad_event", f"an event may nest {MAX_DEPTH} levels deep", event_id=event_id)
        deeper: list[Any] = []
        for container in level:
            members += len(container)
            inner = container.values() if isinstance(container, dict) else container
            deeper += [value for value in inner if value.__class__ in _CONTAINERS]
        if members > MAX_MEMBERS:
            break
        level = deeper
    if members > MAX_MEMBERS:
        raise RemoteProtocolError("bad_event", f"an event may have {MAX_MEMBERS} members", event_id=event_id)
