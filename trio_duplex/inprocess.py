"""A hub opened inside the caller's own Trio program, and clients that talk to it without a socket (contract 21.6).

    async with trio_duplex.open_hub(trio_duplex.Deployment(model="demo")) as hub:
        async with hub.connect(config) as client:
            ...

No listener, no JSON text, no global state; any number of hubs live side by side, each within its own ``async with``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import structlog
import trio

from duplex_protocol import wire
from duplex_protocol.audio_formats import Encoding
from duplex_protocol.client_events import event_session
from duplex_protocol.commands import AckPlayback, AppendAudio, AppendHints, Command
from duplex_protocol.dialect import MAX_EVENT_BYTES, Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import Json
from trio_duplex.client.errors import unwrapped
from trio_duplex.client.inline import InlineDuplexClient
from trio_duplex.client.values import SessionConfig
from trio_duplex.config import Deployment, load_deployment
from trio_duplex.hub import Hub, HubStatistics
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.models.registry import build_plugin, build_scorer
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.core import Session

__all__ = ["EmbeddedHub", "open_hub"]

log = structlog.get_logger(__name__)

MAX_REFUSALS_IN_A_ROW = 64
"""Back-pressure refusals in a row after which a client is given up, as on a socket (contract 24a)."""


def open_hub(deploy: Deployment | Path | str, *, plugin: ModelPlugin | None = None) -> EmbeddedHub:
    """The hub of a deployment, to be entered with ``async with``: warm inside the block, gone behind it.

    ``deploy`` is a deployment or the path of a deploy file; ``plugin`` replaces the deployment's model. Raises
    :class:`trio_duplex.config.DeployError`; entering raises what the model's start raises.
    """
    deployment = deploy if isinstance(deploy, Deployment) else load_deployment(Path(deploy))
    return EmbeddedHub(
        Hub(
            plugin or build_plugin(deployment),
            deployment.duplex_session,
            scorer=build_scorer(deployment),
            active_stream_window=deployment.active_stream_window,
        )
    )


class InlineDialect(RealtimeDialect):
    """The duplex view without resume: an in-process client's connection cannot be lost while it lives."""

    supports_resume = False


class EmbeddedHub:
    """An async context manager around a running hub; see :func:`open_hub`. Entered once.

    Leaving ends every session (``server_shutdown``) and waits for the model; leaving by an exception or a cancellation
    does it at once. When the model dies, every session ends with its error, new ones are refused, and :meth:`health`
    says so; the block goes on.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._entered = False
        self._stopped = trio.Event()
        self._stack: AsyncExitStack | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def model(self) -> str:
        """The model's name on the wire."""
        return self._hub.plugin.name

    def statistics(self) -> HubStatistics:
        """A snapshot: sessions, admissions, refusals."""
        return self._hub.statistics()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """(healthy, detail), as ``/health`` shows them."""
        return self._hub.health()

    def connect(
        self, config: SessionConfig | None = None, *, model: str | None = None, handshake_timeout_s: float = 30.0
    ) -> InlineDuplexClient:
        """A client of this hub, to be entered with ``async with``; ``model`` is the hub's own unless named."""
        return InlineDuplexClient(
            self, model=model or self.model, config=config, handshake_timeout_s=handshake_timeout_s
        )

    async def __aenter__(self) -> EmbeddedHub:
        """Start the model and wait until it is warm. Cancellation: it is stopped, nothing is left."""
        if self._entered:
            raise RuntimeError("a hub is entered once; open a new one")
        self._entered = True
        async with AsyncExitStack() as stack:
            stack.enter_context(unwrapped())
            self._nursery = await stack.enter_async_context(trio.open_nursery())
            stack.push_async_exit(self._leave)
            await self._nursery.start(self._run)
            await self._hub.ready.wait()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Stop; see the class. Cancellation shortens the good-byes, never the clean-up."""
        stack, self._stack = self._stack, None
        return None if stack is None else await stack.__aexit__(exc_type, exc, traceback)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        # Twice: the model's nursery lies within the sessions', and a failed start is to leave as itself.
        try:
            with unwrapped(), unwrapped():
                await self._hub.run(task_status)
        finally:
            self._stopped.set()

    async def _leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        if exc_type is not None:
            self._nursery.cancel_scope.cancel()
            return
        self._hub.stop()
        await self._stopped.wait()

    async def visit(self, opening: bytes) -> Visit | Json:
        """Open a session for an inline client; see :class:`trio_duplex.client.inline.InlineHub`.

        Cancellation: no session is left.
        """
        hub = self._hub
        if not self._entered:
            raise RuntimeError("the hub is not open: enter it with `async with` first")
        await hub.ready.wait()
        dialect = InlineDialect(view="duplex")
        event_id: str | None = None
        try:
            event = wire.parse(opening)
            event_id = event.get("event_id")
            update = dialect.parse_open(event_session(event), hub.plugin.defaults)
            session = await hub.open_session(dialect, update)
        except RemoteProtocolError as error:
            error.event_id = error.event_id or event_id
            return self._refusal(dialect, error)
        # No checkpoint between opening and attaching: the session always has an owner or a grace timer.
        return Visit(hub, session, session.attach(0))

    def _refusal(self, dialect: Dialect, error: RemoteProtocolError) -> Json:
        self._hub.tally.openings_refused[error.code] += 1
        frame = dialect.handshake_error(error, flat=False)
        return {"type": frame["type"], "event_id": self._hub.ids.event(), **frame}


@attrs.define(eq=False)
class Visit:
    """One inline client's hold on its session; see :class:`trio_duplex.client.inline.InlineVisit`."""

    hub: Hub
    session: Session
    attachment: Attachment
    _refusals: int = attrs.field(default=0, init=False)
    _proven: tuple[object, object] | None = attrs.field(default=None, init=False)
    _encoding: Encoding | None = attrs.field(default=None, init=False)
    _rate_hz: int | None = attrs.field(default=None, init=False)

    def post(self, event: Json | bytes) -> bool:
        """Decode one client event and post its commands; what is wrong with it comes back as an event, in its place."""
        session = self.session
        try:
            parsed = _parsed(event)
            own = self._own_command(parsed) if parsed is event else None
            if own is not None:
                session.post(own)
            else:
                for command in session.dialect.decode(parsed):
                    if parsed is event and isinstance(command, AppendAudio):
                        self._proven = (parsed["format"], parsed["sample_rate_hz"])
                        self._encoding, self._rate_hz = command.encoding, command.rate_hz
                    session.post(command)
        except RemoteProtocolError as error:
            if error.code == "session_closed" or session.post_refusal(error):
                return True
            self._refusals += 1
            if self._refusals >= MAX_REFUSALS_IN_A_ROW:
                log.warning("client_refused_too_often", session_id=session.id)
                return False
        else:
            self._refusals = 0
        return True

    def _own_command(self, event: Json) -> Command | None:
        """The command of an event that our own client built: what the client made itself needs no second check.

        That is all of an acknowledgement, and of an append whose format was decoded before, the numbers beside the
        audio. None for an append with anything else that the client was given: it goes the whole way.
        """
        if event["type"] == "playback.ack":
            return AckPlayback(
                event_id=event["event_id"],
                played_ms=event["played_ms"],
                committed_ms=event["committed_ms"],
                response_id=event.get("response_id"),
                item_id=event.get("item_id"),
            )
        audio, is_speech = event.get("audio"), event.get("is_speech")
        if (
            not audio
            or (event["format"], event["sample_rate_hz"]) != self._proven
            or "video_frames" in event
            or not (is_speech is None or isinstance(is_speech, bool))
        ):
            return None
        return AppendAudio(
            event_id=event["event_id"],
            audio=audio,
            encoding=self._encoding,
            rate_hz=self._rate_hz,
            hints=AppendHints(
                duration_ms=event["duration_ms"], audio_end_ms=event["audio_end_ms"], is_speech=is_speech
            ),
        )

    async def deliver(self, take: Callable[[Json], None]) -> None:
        """Call ``take`` with every event when the session says it; returns after the last. Cancellation: stops."""
        new_id = self.hub.ids.event

        def hand_over(seq: int, frame: Json) -> None:
            take({"type": frame["type"], "event_id": new_id(), **frame, "server_event_seq": seq})

        await self.attachment.cursor.hand_over_to(hand_over)

    async def keep_alive(self) -> None:
        """Renew the lease: a client whose scope is alive is alive. Cancellation: stops."""
        ttl_s = self.session.settings.idle_ttl_s
        while ttl_s is not None and not self.session.ended.is_set():
            await trio.sleep(ttl_s / 3)
            self.session.timers.lease()

    def leave(self) -> None:
        """End the session as ``session.close`` does. Idempotent, never blocks."""
        self.session.request_end("session_close")

    async def gone(self) -> None:
        """Wait until the session has ended. Cancellation: it is let go of, and ends by itself."""
        try:
            await self.session.ended.wait()
        finally:
            self.session.detach(self.attachment)


def _parsed(event: Json | bytes) -> Json:
    """The event, with the checks of the wire; what our own client builds holds nothing else that could be wrong.

    The bytes of its audio count as the base64 text that they would be.
    """
    if isinstance(event, bytes):
        return wire.parse(event)
    audio = event.get("audio")
    if audio is None:
        return event
    frames = event.get("video_frames", ())
    if (len(audio) + 2) // 3 * 4 + sum(len(frame) for frame in frames) > MAX_EVENT_BYTES:
        raise RemoteProtocolError("event_too_large", "the event is over 15 MiB", event_id=event["event_id"])
    return event
