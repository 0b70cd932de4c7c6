"""One session as a person has it: a client with a live microphone and a loudspeaker, and a log of all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from trio_duplex.client import DuplexClient, DuplexSessionClosedError, SessionConfig, WebSocketConnector
from trio_duplex.client.errors import unwrapped
from trio_duplex.showcase.event_log import Entry, EventLog, tapped
from trio_duplex.showcase.microphone import Microphone
from trio_duplex.showcase.speaker import Speaker

__all__ = ["Conversation", "converse"]

T = TypeVar("T")


@attrs.frozen
class Conversation:
    """What a story has in its hands while the microphone streams and the loudspeaker plays."""

    client: DuplexClient
    log: EventLog
    microphone: Microphone
    speaker: Speaker

    async def first_audio(self, *, within_s: float, after: int = 0) -> Entry:
        """The first audio of the next answer. Raises :class:`Missing`. Cancellation: only stops waiting."""
        return await self.log.expect(
            lambda e: e.type == "response.output_audio.delta",
            what="the first audio of an answer",
            within_s=within_s,
            after=after,
        )

    async def done(self, response_id: str, *, within_s: float) -> Entry:
        """The terminal event of a response. Raises :class:`Missing`. Cancellation: only stops waiting."""
        return await self.log.expect(
            lambda e: e.type == "response.done" and e.event.get("response_id") == response_id,
            what=f"response.done of {response_id}",
            within_s=within_s,
        )


async def converse(
    url: str,
    log: EventLog,
    story: Callable[[Conversation], Awaitable[T]],
    *,
    model: str,
    config: SessionConfig | None = None,
    connector: WebSocketConnector | None = None,
) -> T:
    """Open a session, let ``story`` happen, close the session in good order; returns what the story returned.

    ``connector`` has the headers and TLS settings of the connection.

    Raises what the story raises and every :class:`trio_duplex.client.DuplexClientError`. Cancellation: the session is
    closed in a short shielded moment.
    """
    with unwrapped():
        async with trio.open_nursery() as wire:
            connect = tapped(log, wire, connector=connector)
            client = DuplexClient(url, model=model, config=config, reconnect=None, connect=connect)
            async with client:
                result = await _live(client, log, story)
            wire.cancel_scope.cancel()
    return result


async def _watch_end(talk: Conversation) -> None:
    """Raise :class:`DuplexSessionClosedError` if the session ends under the story. Cancellation: stops watching."""
    async for _ in talk.client.events():
        pass
    closed = talk.log.find(lambda e: e.type == "session.closed")
    raise DuplexSessionClosedError(str(closed.event.get("reason")) if closed is not None else "no reason given")


async def _live(client: DuplexClient, log: EventLog, story: Callable[[Conversation], Awaitable[T]]) -> T:
    """The story, with microphone and loudspeaker running beside it."""
    rate_hz = client.config.input_audio.sample_rate_hz
    talk = Conversation(client, log, Microphone(client, log, rate_hz), Speaker(client, log))
    with unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_end, talk)
            nursery.start_soon(talk.microphone.run)
            nursery.start_soon(talk.speaker.run)
            result = await story(talk)
            nursery.cancel_scope.cancel()
    return result
