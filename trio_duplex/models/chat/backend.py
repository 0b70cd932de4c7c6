"""The HTTP stream of one answer: deadlines, faults, and a close that is immediate.

Every way in which a backend can let us down becomes one :class:`GenerationFailed` with code ``chat_error``; its text
names what happened and quotes nothing of a request or an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import orjson
import structlog
import trio

from duplex_protocol.values import Json
from trio_duplex.models.chat.options import Endpoint
from trio_duplex.models.chat.sse import SseReader, SseTooLong
from trio_duplex.models.plugin import GenerationFailed

__all__ = ["CHAT_ERROR", "Backend", "open_client"]

log = structlog.get_logger(__name__)

CHAT_ERROR: Final = "chat_error"
DONE: Final = b"[DONE]"
FAULT_BYTES: Final = 512
"""How much of a refusal is looked at, for the debug log."""
TRAILER_S: Final = 0.25
"""How long the end of an answer that is complete may take, so that its connection can be used again."""
KEEPALIVE_S: Final = 2.0
"""Shorter than the five seconds after which common servers close an idle connection, so that we never race them."""

Take = Callable[[bytes], Awaitable[bool]]
"""Takes the JSON of one chunk; false: the answer is complete."""


def open_client(endpoint: Endpoint) -> httpx.AsyncClient:
    """The HTTP client of one endpoint; use it as a context manager. The API key is in its headers only."""
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "User-Agent": "trio-duplex"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(None, connect=endpoint.connect_timeout_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEEPALIVE_S),
        trust_env=endpoint.trust_env,
        follow_redirects=False,
    )


class Backend:
    """One endpoint. ``failures`` counts answers that failed in a row, ``last_failure`` says how the last one did."""

    def __init__(self, endpoint: Endpoint, client: httpx.AsyncClient) -> None:
        self._endpoint = endpoint
        self._client = client
        self.answers = 0
        self.failures = 0
        self.last_failure: str | None = None

    async def ask(self, body: Json, take: Take) -> None:
        """Send one request and hand the JSON of its chunks to ``take``, in order, until it has enough.

        Time that ``take`` spends counts for no deadline, and nothing is read meanwhile. Raises
        :class:`GenerationFailed` ``chat_error``: not reachable, refused, too slow, cut, malformed or too long.
        Cancellation: the connection is closed before this returns, so that the backend stops at once.
        """
        self.answers += 1
        try:
            with _faults():
                await self._ask(body, take)
        except GenerationFailed as failure:
            self.failures += 1
            self.last_failure = failure.message
            raise
        self.failures = 0

    async def _ask(self, body: Json, take: Take) -> None:
        deadline_s = trio.current_time() + self._endpoint.first_event_timeout_s
        response: httpx.Response | None = None
        request = self._client.build_request(
            "POST",
            self._endpoint.completions_url,
            content=orjson.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        # When the whole server is cancelled the client may have been closed before this task's first step.
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.move_on_at(deadline_s):
            response = await self._client.send(request, stream=True)
        if response is None:
            raise GenerationFailed(CHAT_ERROR, "the backend did not begin to answer in time")
        blocks = response.aiter_raw()
        complete = False
        try:
            await self._check(response, blocks)
            if _media_type(response) == "text/event-stream":
                complete = await self._read_events(blocks, deadline_s, take)
            else:
                await take(await self._read_whole(blocks, deadline_s))
                complete = True
        finally:
            await _end(response, blocks, TRAILER_S if complete else 0.0)

    async def _check(self, response: httpx.Response, blocks: AsyncIterator[bytes]) -> None:
        """Raises for anything that is not an answer. Cancellation: nothing is lost."""
        if response.status_code != 200:
            with trio.move_on_after(TRAILER_S):
                said = (await anext(blocks, b""))[:FAULT_BYTES]
                log.debug("chat_backend_refusal", status=response.status_code, said=said.decode("utf-8", "replace"))
            raise GenerationFailed(CHAT_ERROR, f"the backend refused with HTTP status {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise GenerationFailed(CHAT_ERROR, "the backend compressed its answer although it was told not to")
        if _media_type(response) not in ("text/event-stream", "application/json"):
            raise GenerationFailed(CHAT_ERROR, "the backend's answer is neither an event stream nor JSON")

    async def _read_events(self, blocks: AsyncIterator[bytes], deadline_s: float, take: Take) -> bool:
        """Read until ``[DONE]`` or until ``take`` has enough; true when the answer came to its end.

        Cancellation: stops reading.
        """
        reader = SseReader(self._endpoint.max_event_bytes)
        first = True
        enough = False
        while True:
            block: bytes | None = b""
            with trio.move_on_at(deadline_s) as waiting:
                block = await anext(blocks, None)
            if waiting.cancelled_caught:
                raise GenerationFailed(CHAT_ERROR, "the backend " + ("did not begin to answer" if first else "stalled"))
            if block is None:
                if enough:  # some servers end without a [DONE]
                    return True
                raise GenerationFailed(CHAT_ERROR, "the backend's answer was cut short")
            try:
                events = reader.feed(block)
            except SseTooLong as error:
                raise GenerationFailed(CHAT_ERROR, f"the backend's answer cannot be read: {error}") from None
            for event in events:
                if event.strip() == DONE:
                    return True
                enough = not await take(event) or enough
            if events:
                first = False
                deadline_s = trio.current_time() + self._endpoint.stall_timeout_s

    async def _read_whole(self, blocks: AsyncIterator[bytes], deadline_s: float) -> bytes:
        """An answer that came without streaming. Cancellation: stops reading."""
        body = bytearray()
        with trio.move_on_at(deadline_s) as waiting:
            async for block in blocks:
                body += block
                if len(body) > self._endpoint.max_event_bytes:
                    raise GenerationFailed(CHAT_ERROR, "the backend's answer is too long")
        if waiting.cancelled_caught:
            raise GenerationFailed(CHAT_ERROR, "the backend stalled")
        return bytes(body)


def _media_type(response: httpx.Response) -> str:
    content_type: str = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower()


async def _end(response: httpx.Response, blocks: AsyncIterator[bytes], grace_s: float) -> None:
    """Leave the stream: read its end within ``grace_s``, or close the connection.

    The library reads through a chain of async generators, which finish by reaching their end or by an exception from
    within, and complain when they are dropped half-way. Going on to read in a scope that is cancelled does it right:
    the chain unwinds from its innermost wait, which closes the connection. Cancellation: the same, at once.
    """
    try:
        with trio.move_on_after(grace_s):
            async for _ in blocks:
                pass
    except httpx.HTTPError:
        pass  # the connection broke while it was being left
    finally:
        with trio.CancelScope(deadline=trio.current_time() + TRAILER_S, shield=True):
            await response.aclose()


@contextmanager
def _faults() -> Iterator[None]:
    """The library's errors as ours; they may hold addresses, so their text is not passed on."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise GenerationFailed(CHAT_ERROR, "the backend could not be reached in time") from error
    except (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
        raise GenerationFailed(CHAT_ERROR, "the backend cannot be reached") from error
    except httpx.TransportError as error:
        raise GenerationFailed(CHAT_ERROR, "the connection to the backend broke") from error
    except httpx.HTTPError as error:
        raise GenerationFailed(CHAT_ERROR, "the backend does not speak HTTP as it should") from error
