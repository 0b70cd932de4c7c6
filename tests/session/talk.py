"""A conversation in memory for session tests: a hub, one session, and a reader of its journal. No sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import numpy as np
import orjson
import pybase64
import trio

from duplex_protocol.dialect import Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from trio_duplex.hub import Hub
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedOptions, ScriptedPlugin, ScriptedSession
from trio_duplex.testing.scripted_vad import ScriptedVad

Json = dict[str, Any]


def loud(ms: int, rate_hz: int = 16_000) -> bytes:
    """PCM16 that the scripted model takes for speech."""
    return square(ms, 8_000, rate_hz)


def quiet(ms: int, rate_hz: int = 16_000) -> bytes:
    """PCM16 silence."""
    return square(ms, 0, rate_hz)


def square(ms: int, amplitude: int, rate_hz: int) -> bytes:
    wave = np.full(rate_hz * ms // 1000, amplitude, "<i2")
    wave[1::2] *= -1
    return wave.tobytes()


def append(pcm: bytes, **fields: Any) -> Json:
    """An append event."""
    return {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(pcm).decode(), **fields}


@attrs.define(eq=False)
class Reader:
    """Reads one attachment as a client's socket would; ``events`` is everything read so far."""

    attachment: Attachment
    events: list[Json] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)
    paused: bool = False
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _go: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        for frame in self.attachment.prelude:
            self._note(frame)
        while True:
            while self.paused:
                self._go = trio.Event()
                await self._go.wait()
            try:
                data = await self.attachment.cursor.next()
            except trio.EndOfChannel:
                break
            self._note(data)
        if self.attachment.farewell is not None:
            self._note(self.attachment.farewell)
        self.ended.set()
        self._changed.set()

    def resume(self) -> None:
        self.paused = False
        self._go.set()

    def _note(self, data: bytes) -> None:
        self.events.append(orjson.loads(data))
        self._changed.set()

    @property
    def types(self) -> list[str]:
        return [e["type"] for e in self.events]

    def of(self, kind: str) -> list[Json]:
        return [e for e in self.events if e["type"] == kind]

    async def until(self, kind: str, count: int = 1) -> Json:
        """Wait until ``count`` events of this type were read; returns the last of them."""
        with trio.fail_after(600):
            while len(self.of(kind)) < count:
                if self.ended.is_set():
                    raise AssertionError(f"ended before {count} x {kind}; read {self.types}")
                self._changed = trio.Event()
                await self._changed.wait()
        return self.of(kind)[count - 1]

    async def until_total(self, count: int) -> None:
        """Wait until ``count`` events of any type were read."""
        with trio.fail_after(600):
            while len(self.events) < count:
                self._changed = trio.Event()
                await self._changed.wait()

    async def settle(self) -> None:
        """Let everything that can happen now happen."""
        await trio.testing.wait_all_tasks_blocked()


@attrs.define(eq=False)
class Talk:
    """One session under test."""

    hub: Hub
    session: Session
    model: ScriptedSession
    reader: Reader
    nursery: trio.Nursery

    def send(self, event: Json | str, **fields: Any) -> None:
        """Do what a connection's reader does with one client event."""
        event = {"type": event, **fields} if isinstance(event, str) else event
        try:
            for command in self.session.dialect.decode(event):
                self.session.post(command)
        except RemoteProtocolError as error:
            if error.code != "session_closed":
                self.session.post_refusal(error)

    def say(self, ms: int = 320) -> None:
        self.send(append(loud(ms)))

    def hush(self, ms: int = 640) -> None:
        self.send(append(quiet(ms)))

    def ask(self) -> None:
        """A whole utterance with its trailing silence: the model answers by itself."""
        self.say()
        self.hush()

    @property
    def events(self) -> list[Json]:
        return self.reader.events

    async def error(self, count: int = 1) -> Json:
        """The ``count``-th error's inner object."""
        error: Json = (await self.reader.until("error", count))["error"]
        return error

    async def settled(self) -> None:
        """Everything sent so far has been applied and read."""
        count = len(self.reader.of("session.heartbeat_ack"))
        self.send("session.heartbeat")
        await self.reader.until("session.heartbeat_ack", count + 1)

    def attach(self, after: int) -> Reader:
        reader = Reader(self.session.attach(after))
        self.nursery.start_soon(reader.run)
        return reader


AUTO: Json = {"extra_body": {"auto_response": True}}


@asynccontextmanager
async def talking(
    options: ScriptedOptions | None = None,
    *,
    config: Json | None = None,
    settings: SessionSettings | None = None,
    view: str = "duplex",
    scorer: ScriptedVad | None = None,
) -> AsyncIterator[Talk]:
    """Open a hub with the scripted model and one session; everything is torn down at the end.

    ``view`` "native" is the native dialect.
    """
    plugin = ScriptedPlugin(options or ScriptedOptions())
    hub = Hub(plugin, settings or SessionSettings(), id_seed=7, scorer=scorer)
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        dialect: Dialect = NativeDialect() if view == "native" else RealtimeDialect(view=view)  # type: ignore[arg-type]
        update = dialect.parse_open(AUTO if config is None else config, plugin.defaults)
        session = await hub.open_session(dialect, update, strict=view != "plain")
        reader = Reader(session.attach(0))
        nursery.start_soon(reader.run)
        yield Talk(hub, session, plugin.sessions[-1], reader, nursery)
        nursery.cancel_scope.cancel()


def check_log(events: list[Json]) -> None:
    """Invariants of any wire log of one undropped socket: numbering, brackets, terminals, pairing, epochs."""
    numbers = [e["server_event_seq"] for e in events if "server_event_seq" in e]
    assert numbers == list(range(1, len(numbers) + 1)), numbers
    assert len({e["event_id"] for e in events}) == len(events)
    opened: dict[str, Json] = {}
    finished: set[str] = set()
    for index, event in enumerate(events):
        kind = event["type"]
        response_id = event.get("response_id")
        if kind == "response.created":
            # A tool call is a response of its own beside the one that is being spoken (contract 19).
            spoken = {r for r, e in opened.items() if e["response"].get("modalities") != []}
            if event["response"].get("modalities") != []:
                assert not spoken - finished, "a second response while one is active"
            opened[response_id] = event
        elif kind == "response.done":
            assert response_id in opened
            assert response_id not in finished, "two terminals"
            finished.add(response_id)
            # The log may have been read no further than this.
            assert [e["type"] for e in events[index + 1 : index + 2]] in (["rate_limits.updated"], [])
        elif kind.startswith("response.output") or kind.startswith("response.content"):
            assert response_id in opened
            assert response_id not in finished, f"{kind} after the terminal"
        if kind == "response.output_audio.delta":
            assert events[index + 1]["type"] == "response.output_audio_transcript.delta"
            assert len(pybase64.b64decode(event["delta"])) % 2 == 0
    for response_id in finished:
        deltas = "".join(
            e["delta"]
            for e in events
            if e["type"] == "response.output_audio_transcript.delta" and e["response_id"] == response_id
        )
        done = [
            e["transcript"]
            for e in events
            if e["type"] == "response.output_audio_transcript.done" and e["response_id"] == response_id
        ]
        assert done == ([deltas] if deltas else [])
    terminals = [e for e in events if e["type"] in ("session.closed", "session.expired")]
    assert len(terminals) <= 1
    assert not terminals or events[-1] in (terminals[0],)
