"""A small real chat backend: an ASGI app on hypercorn's Trio worker that says what a test's script says."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import numpy as np
import orjson
import pybase64
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from trio_duplex.testing.scripted_model import square_wave

Json = dict[str, Any]
Send = Callable[[Json], Awaitable[None]]

CHUNKED = b"text/event-stream; charset=utf-8"


# --- what a script is made of ---------------------------------------------------------------------------------------


@attrs.frozen
class Sleep:
    """Say nothing for a while."""

    seconds: float


@attrs.frozen
class Stall:
    """Say nothing until the client hangs up."""


@attrs.frozen
class Cut:
    """Break the connection in the middle of the body."""


@attrs.frozen
class Head:
    """Another start of the response."""

    status: int = 200
    content_type: bytes = CHUNKED
    extra: tuple[tuple[bytes, bytes], ...] = ()


@attrs.frozen
class Raw:
    """Bytes as they are."""

    data: bytes


Step = Json | Sleep | Stall | Cut | Head | Raw
DONE = Raw(b"data: [DONE]\n\n")


def pcm(index: int, ms: int, rate_hz: int = 24_000) -> bytes:
    """PCM16 of the scripted square wave number ``index``."""
    return square_wave(index, ms, rate_hz).astype("<i2").tobytes()


def omni_text(text: str, finish: str | None = None) -> Json:
    """A text chunk of vLLM-Omni."""
    return {"modality": "text", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def omni_audio(
    data: bytes, rate_hz: int = 24_000, *, channels: int = 1, fmt: str = "pcm", finish: str | None = None, **wrong: Any
) -> Json:
    """An audio chunk of vLLM-Omni; ``wrong`` replaces (or, None, removes) fields of its metadata."""
    frames = len(data) // 2 // channels
    told: Json = {"format": fmt, "sample_rate_hz": rate_hz, "frame_count": frames, "channels": channels, **wrong}
    choice = {
        "index": 0,
        "delta": {"content": pybase64.b64encode(data).decode()},
        "audio_metadata": {k: v for k, v in told.items() if v is not None},
        "finish_reason": finish,
    }
    return {"modality": "audio", "choices": [choice], "usage": {"completion_tokens": 1}}


def openai_audio(data: bytes = b"", transcript: str | None = None, finish: str | None = None) -> Json:
    """An audio chunk of OpenAI."""
    audio: Json = {"id": "audio_1"}
    if data:
        audio["data"] = pybase64.b64encode(data).decode()
    if transcript is not None:
        audio["transcript"] = transcript
    return {"choices": [{"index": 0, "delta": {"audio": audio}, "finish_reason": finish}]}


def omni_answer(text: str = "Hello there.", ms: int = 400) -> list[Step]:
    """A whole answer of vLLM-Omni: all text first, then sound in two chunks, an empty delta between them."""
    empty: Json = {"modality": "audio", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]}
    return [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        *[omni_text(word) for word in text.replace(" ", " |").split("|")],
        omni_audio(pcm(0, ms // 2)),
        empty,
        omni_audio(pcm(1, ms // 2), finish="stop"),
        DONE,
    ]


def openai_answer(text: str = "Hello there.", ms: int = 400) -> list[Step]:
    """A whole answer of OpenAI: sound and transcript side by side, the end in a chunk of its own."""
    half = len(text) // 2
    return [
        openai_audio(transcript=text[:half]),
        openai_audio(pcm(0, ms // 2)),
        openai_audio(pcm(1, ms // 2), transcript=text[half:]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        DONE,
    ]


# --- the server -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class ChatServer:
    """Answers request number ``k`` with script ``k``, the last one again and again. ``url`` is the base of its API.

    ``requests`` are the bodies it got, ``headers`` their headers, ``clients`` where they came from. ``hung_up`` is set
    when a client closed an answer before its end; ``sent`` counts body bytes that the network took. ``stop`` ends it.
    """

    scripts: deque[Sequence[Step]] = attrs.field(factory=deque)
    url: str = ""
    requests: list[Json] = attrs.field(factory=list)
    headers: list[dict[str, str]] = attrs.field(factory=list)
    clients: list[tuple[str, int]] = attrs.field(factory=list)
    hung_up: trio.Event = attrs.field(factory=trio.Event)
    hung_up_s: float | None = None
    stalled: trio.Event = attrs.field(factory=trio.Event)
    finished: int = 0
    sent: int = 0
    stop: trio.Event = attrs.field(factory=trio.Event)
    stopped: trio.Event = attrs.field(factory=trio.Event)
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def plan(self, *scripts: Sequence[Step]) -> None:
        """Replace what comes next."""
        self.scripts = deque(scripts)

    async def until_requests(self, count: int) -> None:
        """Wait for the request number ``count``."""
        while len(self.requests) < count:
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def __call__(self, scope: Json, receive: Callable[[], Awaitable[Json]], send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        assert (scope["method"], scope["path"]) == ("POST", "/v1/chat/completions"), scope["path"]
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        self.clients.append(tuple(scope["client"]))
        self.requests.append(orjson.loads(body))
        self._arrived.set()
        script = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, receive, nursery.cancel_scope)
            await self._play(script, send)
            whole = True
            nursery.cancel_scope.cancel()
        if not whole:
            return
        # From here on the server itself ends the exchange, which it also calls a disconnect.
        await send({"type": "http.response.body", "body": b""})
        self.finished += 1

    async def _watch(self, receive: Callable[[], Awaitable[Json]], scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up_s = trio.current_time()
        self.hung_up.set()
        scope.cancel()

    async def _play(self, script: Sequence[Step], send: Send) -> None:
        steps = list(script)
        head = steps.pop(0) if steps and isinstance(steps[0], Head) else Head()
        assert isinstance(head, Head)
        headers = [(b"content-type", head.content_type), *head.extra]
        for step in steps[:1]:
            if isinstance(step, Stall):  # not even a head
                self.stalled.set()
                await trio.sleep_forever()
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        for step in steps:
            if isinstance(step, Sleep):
                await trio.sleep(step.seconds)
            elif isinstance(step, Stall):
                self.stalled.set()
                await trio.sleep_forever()
            elif isinstance(step, Cut):
                raise RuntimeError("the script cuts the stream here")
            else:
                data = step.data if isinstance(step, Raw) else b"data: " + orjson.dumps(step) + b"\n\n"
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self.sent += len(data)


@asynccontextmanager
async def chat_server(*scripts: Sequence[Step], port: int = 0) -> AsyncIterator[ChatServer]:
    """A server on the loopback address, on a free port or a given one, as long as the block lasts."""
    server = ChatServer(deque(scripts or [omni_answer()]))
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = logging.getLogger("tests.chat.server")
    config.graceful_timeout = 0.0
    serving = partial(serve, server, config, shutdown_trigger=server.stop.wait)  # type: ignore[arg-type]

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await serving(task_status=task_status)
        server.stopped.set()

    async with trio.open_nursery() as nursery:
        binds = await nursery.start(run)
        server.url = binds[0] + "/v1"
        yield server
        nursery.cancel_scope.cancel()


def silence(ms: int, rate_hz: int = 24_000) -> bytes:
    """PCM16 silence."""
    return np.zeros(rate_hz * ms // 1000, "<i2").tobytes()
