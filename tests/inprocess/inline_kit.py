"""Hubs in this process that remember what they said, and the conversation that most tests hold."""

from __future__ import annotations

from collections.abc import Callable

import trio

from duplex_protocol.values import Json
from trio_duplex.client import DuplexClient
from trio_duplex.client.inline import wire_copy
from trio_duplex.hub import Hub
from trio_duplex.inprocess import EmbeddedHub, Visit
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin, silence, speech

OPTIONS = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(5)], slots=2)


class RecordingVisit(Visit):
    """Keeps the session's events as the wire would have them."""

    log: list[Json]

    async def deliver(self, take: Callable[[Json], None]) -> None:
        def logged(frame: Json) -> None:
            self.log.append(wire_copy(frame))
            take(frame)

        await super().deliver(logged)


class RecordingHub(EmbeddedHub):
    """``logs`` holds one log for each session, in order of opening."""

    def __init__(
        self, plugin: ScriptedPlugin | None = None, settings: SessionSettings | None = None, *, seed: int = 0
    ) -> None:
        self.plugin = plugin or ScriptedPlugin(OPTIONS)
        self.inner = Hub(self.plugin, settings or SessionSettings(max_sessions=2), id_seed=seed)
        super().__init__(self.inner)
        self.logs: list[list[Json]] = []

    async def visit(self, opening: bytes) -> Visit | Json:
        found = await super().visit(opening)
        if isinstance(found, dict):
            return found
        visit = RecordingVisit(found.hub, found.session, found.attachment)
        visit.log = []
        self.logs.append(visit.log)
        return visit


async def ask(client: DuplexClient) -> None:
    """A short utterance and the silence after it."""
    await client.append_audio(speech(160))
    await client.append_audio(silence(512))


async def converse(client: DuplexClient) -> list[str]:
    """Ask, hear two pieces, ask into the answer, hear the second one out; what was said, answer by answer."""
    said: list[str] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            async for _ in client:
                pass

        nursery.start_soon(watch)
        await ask(client)
        async for response in client.responses():
            if response.decision == "listen":
                continue
            pieces = 0
            async for _ in response.audio():
                pieces += 1
                await client.ack_playback(response.played_ms, response_id=response.response_id)
                if pieces == 2 and not said:
                    await ask(client)
            await response.wait()
            said.append(response.transcript)
            if len(said) == 2:
                break
        nursery.cancel_scope.cancel()
    return said
