"""The hub: the nursery that outlives sockets, the session directory, admission, attach and resume. No wire text."""

from __future__ import annotations

from typing import Any

import attrs
import structlog
import trio

from duplex_protocol import events as ev
from duplex_protocol.dialect import ConfigUpdate, Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json
from duplex_protocol.wire import encode
from trio_duplex.models.plugin import ModelPlugin, OpenRefused
from trio_duplex.reaper import Reaper
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.core import Session
from trio_duplex.session.ids import IdSource
from trio_duplex.session.journal import CursorAhead, JournalGap
from trio_duplex.session.settings import SessionSettings
from trio_duplex.session.tally import Tally
from trio_duplex.tracebacks import plain_traceback
from trio_duplex.vad_scorer import VadScorer
from trio_duplex.warmup import warm_up

log = structlog.get_logger(__name__)

SHUTDOWN_TIMEOUT_S = 3.0
DISPLACE_TIMEOUT_S = 1.0
REMEMBERED_IDS = 65_536
"""Session ids chosen by clients whose next incarnation is remembered."""


class ResyncNeeded(Exception):
    """A resume cannot be replayed; ``frame`` is the unnumbered ``session.resync_required`` to answer it with."""

    def __init__(self, frame: bytes) -> None:
        super().__init__("journal_gap")
        self.frame = frame


@attrs.frozen(kw_only=True)
class ResumeRequest:
    """What a client gives to come back: the fields of ``session.resume``, shapes already checked."""

    session_id: str
    resume_token: str = attrs.field(repr=False)
    incarnation: int
    last_received_server_event_seq: int = 0
    by_query: bool = False
    """The fields came in the URL: a client that can set nothing else also needs to be answered in OpenAI's terms."""


@attrs.frozen
class HubStatistics:
    """A snapshot of the hub. Deadlines are those of all sessions so far, live ones included."""

    ready: bool
    sessions: int
    attached: int
    max_sessions: int
    opened: int
    refused: int
    kept_slots: int
    """Sessions that ended but whose slot the model has not given back; the reaper goes on asking for it."""
    deadline_units: int
    deadline_misses: int


class Hub:
    """All sessions of one deployed model. ``id_seed`` makes every id of a run reproducible (tests).

    ``scorer`` finds speech for models that do not detect it themselves
    (:class:`trio_duplex.models.vad_service.VadService`); None: such sessions cannot have server VAD.
    ``active_stream_window``: how many sessions the engine serves at a time; 0 = no limit but ``max_sessions``.
    """

    def __init__(
        self,
        plugin: ModelPlugin,
        settings: SessionSettings,
        *,
        id_seed: int | None = None,
        scorer: VadScorer | None = None,
        active_stream_window: int = 0,
    ) -> None:
        self.plugin = plugin
        self.scorer = scorer
        self.settings = settings
        self._window = active_stream_window or settings.session_limit
        self.tally = Tally()
        self.reaper = Reaper(settings.reaper_interval_s)
        self.ids = IdSource(id_seed)
        self.ready = trio.Event()
        self._sessions: dict[str, Session] = {}
        self._incarnations: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        self._stopping = trio.Event()
        self._empty = trio.Event()
        self.model_dead = False
        self.opened = 0
        self.refused = 0

    # --- life ---

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the model and all sessions until :meth:`stop`; reports started before the model is warm.

        Raises what the model's start raises. Cancellation: every session ends with reason ``server_shutdown``.
        """
        try:
            await self._run(task_status)
        finally:
            # However it ended: a connection that comes now is refused instead of finding a closed nursery.
            self._stopping.set()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.reaper.run, name="reaper")
            nursery.start_soon(self._run_model, name=f"model {self.plugin.name}")
            if self.scorer is not None:
                nursery.start_soon(self.scorer.run, name="speech detector")
            task_status.started()
            await self._stopping.wait()
            with trio.move_on_after(SHUTDOWN_TIMEOUT_S) as scope:
                await self._wait_empty()
            if scope.cancelled_caught:
                log.warning("sessions_cancelled_at_shutdown", sessions=len(self._sessions))
            nursery.cancel_scope.cancel()

    async def _run_model(self) -> None:
        """The model's own life. It may fail to start, which ends the hub; later its death ends every session (22).

        The hub then stays up, unhealthy and refusing, until it is stopped.
        """
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.plugin.run)
                if self.settings.warmup_frames > 0:
                    await warm_up(self.plugin, self.settings.warmup_frames)
                self.ready.set()
                log.info("model_ready", model=self.plugin.name)
        except Exception as error:  # (border)
            if not self.ready.is_set():
                raise
            log.error("model_died", model=self.plugin.name, exception=plain_traceback(error))
            self.model_dead = True
            for session in list(self._sessions.values()):
                session.model_died()

    def stop(self) -> None:
        """Begin the shutdown: no new sessions; every session says ``session.closed`` (``server_shutdown``)."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for session in list(self._sessions.values()):
            session.request_end("server_shutdown")
        self.reaper.hurry()

    async def _wait_empty(self) -> None:
        while self._occupied:
            self._empty = trio.Event()
            await self._empty.wait()

    @property
    def stopping(self) -> bool:
        """True once a shutdown began."""
        return self._stopping.is_set()

    # --- sessions ---

    @property
    def _occupied(self) -> int:
        return len(self._sessions)

    @property
    def _has_room(self) -> bool:
        return self._occupied < min(self.settings.session_limit, self._window)

    async def open_session(
        self, dialect: Dialect, update: ConfigUpdate, *, opened_by_update: bool = True, strict: bool = True
    ) -> Session:
        """Admit, open and announce a session; it runs in the hub's nursery from now on.

        Raises :class:`RemoteProtocolError`: the plugin's refusals, ``session_exists``, ``duplex_session_busy`` (at
        once, never a wait), ``resource_exhausted``. Cancellation: nothing is left, the slot is free again.
        """
        if strict and update.config.model and update.config.model != self.plugin.name:
            raise RemoteProtocolError(
                "model_not_found",
                f"this server runs {self.plugin.name!r}, not {update.config.model[:256]!r}",
                param="session.model",
            )
        config = self.plugin.check(attrs.evolve(update, config=attrs.evolve(update.config, model=self.plugin.name)))
        session_id = update.session_id or self.ids.session()
        await self._admit()
        if session_id in self._sessions:
            raise RemoteProtocolError("session_exists", f"session {session_id} is live", param="session.session_id")
        incarnation = self._incarnations.get(session_id, 0)

        def release() -> None:
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]
            self._empty.set()
            self._gone(session)

        session = Session(
            session_id=session_id,
            incarnation=incarnation,
            config=config,
            defaults=self.plugin.defaults,
            dialect=dialect,
            plugin=self.plugin,
            settings=self.settings,
            ids=self.ids,
            encode=self.encode,
            released=release,
            kept=self.reaper.keep,
            opened_by_update=opened_by_update,
            strict=strict,
            scorer=self.scorer,
            tally=self.tally,
        )
        # In the directory from here on: only the session itself gives its place back, by scope exit.
        self._sessions[session_id] = session
        started = False
        try:
            assert self._nursery is not None
            await self._nursery.start(session.run)
            started = True
        except OpenRefused as error:
            self.refused += 1
            raise RemoteProtocolError("resource_exhausted", str(error)) from None
        finally:
            if not started:
                session.request_end("disconnect")
        if update.session_id is not None:  # an id of our own making never comes back
            self._remember_incarnation(session_id, incarnation + 1)
        self.opened += 1
        log.info("session_opened", session_id=session_id, incarnation=incarnation, dialect=dialect.name)
        return session

    def _gone(self, session: Session) -> None:
        """It left the directory: a socket may still read its last events, nobody can come back to it."""
        session.journal.release()

    def _remember_incarnation(self, session_id: str, following: int) -> None:
        """Bounded: the id that was not used for longest is forgotten, and would count from 0 again."""
        self._incarnations.pop(session_id, None)
        self._incarnations[session_id] = following
        if len(self._incarnations) > REMEMBERED_IDS:
            del self._incarnations[next(iter(self._incarnations))]

    async def _admit(self) -> None:
        """Refuse at once when there is no slot; a newcomer displaces the oldest detached plain-view session (25).

        Cancellation: a displaced session still ends, nobody takes its slot.
        """
        if self._stopping.is_set():
            raise RemoteProtocolError("session_closed", "the server is shutting down")
        if self.model_dead:
            raise RemoteProtocolError("runtime_open_failed", "the model has died")
        if self._has_room:
            return
        for session in list(self._sessions.values()):
            if not session.strict and session.attachment is None and not session.ending:
                session.request_end("disconnect_grace_expired", expired=True)
                with trio.move_on_after(DISPLACE_TIMEOUT_S):
                    await session.ended.wait()
                break
        if self._has_room:
            return
        self.refused += 1
        if self._occupied < self.settings.session_limit:
            raise RemoteProtocolError(
                "resource_exhausted", f"the engine serves {self._window} sessions at a time (active_stream_window)"
            )
        raise RemoteProtocolError(
            "duplex_session_busy",
            f"duplex session capacity reached (max_sessions={self.settings.session_limit})",
        )

    def resume(self, request: ResumeRequest) -> tuple[Session, Attachment]:
        """Re-attach a live session (contract 15.3); the first failing step ends it and changes nothing.

        Returns the session and an attachment whose prelude is ``session.resumed``. Raises
        :class:`RemoteProtocolError` with the step's code, or :class:`ResyncNeeded`.
        """
        try:
            resumed = self._resume(request)
        except RemoteProtocolError as error:
            self.tally.resumes[error.code] += 1
            raise
        except ResyncNeeded:
            self.tally.resumes["journal_gap"] += 1
            raise
        self.tally.resumes["ok"] += 1
        return resumed

    def _resume(self, request: ResumeRequest) -> tuple[Session, Attachment]:
        session = self._sessions.get(request.session_id)
        if session is None or session.state != "open":
            raise RemoteProtocolError(
                "session_resume_expired", f"Unknown or expired duplex session: {request.session_id[:256]}"
            )
        if not session.resumable:
            raise RemoteProtocolError("unsupported_session_resume", "this session cannot be resumed")
        if request.incarnation != session.incarnation:
            raise RemoteProtocolError("session_resume_conflict", "this is another incarnation of the session")
        if not session.tokens.matches(request.resume_token, detached=session.attachment is None):
            raise RemoteProtocolError("invalid_resume_token", "the resume token does not match")
        try:
            session.journal.check(request.last_received_server_event_seq)
        except CursorAhead:
            raise RemoteProtocolError(
                "session_resume_conflict", "last_received_server_event_seq is beyond the last event"
            ) from None
        except JournalGap:
            gap = ev.ResyncRequired(session_id=session.id, reason="journal_gap")
            raise ResyncNeeded(self._unnumbered(session, gap)) from None
        token = self.ids.resume_token()
        attachment = session.attach(request.last_received_server_event_seq)
        session.tokens.rotate(request.resume_token, token)
        resumed = ev.SessionResumed(
            session_id=session.id,
            incarnation=session.incarnation,
            attachment_generation=attachment.generation,
            resume_token=token,
            by_query=request.by_query,
        )
        attachment.prelude.append(self._unnumbered(session, resumed))
        log.info("session_resumed", session_id=session.id, generation=attachment.generation)
        return session, attachment

    def _unnumbered(self, session: Session, event: ev.Event) -> bytes:
        frames = [frame for projected in session.dialect.project(event) for frame in projected.frames]
        return self.encode(frames[0], None)

    def encode(self, frame: Json, server_event_seq: int | None) -> bytes:
        """One wire event with its fresh ``event_id`` as UTF-8 JSON."""
        return encode(frame, event_id=self.ids.event(), server_event_seq=server_event_seq)

    # --- views ---

    def session(self, session_id: str) -> Session | None:
        """A live session by id."""
        return self._sessions.get(session_id)

    def sessions(self) -> tuple[Session, ...]:
        """All sessions that hold a place now."""
        return tuple(self._sessions.values())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """(healthy, detail) for ``/health``: unhealthy until warm, when the model died, and during shutdown."""
        model = self.plugin.health()
        up = self.ready.is_set() and not self.model_dead and not self._stopping.is_set()
        healthy = up and model.ready and model.alive
        return healthy, {
            "status": "ok" if healthy else "warming" if not self.ready.is_set() else "unavailable",
            "model": self.plugin.name,
            # A full server is well (200), but whoever spreads callers must see that one more would be refused (L2).
            "admits": healthy and self._has_room,
            "sessions": self._occupied,
            "max_sessions": self.settings.max_sessions,
            "kept_slots": self.reaper.kept,
            **model.detail,
        }

    def statistics(self) -> HubStatistics:
        """A snapshot."""
        live = [account for session in self._sessions.values() if (account := session.deadlines()) is not None]
        return HubStatistics(
            ready=self.ready.is_set(),
            sessions=self._occupied,
            attached=sum(s.attachment is not None for s in self._sessions.values()),
            max_sessions=self.settings.session_limit,
            opened=self.opened,
            refused=self.refused,
            kept_slots=self.reaper.kept,
            deadline_units=self.tally.deadline_units + sum(account.units for account in live),
            deadline_misses=self.tally.deadline_misses + sum(account.missed for account in live),
        )
