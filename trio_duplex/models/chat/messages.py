"""The conversation as it truly happened → ``messages`` of a chat request, newest first within bounds.  Pure.

A user's turn is its text and its sound; the assistant's is what was heard of it; a tool's result stands behind the
call it answers.  What a bound leaves out is left out as a whole message, oldest first; only the sound of an old turn
may go alone, when its words are known or something else of it remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import pybase64

from duplex_protocol.values import Json
from trio_duplex.models.plugin import HistoryEntry

__all__ = ["FORGOTTEN_SOUND", "HistoryBounds", "KnownCall", "build_messages"]

FORGOTTEN_SOUND: Final = "[an earlier spoken turn]"
"""Stands for an old turn without words whose sound is no longer sent, so that roles go on alternating."""
UNKNOWN_CALL: Final = "unknown"


@attrs.frozen
class KnownCall:
    """A tool call as the model made it: its function and its arguments (JSON text)."""

    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class HistoryBounds:
    """At most so many messages (a system message aside), sounds, and bytes of text and base64."""

    max_messages: int
    max_audios: int
    max_bytes: int


def build_messages(
    history: Sequence[HistoryEntry],
    *,
    instructions: str | None,
    calls: Mapping[str, KnownCall],
    bounds: HistoryBounds,
    audio_input: str,
) -> list[Json]:
    """The messages, oldest first. The newest group (a turn, or a call with its results) always stays, as it is.

    ``calls``: the tool calls by their id. ``audio_input``: ``input_audio``, ``audio_url`` or ``none``.
    """
    kept: list[list[Json]] = []
    messages = audios = size = 0
    for group in reversed(_groups(history)):
        sounds = 0 if audio_input == "none" else sum(entry.wav is not None for entry in group)
        keeps_sound = not kept or audios + sounds <= bounds.max_audios
        built = _build(group, calls, audio_input if keeps_sound else "none")
        bytes_more = _size(group, with_sound=keeps_sound and sounds > 0)
        if not built:
            continue
        full = messages + len(built) > bounds.max_messages or size + bytes_more > bounds.max_bytes
        if kept and full:
            break
        kept.append(built)
        messages += len(built)
        size += bytes_more
        audios += sounds if keeps_sound else 0
    result = [message for group in reversed(kept) for message in group]
    return [{"role": "system", "content": instructions}, *result] if instructions else result


def _groups(history: Iterable[HistoryEntry]) -> list[list[HistoryEntry]]:
    """Tool results that follow each other answer one assistant message; everything else stands alone."""
    groups: list[list[HistoryEntry]] = []
    for entry in history:
        if entry.role == "tool" and groups and groups[-1][-1].role == "tool":
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _build(group: list[HistoryEntry], calls: Mapping[str, KnownCall], audio_input: str) -> list[Json]:
    first = group[0]
    if first.role == "tool":
        return _tool_messages(group, calls)
    if first.role == "user":
        content = _user_content(first, audio_input)
        return [{"role": "user", "content": content}] if content else []
    return [{"role": first.role, "content": first.text}] if first.text else []


def _tool_messages(results: list[HistoryEntry], calls: Mapping[str, KnownCall]) -> list[Json]:
    """The assistant's calls and, behind them, their results: servers refuse the one without the other."""
    asked: list[Json] = []
    answered: list[Json] = []
    for result in results:
        call_id = result.call_id or result.item_id
        call = calls.get(call_id) or KnownCall(result.name or UNKNOWN_CALL, result.arguments or "{}")
        function = {"name": call.name, "arguments": call.arguments or "{}"}
        asked.append({"id": call_id, "type": "function", "function": function})
        answered.append({"role": "tool", "tool_call_id": call_id, "content": result.text})
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *answered]


def _user_content(entry: HistoryEntry, audio_input: str) -> str | list[Json]:
    """Plain text where there is no sound, because every server knows that form."""
    if entry.wav is None:
        return entry.text
    if audio_input == "none":
        return entry.text or FORGOTTEN_SOUND
    data = pybase64.b64encode(entry.wav).decode("ascii")
    if audio_input == "audio_url":
        sound: Json = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}}
    else:
        sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return [{"type": "text", "text": entry.text}, sound] if entry.text else [sound]


def _size(group: list[HistoryEntry], *, with_sound: bool) -> int:
    text = sum(len(entry.text.encode()) for entry in group)
    return text + (sum(len(entry.wav or b"") * 4 // 3 for entry in group) if with_sound else 0)
