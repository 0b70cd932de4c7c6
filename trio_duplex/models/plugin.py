"""The plugin contract: what a session asks of a model, and what a model tells a session.

A model *hears* all the time and *responds* now and then. Hearing lives in the session's nursery and survives every
interruption: :meth:`ModelSession.submit` takes input, :attr:`ModelSession.results` says what was heard and decided.
Responding lives in the epoch: the session runs :meth:`ModelSession.respond` inside the epoch's cancel scope, so that
a barge-in is nothing but the cancellation of that scope.

Models that speak while they listen (one network, one clock) say their speech as :class:`Spoke` results stamped with
the epoch they were computed under; the session drops stale ones at the one place where results enter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt
import trio

from duplex_protocol.audio_formats import Encoding
from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.values import Capabilities, Deadlines, Json, Role, SessionConfig, TextMark

if TYPE_CHECKING:
    from duplex_gpu.steps import ModelThreadStatistics

FloatAudio = npt.NDArray[np.float32]
"""Mono samples in [-1, 1], float32[n], at the rate the context says."""


@attrs.frozen
class Unit:
    """The model's clock and audio: unit period in ms, input and output rate in Hz (always mono float32 inside)."""

    period_ms: int
    input_rate_hz: int
    output_rate_hz: int


@attrs.frozen
class Framing:
    """The only form in which a model takes a duplex-aware client's audio (contract 6.2, 16.3): encoding, rate in Hz,
    and the most samples of one append (None: any). Clients of the plain view send what OpenAI's send; it is converted.
    """

    encoding: Encoding
    rate_hz: int
    max_samples: int | None = None


@attrs.frozen(kw_only=True)
class Traits:
    """How a session has to treat a model. The defaults: it hears by itself, ends turns, and answers in ``respond``.

    ``detects_speech``: it reports :class:`SpeechStarted` and :class:`SpeechStopped` itself; else the session judges by
    the client's hints, by loudness, or with a detector of its own. ``turn_based``: it hears committed turns only
    (chat lane). ``holds_manual_input``: with ``auto_response`` off nothing reaches it before its turn is answered.
    ``whole_units``: it is a :class:`UnitSession`, fed unit by unit, which speaks in :class:`Spoke` results.
    ``silence_units``: how many units of silence it may be fed after a turn that a client asked to be answered, and
    after one which it answers by itself (contract 10.4); None = it needs none. ``text_needs_all_audio``: of an answer
    that was not heard to its end nothing is remembered. ``own_context``: it answers whatever ``history`` a request
    holds, so that a client may give one response a context of its own (``response.input``).
    """

    detects_speech: bool = True
    turn_based: bool = False
    holds_manual_input: bool = False
    whole_units: bool = False
    silence_units: tuple[int, int] | None = None
    video: Literal["used", "ignored", "refused"] = "ignored"
    text_needs_all_audio: bool = False
    own_context: bool = False
    framing: Framing | None = None


# --- what a session gives to a model ------------------------------------------------------------------------------


@attrs.frozen
class HistoryEntry:
    """One turn of the conversation as it truly happened: assistant text only as far as it was heard.

    ``item_id`` names the wire item ("" for one that a client gave to a single response). ``role`` is ``tool`` for a
    function-call output; ``name`` and ``arguments`` are then those of its call, where that is known. ``wav`` is the
    sound of a user turn (16-bit mono at the unit's input rate), kept for turn-based models only.
    """

    item_id: str
    role: Role | Literal["tool"]
    text: str
    call_id: str | None = None
    wav: bytes | None = attrs.field(default=None, repr=False)
    name: str | None = None
    arguments: str | None = None


@attrs.frozen
class SessionContext:
    """What a model session may see of its session: the id, and the true history at the moment of asking."""

    session_id: str
    history: Callable[[], tuple[HistoryEntry, ...]]


@attrs.define(eq=False)
class Turn:
    """A finished user utterance. ``transcript`` is None until the model has recognised it.

    Times are on the session's audio clock (milliseconds of submitted audio since open). ``speech`` is false when the
    model found nothing said in it. ``audio`` (float32[n] at the unit's input rate) and ``video_frames`` (one group per
    append that carried some) are set when the session held the input back (:class:`Traits`).
    """

    audio_start_ms: int
    audio_end_ms: int
    transcript: str | None = None
    speech: bool = True
    item_id: str | None = None
    audio: FloatAudio | None = attrs.field(default=None, repr=False)
    video_frames: tuple[tuple[str, ...], ...] = attrs.field(default=(), repr=False)


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """One response to generate.

    ``turns`` are the committed utterances that it answers, oldest first, ``turn`` the last of them (None for
    ``response.create`` on stored history). ``history`` is the truth at the start, the turns' own entries included when
    their transcripts are known. ``text_only``: the answer has no audio. ``instructions`` are this response's, else the
    session's.
    """

    epoch: int
    response_id: str
    config: SessionConfig
    history: tuple[HistoryEntry, ...]
    turn: Turn | None = None
    turns: tuple[Turn, ...] = ()
    text_only: bool = False
    instructions: str | None = None
    options: Json = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class InputUnit:
    """One whole unit of input of a :class:`UnitSession`: ``audio`` is float32[period] at the unit's input rate.

    ``epoch`` is the one under which it is handed over; results of it carry that number. ``is_speech`` None: nobody
    judged. ``force_listen``: the model must not speak on this unit. ``silence``: nobody sent it, the session fills a
    pause (contract 10.4).
    """

    epoch: int
    audio: FloatAudio = attrs.field(repr=False)
    video_frames: tuple[str, ...] = attrs.field(default=(), repr=False)
    is_speech: bool | None = None
    force_listen: bool = False
    silence: bool = False


# --- what a model says --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Speech:
    """A piece of an answer: ``audio`` int16[n] at the unit's output rate (empty for text only) and the text it speaks.

    ``marks`` are (characters of the whole answer so far, ms of audio of the whole answer so far), cumulative.
    ``finish_reason``, with ``end_of_turn``: the model's own word for why it ended there (``stop``, ``length``, …), None
    if it has none; such a piece may be empty.
    """

    audio: npt.NDArray[np.int16] = attrs.field(repr=False)
    text: str = ""
    marks: tuple[TextMark, ...] = ()
    end_of_turn: bool = False
    finish_reason: str | None = None


Say = Callable[[Speech], None]
"""Hands one piece of speech to the session, synchronously. Bound to one epoch: after its end it does nothing."""


@attrs.frozen(kw_only=True)
class SpeechStarted:
    """The model's detector confirmed an onset: this is what interrupts an answer."""

    audio_start_ms: int


@attrs.frozen(kw_only=True)
class SpeechStopped:
    """The model's detector closed the utterance."""

    audio_end_ms: int


@attrs.frozen(kw_only=True)
class TurnEnded:
    """The model decided that the user's turn is over (it owns turn-taking).

    ``respond`` says whether it wants to speak.
    """

    turn: Turn
    respond: bool = True


@attrs.frozen(kw_only=True)
class TurnTranscribed:
    """The transcript of a turn which the client had ended by a commit."""

    turn: Turn


@attrs.frozen(kw_only=True)
class Listened:
    """The decision of one unit: keep listening.

    ``turn_done``: the model will say nothing (more) to the turn. ``buffering``: the unit is not complete yet.
    ``epoch``: the one it was computed under; a stale one is dropped (None = not bound to one).
    """

    reason: str = "model_listen"
    turn_done: bool = False
    buffering: bool = False
    epoch: int | None = None


@attrs.frozen(kw_only=True)
class Spoke:
    """The decision of one unit of an always-clocked model: speech computed under ``epoch``.

    ``model_turn`` counts the model's own turns where it knows them: speech of an earlier turn than the current one is
    dropped, speech of a later one first completes the answer that is open (contract 8.3).
    """

    epoch: int
    speech: Speech
    model_turn: int | None = None


@attrs.frozen(kw_only=True)
class ToolCalled:
    """The model calls a tool; ``arguments`` is its JSON text as produced."""

    call_id: str | None
    name: str | None
    arguments: str


@attrs.frozen(kw_only=True)
class ModelFailed:
    """Something in the model broke for this session.

    ``fatal`` ends the session with ``code`` as the reason, ``fails_response`` the active answer only;
    ``loses_input``: what was appended since the last commit is gone, and a commit of it will be refused.
    """

    code: str
    message: str
    fatal: bool = False
    fails_response: bool = False
    loses_input: bool = False


@attrs.frozen(kw_only=True)
class ControlReported:
    """An engine operation worked, but not in all its parts (``runtime.control``).

    ``result`` is shown as it is: counts and stage results in plain JSON, no tensors, paths or tracebacks (3.2).
    """

    result: Json


ModelResult = (
    SpeechStarted
    | SpeechStopped
    | TurnEnded
    | TurnTranscribed
    | Listened
    | Spoke
    | ToolCalled
    | ModelFailed
    | ControlReported
)


class SessionOverloaded(Exception):
    """The model cannot take this session's input fast enough; the input was not taken."""


class GenerationFailed(Exception):
    """An answer could not be generated: the response ends ``failed`` with ``code`` as the reason; the session lives."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class OpenRefused(Exception):
    """The model has no room for another session (a resource of the engine, not the session limit)."""


class ModelSession(Protocol):
    """One session's place in a model: a slot, its hearing and its voice."""

    @property
    def results(self) -> trio.MemoryReceiveChannel[ModelResult]:
        """What was heard and decided, in order. Ends when the model session is closed."""
        ...

    def submit(self, audio: FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Take input audio (any length) at the unit's input rate. Never blocks.

        Raises :class:`SessionOverloaded` and then took nothing.
        """
        ...

    def end_turn(self) -> Turn:
        """The client ends the turn by a commit: everything heard since the last turn is one utterance.

        Returns at once; recognition goes on and is announced by :class:`TurnTranscribed`.
        """
        ...

    def drop_input(self) -> None:
        """Forget what was heard since the last turn (``input_audio_buffer.clear``, ``input.cancel``)."""
        ...

    async def respond(self, request: ResponseRequest, say: Say) -> None:
        """Generate one answer, handing its pieces to ``say`` at real-time pace; returns when all of it was said.

        Saying nothing at all is a decision to listen. Raises :class:`GenerationFailed`.
        Runs inside the epoch's scope. Cancellation: an interruption; stops at the next checkpoint, must not shield,
        and nothing it does afterwards can be heard.
        """
        ...

    def interrupt(self, epoch: int) -> None:
        """The session moved on from ``epoch``: what a barge-in does to the state inside the model. Never blocks."""
        ...

    def reconfigure(self, config: SessionConfig) -> None:
        """A session update was accepted; later input and answers use ``config``. Never blocks, never fails."""
        ...

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """The model session's own tasks (hearing). Started in the session's nursery; ends by cancellation."""
        ...

    async def aclose(self) -> None:
        """Give the slot back; returns only when it is back, and does nothing from then on.

        Raises, or does not return in time: the slot counts as taken, and the reaper tries again (contract 22).
        Cancellation: safe; a model that needs no waiting gives the slot back before any checkpoint.
        """
        ...


@runtime_checkable
class UnitSession(Protocol):
    """What a model session with the trait ``whole_units`` has too; its ``submit`` is not called."""

    def submit_unit(self, unit: InputUnit) -> None:
        """Take one whole unit. Never blocks. Raises :class:`SessionOverloaded` and then took nothing."""
        ...


@runtime_checkable
class TellsAtOnce(Protocol):
    """What a model session has that can hand its results over by a call: no task has to wake for each of them."""

    def tell_to(self, take: Callable[[ModelResult], bool]) -> None:
        """Call ``take`` with each result from now on, on the Trio thread, until it returns False once.

        That result and all later ones go through ``results``, as if this had never been called; so they may all along.
        """
        ...


@runtime_checkable
class TakesToolOutputs(Protocol):
    """What a model session has that goes on by itself when a tool it called has answered."""

    async def take_tool_output(self, call_id: str, output: str) -> None:
        """Hand over one result. Raises :class:`GenerationFailed`: it was not taken and may come again.

        Cancellation: it may or may not have been taken; the session is ending.
        """
        ...


@runtime_checkable
class KeepsDeadlines(Protocol):
    """What a model session has that accounts for its units' deadlines; shown on the wire and in the metrics."""

    def deadlines(self) -> Deadlines | None:
        """The account so far, None when there is none after all. Never blocks; works on a closed session too."""
        ...


def deadlines_of(session: ModelSession) -> Deadlines | None:
    """A model session's account; None when it keeps none."""
    return session.deadlines() if isinstance(session, KeepsDeadlines) else None


@attrs.frozen
class ModelHealth:
    """Whether the model can serve: ``ready`` after warm-up, ``alive`` until its thread died or got stuck."""

    ready: bool
    alive: bool
    detail: Json = attrs.field(factory=dict)


@runtime_checkable
class RunsModelThreads(Protocol):
    """A plugin or detector with threads that run batched steps; shown in the metrics."""

    def model_threads(self) -> Mapping[str, ModelThreadStatistics]:
        """A name for each thread that is warm → its numbers. Cheap, never blocks."""
        ...


@runtime_checkable
class DescribesTraits(Protocol):
    """A plugin whose sessions need anything but the default :class:`Traits`."""

    def traits(self, config: SessionConfig) -> Traits:
        """How sessions with this configuration are to be treated."""
        ...


def traits_of(plugin: ModelPlugin, config: SessionConfig) -> Traits:
    """The traits of a plugin's sessions with this configuration."""
    return plugin.traits(config) if isinstance(plugin, DescribesTraits) else Traits()


class ModelPlugin(Protocol):
    """One deployed model."""

    @property
    def name(self) -> str:
        """The model name on the wire."""
        ...

    @property
    def unit(self) -> Unit:
        """Clock and rates."""
        ...

    @property
    def defaults(self) -> SessionDefaults:
        """What a new session gets when its client says nothing."""
        ...

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """The capability object for a session with this configuration."""
        ...

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """Check an opening configuration and fill the model's defaults; no side effects.

        Raises :class:`duplex_protocol.errors.RemoteProtocolError` with ``code`` and ``param``.
        """
        ...

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """Check an update against the current configuration (contract 17, the model's part); no side effects."""
        ...

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Load, warm up, report started, then serve until cancelled. Lives in the hub's nursery.

        Cancellation: stops the model's threads within a bounded time.
        """
        ...

    async def open(self, config: SessionConfig, context: SessionContext) -> ModelSession:
        """Take a slot and feed the prompts. Raises :class:`OpenRefused` when there is no slot.

        Cancellation: the slot is given back.
        """
        ...

    def health(self) -> ModelHealth:
        """Cheap, synchronous, callable at any time."""
        ...
