"""What went over the wire of one conversation, in both directions, with times; and a transport that fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import orjson
import trio

from trio_duplex.client import ConnectFactory, WebSocketConnector, WebSocketTransport

__all__ = ["Entry", "EventLog", "Missing", "tapped"]

Side = Literal["client", "server", "local"]
Json = dict[str, Any]

AUDIO_KEYS: Final = ("audio", "delta")
SHOWN_CHARS: Final = 16
LONG_CHARS: Final = 200
"""Base64 longer than this is audio; a text delta never is."""


class Missing(Exception):
    """What a conversation waited for did not come; the message says what, in one line."""


@attrs.frozen
class Entry:
    """One event: who sent it, and when it was handed to or taken from the socket (``trio.current_time()`` seconds).

    Side ``local`` is what happened beside the wire: somebody began to speak, the loudspeaker stopped.
    """

    at_s: float
    side: Side
    event: Json = attrs.field(repr=False)

    @property
    def type(self) -> str:
        """The event's type, "" when it has none."""
        kind = self.event.get("type")
        return kind if isinstance(kind, str) else ""


@attrs.define(eq=False)
class EventLog:
    """Every event of one conversation in order; unbounded on purpose, so one per conversation.

    ``listeners`` are called with each new entry, at once and in order; they must not block or raise.
    """

    entries: list[Entry] = attrs.field(factory=list)
    listeners: list[Callable[[Entry], None]] = attrs.field(factory=list)
    _lot: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, repr=False)

    def add(self, side: Side, event: Json, *, at_s: float | None = None) -> Entry:
        """Append one event; its time is now unless given."""
        entry = Entry(trio.current_time() if at_s is None else at_s, side, event)
        self.entries.append(entry)
        for listener in self.listeners:
            listener(entry)
        if self._lot:
            self._lot.unpark_all()
        return entry

    def note(self, kind: str, *, at_s: float | None = None, **facts: object) -> Entry:
        """Append something that happened beside the wire."""
        return self.add("local", {"type": kind, **facts}, at_s=at_s)

    @property
    def position(self) -> int:
        """How many entries there are: the place from which ``expect`` may look."""
        return len(self.entries)

    def server_events(self) -> Iterator[Entry]:
        """What the server sent."""
        return (entry for entry in self.entries if entry.side == "server")

    def find(self, match: Callable[[Entry], bool], *, after: int = 0) -> Entry | None:
        """The first server event from place ``after`` on that fits."""
        return next((e for e in self.entries[after:] if e.side == "server" and match(e)), None)

    async def expect(self, match: Callable[[Entry], bool], *, what: str, within_s: float, after: int = 0) -> Entry:
        """Wait until the server sent something that fits. Raises :class:`Missing`. Cancellation: only stops waiting."""
        with trio.move_on_after(within_s):
            while True:
                found = self.find(match, after=after)
                if found is not None:
                    return found
                after = max(after, self.position)
                await self._lot.park()
        raise Missing(f"{what} did not come within {within_s:g} s")

    def write(self, path: Path) -> None:
        """The log as JSON lines: ``t`` seconds since the first entry, ``from``, ``event``; audio is shortened."""
        start_s = self.entries[0].at_s if self.entries else 0.0
        with path.open("wb") as file:
            for entry in self.entries:
                line = {"t": round(entry.at_s - start_s, 6), "from": entry.side, "event": shortened(entry.event)}
                file.write(orjson.dumps(line) + b"\n")


def shortened(event: Json) -> Json:
    """The event with long base64 cut to its beginning and its length."""
    cut = {}
    for key in AUDIO_KEYS:
        value = event.get(key)
        if isinstance(value, str) and len(value) > LONG_CHARS and " " not in value:
            cut[key] = f"{value[:SHOWN_CHARS]}… ({len(value)} characters)"
    return {**event, **cut} if cut else event


class _Tap(WebSocketTransport):
    """Passes frames through and writes them down: sent ones when they are handed over, received ones as they come."""

    def __init__(self, inner: WebSocketTransport, log: EventLog) -> None:
        self._inner = inner
        self._log = log

    async def send(self, text: str) -> None:
        self._log.add("client", orjson.loads(text))
        await self._inner.send(text)

    async def recv(self) -> str | bytes:
        frame = await self._inner.recv()
        try:
            event = orjson.loads(frame)
        except orjson.JSONDecodeError:
            event = None
        # What is no JSON object is ignored by the client, and recorded here.
        self._log.add("server", event if isinstance(event, dict) else {"type": "", "undecodable_bytes": len(frame)})
        return frame

    async def close(self) -> None:
        await self._inner.close()

    async def is_alive(self, timeout_s: float) -> bool:
        return await self._inner.is_alive(timeout_s)


def tapped(log: EventLog, nursery: trio.Nursery, *, connector: WebSocketConnector | None = None) -> ConnectFactory:
    """A ``connect`` for ``DuplexClient`` whose traffic is written into ``log``; its tasks live in ``nursery``."""
    settings = connector or WebSocketConnector()

    async def connect(url: str) -> WebSocketTransport:
        transport = settings.prepare(url)
        await transport.connect(nursery)
        return _Tap(transport, log)

    return connect
