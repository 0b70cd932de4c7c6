"""The chat lane against a backend in memory: a scripted HTTP stream on Trio's clock, counted while it is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import attrs
import httpx
import orjson
import pybase64
import trio

from duplex_protocol.values import Json
from trio_duplex.models.chat import ChatOptions, ChatPlugin
from trio_duplex.models.chat.backend import Backend
from trio_duplex.testing.scripted_model import square_wave

__all__ = ["MemoryChatPlugin", "ScriptedBackend", "spoken_chunks"]

Chunks = Sequence[Json | float]
"""Chunks of one streamed answer; a number is a pause in seconds."""


def spoken_chunks(words: Sequence[str], *, ms: int = 200, pause_s: float = 0.1) -> Chunks:
    """An answer of OpenAI's shape: each word with its sound, ``ms`` long, and a pause after each."""
    chunks: list[Json | float] = []
    for index, word in enumerate(words):
        audio = {"data": pybase64.b64encode(square_wave(index, ms, 24_000).tobytes()).decode(), "transcript": word}
        chunks += [{"choices": [{"index": 0, "delta": {"audio": audio}, "finish_reason": None}]}, pause_s]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return chunks


@attrs.define(eq=False)
class _Stream(httpx.AsyncByteStream):
    backend: ScriptedBackend
    chunks: Chunks
    closed: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, int | float):
                await trio.sleep(chunk)
            else:
                yield b"data: " + orjson.dumps(chunk) + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        """The answer is not read any further. Cancellation: it is closed before the one checkpoint."""
        if not self.closed:
            self.closed = True
            self.backend.open_streams -= 1
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class ScriptedBackend(httpx.AsyncBaseTransport):
    """Answers every request with ``script(body)``; ``open_streams`` counts answers that are not closed yet."""

    script: Callable[[Json], Chunks]
    requests: list[Json] = attrs.field(factory=list)
    open_streams: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The beginning of an answer. Cancellation: none was begun."""
        body = orjson.loads(request.content)
        await trio.lowlevel.checkpoint()
        self.requests.append(body)
        self.open_streams += 1
        stream = _Stream(self, self.script(body))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


class MemoryChatPlugin(ChatPlugin):
    """The chat lane's plugin with a :class:`ScriptedBackend` in place of the network."""

    def __init__(self, script: Callable[[Json], Chunks]) -> None:
        super().__init__(ChatOptions(url="http://memory/v1", model="chat"))
        self.backend = ScriptedBackend(script)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the client open. Cancellation: its answers are closed."""
        async with httpx.AsyncClient(transport=self.backend) as client:
            self._backend = Backend(self._options, client)
            task_status.started()
            await trio.sleep_forever()

    def leaks(self) -> dict[str, int]:
        """What is still held: HTTP streams and sessions."""
        return {"http streams": self.backend.open_streams, "model sessions": len(self._sessions)}
