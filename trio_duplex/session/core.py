"""The session: one nursery per conversation, one mailbox consumer, one epoch at a time.

Every state change happens in the mailbox consumer or, for output, in the epoch's own tasks; both are plain calls
without a checkpoint in between, so there are no locks. The handlers live beside this file by subject
(``turns``, ``responses``, ``items``, ``acks``, ``updates``); this file holds the state, the run loop and the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
import structlog
import trio

from duplex_protocol import events as ev
from duplex_protocol.commands import CloseSession, Command
from duplex_protocol.dialect import Dialect, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json, Playback, SessionConfig, SessionSnapshot, SessionState, TurnState
from trio_duplex.models.plugin import ModelFailed, ModelPlugin, ModelResult, ModelSession, SessionContext, Turn
from trio_duplex.session import acks, items, responses, turns, updates
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.audio_io import InputDecoder, OutputEncoder
from trio_duplex.session.conversation import Conversation
from trio_duplex.session.epoch import Epoch
from trio_duplex.session.ids import IdSource
from trio_duplex.session.input_buffer import InputBuffer
from trio_duplex.session.journal import Cursor, Journal
from trio_duplex.session.mailbox import Mailbox
from trio_duplex.session.response import Response, ResponseOptions
from trio_duplex.session.responses import Generation
from trio_duplex.session.settings import SessionSettings
from trio_duplex.session.tokens import ResumeTokens
from trio_duplex.tracebacks import plain_traceback

log = structlog.get_logger(__name__)

CLEANUP_TIMEOUT_S = 5.0
REMEMBERED_RESPONSES = 64


@attrs.frozen
class HeardResult:
    """A model result on its way through the mailbox."""

    result: ModelResult


@attrs.frozen
class EndRequest:
    """Close or expire the session. ``expired`` chooses the terminal event."""

    reason: str
    expired: bool = False
    cancel_reason: str | None = None


@attrs.frozen
class RefusedEvent:
    """A client event that did not decode; refused in its place among the others (O1)."""

    error: RemoteProtocolError


Internal = HeardResult | RefusedEvent | EndRequest
EncodeFrame = Callable[[Json, int | None], bytes]
Handler = Callable[["Session", Command], Awaitable[None]]

HANDLERS: dict[type[Command], Handler] = {
    **turns.HANDLERS,
    **responses.HANDLERS,
    **items.HANDLERS,
    **acks.HANDLERS,
    **updates.HANDLERS,
}


@attrs.frozen
class SessionStatistics:
    """A snapshot for diagnosis."""

    session_id: str
    state: SessionState
    epoch: int
    turn_state: TurnState
    attached: bool
    mailbox: int
    epoch_tasks: int
    responses: int
    journal_pending: int


class Session:
    """One conversation. Created by the hub, run in the hub's nursery, visited by sockets.

    ``released`` is called once when the model's slot is back and before the terminal event is written, so that a
    client which saw the end may reopen at once (O16). ``strict``: the seed's own refusals; false for clients of the
    plain OpenAI view, for which contract 25 asks as few errors as possible.
    """

    def __init__(
        self,
        *,
        session_id: str,
        incarnation: int,
        config: SessionConfig,
        defaults: SessionDefaults,
        dialect: Dialect,
        plugin: ModelPlugin,
        settings: SessionSettings,
        ids: IdSource,
        encode: EncodeFrame,
        released: Callable[[], None],
        opened_by_update: bool = True,
        strict: bool = True,
    ) -> None:
        self.id = session_id
        self.incarnation = incarnation
        self.config = config
        self.defaults = defaults
        self.dialect = dialect
        self.plugin = plugin
        self.settings = settings
        self.ids = ids
        self.capabilities = plugin.capabilities(config)
        self.opened_by_update = opened_by_update
        self.encode = encode
        self._released = released

        self.state: SessionState = "open"
        self.turn_state: TurnState = "idle"
        self.turn_id = 0
        self.epoch = Epoch(0)
        self.conversation = Conversation()
        self.input = InputBuffer()
        self.generation: Generation | None = None
        self.unanswered: Turn | bool | None = None
        self.deferred: tuple[Turn | None, ResponseOptions, bool] | None = None
        self.responses: OrderedDict[str, Response] = OrderedDict()
        self.last_response: Response | None = None
        self.audio_started = False
        self.updates_seen = False
        self.heard_ms = 0
        self.hearing = InputDecoder(plugin.unit.input_rate_hz)
        self.output = OutputEncoder(plugin.unit.output_rate_hz)
        self.strict = strict

        self.mailbox: Mailbox[Internal] = Mailbox(settings.mailbox_limits)
        self.journal = Journal(
            encode, max_bytes=settings.resume_replay_max_bytes_per_session, ttl_s=settings.resume_replay_ttl_s
        )
        self._overflow_told = False
        self.attachment: Attachment | None = None
        self.generation_count = 0
        self.tokens = ResumeTokens()
        self.model: ModelSession
        self.ended = trio.Event()
        self.close_reason: str | None = None
        self._end: EndRequest | None = None
        self._end_requested = False
        self._nursery: trio.Nursery | None = None
        self._timers_changed = trio.Event()
        now = trio.current_time()
        self._last_client_message_s = now
        self._last_lease_s = now
        self._detached_at_s: float | None = now

    # --- the session's own life ---

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the conversation until it ends. Started by the hub with ``nursery.start``.

        Anything unexpected is caught here and nowhere else: it ends this session only, with ``internal_error``.
        Raises what ``plugin.open`` refused with before it reported started. Cancellation: the session ends with
        reason ``server_shutdown``; the slot is given back within ``CLEANUP_TIMEOUT_S``.
        """
        opened = False
        try:
            self.model = await self.plugin.open(self.config, SessionContext(self.id, self.conversation.history))
            opened = True
        finally:
            if not opened:
                self._released()
        try:
            await self._converse(task_status)
        except Exception as error:  # noqa: BLE001  (border)
            # The session's border: a fault of one session must not reach the hub's nursery. The traceback goes out as
            # text: pretty printers would show the locals, which hold users' words.
            exception = plain_traceback(error)
            log.error("session_crashed", session_id=self.id, epoch=self.epoch.number, exception=exception)
            self._end_requested = True
            self._end = EndRequest("internal_error")
            self.emit(ev.ErrorRaised(code="internal_error", message="the session failed", session_id=self.id))
        finally:
            await self._finish()

    async def _converse(self, task_status: trio.TaskStatus[None]) -> None:
        """The session's nursery; returns when an end was requested. Cancellation: ends the subtree."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.model.run)
            await nursery.start(self.epoch.run)
            self._announce()
            nursery.start_soon(self._intake, name=f"intake {self.id}")
            nursery.start_soon(self._timers, name=f"timers {self.id}")
            task_status.started()
            while self._end is None:
                await self._apply(await self.mailbox.get())
            await self._wind_up(self._end)
            nursery.cancel_scope.cancel()

    def _announce(self) -> None:
        """``session.created`` precedes everything else (O2); the dialect adds ``session.updated`` where O3 asks."""
        token = None
        if self.resumable:
            token = self.ids.resume_token()
            self.tokens.issue(token)
        self.emit(
            ev.SessionCreated(
                session=self.snapshot(),
                incarnation=self.incarnation,
                attachment_generation=1,
                resume_token=token,
                opened_by_update=self.opened_by_update,
            )
        )

    @property
    def resumable(self) -> bool:
        """Whether a lost socket may come back: the model's capability and the dialect's."""
        return self.capabilities.supports_session_resume and self.dialect.supports_resume

    async def _apply(self, message: Internal | Command) -> None:
        """Apply one message. A refused command becomes one error event and changes nothing else."""
        if isinstance(message, Command):
            try:
                await HANDLERS[type(message)](self, message)
            except RemoteProtocolError as error:
                self.refuse(error, message.event_id)
        elif isinstance(message, HeardResult):
            await turns.heard(self, message.result)
        elif isinstance(message, RefusedEvent):
            self.refuse(message.error)
        else:
            self._end = message

    async def _wind_up(self, end: EndRequest) -> None:
        """Cancel what is being said, with its full terminal sequence, before the nursery goes (contract 13)."""
        self.state = "closing"
        await responses.advance_epoch(self, end.cancel_reason or end.reason, reopen=False)

    async def _finish(self) -> None:
        """Give everything back, then say the one terminal event.

        Shielded but bounded: it runs also when the whole hub is being cancelled.
        """
        with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True) as scope:
            await self.model.aclose()
        if scope.cancelled_caught:
            log.error("model_session_close_timeout", session_id=self.id)
        self._end_requested = True
        end = self._end or EndRequest("server_shutdown")
        responses.settle_on_exit(self, end.reason)
        self.state = "closed"
        self.turn_state = "idle"
        self.close_reason = end.reason
        self._released()
        if end.expired:
            assert end.reason in ("disconnect_grace_expired", "idle_ttl_expired")
            reason: Literal["disconnect_grace_expired", "idle_ttl_expired"] = end.reason  # type: ignore[assignment]
            self.emit(ev.SessionExpired(session_id=self.id, incarnation=self.incarnation, reason=reason))
        else:
            self.emit(ev.SessionClosed(session_id=self.id, reason=end.reason))
        self.journal.close()
        self.ended.set()
        log.info("session_ended", session_id=self.id, reason=end.reason, epoch=self.epoch.number)

    async def open_epoch(self, number: int) -> None:
        """Start the next epoch's scope in the session's nursery. Cancellation: the session is ending anyway."""
        assert self._nursery is not None
        self.epoch = Epoch(number)
        await self._nursery.start(self.epoch.run)

    async def _intake(self) -> None:
        """Model results enter here and nowhere else; late ones are told by their epoch. Cancellation: stops taking."""
        async for result in self.model.results:
            self._last_lease_s = trio.current_time()
            self.mailbox.post(HeardResult(result))
        lost = ModelFailed(code="runtime_data_plane_stream_failed", message="the model's results ended", fatal=True)
        self.mailbox.post(HeardResult(lost))

    # --- the way in ---

    def post(self, command: Command) -> None:
        """A client's command, in arrival order; never blocks.

        Raises :class:`RemoteProtocolError`: ``session_closed`` once closing began, ``input_backpressure`` over bounds.
        """
        self.touch()
        if self._end_requested:
            raise RemoteProtocolError("session_closed", "the session is closing", event_id=command.event_id)
        if isinstance(command, CloseSession):
            self.request_end("session_close")
            return
        self.mailbox.post_command(command)

    def post_refusal(self, error: RemoteProtocolError) -> None:
        """A client event that could not be decoded: its error comes in its place; never blocks."""
        self.touch()
        if not self._end_requested:
            self.mailbox.post(RefusedEvent(error))

    def touch(self, *, lease: bool = False) -> None:
        """A client message came (resets the idle-receive timer); ``lease`` also counts it as lease activity."""
        self._last_client_message_s = trio.current_time()
        if lease:
            self._last_lease_s = self._last_client_message_s

    def request_end(self, reason: str, *, expired: bool = False, cancel_reason: str | None = None) -> None:
        """Ask the session to end; the first reason wins. Preempts waiting appends. Never blocks."""
        if self._end_requested:
            return
        self._end_requested = True
        self.mailbox.drop_appends()
        self.mailbox.post(EndRequest(reason, expired, cancel_reason))

    # --- the way out ---

    def emit(self, event: ev.Event, *, epoch: int | None = None, tag: object = None) -> None:
        """Project an event and append it to the journal; synchronous, so order is the order of the calls."""
        for projected in self.dialect.project(event):
            self.journal.append(projected, epoch=epoch, tag=tag)
        if self.journal.overflowed and not self._overflow_told:
            self._overflow_told = True
            log.warning("journal_overflow", session_id=self.id)
            self.emit(ev.ResyncRequired(session_id=self.id, reason="journal_overflow"))

    def refuse(self, error: RemoteProtocolError, event_id: str | None = None) -> None:
        """Tell the client that one of its events was refused."""
        self.emit(
            ev.ErrorRaised(
                code=error.code,
                message=error.message,
                param=error.param,
                related_event_id=error.event_id or event_id,
                retryable=error.retryable,
                session_id=self.id,
                epoch=self.epoch.number,
            )
        )

    def snapshot(self) -> SessionSnapshot:
        """The session object of the wire, read in one moment."""
        active = self.active_response
        last = self.last_response
        return SessionSnapshot(
            session_id=self.id,
            config=self.config,
            capabilities=self.capabilities,
            state=self.state,
            turn_state=self.turn_state,
            epoch=self.epoch.number,
            turn_id=self.turn_id,
            active_response_id=active.id if active else None,
            active_request_id=active.id if active else None,
            active_response_turn_id=active.turn_id if active else None,
            playback=last.ledger.snapshot() if last else Playback(),
        )

    @property
    def active_response(self) -> Response | None:
        """The response that is being generated, if it is visible already."""
        return self.generation.response if self.generation else None

    def remember(self, response: Response) -> None:
        """Keep a response for later acks; the oldest finished ones are forgotten."""
        self.responses[response.id] = response
        self.last_response = response
        while len(self.responses) > REMEMBERED_RESPONSES:
            self.responses.popitem(last=False)

    # --- sockets ---

    def attach(self, after_seq: int = 0, *, prelude: list[bytes] | None = None) -> Attachment:
        """A socket takes over: live delivery and replay start after ``after_seq``.

        A superseded socket gets ``session.replaced`` with its own generation. Raises the journal's errors and then
        nothing changed.
        """
        cursor: Cursor = self.journal.cursor(after_seq)
        old = self.attachment
        self.generation_count += 1
        self.attachment = Attachment(self.generation_count, cursor, prelude or [])
        self._detached_at_s = None
        self.touch(lease=True)
        self._timers_changed.set()
        if old is not None:
            projected = self.dialect.project(
                ev.SessionReplaced(session_id=self.id, attachment_generation=old.generation)
            )
            frames = [self.encode(frame, None) for p in projected for frame in p.frames]
            old.end(farewell=frames[0] if frames else None, code=1000, reason="session_replaced")
        return self.attachment

    def detach(self, attachment: Attachment) -> None:
        """A socket is gone. Starts the grace timer, or ends the session if it cannot be resumed.

        A superseded attachment's leaving changes nothing (generations are compared).
        """
        attachment.end()
        if attachment is not self.attachment:
            return
        self.attachment = None
        if self.state == "closed":
            return
        self._detached_at_s = trio.current_time()
        self._last_lease_s = self._detached_at_s
        self._timers_changed.set()
        log.info("session_detached", session_id=self.id, generation=attachment.generation)
        if not self.resumable:
            self.request_end("disconnect")

    # --- timers ---

    async def _timers(self) -> None:
        """Idle receive, lease TTL and disconnect grace, on trio's clock only. Cancellation: timers stop."""
        while True:
            deadline, reason, expired = self._next_deadline()
            if deadline <= trio.current_time():
                if reason == "idle_ttl_expired" and self.generation is not None:
                    # The lease does not run out while the model works for this session (contract 15.4).
                    self._last_lease_s = trio.current_time()
                    continue
                self.request_end(reason, expired=expired)
                return
            self._timers_changed = trio.Event()
            with trio.move_on_at(deadline):
                await self._timers_changed.wait()

    def _next_deadline(self) -> tuple[float, str, bool]:
        """The earliest timer: (time, reason, expired)."""
        found: list[tuple[float, str, bool]] = [(float("inf"), "", False)]
        if self._detached_at_s is not None:
            found.append((self._detached_at_s + self.settings.disconnect_grace_s, "disconnect_grace_expired", True))
        elif self.config.idle_timeout_s is not None:
            found.append((self._last_client_message_s + self.config.idle_timeout_s, "timeout", False))
        if self.settings.idle_ttl_s is not None:
            found.append((self._last_lease_s + self.settings.idle_ttl_s, "idle_ttl_expired", True))
        return min(found)

    def wake_timers(self) -> None:
        """A timer's setting changed."""
        self._timers_changed.set()

    def statistics(self) -> SessionStatistics:
        """A snapshot for diagnosis."""
        return SessionStatistics(
            session_id=self.id,
            state=self.state,
            epoch=self.epoch.number,
            turn_state=self.turn_state,
            attached=self.attachment is not None,
            mailbox=len(self.mailbox),
            epoch_tasks=self.epoch.tasks,
            responses=len(self.responses),
            journal_pending=self.journal.statistics().pending,
        )

    def start_generation_task(self, generation: Generation) -> None:
        """Run a generation inside the current epoch's scope."""
        self.epoch.start_soon(generation.run, name=f"generate {self.id} epoch {self.epoch.number}")
