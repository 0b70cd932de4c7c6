"""`DuplexClient`: one full-duplex session, driven from Python (contract section 21.4)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any
from weakref import ref

import trio

from .buffers import BufferIterator, RingBuffer
from .counters import ClientStatistics
from .errors import DuplexConnectionError, DuplexSessionClosedError, unwrapped
from .events import DuplexEvent, ErrorEvent, SessionCreated
from .link import Link
from .link_base import LinkBase
from .response import ResponseIterator, ResponseTracker
from .session_state import SessionState
from .streaming import append_message, slices
from .transport import ConnectFactory, WebSocketConnector
from .urls import client_url
from .values import ReconnectPolicy, SessionConfig

CLOSE_TIMEOUT_S = 20.0
"""How long `close` waits for `session.closed` from a peer that is alive."""

_DEFAULT_RECONNECT = ReconnectPolicy()


class DuplexClient:
    """An async context manager around one session.

    Entering connects, opens the session with `session.update` and waits for `session.created`; if that fails,
    nothing is left behind. Leaving normally closes the session in good order; leaving by an exception or a
    cancellation tells the server in a short shielded moment and closes the socket. An instance is used once.

    `url` is completed by `client_url`. `session_id` names the session to be created. `reconnect=None` turns automatic
    resume off, `heartbeat_interval_s=None` the heartbeat. `connect` is an async function from URL to
    `WebSocketTransport`, or a `WebSocketConnector` with headers and TLS settings.

    Raises, from every method: DuplexProtocolError (the server answered with an error), DuplexConnectionError (the
    transport failed), DuplexSessionClosedError (the session is over), all DuplexClientError; TimeoutError.
    """

    url: str
    """The address, completed."""
    model: str
    """The model asked for."""
    config: SessionConfig
    """What the session is opened with."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        config: SessionConfig | None = None,
        session_id: str | None = None,
        reconnect: ReconnectPolicy | None = _DEFAULT_RECONNECT,
        heartbeat_interval_s: float | None = 30.0,
        handshake_timeout_s: float = 30.0,
        connect: ConnectFactory | WebSocketConnector | None = None,
    ) -> None:
        url = client_url(url, model)

        def link(state: SessionState) -> LinkBase:
            return Link(
                url,
                connect=WebSocketConnector() if connect is None else connect,
                state=state,
                reconnect=reconnect,
                handshake_timeout_s=handshake_timeout_s,
                on_event=self._dispatch,
                on_end=self._on_end,
            )

        self._set_up(
            link,
            url,
            model,
            config,
            session_id=session_id,
            heartbeat_s=heartbeat_interval_s,
            open_s=handshake_timeout_s,
        )

    def _set_up(
        self,
        link: Callable[[SessionState], LinkBase],
        url: str,
        model: str,
        config: SessionConfig | None,
        *,
        session_id: str | None,
        heartbeat_s: float | None,
        open_s: float,
    ) -> None:
        """What every kind of client has, whatever its link is."""
        self.url = url
        self.model = model
        self.config = SessionConfig() if config is None else config
        self._heartbeat_interval_s = heartbeat_s
        self._handshake_timeout_s = open_s
        self._state = SessionState(session_id=session_id)
        self._tracker = ResponseTracker(self.config.output_audio)
        # Weak: an iterator that was dropped half-way takes its buffer with it. (A list is cheaper than a WeakSet.)
        self._subscribers: list[ref[RingBuffer[DuplexEvent]]] = []
        self._link = link(self._state)
        self._appended_bytes = 0
        self._event_prefix = f"evt_{secrets.token_hex(4)}_"
        self._event_count = 0
        self._entered = False
        self._stack: AsyncExitStack | None = None
        self._nursery: trio.Nursery | None = None

    # What is known of the session.

    @property
    def session_id(self) -> str | None:
        """The id asked for, then the one the server gave."""
        return self._state.session_id

    @property
    def session_info(self) -> dict[str, Any]:
        """The `session` object of `session.created`, or of the latest `session.updated`; empty before."""
        return self._state.session_info

    @property
    def resume_token(self) -> str | None:
        """The current token; None if the model cannot resume or the server asked for a resync."""
        return self._state.resume_token

    @property
    def incarnation(self) -> int:
        """Which life of the session id this is, from 0."""
        return self._state.incarnation

    def statistics(self) -> ClientStatistics:
        """A reading of the counters."""
        counters = self._link.counters
        return ClientStatistics(
            frames_received=counters.frames_received,
            frames_ignored=counters.frames_ignored,
            duplicates_dropped=counters.duplicates_dropped,
            acks_sent=counters.acks_sent,
            resumes=counters.resumes,
            events_dropped=sum(buffer.dropped for buffer in self._buffers()),
        )

    # Life.

    async def __aenter__(self) -> DuplexClient:
        """Connect and open the session.

        Raises DuplexConnectionError (unreachable or refused), DuplexProtocolError (the server refused the session),
        DuplexSessionClosedError (it ended the session or the connection instead), TimeoutError (silence for
        `handshake_timeout_s`). Cancellation closes what was opened.
        """
        if self._entered:
            raise RuntimeError("a DuplexClient is entered once; make a new one for a new session")
        self._entered = True
        async with AsyncExitStack() as stack:
            stack.enter_context(unwrapped())
            self._nursery = await stack.enter_async_context(trio.open_nursery())
            stack.push_async_exit(self._leave)
            await self._open_session(self._nursery)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the session; see the class. Cancellation shortens the goodbye, never the clean-up."""
        stack, self._stack = self._stack, None
        return None if stack is None else await stack.__aexit__(exc_type, exc, traceback)

    async def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the session: send `session.close`, wait for `session.closed`, close the socket. Idempotent.

        Never raises for a dead transport and ends quietly after `timeout_s`. A peer that shows no life at all is
        given up within 2 s. Cancellation ends the waiting; leaving the context manager then cleans up.
        """
        await self._link.close(timeout_s)

    async def _open_session(self, nursery: trio.Nursery) -> None:
        payload = self.config.to_session_payload(model=self.model, session_id=self.session_id)
        with trio.move_on_after(self._handshake_timeout_s):
            events = self.events()
            await self._link.open(nursery, self._stamped({"type": "session.update", "session": payload}))
            async for event in events:
                if isinstance(event, ErrorEvent):
                    raise event.to_exception()
                if type(event) is SessionCreated:
                    if self._heartbeat_interval_s is not None:
                        nursery.start_soon(self._link.heartbeat, self._heartbeat_interval_s)
                    return
            raise self._closed_error()
        raise TimeoutError(f"no session within {self._handshake_timeout_s} s from {self.url}")

    async def _leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        try:
            if exc_type is None:
                await self.close()
        finally:
            await self._link.tear_down()
            self._nursery.cancel_scope.cancel()

    # Talking to the server.

    async def send(self, event: Mapping[str, Any]) -> str:
        """Send any client event and return its `event_id`, which is added to a copy unless the event has one.

        DuplexSessionClosedError after the end; DuplexConnectionError if it could not be sent (nothing is queued while
        a connection is being resumed). When cancelled, the event was sent whole or not at all.
        """
        return await self._send(event)

    async def _send(self, event: Mapping[str, Any], *, own: bool = False) -> str:
        """As :meth:`send`; `own` as in `LinkBase.send`."""
        stamped = self._stamped(event)
        await self._link.send(stamped, own=own)
        event_id: str = stamped["event_id"]
        return event_id

    def _stamped(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """A copy that has an `event_id`."""
        stamped = dict(event)
        if not isinstance(stamped.get("event_id"), str):
            self._event_count += 1
            stamped["event_id"] = f"{self._event_prefix}{self._event_count}"
        return stamped

    async def append_audio(
        self, pcm: bytes, *, is_speech: bool | None = None, video_frames: Sequence[str] | None = None
    ) -> str:
        """Send one chunk of input audio in the config's `input_audio` format; returns the event id.

        `video_frames` are base64 JPEG or PNG; a data-URL prefix is stripped. Raises and cancels like `send`; a chunk
        that was not sent does not count into `audio_end_ms`.
        """
        return await self._append(pcm, is_speech, video_frames)

    async def _append(
        self, pcm: bytes, is_speech: bool | None, video_frames: Sequence[str] | None, *, yields: bool = True
    ) -> str:
        """As :meth:`append_audio`. `yields` False: a checkpoint of the caller follows at once."""
        self._appended_bytes += len(pcm)
        message = self._stamped(
            append_message(
                pcm,
                self.config.input_audio,
                audio_end_ms=self.config.input_audio.duration_ms(self._appended_bytes),
                is_speech=is_speech,
                video_frames=video_frames,
            )
        )
        try:
            await self._link.send(message, own=True, yields=yields)
        except (DuplexConnectionError, DuplexSessionClosedError):
            self._appended_bytes -= len(pcm)
            raise
        event_id: str = message["event_id"]
        return event_id

    async def stream_pcm(
        self,
        pcm: bytes,
        *,
        chunk_ms: float = 200,
        realtime: bool = True,
        is_speech: bool | None = None,
        video_frames: Sequence[str] | None = None,
        stacked_video_frames: Sequence[str] | None = None,
    ) -> int:
        """Send `pcm` as appends of `chunk_ms`, each followed by a pause of its length unless `realtime` is False.

        Returns how many appends carried a camera frame; frame k rides the append that completes unit k of this call,
        the composite k right behind it. The pace is kept against the clock, so a slow send is caught up. Cancellation
        stops between or inside chunks.
        """
        carried = 0
        started_at_s = trio.current_time()
        for piece in slices(
            pcm,
            self.config.input_audio,
            chunk_ms=chunk_ms,
            video_frames=video_frames,
            stacked_video_frames=stacked_video_frames,
        ):
            await self._append(piece.pcm, is_speech, piece.frames or None, yields=not realtime)
            carried += bool(piece.frames)
            if realtime:
                await trio.sleep_until(started_at_s + piece.end_ms / 1000)
        return carried

    async def commit(self, *, final: bool = True, create_response: bool | None = None) -> str:
        """Seal the buffered utterance. `create_response` is sent only when given. Raises and cancels like `send`."""
        event: dict[str, Any] = {"type": "input_audio_buffer.commit", "final": final}
        if create_response is not None:
            event["response_create"] = create_response
        return await self.send(event)

    async def cancel_response(self, response_id: str | None = None) -> str:
        """Cancel the named, else the active response. Raises and cancels like `send`."""
        event = {"type": "response.cancel"}
        if response_id is not None:
            event["response_id"] = response_id
        return await self.send(event)

    async def clear_input(self) -> str:
        """Drop input audio that is not committed yet. Raises and cancels like `send`."""
        return await self.send({"type": "input_audio_buffer.clear"})

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
    ) -> str:
        """Report how far a response was really played, in ms from its start; `committed_ms` defaults to `played_ms`.

        Numbers are made whole and kept between 0 and the audio received of that response, as far as the client knows
        it. Raises and cancels like `send`.
        """
        received_ms = self._tracker.received_ms(response_id=response_id, item_id=item_id)
        event: dict[str, Any] = {
            "type": "playback.ack",
            "played_ms": _clamped(played_ms, received_ms),
            "committed_ms": _clamped(played_ms if committed_ms is None else committed_ms, received_ms),
        }
        if response_id is not None:
            event["response_id"] = response_id
        if item_id is not None:
            event["item_id"] = item_id
        # An id that the server gave itself and numbers within its audio: nothing of a stranger is left to be checked.
        return await self._send(event, own=received_ms is not None and (response_id is None or item_id is None))

    async def truncate_item(self, item_id: str, audio_end_ms: float, *, content_index: int = 0) -> str:
        """Cut an assistant item at `audio_end_ms`, kept between 0 and the audio received of it.

        (`send` passes a hand-made `conversation.item.truncate` on unchanged.) Raises and cancels like `send`.
        """
        received_ms = self._tracker.received_ms(item_id=item_id)
        return await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": content_index,
                "audio_end_ms": _clamped(audio_end_ms, received_ms),
            }
        )

    # Listening to the server.

    def events(self) -> BufferIterator[DuplexEvent]:
        """Every event from this call on, for any number of consumers at once.

        Each consumer has a buffer of 1024 events of which the oldest are dropped. Iteration ends quietly when the
        session is closed, with DuplexSessionClosedError when it expired or the connection was lost for good.
        """
        buffer: RingBuffer[DuplexEvent] = RingBuffer()
        if self._link.end is not None:
            buffer.end()
        else:
            self._subscribers.append(ref(buffer, self._subscribers.remove))
        return BufferIterator(buffer, self._error_at_end)

    def __aiter__(self) -> BufferIterator[DuplexEvent]:
        """As `events()`."""
        return self.events()

    def responses(self) -> ResponseIterator:
        """The assistant's responses since the session began, each once, for a single consumer.

        Leaving the loop keeps the place: the next call goes on. A server error is raised here as DuplexProtocolError
        and does not end anything. Ends like `events`.
        """
        return ResponseIterator(self._tracker, self._error_at_end)

    async def wait_for(self, *types: str, timeout_s: float | None) -> DuplexEvent:
        """The next event of one of `types`.

        DuplexProtocolError if a server error comes first (unless "error" is asked for), DuplexSessionClosedError if
        the session ends first, TimeoutError after `timeout_s`. Cancellation changes nothing.
        """
        if not types:
            raise ValueError("wait_for needs at least one event type")
        events = self.events()
        with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
            async for event in events:
                if event.type in types:
                    return event
                if isinstance(event, ErrorEvent):
                    raise event.to_exception()
            raise self._closed_error()
        raise TimeoutError(f"none of {', '.join(types)} came within {timeout_s} s")

    # Called by the link.

    def _dispatch(self, event: DuplexEvent) -> None:
        self._tracker.feed(event)
        if self._subscribers:
            for buffer in self._buffers():
                buffer.put(event)

    def _on_end(self) -> None:
        self._tracker.end()
        for buffer in self._buffers():
            buffer.end()

    def _buffers(self) -> list[RingBuffer[DuplexEvent]]:
        return [buffer for reference in self._subscribers if (buffer := reference()) is not None]

    def _error_at_end(self) -> DuplexSessionClosedError | None:
        end = self._link.end
        return None if end is None or end.expected else DuplexSessionClosedError(end.reason)

    def _closed_error(self) -> DuplexSessionClosedError:
        end = self._link.end
        return DuplexSessionClosedError("closed" if end is None else end.reason)


def _clamped(ms: float, received_ms: int | None) -> int:
    return int(max(0, ms if received_ms is None else min(ms, received_ms)))
