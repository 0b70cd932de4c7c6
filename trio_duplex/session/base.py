"""What a session knows and how it speaks: its state, views of it, and the way out to the journal. No tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from duplex_protocol import events as ev
from duplex_protocol.commands import Command
from duplex_protocol.dialect import Dialect, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Deadlines, Json, Playback, SessionConfig, SessionSnapshot, SessionState, TurnState
from trio_duplex.models.plugin import ModelPlugin, ModelSession, deadlines_of, traits_of
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.audio_io import InputDecoder, OutputEncoder
from trio_duplex.session.conversation import Conversation
from trio_duplex.session.epoch import Epoch
from trio_duplex.session.ids import IdSource
from trio_duplex.session.input_buffer import InputBuffer
from trio_duplex.session.journal import Journal
from trio_duplex.session.lanes import holds_input
from trio_duplex.session.mailbox import Mailbox
from trio_duplex.session.messages import EndRequest, Internal
from trio_duplex.session.repeats import AdmittedAppends
from trio_duplex.session.response import Response
from trio_duplex.session.server_vad import Detector
from trio_duplex.session.settings import SessionSettings
from trio_duplex.session.speaking import Generation
from trio_duplex.session.tally import Tally
from trio_duplex.session.timers import Timers
from trio_duplex.session.tokens import ResumeTokens
from trio_duplex.session.unit_feed import UnitFeed
from trio_duplex.session.work import WaitingUtterance, Work
from trio_duplex.vad_scorer import VadScorer

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

REMEMBERED_RESPONSES = 64
PREEMPT_S = 0.25
"""How long a hanging append is waited for once a command came that wins over it (contract 1.2, 22)."""
MAX_BACKLOGS = 4
"""How many times the journal's size may wait for a socket that reads too slowly."""

EncodeFrame = Callable[[Json, int | None], bytes]


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
    deadlines: Deadlines | None
    """How its units kept their deadline; None when the model keeps no account."""


class SessionBase:
    """The state of one conversation, what follows from it, and the way out. It has no life of its own.

    See :class:`trio_duplex.session.core.Session` for the constructor's words.
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
        kept: Callable[[Session], None],
        opened_by_update: bool = True,
        strict: bool = True,
        scorer: VadScorer | None = None,
        tally: Tally | None = None,
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
        self._kept = kept
        self.tally = Tally() if tally is None else tally

        self.state: SessionState = "open"
        self.turn_state: TurnState = "idle"
        self.turn_id = 0
        self.model_turn = 0
        self.epoch = Epoch(0)
        self.conversation = Conversation()
        self.scorer = scorer
        self.traits = traits_of(plugin, config)
        self.input = InputBuffer()
        self.detector: Detector | None = None
        self.feed: UnitFeed | None = None
        self.clock_ms = 0.0
        self.heard_ms = 0
        self.committed_ms = 0
        self.overlap_ms = 0.0
        self.audio_appended = False
        self.bound: trio.CancelScope | None = None
        self.loading: trio.CancelScope | None = None

        self.generation: Generation | None = None
        self.unanswered: Work | None = None
        self.deferred: Work | None = None
        self.waiting: WaitingUtterance | None = None
        self.responses: OrderedDict[str, Response] = OrderedDict()
        self.last_response: Response | None = None
        self.playback_shown: Response | None = None
        self.audio_started = False
        self.tool_results_waiting = 0
        self.tool_answer_unasked = False
        self.stale_calls: set[str] = set()
        self.draining = False
        unit = plugin.unit
        self.input_rate_hz = unit.input_rate_hz
        self.hearing = InputDecoder(unit.input_rate_hz)
        self.output = OutputEncoder(unit.output_rate_hz)
        self.strict = strict

        self.mailbox: Mailbox[Internal] = Mailbox(settings.mailbox_limits)
        self.journal = Journal(
            encode, max_bytes=settings.resume_replay_max_bytes_per_session, ttl_s=settings.resume_replay_ttl_s
        )
        self._overflow_told = False
        self._watching_output = False
        self.appends_admitted = AdmittedAppends(settings.completed_append_cache_size)
        self.attachment: Attachment | None = None
        self.generation_count = 0
        self.tokens = ResumeTokens()
        self.model: ModelSession
        self.has_slot = False
        self.cleanup_failed = False
        self.gave_up = False
        self.ended = trio.Event()
        self.close_reason: str | None = None
        self._end: EndRequest | None = None
        self._end_requested = False
        self._nursery: trio.Nursery | None = None
        self.timers = Timers(self)

    def bind(self, at_most_s: float) -> trio.CancelScope:
        """A scope for what the consumer waits for in an append; a command that wins over it shortens the wait."""
        wait_s = min(at_most_s, PREEMPT_S) if self.mailbox.urgent else at_most_s
        self.bound = trio.CancelScope(deadline=trio.current_time() + wait_s)
        return self.bound

    # --- the way out ---

    def emit(self, event: ev.Event, *, epoch: int | None = None, tag: object = None) -> None:
        """Project an event and append it to the journal; synchronous, so order is the order of the calls."""
        if isinstance(event, ev.ErrorRaised):
            self.tally.errors[event.code] += 1
        for projected in self.dialect.project(event):
            self.journal.append(projected, epoch=epoch, tag=tag)
        if self.journal.overflowed and not self._overflow_told:
            self._overflow_told = True
            self.tally.journal_overflows += 1
            log.warning("journal_overflow", session_id=self.id)
            self.emit(ev.ResyncRequired(session_id=self.id, reason="journal_overflow"))
        self._check_backlog()

    def _check_backlog(self) -> None:
        """Nothing is done for a socket that reads as fast as it is told, which is nearly every one."""
        journal, settings = self.journal, self.settings
        if journal.backlog_bytes > MAX_BACKLOGS * settings.resume_replay_max_bytes_per_session:
            self._leave_behind()
        elif (
            (
                journal.pending_events > settings.max_pending_output_events
                or journal.backlog_bytes > settings.max_pending_output_bytes
            )
            and not self._watching_output
            and self._nursery is not None
            and not self._end_requested
            and self._output_full()
        ):
            self._watching_output = True
            self._nursery.start_soon(self._watch_output, name=f"output {self.id}")

    def _output_full(self) -> bool:
        """Whether more waits for the attached socket than may wait for long (contract 16.2)."""
        if self.attachment is None or self.attachment.ended.is_set():
            return False
        backlog, settings = self.journal.backlog(self.attachment.since), self.settings
        return backlog.events > settings.max_pending_output_events or backlog.bytes > settings.max_pending_output_bytes

    async def _watch_output(self) -> None:
        """Too much waits: leave the socket behind unless it catches up in the time that one write may take.

        A burst that a good socket takes at once is no reason. Cancellation: the session is ending.
        """
        try:
            attachment = self.attachment
            with trio.move_on_after(self.settings.attachment_io_timeout_s) as limit:
                while self._output_full() and self.attachment is attachment:
                    await self.journal.wait_progress()
            if limit.cancelled_caught and self.attachment is attachment:
                self._leave_behind()
        finally:
            self._watching_output = False

    def _leave_behind(self) -> None:
        """The socket reads, but slower than it is told: memory is bounded, so its visit ends (contract 22)."""
        if self.attachment is not None and not self.attachment.ended.is_set():
            log.warning("reader_left_behind", session_id=self.id)
            self.tally.readers_left_behind += 1
            self.attachment.end(code=1008, reason="output_backlog")

    def refuse(
        self, error: RemoteProtocolError, event_id: str | None = None, *, cause: type[Command] | None = None
    ) -> None:
        """Tell the client that one of its events was refused; ``cause`` is the kind of command it was."""
        self.emit(
            ev.ErrorRaised(
                code=error.code,
                message=error.message,
                param=error.param,
                related_event_id=error.event_id or event_id,
                retryable=error.retryable,
                session_id=self.id,
                epoch=self.epoch.number,
                cause=cause,
            )
        )

    def snapshot(self) -> SessionSnapshot:
        """The session object of the wire, read in one moment."""
        active = self.active_response
        shown = self.playback_shown
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
            playback=shown.ledger.snapshot() if shown else Playback(),
        )

    @property
    def active_response(self) -> Response | None:
        """The response that is being generated, if it is visible already."""
        return self.generation.response if self.generation else None

    @property
    def ending(self) -> bool:
        """Whether its end was asked for already."""
        return self._end_requested

    @property
    def holds_input(self) -> bool:
        """Whether input stays in the session until it is committed."""
        return holds_input(self.config, self.traits)

    @property
    def model_detects(self) -> bool:
        """Whether the model itself says when speech begins and ends."""
        return self.traits.detects_speech and not self.holds_input

    @property
    def judges_speech(self) -> bool:
        """Whether the session has to find out itself."""
        return not self.model_detects

    @property
    def held_samples(self) -> int:
        """Input samples at the model's rate that the session holds, committed ones included."""
        turns = [turn for work in (self.unanswered, self.deferred) if work is not None for turn in work.turns]
        if self.waiting is not None:
            turns.append(self.waiting.turn)
        committed = sum(len(turn.audio) for turn in turns if turn.audio is not None)
        return committed + self.input.held_samples + (self.detector.held_samples if self.detector is not None else 0)

    @property
    def open_calls(self) -> set[str]:
        """Function calls without an answer."""
        return {call_id for call_id, answered in self.conversation.function_calls().items() if not answered}

    def remember(self, response: Response) -> None:
        """Keep a response for later acks; the oldest finished ones are forgotten."""
        self.responses[response.id] = response
        self.last_response = self.playback_shown = response
        while len(self.responses) > REMEMBERED_RESPONSES:
            self.responses.popitem(last=False)

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
            deadlines=self.deadlines(),
        )

    def deadlines(self) -> Deadlines | None:
        """How its units kept their deadline so far; None when the model keeps no account, or is still opening."""
        return deadlines_of(self.model) if self.has_slot else None
