"""Reading the conversation's history: what was asked, and what came before it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trio_duplex.models.demo.tool_calls import ToolResult
from trio_duplex.models.plugin import HistoryEntry, Turn

__all__ = ["last_words", "tool_results", "without_turns"]

History = tuple[HistoryEntry, ...]


def last_words(history: History) -> tuple[str, History]:
    """What the user said last ("" for nothing yet), and what came before it."""
    for index in range(len(history) - 1, -1, -1):
        if history[index].role == "user" and history[index].text.strip():
            return history[index].text, history[:index]
    return "", history


def without_turns(history: History, turns: Sequence[Turn]) -> History:
    """``history`` without the entries of the turns that are being answered."""
    own = {turn.item_id for turn in turns if turn.item_id is not None}
    return tuple(entry for entry in history if entry.item_id not in own)


def tool_results(history: History, called: Mapping[str, str]) -> tuple[ToolResult, ...]:
    """The results with which ``history`` ends, oldest first; ``called`` knows the tools by their call ids."""
    end = len(history)
    begin = end
    while begin and history[begin - 1].role == "tool":
        begin -= 1
    return tuple(ToolResult(called.get(entry.call_id or "", entry.name), entry.text) for entry in history[begin:end])
