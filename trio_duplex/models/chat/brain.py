"""An OpenAI-compatible endpoint as the brain of the demo model: text in, text out, so that any LLM gets a voice."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from duplex_protocol.values import Json
from trio_duplex.models.chat.backend import CHAT_ERROR, Backend, open_client
from trio_duplex.models.chat.chunks import ChunkError, Finished, Text, read_chunk
from trio_duplex.models.chat.messages import HistoryBounds, build_messages
from trio_duplex.models.chat.options import BrainOptions
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry

__all__ = ["EndpointBrain", "Sentences"]

TakeText = Callable[[str], Awaitable[None]]


class EndpointBrain:
    """Thinks of answers at an endpoint. :meth:`run` has to be running."""

    def __init__(self, options: BrainOptions) -> None:
        self._options = options
        self._backend: Backend | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the HTTP client open. Cancellation: its connections are closed."""
        async with open_client(self._options) as client:
            self._backend = Backend(self._options, client)
            task_status.started()
            await trio.sleep_forever()

    async def think(self, text: str, history: Sequence[HistoryEntry], instructions: str | None, take: TakeText) -> None:
        """The answer to ``text``, of which ``history`` is what came before, handed to ``take`` sentence by sentence.

        Empty ``text`` asks for an answer to the history as it stands, or for an opening line. The pieces join to the
        answer. Raises :class:`GenerationFailed` ``chat_error``; sentences that were handed out before stay said.
        Cancellation: the HTTP stream is closed at once.
        """
        if self._backend is None:
            raise GenerationFailed(CHAT_ERROR, "the brain is not running")
        sentences = Sentences()

        async def chunk(data: bytes) -> bool:
            more = True
            try:
                parts = read_chunk(data)
            except ChunkError as error:
                raise GenerationFailed(CHAT_ERROR, f"the backend's answer cannot be read: {error}") from None
            for part in parts:
                if isinstance(part, Text):
                    for sentence in sentences.add(part.text):
                        await take(sentence)
                elif isinstance(part, Finished):
                    more = False
            return more

        await self._backend.ask(self._body(text, history, instructions), chunk)
        rest = sentences.finish()
        if rest:
            await take(rest)

    async def reply(self, text: str, history: Sequence[HistoryEntry], instructions: str | None = None) -> str:
        """The whole answer at once, "" for none; as :meth:`think` otherwise. Cancellation: as :meth:`think`."""
        said: list[str] = []

        async def keep(sentence: str) -> None:
            said.append(sentence)

        await self.think(text, history, instructions, keep)
        return "".join(said).strip()

    def _body(self, text: str, history: Sequence[HistoryEntry], instructions: str | None) -> Json:
        options = self._options
        entries = [*history, HistoryEntry("", "user", text)] if text else list(history)
        messages = build_messages(
            entries,
            instructions="\n\n".join(part for part in (options.style, instructions) if part),
            calls={},
            bounds=HistoryBounds(max_messages=options.max_messages, max_audios=1, max_bytes=options.max_bytes),
            audio_input="none",
        )
        body: Json = {**options.extra_body, "model": options.model, "messages": messages, "stream": True}
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.max_tokens is not None:
            body[options.max_tokens_field] = options.max_tokens
        return body


_SENTENCE_END: Final = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*|\n+")
_THOUGHT_BEGIN: Final = "<think>"
_THOUGHT_END: Final = "</think>"


class Sentences:
    """Text that arrives in any cut → whole sentences, as soon as the next one begins. Pure.

    Thoughts that a reasoning model writes between ``<think>`` and ``</think>`` are not said.
    """

    def __init__(self) -> None:
        self._raw = ""  # not yet known to be said or thought
        self._text = ""  # said, waiting for its sentence to end
        self._thinking = False

    def add(self, text: str) -> list[str]:
        """The sentences that are complete now."""
        self._raw += text
        self._sort()
        sentences: list[str] = []
        start = 0
        for end in _SENTENCE_END.finditer(self._text):
            sentence = self._text[start : end.end()]
            if any(character.isalnum() for character in sentence):
                sentences.append(sentence)
                start = end.end()
        self._text = self._text[start:]
        return sentences

    def finish(self) -> str:
        """What is left."""
        rest = self._text + ("" if self._thinking else self._raw)
        self._raw = self._text = ""
        return rest

    def _sort(self) -> None:
        """Move what is certain from ``_raw`` to ``_text``, or away."""
        while True:
            marker = _THOUGHT_END if self._thinking else _THOUGHT_BEGIN
            before, found, after = self._raw.partition(marker)
            if not found:
                begun = _begun(self._raw, marker)
                before, after = self._raw[: len(self._raw) - begun], self._raw[len(self._raw) - begun :]
            if not self._thinking:
                self._text += before
            self._raw = after
            if not found:
                return
            self._thinking = not self._thinking


def _begun(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
