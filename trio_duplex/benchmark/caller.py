"""One caller: a session over a real socket that sends what its plan says, when it is due, whatever comes back."""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson
import trio

from trio_duplex.benchmark.measures import Record
from trio_duplex.benchmark.plan import CHUNK_S, RATE_HZ, Plan, Scenario, Sounds
from trio_duplex.client import (
    AudioFormat,
    DuplexConnectionError,
    SessionConfig,
    WebSocketConnector,
    WebSocketTransport,
    build_realtime_url,
)

__all__ = ["Caller", "Target"]

Json = dict[str, Any]

OPEN_WITHIN_S: Final = 30.0
CLOSE_WITHIN_S: Final = 5.0
ACK_EVERY_CHUNKS: Final = 6
UNIT_MS: Final = 1000
"""How often a model decides that does not say."""


@attrs.frozen
class Target:
    """Whom to call: ``url`` of the server, ``model``, the API key if it wants one, and the silence that ends a turn."""

    url: str
    model: str = "demo"
    api_key: str | None = attrs.field(default=None, repr=False)
    silence_ms: int = 500

    def session_url(self) -> str:
        """Where a session is opened. Raises ``ValueError`` for what is no address."""
        return build_realtime_url(self.url, self.model, autostart=False)

    def opening(self, scenario: Scenario) -> str:
        """The first message: the model owns turns while nobody speaks, server VAD ends those of a conversation."""
        config = SessionConfig(input_audio=AudioFormat("pcm16", RATE_HZ), playback_commit_policy="ack_only")
        if scenario != "listen":
            detection = {"type": "server_vad", "silence_duration_ms": self.silence_ms}
            config = config.replace(turn_detection=detection)
        session = config.to_session_payload(model=self.model)
        return orjson.dumps({"type": "session.update", "session": session}).decode()


@attrs.define(eq=False)
class Caller:
    """:meth:`run` it once; then ``record`` holds what was measured, or ``refused`` says why there is none.

    ``offset_chunks``: how long it waits before its first cycle.  ``phase_s``: its chunks are due that much later than
    the chunks of a caller without one, so that callers do not beat time.  ``lost``: how the session ended before its
    time.
    """

    number: int
    target: Target
    scenario: Scenario
    plan: Plan
    sounds: Sounds
    offset_chunks: int = 0
    phase_s: float = 0.0
    record: Record | None = None
    refused: str | None = None
    lost: str | None = None

    async def run(self, until_s: float) -> None:
        """Call until ``until_s``.  Raises nothing that a server can cause.  Cancellation: hangs up."""
        key = self.target.api_key
        connector = WebSocketConnector(headers={"Authorization": f"Bearer {key}"} if key else {})
        socket = connector.prepare(self.target.session_url())
        async with trio.open_nursery() as nursery:
            try:
                with trio.move_on_after(OPEN_WITHIN_S) as waiting:
                    await socket.connect(nursery)
                if waiting.cancelled_caught:
                    self.refused = "no answer to the handshake"
                else:
                    await self._talk(socket, until_s)
            except DuplexConnectionError as error:
                self.refused = str(error)
            finally:
                await socket.close()

    async def _talk(self, socket: WebSocketTransport, until_s: float) -> None:
        """Raises ``DuplexConnectionError`` until the session is open.  Cancellation: stops in the middle."""
        unit_ms = await self._open(socket)
        if unit_ms is None:
            return
        started_s = trio.current_time() + self.phase_s
        utterances = tuple(self.plan.utterances(started_s, self.offset_chunks, until_s))
        self.record = Record(started_s, unit_ms, utterances)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, socket, self.record, nursery.cancel_scope)
            await self._send(socket, self.record, until_s)
            nursery.cancel_scope.cancel()
        if self.lost is None:
            await self._close(socket)

    async def _open(self, socket: WebSocketTransport) -> int | None:
        """How often the model decides, in ms; None: refused.  Cancellation: only stops waiting."""
        await socket.send(self.target.opening(self.scenario))
        event: Json = {}
        with trio.move_on_after(OPEN_WITHIN_S):
            event = _parsed(await socket.recv())
        if event.get("type") == "session.created":
            capabilities = event.get("session", {}).get("capabilities") or {}
            return int(capabilities.get("chunk_period_ms") or UNIT_MS)
        error = event.get("error")
        code = error.get("code") if isinstance(error, dict) else event.get("code")
        self.refused = str(code or event.get("type") or "no answer")
        return None

    async def _send(self, socket: WebSocketTransport, record: Record, until_s: float) -> None:
        """Until the plan or the connection ends.  Cancellation: stops between or inside messages."""
        try:
            await self._send_chunks(socket, record, until_s)
        except DuplexConnectionError as error:
            self.lost = self.lost or str(error)

    async def _send_chunks(self, socket: WebSocketTransport, record: Record, until_s: float) -> None:
        """Cancellation: stops between or inside messages."""
        chunk = 0
        cancels = set(self.plan.cancels)
        while (due_s := record.started_s + (chunk + 1) * CHUNK_S) < until_s:
            await trio.sleep_until(due_s)
            record.sent(due_s, trio.current_time())
            place = self.plan.place(chunk, self.offset_chunks)
            await socket.send(self.sounds.message(chunk, place))
            if place in cancels:
                response_id = record.cancelled(trio.current_time())
                if response_id is not None:
                    await _say(socket, {"type": "response.cancel", "response_id": response_id})
            sounding = record.sounding(trio.current_time()) if chunk % ACK_EVERY_CHUNKS == 0 else None
            if sounding is not None:
                response_id, played_ms = sounding
                await _say(socket, {"type": "playback.ack", "response_id": response_id, "played_ms": int(played_ms)})
            chunk += 1

    async def _read(self, socket: WebSocketTransport, record: Record, sending: trio.CancelScope) -> None:
        """Until the session is over, which ends the sending too.  Cancellation: stops reading."""
        while self.lost is None:
            try:
                message = await socket.recv()
            except DuplexConnectionError as error:
                self.lost = str(error)
                break
            at_s = trio.current_time()
            event = _parsed(message)
            record.came(event, at_s)
            if event.get("type") in ("session.closed", "session.expired", "session.replaced"):
                self.lost = f"{event['type']}: {event.get('reason')}"
        sending.cancel()

    async def _close(self, socket: WebSocketTransport) -> None:
        """Leave in good order.  Cancellation: hangs up."""
        try:
            await _say(socket, {"type": "session.close"})
            with trio.move_on_after(CLOSE_WITHIN_S):
                while _parsed(await socket.recv()).get("type") != "session.closed":
                    pass
        except DuplexConnectionError:
            return  # it left first


async def _say(socket: WebSocketTransport, event: Json) -> None:
    """Cancellation: it may or may not have gone out."""
    await socket.send(orjson.dumps(event).decode())


def _parsed(message: str | bytes) -> Json:
    """The event; what is none counts as an error."""
    try:
        event = orjson.loads(message)
    except orjson.JSONDecodeError:
        event = None
    return event if isinstance(event, dict) else {"type": "error", "code": "not an event"}
