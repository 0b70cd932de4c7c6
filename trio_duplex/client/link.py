"""The client's connection: reader, acknowledgements, heartbeat, resume and bounded closing (contract 21.4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import trio

from .errors import DuplexClientError, DuplexConnectionError, DuplexSessionClosedError, unwrapped
from .events import ConnectionResumed, DuplexEvent, base64_text, wrap_event
from .link_base import TEARDOWN_TIMEOUT_S, LinkBase
from .resume import Resumed, resume_session
from .session_state import SessionState, parse_frame
from .transport import (
    TRANSPORT_FAILURES,
    ConnectFactory,
    WebSocketConnector,
    WebSocketTransport,
)
from .values import ReconnectPolicy

CLOSE_MESSAGE = '{"type":"session.close"}'
HEARTBEAT_MESSAGE = '{"type":"session.heartbeat"}'

ACK_SPACING_S = 0.25
"""Shortest time between two acknowledgements. They only let the server trim its journal, which holds a minute: what a
resume replays depends on what was received, not on what was acknowledged."""

CLOSE_PATIENCE_S = 0.5
"""While closing: how long to wait before asking whether the peer is still there."""

PROBE_TIMEOUT_S = 1.0
"""While closing: how long a silent peer has to show life. Together with the patience, less than 2 s."""

GOODBYE_TIMEOUT_S = 0.5
"""On exit by exception or cancellation: how long the unanswered `session.close` may take to be written."""


class Link(LinkBase):
    """Owns the transports of one client."""

    def __init__(
        self,
        url: str,
        *,
        connect: ConnectFactory | WebSocketConnector,
        state: SessionState,
        reconnect: ReconnectPolicy | None,
        handshake_timeout_s: float,
        on_event: Callable[[DuplexEvent], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(state=state, on_event=on_event, on_end=on_end)
        self._url = url
        self._connect = connect
        self._reconnect = reconnect
        self._handshake_timeout_s = handshake_timeout_s
        self._nursery: trio.Nursery | None = None
        self._transport: WebSocketTransport | None = None
        self._unclosed: list[WebSocketTransport] = []
        self._ack_wanted = trio.Event()
        self._resuming: trio.CancelScope | None = None
        self._close_sent = False

    async def open(self, nursery: trio.Nursery, opening: dict[str, Any]) -> None:
        """Connect, start reader and acknowledger, send the opening update.

        DuplexConnectionError if that fails; cancellation undoes it.
        """
        self._nursery = nursery
        self._transport = await self._open_transport()
        nursery.start_soon(self._read)
        nursery.start_soon(self._acknowledge)
        await self.send(opening)

    async def send(self, event: dict[str, Any], *, own: bool = False, yields: bool = True) -> None:
        """Send one event as JSON text; raises and cancels like `send_text`, TypeError for what JSON cannot say."""
        await self.send_text(orjson.dumps(event, default=base64_text if own else None).decode())

    async def send_text(self, text: str) -> None:
        """Send one frame, whole or not at all, also when cancelled.

        DuplexSessionClosedError after the end; DuplexConnectionError when the link is down or breaks: nothing is
        queued.
        """
        if self.end is not None:
            raise DuplexSessionClosedError(self.end.reason)
        transport = self._transport
        if transport is None:
            why = "not connected" if self._resuming is None else "the connection is being resumed"
            raise DuplexConnectionError(why)
        try:
            await transport.send(text)
        except DuplexConnectionError:
            raise
        except TRANSPORT_FAILURES as error:
            raise DuplexConnectionError(f"connection lost: {_describe(error)}") from error

    async def heartbeat(self, interval_s: float) -> None:
        """Task: keep the session's lease alive. A failure during a gap is somebody else's news.

        Cancellation ends it.
        """
        while self.end is None:
            await trio.sleep(interval_s)
            try:
                await self.send_text(HEARTBEAT_MESSAGE)
            except DuplexClientError:
                continue

    async def close(self, timeout_s: float) -> None:
        """Ask the server to end the session and wait for that; see `DuplexClient.close`.

        Cancellation ends the waiting and leaves the transport to `tear_down`.
        """
        if self.end is None and (self._transport is not None or self._resuming is not None):
            self._closing = True
            if self._resuming is not None:
                self._resuming.cancel()
            with trio.move_on_after(timeout_s), unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_peer, nursery.cancel_scope)
                    await self._say_close()
                    await self._ended.wait()
                    nursery.cancel_scope.cancel()
        self.finish("closed", expected=True)
        await self._close_transports()

    async def tear_down(self) -> None:
        """Shielded, at most `TEARDOWN_TIMEOUT_S`: tell the server if it was not told yet, then close every socket.

        Cancellation waits for that.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + TEARDOWN_TIMEOUT_S):
            self._closing = True
            if self.end is None:
                with trio.move_on_after(GOODBYE_TIMEOUT_S):
                    await self._say_close()
            self.finish("closed", expected=True)
            await self._close_transports()

    async def _open_transport(self) -> WebSocketTransport:
        """A connected transport, registered for closing before anything can go wrong."""
        if isinstance(self._connect, WebSocketConnector):
            assert self._nursery is not None
            prepared = self._connect.prepare(self._url)
            self._unclosed.append(prepared)
            await prepared.connect(self._nursery)
            return prepared
        try:
            transport = await self._connect(self._url)
        except DuplexConnectionError:
            raise
        except TRANSPORT_FAILURES as error:
            raise DuplexConnectionError(f"cannot connect to {self._url}: {_describe(error)}") from error
        self._unclosed.append(transport)
        return transport

    async def _close_transports(self) -> None:
        self._transport = None
        while self._unclosed:
            transport = self._unclosed[-1]
            with suppress(*TRANSPORT_FAILURES):  # dead already, which is what we want
                await transport.close()
            if transport in self._unclosed:
                self._unclosed.remove(transport)

    async def _read(self) -> None:
        """Task: the only reader. Never waits for a consumer. Ends with the session."""
        counters = self.counters
        while self.end is None:
            transport = self._transport
            if transport is None:
                break
            try:
                frame = await transport.recv()
            except TRANSPORT_FAILURES as error:
                await self._lost(_describe(error))
                continue
            counters.frames_received += 1
            event = parse_frame(frame, time.monotonic())
            if event is None:
                counters.frames_ignored += 1
            else:
                self._take(event)
        await self._close_transports()

    def _take(self, event: DuplexEvent) -> bool:
        """As every link, and ask for an acknowledgement of a numbered event."""
        taken = super()._take(event)
        if taken and event.server_event_seq is not None:
            self._ack_wanted.set()
        return taken

    async def _acknowledge(self) -> None:
        """Task: acknowledge the highest number dispatched.

        The first comes at once, the next ones at least `ACK_SPACING_S` apart: acks are cumulative, so one covers all
        events since the last. An ack for every single event would double the traffic and say nothing more.
        """
        while self.end is None:
            await self._ack_wanted.wait()
            self._ack_wanted = trio.Event()
            seq = self._state.last_seq
            try:
                await self.send_text(f'{{"type":"session.event_ack","server_event_seq":{seq}}}')
            except DuplexClientError:
                continue
            self.counters.acks_sent += 1
            await trio.sleep(ACK_SPACING_S)

    async def _lost(self, why: str) -> None:
        """The transport is gone: resume if that is possible, else end the session."""
        await self._close_transports()
        policy = self._reconnect
        state = self._state
        if self._closing:
            self.finish("closed", expected=True)
            return
        if policy is None or state.resume_token is None or state.session_id is None:
            self.finish(f"connection lost: {why}", expected=False)
            return
        outcome: Resumed | str = "closed meanwhile"
        with trio.CancelScope() as self._resuming:
            outcome = await resume_session(
                policy,
                state,
                open_transport=self._open_transport,
                discard=self._close_transports,
                timeout_s=self._handshake_timeout_s,
            )
        self._resuming = None
        if self._closing:
            await self._close_transports()
            self.finish("closed", expected=True)
        elif isinstance(outcome, str):
            self.finish(f"connection lost: {why}; {outcome}", expected=False)
        else:
            self._adopt(outcome)

    def _adopt(self, resumed: Resumed) -> None:
        self._transport = resumed.transport
        self.counters.resumes += 1
        now = time.monotonic()
        self._take(wrap_event({"type": ConnectionResumed.TYPE, "attempt": resumed.attempt}, received_at_s=now))
        self._take(resumed.event)
        for event in resumed.kept:
            self._take(event)

    async def _say_close(self) -> None:
        """Send `session.close` once; a link that cannot carry it is as good as closed."""
        if self._close_sent:
            return
        self._close_sent = True
        try:
            await self.send_text(CLOSE_MESSAGE)
        except DuplexClientError:
            self.finish("closed", expected=True)

    async def _watch_peer(self, waiting: trio.CancelScope) -> None:
        """Task: end `waiting` once the peer no longer shows life (also while `session.close` cannot be written)."""
        while True:
            await trio.sleep(CLOSE_PATIENCE_S)
            transport = self._transport
            # A factory may give any object with send, recv and close; what cannot be asked counts as alive.
            probe = getattr(transport, "is_alive", None)
            if transport is None or (probe is not None and not await probe(PROBE_TIMEOUT_S)):
                waiting.cancel()


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
