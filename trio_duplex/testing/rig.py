"""A whole system in memory: hub, scripted model, sockets, clients; what it takes is counted when it is put away.

async with open_rig() as rig:
    async with rig.client() as client:
        await client.append_audio(speech(320))
        ...
# here: every slot is back, no task is left, every log kept the promises – or BrokenPromises was raised
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlencode

import attrs
import numpy as np
import orjson
import trio

from duplex_protocol.dialect import ConfigUpdate, Dialect
from duplex_protocol.values import Json
from trio_duplex.client import AudioFormat, DuplexClient, ReconnectPolicy, SessionConfig
from trio_duplex.hub import Hub
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import NativeHandshake, RealtimeHandshake
from trio_duplex.server.socket import SocketLike
from trio_duplex.session.core import Session
from trio_duplex.session.journal import CursorAhead, JournalGap
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing.history import Merged, Violation, check_history, merge_logs
from trio_duplex.testing.scripted_model import ScriptedOptions, ScriptedPlugin
from trio_duplex.testing.sockets import Faults, MemoryClientSocket, MemoryNetwork
from trio_duplex.testing.truth import check_model_side, check_replies, check_sockets
from trio_duplex.vad_scorer import VadScorer

__all__ = ["BrokenPromises", "Rig", "RiggedHub", "open_rig", "silence", "speech"]

URL = "ws://memory/v1/realtime"

STOP_TIMEOUT_S = 60.0
"""Virtual seconds that a hub may take to stop; the real bound is ``hub.SHUTDOWN_TIMEOUT_S`` and the clean-up's."""

CLIENT_PATIENCE_S = 5.0
"""Virtual seconds after the stop for which clients may stay connected."""

LOUD = 8_000


class BrokenPromises(AssertionError):
    """What a rig found when it was put away: ``violations`` with the log they point into, or without."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("\n".join(str(v) for v in violations))
        self.violations = tuple(violations)


def speech(ms: int, rate_hz: int = 16_000) -> bytes:
    """PCM16 that the scripted model takes for speech: a square wave of 250 Hz, which survives resampling."""
    period = np.repeat(np.array([LOUD, -LOUD], "<i2"), rate_hz // 500)
    return bytes(np.resize(period, rate_hz * ms // 1000).tobytes())


def silence(ms: int, rate_hz: int = 16_000) -> bytes:
    """PCM16 zeros."""
    return bytes(rate_hz * ms // 1000 * 2)


@runtime_checkable
class CountsLeaks(Protocol):
    """A plugin that can count what it still holds for sessions."""

    def leaks(self) -> dict[str, int]:
        """Name of a resource → how many are held."""
        ...


class RiggedHub(Hub):
    """A hub that remembers every session it opened, also after its end."""

    def __init__(
        self, plugin: ModelPlugin, settings: SessionSettings, *, id_seed: int, scorer: VadScorer | None = None
    ) -> None:
        super().__init__(plugin, settings, id_seed=id_seed, scorer=scorer)
        self.every_session: list[Session] = []

    async def open_session(
        self, dialect: Dialect, update: ConfigUpdate, *, opened_by_update: bool = True, strict: bool = True
    ) -> Session:
        """See :class:`Hub`."""
        session = await super().open_session(dialect, update, opened_by_update=opened_by_update, strict=strict)
        self.every_session.append(session)
        return session

    def _gone(self, session: Session) -> None:
        """Its journal stays as it is: what no socket took is read when the run is judged."""


@attrs.define(eq=False)
class Rig:
    """The parts, and the ways in. Made by :func:`open_rig`. ``hub_scope``: cancelling it is the death of the hub."""

    hub: RiggedHub
    network: MemoryNetwork
    seed: int
    hub_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    clients: list[DuplexClient] = attrs.field(factory=list)
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def plugin(self) -> ScriptedPlugin:
        """The scripted model. Raises TypeError when the rig runs another one."""
        if not isinstance(self.hub.plugin, ScriptedPlugin):
            raise TypeError(f"this rig runs {self.hub.plugin.name}, not a scripted model")
        return self.hub.plugin

    def client(self, config: SessionConfig | None = None, **options: Any) -> DuplexClient:
        """A client to enter with ``async with``; it resumes by itself. ``options`` are those of ``DuplexClient``."""
        if config is None:
            config = self.config()
        options.setdefault("reconnect", ReconnectPolicy(uniform=self._random.uniform))
        client = DuplexClient(URL, model=self.hub.plugin.name, config=config, connect=self.network.transport, **options)
        self.clients.append(client)
        return client

    def config(self, **fields: Any) -> SessionConfig:
        """A client's configuration at the model's own rates; ``fields`` are those of ``SessionConfig``."""
        unit = self.hub.plugin.unit
        return SessionConfig(
            input_audio=AudioFormat("pcm16", unit.input_rate_hz),
            output_audio=AudioFormat("pcm16", unit.output_rate_hz),
            **fields,
        )

    async def connect(self, path: str = "/v1/realtime", **query: str) -> MemoryClientSocket:
        """A bare socket, for tests that speak the wire themselves. Raises and cancels as the network's ``connect``."""
        return await self.network.connect(f"ws://memory{path}?{urlencode(query)}")

    def drop(self) -> None:
        """Break every connection that lives now, without a word."""
        for socket in self.network.sockets:
            socket.drop()

    def log(self, session: Session) -> Merged:
        """The session's whole log: what its sockets carried, and what its journal still holds for the next one."""
        merged = merge_logs([s.received for s in self.network.sockets if _belongs(s.received, session)])
        last = merged.log[-1]["server_event_seq"] if merged.log else 0
        rest: list[Json] = []
        try:
            cursor = session.journal.cursor(last)
        except (JournalGap, CursorAhead):
            return merged
        while True:
            try:
                data = cursor.next_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            rest.append(orjson.loads(data))
        cursor.stop()
        return Merged(merged.log + rest, merged.violations)

    def sent(self, session: Session) -> list[Json]:
        """What clients sent on this session's sockets, in order."""
        return [e for s in self.network.sockets if _belongs(s.received, session) for e in s.sent]

    def check(self, *, undisturbed: bool = False) -> list[Violation]:
        """Every promise about every session so far: wire log and model side. Ended sessions must be complete.

        ``undisturbed``: nothing was cancelled, refused or lost, so that all input must have been used and every
        command answered.
        """
        problems: list[Violation] = []
        models = self.plugin.sessions if isinstance(self.hub.plugin, ScriptedPlugin) else []
        by_id = {(m.context.session_id): m for m in models}
        for session in self.hub.every_session:
            merged = self.log(session)
            sent = self.sent(session)
            problems += merged.violations
            problems += check_sockets(
                [(s.sent, s.received) for s in self.network.sockets if _belongs(s.received, session)]
            )
            complete = session.ended.is_set() and not session.gave_up
            complete = complete and session.strict and _whole(session, merged.log)
            problems += check_history(merged.log, complete=complete)
            if undisturbed:
                problems += check_replies(sent, merged.log)
            if session.strict and session.id in by_id:
                problems += check_model_side(by_id[session.id], merged.log, sent=sent, undisturbed=undisturbed)
        return problems

    def conserved(self) -> list[Violation]:
        """What must be as at the beginning once the hub has stopped: slots, sessions, connections."""
        sessions = self.hub.every_session
        facts = {
            "sessions": (self.hub.statistics().sessions, "sessions are still in the directory"),
            "connections": (self.network.serving, "connections are still served"),
            "journals": (sum(not s.journal.closed for s in sessions), "journals are still open"),
            "ends": (sum(not s.ended.is_set() for s in sessions), "sessions never ended"),
            "epoch_tasks": (sum(s.epoch.tasks for s in sessions), "tasks live in ended epochs"),
        }
        plugin = self.hub.plugin
        if isinstance(plugin, ScriptedPlugin):
            facts["slots"] = (plugin.options.slots - plugin.open_slots, "slots of the model are still taken")
            facts["model_sessions"] = (sum(not m.closed for m in plugin.sessions), "model sessions were never closed")
        if isinstance(plugin, CountsLeaks):
            facts |= {name.replace(" ", "_"): (n, f"{name} are still held") for name, n in plugin.leaks().items()}
        return [Violation(f"conserved_{name}", (), f"{n} {text}") for name, (n, text) in facts.items() if n]


def _whole(session: Session, log: Sequence[Json]) -> bool:
    """Whether a log reaches to the session's end: nothing of it was forgotten by age or by overflow."""
    last = log[-1]["server_event_seq"] if log else 0
    return bool(last == session.journal.head and not session.journal.statistics().pending)


def _belongs(received: Sequence[Json], session: Session) -> bool:
    """Whether a socket carried this session: by the event that announced it there."""
    for event in received:
        if event.get("type") == "session.created":
            named = event["session"].get("id")
            incarnation = event.get("incarnation", event["session"].get("incarnation", session.incarnation))
        elif event.get("type") == "session.resumed":
            named, incarnation = event.get("session_id"), event.get("incarnation")
        else:
            continue
        return bool(named == session.id and incarnation == session.incarnation)
    return False


@asynccontextmanager
async def open_rig(
    options: ScriptedOptions | None = None,
    *,
    settings: SessionSettings | None = None,
    faults: Sequence[Faults] = (),
    seed: int = 0,
    check: bool = True,
    plugin: ModelPlugin | None = None,
    scorer: VadScorer | None = None,
) -> AsyncIterator[Rig]:
    """Open a hub with a scripted model and a network in memory; on leaving, stop it and count.

    ``plugin`` replaces the scripted model; ``scorer`` is the hub's speech detector.

    ``seed`` makes ids, tokens and the clients' patience reproducible (for the order of tasks see
    :func:`trio_duplex.testing.schedule.seeded_schedule`). Raises :class:`BrokenPromises` on leaving, unless ``check``
    is false or the body raised something itself. Cancellation: everything is stopped and counted all the same, in a
    shielded scope bounded by the hub's own limits.
    """
    plugin = plugin or ScriptedPlugin(options or ScriptedOptions())
    hub = RiggedHub(plugin, settings or SessionSettings(), id_seed=seed, scorer=scorer)
    problems: list[Violation] = []

    async def endpoint(socket: SocketLike) -> None:
        handshake = NativeHandshake if socket.path == "/v1/duplex" else RealtimeHandshake
        await Connection(socket, hub, handshake).run()

    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(endpoint, nursery, faults=faults)
        rig = Rig(hub, network, seed)
        stopped = trio.Event()

        async def run_hub(task_status: trio.TaskStatus[None]) -> None:
            try:
                with rig.hub_scope:
                    await hub.run(task_status)
            finally:
                stopped.set()

        await nursery.start(run_hub, name="hub")
        try:
            yield rig
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S) as scope:
                hub.stop()
                await stopped.wait()
                network.going_away.set()
                await _connections_gone(network)
            if scope.cancelled_caught:
                problems.append(Violation("stops_in_time", (), f"still busy {STOP_TIMEOUT_S} s after the stop"))
                problems += [
                    Violation("conserved_tasks", (), f"{task.name} is still running") for task in nursery.child_tasks
                ]
                nursery.cancel_scope.cancel()
    problems += rig.check() + rig.conserved()
    if problems and check:
        raise BrokenPromises(problems)


async def _connections_gone(network: MemoryNetwork) -> None:
    """Wait until every served connection has ended; clients that stayed are dropped after a moment."""
    with trio.move_on_after(CLIENT_PATIENCE_S):
        await network.idle()
        return
    for socket in network.sockets:
        socket.drop()
    await network.idle()
