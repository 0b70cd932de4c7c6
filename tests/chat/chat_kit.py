"""A conversation with a chat backend through hub, session and dialect; no WebSocket. Real clock, everything bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pybase64
import trio

from duplex_protocol.dialect import Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from tests.chat.chat_server import ChatServer, Json
from tests.session.talk import Reader
from trio_duplex.hub import Hub
from trio_duplex.models.chat import ChatOptions, ChatPlugin
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings

PATIENCE_S = 10.0

WARY: Json = {"connect_timeout_s": 2.0, "first_event_timeout_s": 3.0, "stall_timeout_s": 3.0}


@attrs.define(eq=False)
class Chat:
    """One session of the chat lane and what its client has read."""

    hub: Hub
    plugin: ChatPlugin
    session: Session
    reader: Reader
    nursery: trio.Nursery

    def send(self, event: Json | str, **fields: Any) -> None:
        """One client event; a refusal becomes an error event, as behind a socket."""
        event = {"type": event, **fields} if isinstance(event, str) else event
        try:
            for command in self.session.dialect.decode(event):
                self.session.post(command)
        except RemoteProtocolError as error:
            self.session.post_refusal(error)

    def type(self, text: str, **item: Any) -> None:
        """A user's text item."""
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content, **item})

    def ask(self, text: str = "Hello?", **options: Any) -> None:
        """A text item and the wish for an answer."""
        self.type(text)
        self.send("response.create", **({"response": options} if options else {}))

    async def until(self, kind: str, count: int = 1) -> Json:
        """The event number ``count`` of this type."""
        with trio.fail_after(PATIENCE_S):
            return await self.reader.until(kind, count)

    async def answer(self, count: int = 1) -> Json:
        """The ``response.done`` number ``count``, when also what follows it was read."""
        done = await self.until("response.done", count)
        await self.until("rate_limits.updated", count)
        return done

    async def until_audio(self, count: int = 1) -> None:
        """Wait for audio deltas."""
        await self.until("response.output_audio.delta", count)

    @property
    def events(self) -> list[Json]:
        return self.reader.events

    def of(self, kind: str) -> list[Json]:
        return self.reader.of(kind)

    @property
    def audio(self) -> bytes:
        """All audio that was read."""
        return b"".join(pybase64.b64decode(e["delta"]) for e in self.of("response.output_audio.delta"))

    @property
    def transcript(self) -> str:
        """All transcript deltas that were read."""
        return "".join(e["delta"] for e in self.of("response.output_audio_transcript.delta"))


@asynccontextmanager
async def chatting(
    server: ChatServer | str, *, config: Json | None = None, view: str = "duplex", scorer: Any = None, **options: Any
) -> AsyncIterator[Chat]:
    """Open a hub with the chat plugin and one session. ``options`` are the plugin's."""
    url = server if isinstance(server, str) else server.url
    plugin = ChatPlugin(ChatOptions(**{"url": url, "model": "backend-model", "name": "chatty", **WARY, **options}))
    hub = Hub(plugin, SessionSettings(), id_seed=7, scorer=scorer)
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        dialect: Dialect = NativeDialect() if view == "native" else RealtimeDialect(view=view)  # type: ignore[arg-type]
        update = dialect.parse_open(config or {}, plugin.defaults)
        session = await hub.open_session(dialect, update, strict=view != "plain")
        reader = Reader(session.attach(0))
        nursery.start_soon(reader.run)
        yield Chat(hub, plugin, session, reader, nursery)
        nursery.cancel_scope.cancel()
