"""One session of PersonaPlex: units in at the network's beat, its frames out as decisions to listen or to speak."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from duplex_gpu.personaplex.prompts import Prompt
from duplex_gpu.personaplex.unit_rows import FeedPrompt, Payload, Start, UnitOutput
from duplex_gpu.steps import RowResult, SlotClosed, SlotOverloaded, ThreadDied
from duplex_protocol.values import Deadlines, SessionConfig
from trio_duplex.models.deadlines import DeadlineAccount
from trio_duplex.models.personaplex.options import UNIT_MS, PersonaPlexOptions
from trio_duplex.models.personaplex.replica import DEAD, Replica
from trio_duplex.models.personaplex.speech_gate import GateSettings, SpeechGate
from trio_duplex.models.personaplex.unit_clock import UnitClock
from trio_duplex.models.plugin import (
    FloatAudio,
    InputUnit,
    Listened,
    ModelFailed,
    ModelResult,
    OpenRefused,
    ResponseRequest,
    Say,
    SessionOverloaded,
    Speech,
    Spoke,
    Turn,
)
from trio_duplex.samples import int16_from_float

__all__ = ["PersonaPlexSession"]

log = structlog.get_logger(__name__)

RESULTS = 256
UNDER_WAY = 4
"""Units at the network at a time; more of them wait here, where an interruption can still be told apart."""
GIVES_UP_FRAMES = 50
"""Frames of listening after which an answer that a client asked for is not going to come."""
PERIOD_S = UNIT_MS / 1000


@attrs.frozen
class _UnderWay:
    epoch: int
    force_listen: bool


class PersonaPlexSession:
    """A :class:`trio_duplex.models.plugin.ModelSession` and ``UnitSession``. Video frames are ignored.

    Made by :meth:`open`. The slot is taken by the constructor, which raises ``OpenRefused``.
    """

    def __init__(
        self,
        replica: Replica,
        options: PersonaPlexOptions,
        session_id: str,
        on_close: Callable[[PersonaPlexSession], object] = lambda _: None,
    ) -> None:
        self.replica = replica
        self._session_id = session_id
        self._on_close = on_close
        self._send, self._receive = trio.open_memory_channel[ModelResult](RESULTS)
        self._take: Callable[[ModelResult], bool] | None = None
        self._prompting: trio.MemorySendChannel[RowResult[UnitOutput]] | None = None
        self._gate = SpeechGate(
            GateSettings(
                options.onset_energy,
                options.onset_ms // UNIT_MS,
                options.quiet_energy,
                options.quiet_ms // UNIT_MS,
                options.cancel_mute_ms // UNIT_MS,
            )
        )
        self._clock = UnitClock(
            PERIOD_S, trio.current_time() + PERIOD_S, options.patience_ms / 1000, options.lead_units
        )
        self._backlog: deque[InputUnit] = deque()
        self._max_backlog = options.max_backlog_ms // UNIT_MS
        self._under_way: deque[_UnderWay] = deque()
        self._epoch = 0
        self._listened = 0
        self._heard_units = 0
        self._turn_start_units = 0
        self._closed = self._gone = False
        self._wake = trio.Event()
        self._pause = trio.CancelScope()
        self.account = DeadlineAccount()
        """A unit's result is due one period after the unit was fed."""
        self.silence_units = 0
        self._slot = replica.take(self._deliver)

    @property
    def results(self) -> trio.MemoryReceiveChannel[ModelResult]:
        """What was heard and decided."""
        return self._receive

    def tell_to(self, take: Callable[[ModelResult], bool]) -> None:
        """See :class:`trio_duplex.models.plugin.TellsAtOnce`. What waits in the channel already must come first."""
        if not self._receive.statistics().current_buffer_used:
            self._take = take

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def start(self, prompt: Prompt, seed: int) -> None:
        """Feed voice and persona, chunk by chunk, between other sessions' steps.

        Raises ``OpenRefused``: no memory for the prompts, or the model died. Cancellation: the caller closes the
        session; rows under way are dropped.
        """
        send, receive = trio.open_memory_channel[RowResult[UnitOutput]](2)
        self._prompting = send
        with send, receive:
            payload: Payload = Start(prompt, None, seed)
            while True:
                try:
                    self._slot.submit(payload)
                except (ThreadDied, SlotOverloaded) as error:
                    raise OpenRefused(str(error)) from error
                result = await receive.receive()
                if result.output is None:
                    raise OpenRefused(f"the prompts could not be fed: {result.error}")
                if result.output.failure is not None:
                    raise OpenRefused(f"the prompts could not be fed: {result.output.failure}")
                if result.output.ready:
                    break
                payload = FeedPrompt()
        self._prompting = None
        self._clock.expected_s = trio.current_time() + PERIOD_S

    # --- what the session asks, none of it blocking -------------------------------------------------------------------

    def submit_unit(self, unit: InputUnit) -> None:
        """One unit, float32[1920] at 24 kHz. Raises ``SessionOverloaded`` when too many wait already."""
        if self._closed or self._gone:
            return
        self._epoch = unit.epoch
        if len(self._backlog) >= self._max_backlog:
            raise SessionOverloaded(f"more than {self._max_backlog * UNIT_MS} ms of audio wait")
        self._backlog.append(unit)
        self._heard_units += 1
        self._feed_backlog()
        if self._backlog:
            self._wake.set()

    def submit(self, audio: FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Not used: the session feeds units."""
        raise NotImplementedError("PersonaPlex is fed units")

    def end_turn(self) -> Turn:
        """The network has no turns; what was heard since the last one is called one."""
        start, self._turn_start_units = self._turn_start_units, self._heard_units
        return Turn(start * UNIT_MS, self._heard_units * UNIT_MS)

    def drop_input(self) -> None:
        """What waits is forgotten; what the network has heard it has heard."""
        self._backlog.clear()
        self._turn_start_units = self._heard_units

    async def respond(self, request: ResponseRequest, say: Say) -> None:
        """Not used: answers come unit by unit. Cancellation: at once."""
        await trio.lowlevel.checkpoint()

    def interrupt(self, epoch: int) -> None:
        """Later results belong to the next epoch; what is being said is not heard any more."""
        self._epoch = epoch + 1
        self._gate.cut()

    def reconfigure(self, config: SessionConfig) -> None:
        """Nothing of the network can change."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The beat: silence when the client sends nothing, and units that had to wait. Cancellation: at any point."""
        task_status.started()
        while True:
            self._wake = trio.Event()
            with trio.move_on_at(self._due_s()) as self._pause:
                await self._wake.wait()
            self._feed_backlog()
            now_s = trio.current_time()
            if not self._backlog and now_s >= self._clock.silence_s:
                self._clock.filled(now_s)
                if len(self._under_way) < UNDER_WAY:
                    self.silence_units += 1
                    self._feed(None, _UnderWay(self._epoch, False))

    def _due_s(self) -> float:
        """When the beat has something to do, if nothing comes before."""
        due_s = self._clock.silence_s
        if self._backlog and len(self._under_way) < UNDER_WAY:
            due_s = min(due_s, self._clock.release_s)
        return due_s

    async def aclose(self) -> None:
        """Give the slot back. Cancellation: everything is done before the one checkpoint."""
        self.discard()
        await trio.lowlevel.checkpoint()

    def discard(self) -> None:
        """What :meth:`aclose` does, at once; idempotent."""
        if not self._closed:
            self.replica.give_back(self._slot)  # first: until it has worked this is to be tried again
            self._closed = True
            self._send.close()
            self._on_close(self)
            log.info(
                "personaplex_session_closed",
                session_id=self._session_id,
                units=self.account.units,
                silence_units=self.silence_units,
                deadline_misses=self.account.missed,
            )

    def deadlines(self) -> Deadlines:
        """How the session's units kept their deadline; after :meth:`discard` too."""
        return self.account.snapshot()

    # --- units in -----------------------------------------------------------------------------------------------------

    def _feed_backlog(self) -> None:
        while self._backlog and len(self._under_way) < UNDER_WAY:
            now_s = trio.current_time()
            if not self._clock.may_feed(now_s):
                return
            unit = self._backlog.popleft()
            self._clock.fed(now_s, waiting=bool(self._backlog))
            self._feed(unit.audio, _UnderWay(unit.epoch, unit.force_listen))
            # While units come in time the beat is only put off, never woken.
            self._pause.deadline = self._due_s()

    def _feed(self, audio: FloatAudio | None, about: _UnderWay) -> None:
        if self._gone or self._closed:
            return
        try:
            self._slot.submit(audio, due_s=time.monotonic() + PERIOD_S)
        except (ThreadDied, SlotOverloaded, SlotClosed) as error:
            self._fail(DEAD, str(error))
        else:
            self._under_way.append(about)

    # --- frames out ---------------------------------------------------------------------------------------------------

    def _deliver(self, result: RowResult[UnitOutput]) -> None:
        """The model thread's result of one row, on the Trio thread."""
        if self._prompting is not None:
            self._prompting.send_nowait(result)
            return
        if self._gone or self._closed:
            return
        if result.output is None:
            self._fail(DEAD, str(result.error))
            return
        about = self._under_way.popleft()
        if result.lateness_s is not None:
            self.account.add(result.lateness_s)
        output = result.output
        if output.failure == "not_finite":
            self._fail(DEAD, "the network's numbers broke")
        elif output.failure is not None:
            self._fail("resource_exhausted", "no memory is left for this session's context")
        else:
            self._tell(self._decide(output, about))
        if self._backlog:
            self._feed_backlog()

    def _decide(self, output: UnitOutput, about: _UnderWay) -> ModelResult:
        verdict = self._gate.step(output.text_id, output.energy)
        if about.epoch != self._epoch:
            return Listened(epoch=about.epoch)  # the session drops it
        if verdict == "listen" or (about.force_listen and verdict != "end") or output.pcm is None:
            self._listened += 1
            return Listened(epoch=about.epoch, turn_done=self._listened % GIVES_UP_FRAMES == 0)
        self._listened = 0
        levels = output.levels if output.levels is not None else int16_from_float(output.pcm)
        audio = levels[:0] if about.force_listen else levels
        speech = Speech(audio=audio, text=output.text, end_of_turn=verdict == "end")
        return Spoke(epoch=about.epoch, speech=speech)

    def _tell(self, result: ModelResult) -> None:
        if self._take is not None:
            if self._take(result):
                return
            self._take = None
        try:
            self._send.send_nowait(result)
        except trio.WouldBlock:
            self._gone = True
            self._send.close()  # the session takes nothing any more: it ends, with the reason it has for that
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the session is going away

    def fail(self, message: str) -> None:
        """Its replica is gone."""
        self._fail(DEAD, message)

    def _fail(self, code: str, message: str) -> None:
        """This session is over; nobody else is concerned."""
        if not self._gone:
            self._tell(ModelFailed(code=code, message=message, fatal=True))
            self._gone = True
            self._backlog.clear()
            self.replica.give_back(self._slot)
