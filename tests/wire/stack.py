"""The whole stack for wire tests: sockets in memory, handshake, connection, hub, session, dialect; only the model is
scripted. Time is Trio's clock.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import attrs
import numpy as np
import pybase64
import trio

from trio_duplex.hub import Hub
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import NativeHandshake, RealtimeHandshake
from trio_duplex.server.socket import SocketGone, SocketLike
from trio_duplex.session.core import Session
from trio_duplex.session.ids import IdSource
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Faults, MemoryClientSocket, MemoryNetwork, ScriptedOptions, ScriptedPlugin
from trio_duplex.testing.scripted_model import ScriptedSession
from trio_duplex.vad_scorer import VadScorer

Json = dict[str, Any]

PATIENCE_S = 900.0
AUTO: Json = {"extra_body": {"auto_response": True}}


def wave(ms: float, amplitude: int = 8_000, rate_hz: int = 16_000) -> bytes:
    """PCM16 of a tone that every energy judge takes for speech (250 Hz survives resampling); amplitude 0 is silence."""
    samples = int(rate_hz * ms / 1000)
    period = np.repeat(np.array([amplitude, -amplitude], "<i2"), rate_hz // 500)
    return np.resize(period, samples).tobytes()


def floats(ms: float, amplitude: int = 8_000, rate_hz: int = 16_000) -> bytes:
    """The same as 32-bit floats."""
    return (np.frombuffer(wave(ms, amplitude, rate_hz), "<i2") / 32_768).astype("<f4").tobytes()


def b64(data: bytes) -> str:
    return pybase64.b64encode(data).decode()


def append(ms: float = 320, amplitude: int = 8_000, rate_hz: int = 16_000, **fields: Any) -> Json:
    """An append event of PCM16."""
    return {"type": "input_audio_buffer.append", "audio": b64(wave(ms, amplitude, rate_hz)), **fields}


class ReadableIds(IdSource):
    """Ids that can be written down in examples: ``resp_01``, ``item_01``, ``rt_01`` …"""

    def __init__(self) -> None:
        super().__init__(0)
        self._counts: dict[str, itertools.count[int]] = {}

    def _next(self, kind: str) -> str:
        return f"{kind}_{next(self._counts.setdefault(kind, itertools.count(1))):02d}"

    def session(self) -> str:
        return self._next("sess_demo")

    def item(self) -> str:
        return self._next("item")

    def response(self) -> str:
        return self._next("resp")

    def resume_token(self) -> str:
        return self._next("rt")


@attrs.define(eq=False)
class Wire:
    """One client socket with a reader of its own; ``events`` is everything received."""

    socket: MemoryClientSocket
    ended: trio.Event = attrs.field(factory=trio.Event)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        try:
            while True:
                await self.socket.receive()
                self._wake()
        except SocketGone:
            self.ended.set()
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def send(self, event: Json | str, **fields: Any) -> None:
        await self.socket.send({"type": event, **fields} if isinstance(event, str) else event)

    async def send_raw(self, text: str | bytes) -> None:
        await self.socket.send(text)

    @property
    def events(self) -> list[Json]:
        return self.socket.received

    @property
    def types(self) -> list[str]:
        return [e["type"] for e in self.events]

    def of(self, kind: str) -> list[Json]:
        return [e for e in self.events if e["type"] == kind]

    async def when(self, true: Callable[[], bool], what: str) -> None:
        """Wait until a condition on ``events`` holds."""
        with trio.move_on_after(PATIENCE_S):
            while not true():
                if self.ended.is_set():
                    raise AssertionError(f"the socket ended before {what}; read {self.types}")
                await self._changed.wait()
            return
        raise AssertionError(f"no {what} in {PATIENCE_S} s; read {self.types}")

    async def until(self, kind: str, count: int = 1) -> Json:
        await self.when(lambda: len(self.of(kind)) >= count, f"{count} x {kind}")
        return self.of(kind)[count - 1]

    async def error(self, count: int = 1) -> Json:
        """The ``count``-th error's inner object."""
        error: Json = (await self.until("error", count))["error"]
        return error

    async def settled(self) -> None:
        """Everything sent so far has been applied and read."""
        count = len(self.of("session.heartbeat_ack"))
        await self.send("session.heartbeat")
        await self.until("session.heartbeat_ack", count + 1)

    async def over(self) -> SocketGone:
        """Wait until the socket ended; how it ended."""
        with trio.fail_after(PATIENCE_S):
            await self.ended.wait()
        assert self.socket.ended is not None
        return self.socket.ended


@attrs.define(eq=False)
class Stack:
    """The server and its clients. ``headers`` and ``offered`` are those of connections made from now on."""

    hub: Hub
    plugin: ScriptedPlugin
    network: MemoryNetwork
    nursery: trio.Nursery
    headers: dict[str, str] = attrs.field(factory=dict)
    offered: tuple[str, ...] = ("realtime",)

    async def connect(self, path: str = "/v1/realtime", **query: Any) -> Wire:
        wire = Wire(await self.network.connect(f"ws://memory{path}?{urlencode(query)}"))
        self.nursery.start_soon(wire.run)
        return wire

    async def duplex(self, session: Json | None = None, **query: Any) -> Wire:
        """A duplex-view client whose opening ``session.update`` was answered."""
        wire = await self.connect(duplex=1, **query)
        await wire.send({"type": "session.update", "session": AUTO if session is None else session})
        await wire.until("session.updated")
        return wire

    async def plain(self, session: Json | None = None, **query: Any) -> Wire:
        """A plain-view client: autostarted, then maybe configured."""
        wire = await self.connect(model=self.plugin.name, **query)
        await wire.until("session.created")
        if session is not None:
            await wire.send({"type": "session.update", "session": {"type": "realtime", **session}})
            await wire.until("session.updated")
        return wire

    async def native(self, session: Json | None = None) -> Wire:
        wire = await self.connect("/v1/duplex")
        await wire.send({"type": "session.create", "session": {} if session is None else session})
        await wire.until("session.created")
        return wire

    @property
    def model(self) -> ScriptedSession:
        """The newest model session."""
        return self.plugin.sessions[-1]

    @property
    def session(self) -> Session:
        """The newest live session."""
        session = self.hub.session(self.model.context.session_id)
        assert session is not None
        return session


@asynccontextmanager
async def open_stack(
    model: ScriptedPlugin | ScriptedOptions | None = None,
    *,
    settings: SessionSettings | None = None,
    scorer: VadScorer | None = None,
    ids: IdSource | None = None,
    faults: tuple[Faults, ...] = (),
) -> AsyncIterator[Stack]:
    """Start a server in memory; everything is torn down at the end."""
    plugin = model if isinstance(model, ScriptedPlugin) else ScriptedPlugin(model or ScriptedOptions())
    hub = Hub(plugin, settings or SessionSettings(), id_seed=7, scorer=scorer)
    if ids is not None:
        hub.ids = ids

    async def endpoint(socket: SocketLike) -> None:
        socket.headers = stack.headers  # type: ignore[misc]
        socket.subprotocols = stack.offered  # type: ignore[misc]
        handshake = NativeHandshake if socket.path == "/v1/duplex" else RealtimeHandshake
        await Connection(socket, hub, handshake).run()

    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        stack = Stack(hub, plugin, MemoryNetwork(endpoint, nursery, faults=faults), nursery)
        yield stack
        nursery.cancel_scope.cancel()
