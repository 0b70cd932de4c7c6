"""Thinking of an answer: what a brain is asked, what it says so far, and the brains there are.

The rules answer at once and may call tools.  An endpoint takes its time: its sentences are spoken while it goes on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Protocol

import attrs
import trio

from duplex_gpu.clauses import MAX_CHARS, split_clauses
from duplex_protocol.values import Json
from trio_duplex.models.demo import brain as rules
from trio_duplex.models.demo.tool_calls import ToolCall, ToolResult, choose_tool, spoken_results
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry

__all__ = ["Brain", "EndpointThinker", "Question", "RuleBrain", "Script", "Thought"]

ANSWER_AT_MOST: Final = 20_000
"""Characters; more is no spoken answer."""

_WORD: Final = re.compile(r"\S+")

TakeText = Callable[[str], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Question:
    """What is to be answered: ``text`` ("" asks for an opening line), of which ``history`` is what came before.

    ``results`` are those of tools that were called, and are what is to be answered if there are any.  ``max_words`` is
    the token limit of the answer, in what this model has for tokens; None: no limit.
    """

    text: str
    history: tuple[HistoryEntry, ...] = ()
    instructions: str | None = None
    tools: tuple[Json, ...] = ()
    tool_choice: Any = None
    results: tuple[ToolResult, ...] = ()
    max_words: int | None = None


class Brain(Protocol):
    """Thinks of answers."""

    def call(self, question: Question) -> ToolCall | None:
        """The tool to call instead of answering; decided at once."""
        ...

    async def think(self, question: Question, take: TakeText) -> None:
        """Hand the answer to ``take``, in pieces that join to it; each ends where a sentence does.

        Raises :class:`trio_duplex.models.plugin.GenerationFailed`; what was handed out before stays.
        Cancellation: stops at once.
        """
        ...


class RuleBrain:
    """:mod:`trio_duplex.models.demo.brain`, which needs no time at all, and its tools."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def call(self, question: Question) -> ToolCall | None:
        """See :func:`trio_duplex.models.demo.tool_calls.choose_tool`; a tool's result is said, not asked for again."""
        if question.results:
            return None
        return choose_tool(question.text, question.tools, question.tool_choice)

    async def think(self, question: Question, take: TakeText) -> None:
        """The whole answer in one piece, without a checkpoint of its own.  Cancellation: only by ``take``."""
        if question.results:
            await take(spoken_results(question.results))
        else:
            await take(rules.reply(question.text, question.history, self._clock(), question.instructions))


class Endpoint(Protocol):
    """What is needed of :class:`trio_duplex.models.chat.EndpointBrain`, which is imported where it is deployed."""

    async def think(
        self, text: str, history: tuple[HistoryEntry, ...], instructions: str | None, take: TakeText
    ) -> None:
        """See there.  Cancellation: stops at once."""
        ...


@attrs.define(eq=False)
class EndpointThinker:
    """A chat endpoint as a brain.  It gets and gives text only: tools are not offered to it.

    ``answers`` were asked for; ``failures`` of them failed in a row, the last one as ``last_failure`` says.
    """

    endpoint: Endpoint
    answers: int = 0
    failures: int = 0
    last_failure: str | None = None

    def call(self, question: Question) -> ToolCall | None:
        """Never."""
        return None

    async def think(self, question: Question, take: TakeText) -> None:
        """Sentence by sentence.  Raises ``chat_error``.  Cancellation: the HTTP stream is closed at once."""
        self.answers += 1
        try:
            await self.endpoint.think(question.text, question.history, question.instructions, take)
        except GenerationFailed as failure:
            self.failures += 1
            self.last_failure = failure.message
            raise
        self.failures = 0


@attrs.define(eq=False)
class Thought:
    """One answer in the making: :meth:`run` it in a nursery, read it with :meth:`piece` meanwhile or afterwards."""

    brain: Brain
    question: Question
    abandoned: bool = False
    """It was cancelled before its end; nobody can say it."""
    cut: bool = False
    """It would have had more words than it may have, and ends at the last that it may."""
    _pieces: list[str] = attrs.field(factory=list, repr=False)
    _length: int = 0
    _words: int = 0
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    _over: bool = False
    _failure: GenerationFailed | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event, repr=False)

    async def run(self) -> None:
        """Think, no further than to the limit.  A failure is told to those who read.  Cancellation: it is abandoned."""
        try:
            with self._scope:
                await self.brain.think(self.question, self._take)
            self._over = True
        except GenerationFailed as failure:
            self._failure = failure
            self._over = True
        finally:
            self.abandoned = not self._over
            self._changed.set()

    async def piece(self, number: int) -> str | None:
        """Piece ``number`` of the answer (from 0), None behind the last one.

        Raises what :meth:`run` failed with, behind the pieces before.  Cancellation: nothing is lost.
        """
        while number >= len(self._pieces):
            if self._failure is not None:
                raise GenerationFailed(self._failure.code, self._failure.message) from self._failure
            if self._over:
                return None
            if self.abandoned:
                raise GenerationFailed("engine_error", "the answer was abandoned")
            await self._changed.wait()
        return self._pieces[number]

    async def _take(self, text: str) -> None:
        """No checkpoint."""
        self._length += len(text)
        if self._length > ANSWER_AT_MOST:
            raise GenerationFailed("chat_error", "the answer has no end")
        text = self._within_limit(text)
        if text:
            self._pieces.append(text)
            self._changed.set()
            self._changed = trio.Event()

    def _within_limit(self, text: str) -> str:
        """As much of the next piece as the answer may have; the brain is stopped where that is not all."""
        if self.cut or self.question.max_words is None:
            return "" if self.cut else text
        ends = [word.end() for word in _WORD.finditer(text)]
        room = self.question.max_words - self._words
        self._words += len(ends)
        if len(ends) <= room:
            return text
        self.cut = self._over = True
        self._scope.cancel()
        self._changed.set()
        return text[: ends[room - 1]] if room else ""


class Script:
    """A thought as clauses to speak.  Texts join to the answer, but for an end that cannot be spoken: ``unspoken``."""

    def __init__(self, thought: Thought) -> None:
        self.thought = thought
        self.unspoken = ""
        self._next = 0
        self._clauses: deque[str] = deque()
        self._begun = False

    async def next(self) -> str | None:
        """The next clause as soon as its sentence is known, None behind the last.

        Raises :class:`trio_duplex.models.plugin.GenerationFailed`.  Cancellation: nothing is lost.
        """
        while not self._clauses:
            piece = await self.thought.piece(self._next)
            if piece is None:
                return None
            self._next += 1
            self.unspoken += piece
            self._clauses.extend(self._cut(self.unspoken))
            if self._clauses:
                self.unspoken = ""
                self._begun = True
        return self._clauses.popleft()

    def _cut(self, text: str) -> list[str]:
        """Only the very first clause is short for the sake of haste; a later sentence is cut where one breathes."""
        clauses = [clause.text for clause in split_clauses(text)]
        if self._begun and len(clauses) > 1:
            first, second, *rest = clauses
            if first.rstrip()[-1:].isalnum() and len(first) + len(second) <= MAX_CHARS:
                return [first + second, *rest]
        return clauses
