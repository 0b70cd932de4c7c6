"""The session: one nursery per conversation, one mailbox consumer, one epoch at a time.

Every state change happens in the mailbox consumer or, for output, in the epoch's own tasks; both are plain calls
without a checkpoint in between, so there are no locks. The handlers live beside this file by subject
(``appends``, ``commits``, ``interrupting``, ``response_commands``, ``items``, ``acks``, ``updates``, ``draining``; what
the model says: ``hearing``); state and the way out stand in ``base``; this file holds the run loop, the door, the
sockets and the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import structlog
import trio

from duplex_protocol import events as ev
from duplex_protocol.commands import AppendAudio, CloseSession, Command
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import (
    GenerationFailed,
    ModelFailed,
    ModelResult,
    OpenRefused,
    SessionContext,
    TellsAtOnce,
    UnitSession,
)
from trio_duplex.session import (
    acks,
    appends,
    commits,
    draining,
    endings,
    epochs,
    hearing,
    interrupting,
    items,
    response_commands,
    updates,
)
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.base import PREEMPT_S, SessionBase
from trio_duplex.session.cursor import Cursor
from trio_duplex.session.epoch import Epoch
from trio_duplex.session.lanes import check_lane, open_detection
from trio_duplex.session.mailbox import PREEMPTING
from trio_duplex.session.messages import EndRequest, HeardResult, Internal, RefusedEvent
from trio_duplex.session.speaking import Generation
from trio_duplex.session.unit_feed import UnitFeed
from trio_duplex.tracebacks import plain_traceback

log = structlog.get_logger(__name__)

CLEANUP_TIMEOUT_S = 5.0
OPEN_TIMEOUT_S = 60.0
"""How long the model may take to open a session: its client, which nobody listens to meanwhile, may be gone (1.2)."""
CLOSE_AGAIN_S = 0.5


Handler = Callable[["Session", Command], Awaitable[None]]

HANDLERS: dict[type[Command], Handler] = {
    **appends.HANDLERS,
    **commits.HANDLERS,
    **interrupting.HANDLERS,
    **response_commands.HANDLERS,
    **items.HANDLERS,
    **acks.HANDLERS,
    **updates.HANDLERS,
    **draining.HANDLERS,
}


class Session(SessionBase):
    """One conversation. Created by the hub, run in the hub's nursery, visited by sockets.

    ``released`` is called once when the model's slot is back and before the terminal event is written, so that a
    client which saw the end may reopen at once (O16). ``kept`` is called instead when the slot did not come back: who
    takes it calls :meth:`reap` now and then, and :meth:`give_up` when there will be no other time. ``strict``: the
    seed's own refusals; false for clients of the plain OpenAI view, for which contract 25 asks as few errors as
    possible. ``scorer``: the hub's speech detector, for models that do not detect speech themselves.
    """

    # --- the session's own life ---

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the conversation until it ends. Started by the hub with ``nursery.start``.

        Anything unexpected is caught here and nowhere else: it ends this session only, with ``internal_error``.
        Before it reported started it raises what ``plugin.open`` refused with, or ``runtime_open_failed``.
        Cancellation: the session ends with reason ``server_shutdown``; the slot is given back within
        ``CLEANUP_TIMEOUT_S``.
        """
        announced = trio.Event()
        refusal: RemoteProtocolError | None = None
        try:
            await self._open()
        except (OpenRefused, RemoteProtocolError):
            raise
        except Exception as error:  # noqa: BLE001  (border)
            raise self._open_failed(error) from None
        try:
            await self._converse(task_status, announced)
        except* Exception as errors:  # noqa: BLE001  (border)
            # The session's border: a fault of one session must not reach the hub's nursery, also not one that comes
            # together with a cancellation, which goes on. The traceback goes out as text: pretty printers would show
            # the locals, which hold users' words.
            if announced.is_set():
                exception = plain_traceback(errors)
                log.error("session_crashed", session_id=self.id, epoch=self.epoch.number, exception=exception)
                self._end_requested = True
                self._end = EndRequest("internal_error")
                self.emit(ev.ErrorRaised(code="internal_error", message="the session failed", session_id=self.id))
            else:
                refusal = self._open_failed(errors)
        finally:
            await self._finish()
        if refusal is not None:
            raise refusal

    def _open_failed(self, error: Exception) -> RemoteProtocolError:
        """What whoever wanted the session is told when the model's code failed before the session was announced."""
        log.error("session_open_failed", session_id=self.id, exception=plain_traceback(error))
        return RemoteProtocolError("runtime_open_failed", "the model could not open the session")

    async def _open(self) -> None:
        """Take the model's slot and the detector's place; whatever fails gives back what was taken, and raises.

        Cancellation: nothing is kept.
        """
        opened = False
        try:
            with trio.fail_after(OPEN_TIMEOUT_S):
                check_lane(self.config, self.capabilities, self.traits, strict=self.strict)
                unit = self.plugin.unit
                self.config, self.detector = await open_detection(
                    self.scorer, self.config, self.traits, model_rate_hz=unit.input_rate_hz
                )
                config = self.config
                self.model = await self.plugin.open(config, SessionContext(self.id, self.conversation.history))
            # From here on nothing may fail: the model's slot is taken, and only the way out gives it back.
            self.has_slot = True
            if self.traits.whole_units:
                assert isinstance(self.model, UnitSession)
                self.feed = UnitFeed(self.model, unit, listen_units=config.extra_body.get("force_listen_count") or 0)
            opened = True
        finally:
            if not opened:
                if self.detector is not None:
                    self.detector.close()
                self._released()

    async def _converse(self, task_status: trio.TaskStatus[None], announced: trio.Event) -> None:
        """The session's nursery; returns when an end was requested. Cancellation: ends the subtree."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            with trio.fail_after(OPEN_TIMEOUT_S):
                await nursery.start(self.model.run)
            await nursery.start(self.epoch.run)
            self._announce()
            announced.set()
            if isinstance(self.model, TellsAtOnce):
                self.model.tell_to(self._hear)
            nursery.start_soon(self._intake, name=f"intake {self.id}")
            nursery.start_soon(self.timers.run, self.request_end, name=f"timers {self.id}")
            task_status.started()
            while self._end is None:
                message = await self.mailbox.get()
                await self._apply(message)
                self.mailbox.finished(message)
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
                self.refuse(error, message.event_id, cause=type(message))
        elif isinstance(message, HeardResult):
            await hearing.heard(self, message.result)
        elif isinstance(message, RefusedEvent):
            self.refuse(message.error)
        else:
            self._end = message

    async def _wind_up(self, end: EndRequest) -> None:
        """Cancel what is being said, with its full terminal sequence, before the nursery goes (contract 13)."""
        self.state = "closing"
        await epochs.advance_epoch(self, end.cancel_reason or end.reason, reopen=False)

    async def _finish(self) -> None:
        """Give everything back, then say the one terminal event; a slot that does not come back is kept aside (22).

        Shielded but bounded: it runs also when the whole hub is being cancelled.
        """
        self._end_requested = True
        with trio.CancelScope(shield=True):
            closed = await self._close_model()
        end = self._end = self._end or EndRequest("server_shutdown")
        epochs.settle_on_exit(self, end.reason)
        if self.detector is not None:
            self.detector.close()
        self.turn_state = "idle"
        if closed:
            self._say_end(end)
            return
        self.state = "closing"
        self.cleanup_failed = True
        message = "the model could not clean up; the session ends when it can"
        self.emit(ev.ErrorRaised(code="runtime_close_failed", message=message, session_id=self.id))
        self._kept(self)

    async def reap(self) -> bool:
        """Ask the model once more for the slot; true when it is back and the session has said its end.

        At most ``CLEANUP_TIMEOUT_S``; never raises. Cancellation: the slot is still kept.
        """
        if not await self._close_model(once=True):
            return False
        self.cleanup_failed = False
        assert self._end is not None
        self._say_end(self._end)
        return True

    def give_up(self) -> None:
        """The hub ends with the slot still kept: the socket goes without ``session.closed``, which would be untrue."""
        self.gave_up = True
        self.close_reason = "server_shutdown"
        self._released()
        self.journal.close()
        self.ended.set()

    def _say_end(self, end: EndRequest) -> None:
        """The place is free and the terminal event written. No checkpoint."""
        self.state = "closed"
        self.close_reason = end.reason
        deadlines = self.deadlines()
        self.tally.session_ended(end.reason, deadlines)
        self._released()
        if end.expired:
            assert end.reason in ("disconnect_grace_expired", "idle_ttl_expired")
            reason: Literal["disconnect_grace_expired", "idle_ttl_expired"] = end.reason  # type: ignore[assignment]
            self.emit(
                ev.SessionExpired(session_id=self.id, incarnation=self.incarnation, reason=reason, deadlines=deadlines)
            )
        else:
            self.emit(ev.SessionClosed(session_id=self.id, reason=end.reason, deadlines=deadlines))
        self.journal.close()
        self.ended.set()
        log.info("session_ended", session_id=self.id, reason=end.reason, epoch=self.epoch.number)

    async def _close_model(self, *, once: bool = False) -> bool:
        """Give the model's slot back, trying again (or ``once``) when that fails; false when it is not back (22).

        At most ``CLEANUP_TIMEOUT_S``. Cancellation: it may not be back.
        """
        with trio.move_on_after(CLEANUP_TIMEOUT_S):
            while True:
                try:
                    await self.model.aclose()
                except Exception as error:  # noqa: BLE001  (border: it must not reach the hub's nursery)
                    log.error("model_session_close_failed", session_id=self.id, exception=plain_traceback(error))
                    if once:
                        return False
                    await trio.sleep(CLOSE_AGAIN_S)
                else:
                    return True
        log.error("model_session_close_timeout", session_id=self.id)
        return False

    def model_died(self) -> None:
        """The model is gone for everybody: the error, the failed answer and the end come in their place; no waiting."""
        self.mailbox.post(HeardResult(ModelFailed(code="engine_error", message="the model has died", fatal=True)))

    async def open_epoch(self, number: int) -> None:
        """Start the next epoch's scope in the session's nursery. Cancellation: the session is ending anyway."""
        assert self._nursery is not None
        self.epoch = Epoch(number)
        await self._nursery.start(self.epoch.run)

    async def _intake(self) -> None:
        """Model results enter here and in :meth:`_hear`; late ones are told by their epoch.

        Where the consumer does not follow they wait in the model's own channel. Cancellation: stops taking.
        """
        async for result in self.model.results:
            self.timers.lease()
            await self.mailbox.post_result(HeardResult(result))
        lost = ModelFailed(code="runtime_data_plane_stream_failed", message="the model's results ended", fatal=True)
        self.mailbox.post(HeardResult(lost))

    def _hear(self, result: ModelResult) -> bool:
        """A result of a model that tells at once; false, and not taken, where the consumer does not follow."""
        if not self.mailbox.has_room_for_results:
            return False
        self.timers.lease()
        self.mailbox.post(HeardResult(result))
        return True

    # --- the way in ---

    def post(self, command: Command) -> None:
        """A client's command, in arrival order; never blocks.

        Raises :class:`RemoteProtocolError`: ``session_closed`` once closing began, ``input_backpressure`` over bounds.
        """
        self.touch()
        if self._end_requested:
            raise RemoteProtocolError("session_closed", "the session is closing", event_id=command.event_id)
        if isinstance(command, CloseSession) and command.drain is None:
            self.request_end("session_close")
            return
        if self.draining and isinstance(command, draining.REFUSED):
            raise RemoteProtocolError("session_closed", "the session is closing", event_id=command.event_id)
        if isinstance(command, AppendAudio):
            self._post_append(command)
            return
        self.mailbox.post_command(command)
        if isinstance(command, PREEMPTING):
            self._hurry()

    def _post_append(self, command: AppendAudio) -> None:
        """An append counts once, however often a client that came back sends it (22)."""
        if not self.resumable:
            self.mailbox.post_command(command)
        elif self.appends_admitted.repeats(command, self.generation_count):
            log.debug("append_repeated", session_id=self.id)
        else:
            self.mailbox.post_command(command)
            self.appends_admitted.admitted(command, self.generation_count)

    def _hurry(self) -> None:
        """Something that wins over a hanging append came: what the consumer waits for is given up soon (22)."""
        if self.bound is not None:
            self.bound.deadline = min(self.bound.deadline, trio.current_time() + PREEMPT_S)

    def post_refusal(self, error: RemoteProtocolError) -> bool:
        """A client event that was not taken: its error comes in its place, or at once where there is no room.

        Returns false when the lack of room is to blame. Never blocks.
        """
        self.touch()
        if self._end_requested:
            return True
        if error.code != "input_backpressure" and self.mailbox.post_refused(RefusedEvent(error)):
            return True
        self.refuse(error)
        return False

    def touch(self, *, lease: bool = False) -> None:
        """A client message came (resets the idle-receive timer); ``lease`` also counts it as lease activity."""
        self.timers.message(lease=lease)

    def request_end(self, reason: str, *, expired: bool = False, cancel_reason: str | None = None) -> None:
        """Ask the session to end; the first reason wins. Preempts waiting appends. Never blocks."""
        if self._end_requested:
            return
        self._end_requested = True
        self._hurry()
        if self.loading is not None:
            self.loading.cancel()
        self.mailbox.drop_appends()
        self.mailbox.post(EndRequest(reason, expired, cancel_reason))

    def generation_over(self, generation: Generation, failure: GenerationFailed | None, *, told: bool = False) -> None:
        """A generation's own word that it is over; without effect when something else ended it before."""
        if failure is not None:
            endings.generation_failed(self, generation, failure)
        else:
            endings.generation_ended(self, generation, told=told)

    # --- sockets ---

    def attach(self, after_seq: int = 0, *, prelude: list[bytes] | None = None) -> Attachment:
        """A socket takes over: live delivery and replay start after ``after_seq``.

        A superseded socket gets ``session.replaced`` with its own generation. Raises the journal's errors and then
        nothing changed.
        """
        cursor: Cursor = self.journal.cursor(after_seq)
        old = self.attachment
        self.generation_count += 1
        self.attachment = Attachment(self.generation_count, cursor, prelude or [], self.journal.appended)
        self.timers.attached()
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
        self.timers.detached()
        log.info("session_detached", session_id=self.id, generation=attachment.generation)
        if not self.resumable:
            self.request_end("disconnect")

    def wake_timers(self) -> None:
        """A timer's setting changed."""
        self.timers.wake()

    def start_soon(self, task: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run a task that outlives epochs but not the session."""
        assert self._nursery is not None
        self._nursery.start_soon(task, name=name)
