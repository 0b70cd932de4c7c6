"""One session of the demo model: hearing on one side, answering on the other.

Samples go to the detector as they arrive; its words come back as messages to one task (:meth:`DemoSession.run`), which
decides and tells the session.  An answer is prepared while the silence that ends a turn is still running.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import attrs
import trio

from duplex_protocol.values import Deadlines, SessionConfig
from trio_duplex.models.deadlines import DeadlineAccount
from trio_duplex.models.demo.answering import DEAD, answer, question_of
from trio_duplex.models.demo.engine import Engine, EngineGone, FloatAudio, Heard, Urgency
from trio_duplex.models.demo.hearing import (
    Committed,
    Decision,
    Hearing,
    Paused,
    Resumed,
    Started,
    Stopped,
    TurnOver,
    UnitHeard,
)
from trio_duplex.models.demo.memory import last_words, tool_results, without_turns
from trio_duplex.models.demo.options import DemoOptions
from trio_duplex.models.demo.outage import Outage
from trio_duplex.models.demo.preparation import Preparation, holds_words
from trio_duplex.models.demo.thinking import Brain, Question, Thought
from trio_duplex.models.demo.tool_calls import ToolCall, ToolResult
from trio_duplex.models.plugin import (
    GenerationFailed,
    Listened,
    ModelFailed,
    ModelResult,
    ResponseRequest,
    Say,
    SessionContext,
    SessionOverloaded,
    SpeechStarted,
    SpeechStopped,
    ToolCalled,
    Turn,
    TurnEnded,
    TurnTranscribed,
)
from trio_duplex.turn_detection import FRAME_MS, EndpointerSettings

__all__ = ["DemoSession"]

FRAMES_UNDER_WAY = 32
"""Frames at the detector at a time; the rest of a burst waits here, so that one session cannot flood its slot."""
RESULTS = 256
CALLS_KNOWN = 256
UNINTELLIGIBLE = "…"


@attrs.define(eq=False)
class _TurnWork:
    """Recognition of one turn.  ``preparation`` is there once ``assigned`` is set.

    ``ended``: the session knows that the turn is over (the client ended it, or it was told so already).
    """

    turn: Turn
    ended: bool
    assigned: trio.Event = attrs.field(factory=trio.Event)
    preparation: Preparation | None = None

    def assign(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self.assigned.set()

    @property
    def heard(self) -> bool:
        return self.preparation is not None and self.preparation.heard.is_set()


class DemoSession:
    """A :class:`trio_duplex.models.plugin.ModelSession`.  Video frames are ignored."""

    def __init__(
        self,
        engine: Engine,
        options: DemoOptions,
        config: SessionConfig,
        context: SessionContext,
        brain: Brain,
        on_close: Callable[[DemoSession], object] = lambda _: None,
    ) -> None:
        """Raises :class:`trio_duplex.models.plugin.OpenRefused` when the detector has no free slot."""
        self._engine = engine
        self._options = options
        self._config = config
        self._context = context
        self._brain = brain
        self._on_close = on_close
        self._send, self._receive = trio.open_memory_channel[ModelResult](RESULTS)
        # One message per frame under way, a fatal one, and nudges (None), which may get lost when it is full.
        self._news_send, self._news = trio.open_memory_channel[Heard | None](FRAMES_UNDER_WAY + 8)
        self._under_way = 0
        self._outage = Outage()
        self._responding = 0
        self._gone = False
        self._closed = False
        self._nursery: trio.Nursery | None = None
        self._ahead: Preparation | None = None
        self._works: WeakKeyDictionary[Turn, _TurnWork] = WeakKeyDictionary()
        self._called: OrderedDict[str, str] = OrderedDict()  # call id → tool, of the last calls
        self._unheard: deque[_TurnWork] = deque()  # turns whose transcript has not been announced
        self._hearing = Hearing(
            self._settings(),
            owns_turns=self._owns_turns,
            unit_frames=options.unit_ms // FRAME_MS,
            max_utterance_ms=options.max_utterance_ms,
        )
        self._account = DeadlineAccount()
        self._ear = engine.open_ear(self._on_heard)

    @property
    def results(self) -> trio.MemoryReceiveChannel[ModelResult]:
        """What was heard and decided."""
        return self._receive

    # --- what the session asks, none of it blocking ---------------------------------------------------------------

    def submit(self, audio: FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Take input at 16 kHz.  Raises :class:`SessionOverloaded` when more than the allowed backlog waits."""
        if self._closed:
            return
        if self._hearing.backlog_ms + len(audio) // 16 > self._options.max_backlog_ms:
            raise SessionOverloaded(f"more than {self._options.max_backlog_ms} ms of audio wait to be heard")
        self._hearing.append(audio)
        self._feed_ear()

    def end_turn(self) -> Turn:
        """The client's commit."""
        turn = self._hearing.commit()
        if not turn.speech:
            self._nudge()
            return turn
        work = self._works[turn] = _TurnWork(turn, ended=True)
        self._unheard.append(work)
        self._nudge()
        return turn

    def drop_input(self) -> None:
        """The client's clear."""
        self._stop_ahead()
        self._hearing.drop()
        self._nudge()

    def interrupt(self, epoch: int) -> None:
        """Nothing to do: what is being said lives in :meth:`respond`, and hearing goes on across interruptions."""

    def reconfigure(self, config: SessionConfig) -> None:
        """Later audio is judged, and later answers are given, by ``config``."""
        self._config = config
        self._hearing.reconfigure(self._settings(), owns_turns=self._owns_turns)
        if not self._owns_turns:
            self._stop_ahead()

    async def aclose(self) -> None:
        """Give the slot back.  Cancellation: everything is done before the one checkpoint."""
        if not self._closed:
            self._ear.close()  # first: until it has worked this is to be tried again
            self._closed = True
            self._stop_ahead()
            self._news_send.close()
            self._send.close()
            self._on_close(self)
        await trio.lowlevel.checkpoint()

    def deadlines(self) -> Deadlines:
        """How the frames of the detector kept their deadline: 20 ms after they were handed to it."""
        return self._account.snapshot()

    # --- hearing ----------------------------------------------------------------------------------------------------

    @property
    def _owns_turns(self) -> bool:
        """The model ends turns, unless the client chose to do it all by itself."""
        return self._config.auto_response or self._config.turn_detection is not None

    @property
    def _answers(self) -> bool:
        detection = self._config.turn_detection
        return detection is None or detection.create_response

    def _settings(self) -> EndpointerSettings:
        settings = EndpointerSettings.of(self._config.turn_detection)
        early_ms = self._options.early_silence_for(settings.silence_duration_ms)
        return attrs.evolve(settings, early_silence_ms=early_ms)

    def _on_heard(self, heard: Heard) -> None:
        """The engine's callback: one message, at once."""
        if heard.lateness_s is not None:
            self._account.add(heard.lateness_s)
        try:
            self._news_send.send_nowait(heard)
        except (trio.WouldBlock, trio.ClosedResourceError):
            # Frames under way always find room, so this is a closed session, or one that was told already.
            return

    def _nudge(self) -> None:
        try:
            self._news_send.send_nowait(None)
        except (trio.WouldBlock, trio.ClosedResourceError):
            return  # full: the next message has the same effect

    def _feed_ear(self) -> None:
        while not self._gone and self._under_way < FRAMES_UNDER_WAY:
            frame = self._hearing.next_frame()
            if frame is None:
                return
            try:
                self._ear.submit(frame)
            except EngineGone as failure:
                self._on_heard(Heard(failure=failure))
                return
            self._under_way += 1

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear until cancelled or closed.

        Cancellation: recognition and preparations under way are abandoned.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            async for news in self._news:
                # Blocks while the session is slow; then frames wait, and at last ``submit`` refuses.
                await self._tell(self._take(news))
                self._feed_ear()
            nursery.cancel_scope.cancel()

    async def _tell(self, results: list[ModelResult]) -> None:
        """Cancellation: those not yet sent are lost."""
        try:
            for result in results:
                await self._send.send(result)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # nobody listens any more: the session is going away

    def _take(self, news: Heard | None) -> list[ModelResult]:
        results: list[ModelResult] = []
        if news is None:
            decisions = self._hearing.due()
        elif isinstance(news.failure, EngineGone):
            return self._end(news.failure)
        else:
            self._under_way -= 1
            if news.failure is None:
                self._outage.worked()
            elif self._outage.failed():
                results.append(ModelFailed(code="server_vad_inference_failed", message=str(news.failure)))
            decisions = self._hearing.judge(news.probability)
        for decision in decisions:
            results += self._act(decision)
        return results + self._announce()

    def _end(self, failure: EngineGone) -> list[ModelResult]:
        if self._gone:
            return []
        self._gone = True
        return [ModelFailed(code=DEAD, message=str(failure), fatal=True)]

    def _act(self, decision: Decision) -> list[ModelResult]:
        match decision:
            case Started(audio_start_ms):
                return [*self._announce_without_transcript(), SpeechStarted(audio_start_ms=audio_start_ms)]
            case Paused(audio):
                if self._owns_turns:
                    self._stop_ahead()
                    self._ahead = self._prepare(audio, "maybe")
            case Resumed():
                self._stop_ahead()
            case Stopped(audio_end_ms):
                return [SpeechStopped(audio_end_ms=audio_end_ms)]
            case TurnOver(turn, audio):
                work = self._works[turn] = _TurnWork(turn, ended=False)
                self._unheard.append(work)
                work.assign(self._take_ahead() or self._prepare(audio, "now"))
            case Committed(turn, audio):
                work = self._works.get(turn) or _TurnWork(turn, ended=True)
                ahead = self._take_ahead()
                work.assign(ahead if ahead and audio is not None else self._prepare(audio, "now", by_client=True))
            case UnitHeard():
                return [] if self._responding else [Listened()]
        return []

    def _prepare(self, audio: FloatAudio | None, urgency: Urgency, *, by_client: bool = False) -> Preparation:
        preparation = Preparation()
        # A client that commits asks for its answer in words of its own; respond() then does what is left.
        speaks = self._answers and "audio" in self._config.modalities
        think = self._think if speaks and not by_client else None
        assert self._nursery is not None  # only the task inside it decides anything
        self._nursery.start_soon(
            partial(preparation.run, self._engine, audio, urgency=urgency, think=think, on_heard=self._nudge)
        )
        return preparation

    def _think(self, transcript: str) -> Thought | None:
        """The answer to one turn by what is known now, to be run; None: a tool is to be called instead."""
        config = self._config
        question = question_of(transcript, self._context.history(), config, config.instructions)
        return Thought(self._brain, question) if self._brain.call(question) is None else None

    def _take_ahead(self) -> Preparation | None:
        ahead, self._ahead = self._ahead, None
        return ahead

    def _stop_ahead(self) -> None:
        ahead = self._take_ahead()
        if ahead is not None:
            ahead.cancel()

    def _announce(self) -> list[ModelResult]:
        """Turns whose transcript has come, in order."""
        results: list[ModelResult] = []
        while self._unheard and self._unheard[0].heard:
            work = self._unheard.popleft()
            assert work.preparation is not None
            if work.preparation.failure is not None:
                results.append(ModelFailed(code="engine_error", message=str(work.preparation.failure)))
            if work.turn.transcript is None:  # a client may have sent its own
                work.turn.transcript = work.preparation.transcript
            work.turn.speech = holds_words(work.turn.transcript)
            if work.ended:
                results.append(TurnTranscribed(turn=work.turn))
            else:
                results.append(TurnEnded(turn=work.turn, respond=self._answers and work.turn.speech))
        return results

    def _announce_without_transcript(self) -> list[ModelResult]:
        """The user speaks again although the last turn is not recognised yet: it ends unanswered, its words follow."""
        results: list[ModelResult] = []
        for work in self._unheard:
            if not work.ended:
                work.ended = True
                results.append(TurnEnded(turn=work.turn, respond=False))
        return results

    # --- answering --------------------------------------------------------------------------------------------------

    async def respond(self, request: ResponseRequest, say: Say) -> None:
        """One answer or tool call; nothing at all to a turn in which nothing was said, if the model answers by itself.

        Raises :class:`GenerationFailed` after what could be said was said.
        Cancellation: stops at once; an answer in the making and queued synthesis are dropped, running synthesis is
        abandoned.
        """
        self._responding += 1
        prepared: Preparation | None = None
        try:
            question, prepared = await self._asked(request)
            if question is None:
                return
            call = self._brain.call(question)
            if call is not None:
                self._call_tool(call, request)
                return
            failure = await answer(
                Thought(self._brain, question), prepared, say, self._engine, self._options, text_only=request.text_only
            )
            if failure is not None:
                raise failure
        finally:
            if prepared is not None:
                prepared.cancel()
            self._responding -= 1

    async def _asked(self, request: ResponseRequest) -> tuple[Question | None, Preparation | None]:
        """What is to be answered (None: nothing), and what is prepared of the answer.

        Cancellation: at any point, nothing is lost.
        """
        turns = request.turns or ((request.turn,) if request.turn is not None else ())
        prepared = None
        results: tuple[ToolResult, ...] = ()
        if turns:
            # Several when commits came without an answer in between: they are one question (contract 10.1).
            transcripts = [await self._transcript_of(turn) for turn in turns]
            asked = " ".join(filter(holds_words, transcripts))
            history = without_turns(request.history, turns)
            work = self._works.get(turns[-1])
            prepared = work.preparation if work is not None else None
            if not asked:
                if request.config.auto_response:
                    return None, None
                asked = UNINTELLIGIBLE
        else:
            results = tool_results(request.history, self._called)
            asked, history = last_words(request.history)
        instructions = request.instructions if request.instructions is not None else request.config.instructions
        question = question_of(asked, history, request.config, instructions, options=request.options, results=results)
        return question, prepared

    def _call_tool(self, call: ToolCall, request: ResponseRequest) -> None:
        """Tell the session; the answer waits for the result and a ``response.create``.  No checkpoint."""
        call_id = "call_" + request.response_id.removeprefix("resp_")
        self._called[call_id] = call.name
        while len(self._called) > CALLS_KNOWN:
            self._called.popitem(last=False)
        try:
            self._send.send_nowait(ToolCalled(call_id=call_id, name=call.name, arguments=call.arguments))
        except trio.WouldBlock:
            raise GenerationFailed("engine_error", "too many results wait to be taken") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the session is going away

    async def _transcript_of(self, turn: Turn) -> str:
        """The words of a turn, as soon as they are known ("" for none).  Cancellation: at any point."""
        work = self._works.get(turn)
        if turn.transcript is not None or work is None:
            return turn.transcript or ""
        await work.assigned.wait()
        assert work.preparation is not None
        await work.preparation.heard.wait()
        return work.preparation.transcript
