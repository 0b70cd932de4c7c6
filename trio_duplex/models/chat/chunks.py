"""One chunk of a chat completion → what it says, in either shape, streamed (``delta``) or whole (``message``).  Pure.

=================  =====================================================  =======================================
what               vLLM-Omni                                              OpenAI
=================  =====================================================  =======================================
text               ``content``, top-level ``modality`` not ``audio``      ``content``, or ``audio.transcript``
audio              ``content`` under ``modality: audio``, base64          ``audio.data``, base64
its metadata       ``audio_metadata`` of the choice, required             none: what was asked for
=================  =====================================================  =======================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import orjson
import pybase64

from duplex_protocol.values import Json

__all__ = ["Audio", "ChunkError", "Finished", "Part", "Text", "ToolDelta", "read_chunk"]


class ChunkError(Exception):
    """A chunk cannot be used: it is no chunk at all, or the backend reports an error in it."""


@attrs.frozen
class Text:
    """More of the answer's text."""

    text: str


@attrs.frozen
class Audio:
    """Encoded audio, never empty. ``metadata`` as it came; ``required``: without it the audio has no meaning."""

    data: bytes = attrs.field(repr=False)
    metadata: Any = None
    required: bool = True


@attrs.frozen
class ToolDelta:
    """More of the tool call number ``index``: ``call_id`` and ``name`` come once, ``arguments`` in pieces."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


@attrs.frozen
class Finished:
    """The choice is complete: ``stop``, ``length``, ``tool_calls``, ``content_filter``."""

    reason: str


Part = Text | Audio | ToolDelta | Finished


def read_chunk(data: bytes) -> list[Part]:
    """The parts of one chunk, in order. Raises :class:`ChunkError`; its text quotes nothing of the answer."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ChunkError("a chunk is not JSON") from None
    if not isinstance(chunk, dict):
        raise ChunkError("a chunk is not an object")
    if chunk.get("error") is not None:
        raise ChunkError("the backend reports an error" + _error_word(chunk["error"]))
    choices = chunk.get("choices")
    if choices is None and ("usage" in chunk or "metrics" in chunk):
        return []
    if not isinstance(choices, list):
        raise ChunkError("a chunk has no choices")
    parts: list[Part] = []
    for choice in choices:
        if not isinstance(choice, dict):
            raise ChunkError("a choice is not an object")
        if choice.get("index") in (None, 0):
            parts += _choice(choice, spoken=chunk.get("modality") == "audio")
    return parts


def _error_word(error: Any) -> str:
    """Its ``code`` or ``type`` where that is a plain word or number; messages may quote a user."""
    if not isinstance(error, dict):
        return ""
    for key in ("code", "type"):
        value = str(error.get(key) or "")
        if value and len(value) <= 64 and value.replace("_", "").replace("-", "").isalnum():
            return f" ({value})"
    return ""


def _choice(choice: Json, *, spoken: bool) -> Iterator[Part]:
    said = choice.get("delta") if choice.get("delta") is not None else choice.get("message")
    if said is not None:
        if not isinstance(said, dict):
            raise ChunkError("a delta is not an object")
        content = _text(said.get("content"), "content")
        audio = said.get("audio")
        if content:
            metadata = choice.get("audio_metadata")
            yield Audio(_base64(content), metadata, required=True) if spoken else Text(content)
        if audio is not None:
            yield from _audio(audio, choice)
        yield from _tool_calls(said.get("tool_calls"))
    reason = choice.get("finish_reason")
    if reason is not None:
        yield Finished(_text(reason, "finish_reason"))


def _audio(audio: Any, choice: Json) -> Iterator[Part]:
    """OpenAI's audio object; the whole answer of vLLM-Omni has it too, with metadata and an empty transcript."""
    if not isinstance(audio, dict):
        raise ChunkError("audio is not an object")
    transcript = _text(audio.get("transcript"), "audio.transcript")
    if transcript:
        yield Text(transcript)
    data = _text(audio.get("data"), "audio.data")
    if data:
        yield Audio(_base64(data), choice.get("audio_metadata"), required=False)


def _tool_calls(calls: Any) -> Iterator[Part]:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise ChunkError("tool_calls is not an array")
    for place, call in enumerate(calls):
        if not isinstance(call, dict):
            raise ChunkError("a tool call is not an object")
        function = call.get("function") or {}
        index = call.get("index", place)
        if not isinstance(function, dict) or not isinstance(index, int):
            raise ChunkError("a tool call has the wrong shape")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some servers send it parsed
            arguments = orjson.dumps(arguments).decode()
        yield ToolDelta(
            index,
            _text(call.get("id"), "tool_calls.id") or None,
            _text(function.get("name"), "tool_calls.name") or None,
            _text(arguments, "tool_calls.arguments"),
        )


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ChunkError(f"{where} is not text")
    return value


def _base64(data: str) -> bytes:
    try:
        return pybase64.b64decode(data, validate=True)
    except ValueError:
        raise ChunkError("audio is not base64") from None
