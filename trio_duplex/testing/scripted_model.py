"""A model that does what its script says: no threads, no weights, Trio's clock only.

It hears by energy (a frame louder than ``onset_rms`` is speech), so a test can either stream real samples and let it
decide, or call :meth:`ScriptedSession.hear` with any result. Its answers are lists of steps, spoken at real-time pace
as square waves whose amplitude names the piece, so what arrives on the wire can be decoded back to the script.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import trio

from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Capabilities, Deadlines, SessionConfig, TextMark
from trio_duplex.models import plugin as model
from trio_duplex.models.deadlines import DeadlineAccount

AMPLITUDE_STEP = 500
MAX_STEPS = 65
"""Piece ``k`` of an answer is a square wave of amplitude ``(k + 1) * AMPLITUDE_STEP`` (int16)."""


@attrs.frozen
class Piece:
    """Speak ``text`` for ``ms`` milliseconds."""

    text: str
    ms: int = 200


@attrs.frozen
class Fail:
    """The answer fails here with this code."""

    code: str = "engine_error"


@attrs.frozen
class Hang:
    """The answer never goes on from here: only an interruption ends it."""


Step = Piece | Fail | Hang
Script = Callable[[model.ResponseRequest], Sequence[Step]]
UnitScript = Callable[["ScriptedSession", model.InputUnit], Sequence[model.ModelResult]]
"""What a model that is fed whole units says to one of them."""


def echo_script(request: model.ResponseRequest) -> Sequence[Step]:
    """The default answer: five pieces of 200 ms that repeat the turn."""
    said = request.turn.transcript if request.turn and request.turn.transcript else "nothing"
    return [Piece("You "), Piece("said "), Piece(said), Piece(" and "), Piece("that is all.")]


@attrs.frozen
class ScriptedOptions:
    """How the scripted model behaves. Times in ms; rates in Hz.

    ``traits`` None: those that follow from ``owns_turns``. ``unit_script`` is for the trait ``whole_units``.
    ``shown`` replaces the capabilities that the other options make up. ``lateness_ms``: how late the units are that a
    session hears, one after the other, again and again (negative: early); empty = they have no deadline.
    ``tells_at_once``: its results come by a call, as those of PersonaPlex do, instead of through its channel.
    """

    name: str = "scripted"
    period_ms: int = 100
    input_rate_hz: int = 16_000
    output_rate_hz: int = 24_000
    script: Script = echo_script
    transcripts: tuple[str, ...] = ("hello",)
    onset_rms: float = 0.01
    onset_ms: int = 96
    silence_ms: int = 500
    slots: int = 1_000
    barge_in: bool = True
    resume: bool = True
    truncate: bool = True
    owns_turns: bool = True
    unpaced: bool = False
    traits: model.Traits | None = None
    unit_script: UnitScript | None = None
    shown: Capabilities | None = None
    overloaded: bool = False
    refuses_tool_outputs: bool = False
    lateness_ms: tuple[float, ...] = ()
    tells_at_once: bool = False


@attrs.define(eq=False)
class ScriptedSession:
    """One session of the scripted model; everything it was asked is kept for the test to read."""

    plugin: ScriptedPlugin
    config: SessionConfig
    context: model.SessionContext
    submitted_ms: float = 0.0
    interrupts: list[int] = attrs.field(factory=list)
    requests: list[model.ResponseRequest] = attrs.field(factory=list)
    closed: bool = False
    units: list[model.InputUnit] = attrs.field(factory=list)
    frames: list[tuple[str, ...]] = attrs.field(factory=list)
    tool_outputs: list[tuple[str, str]] = attrs.field(factory=list)
    dropped: int = 0
    account: DeadlineAccount = attrs.field(factory=DeadlineAccount)
    _turns: int = 0
    _speech_ms: float = 0.0
    _silence_ms: float = 0.0
    _in_speech: bool = False
    _start_ms: float = 0.0
    _loud: bool = False
    _unit_ms: float = 0.0
    _take: Callable[[model.ModelResult], bool] | None = None
    _send: trio.MemorySendChannel[model.ModelResult] = attrs.field(init=False)
    _results: trio.MemoryReceiveChannel[model.ModelResult] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._results = trio.open_memory_channel[model.ModelResult](10_000)

    @property
    def results(self) -> trio.MemoryReceiveChannel[model.ModelResult]:
        """See :class:`trio_duplex.models.plugin.ModelSession`."""
        return self._results

    def hear(self, *results: model.ModelResult) -> None:
        """Pretend that the model heard or decided this."""
        for result in results:
            if self._take is None or not self._take(result):
                self._take = None
                self._send.send_nowait(result)

    def tell_to(self, take: Callable[[model.ModelResult], bool]) -> None:
        """See :class:`trio_duplex.models.plugin.TellsAtOnce`. What waits in the channel already must come first."""
        if self.plugin.options.tells_at_once and not self._results.statistics().current_buffer_used:
            self._take = take

    def break_results(self) -> None:
        """Pretend that the model's output stream died."""
        self._send.close()

    def submit(self, audio: model.FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Hear by energy, in frames of 32 ms."""
        options = self.plugin.options
        if options.overloaded:
            raise model.SessionOverloaded("the script says so")
        if video_frames:
            self.frames.append(tuple(video_frames))
        frame = options.input_rate_hz * 32 // 1000
        for start in range(0, len(audio), frame):
            block = audio[start : start + frame]
            self._hear_block(block, len(block) * 1000 / options.input_rate_hz)

    def submit_unit(self, unit: model.InputUnit) -> None:
        """Keep the unit and say what the script says to it."""
        if self.plugin.options.overloaded:
            raise model.SessionOverloaded("the script says so")
        self.units.append(unit)
        self._finish_unit()
        script = self.plugin.options.unit_script
        if script is not None:
            self.hear(*script(self, unit))

    async def take_tool_output(self, call_id: str, output: str) -> None:
        """Keep it, or refuse it as the script says. Cancellation: before it is kept."""
        await trio.lowlevel.checkpoint()
        if self.plugin.options.refuses_tool_outputs:
            raise model.GenerationFailed("runtime_append_failed", "the script says so")
        self.tool_outputs.append((call_id, output))

    def _hear_block(self, block: model.FloatAudio, ms: float) -> None:
        options = self.plugin.options
        loud = math.sqrt(float(block @ block) / len(block)) >= options.onset_rms
        self._loud = self._loud or loud
        if loud:
            if self._speech_ms == 0:
                self._start_ms = self.submitted_ms
            self._speech_ms += ms
            self._silence_ms = 0
        else:
            self._silence_ms += ms
            if not self._in_speech:
                self._speech_ms = 0
        self.submitted_ms += ms
        self._unit_ms += ms
        over = self._unit_ms >= options.period_ms
        if over:
            self._unit_ms -= options.period_ms
            self._finish_unit()
        if not options.owns_turns:
            return
        if not self._in_speech and self._speech_ms >= options.onset_ms:
            self._in_speech = True
            self.hear(model.SpeechStarted(audio_start_ms=int(self._start_ms)))
        elif self._in_speech and self._silence_ms >= options.silence_ms:
            self.hear(model.SpeechStopped(audio_end_ms=int(self.submitted_ms)))
            self.hear(model.TurnEnded(turn=self._turn(), respond=self.config.auto_response))
        if over and not self._in_speech:
            self.hear(model.Listened())

    def _finish_unit(self) -> None:
        """One unit of input was worked on, as late as the script says."""
        lateness_ms = self.plugin.options.lateness_ms
        if lateness_ms:
            self.account.add(lateness_ms[self.account.units % len(lateness_ms)] / 1000)

    def deadlines(self) -> Deadlines | None:
        """The account, if units have deadlines."""
        return self.account.snapshot() if self.plugin.options.lateness_ms else None

    def _turn(self) -> model.Turn:
        if self.plugin.traits(self.config).whole_units:
            return model.Turn(0, 0)  # what its units hold is not its business: the session judges
        transcripts = self.plugin.options.transcripts
        text = transcripts[self._turns % len(transcripts)] if self._loud else None
        self._turns += self._loud
        turn = model.Turn(int(self._start_ms), int(self.submitted_ms), text, speech=self._loud)
        self.drop_input()
        return turn

    def end_turn(self) -> model.Turn:
        """Everything heard since the last turn is one utterance; its transcript is known at once."""
        return self._turn()

    def drop_input(self) -> None:
        """Forget what was heard since the last turn."""
        self.dropped += 1
        self._speech_ms = self._silence_ms = 0
        self._in_speech = self._loud = False
        self._start_ms = self.submitted_ms

    async def respond(self, request: model.ResponseRequest, say: model.Say) -> None:
        """Say the script. Cancellation: stops at the step it is in."""
        self.requests.append(request)
        options = self.plugin.options
        due = trio.current_time()
        text, total_ms = "", 0
        steps = list(options.script(request))
        if len(steps) > MAX_STEPS:
            raise ValueError(f"a script has at most {MAX_STEPS} steps: a piece's amplitude names it")
        for index, step in enumerate(steps):
            if isinstance(step, Fail):
                raise model.GenerationFailed(step.code, "the script says so")
            if isinstance(step, Hang):
                await trio.sleep_forever()
            assert isinstance(step, Piece)
            text += step.text
            total_ms += step.ms
            audio = square_wave(index, step.ms, options.output_rate_hz)
            say(
                model.Speech(
                    audio=audio[:0] if request.text_only else audio,
                    text=step.text,
                    marks=(TextMark(len(text), total_ms),),
                    end_of_turn=index == len(steps) - 1,
                )
            )
            due += step.ms / 1000
            if options.unpaced:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep_until(due)

    def interrupt(self, epoch: int) -> None:
        """Remember which epoch was left."""
        self.interrupts.append(epoch)

    def reconfigure(self, config: SessionConfig) -> None:
        """Use ``config`` from now on."""
        self.config = config

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing to run. Cancellation: returns."""
        task_status.started()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Give the slot back; no checkpoint, so cancellation cannot lose it."""
        if not self.closed:
            self.closed = True
            self.plugin.open_slots += 1
            self._send.close()


@functools.lru_cache(maxsize=256)
def square_wave(index: int, ms: int, rate_hz: int) -> npt.NDArray[np.int16]:
    """Piece ``index`` as int16[rate_hz * ms / 1000]: alternating samples of amplitude ``(index + 1) * STEP``.

    Read-only: the same piece is the same array.
    """
    samples = rate_hz * ms // 1000
    wave = np.full(samples, (index + 1) * AMPLITUDE_STEP, np.int16)
    wave[1::2] *= -1
    wave.flags.writeable = False
    return wave


def decode_pieces(pcm16: bytes) -> list[tuple[int, int]]:
    """Wire audio of a scripted answer → runs of (piece index, samples); raises ValueError for foreign samples."""
    amplitude = np.abs(np.frombuffer(pcm16, "<i2").astype(np.int32))
    if np.any(amplitude % AMPLITUDE_STEP) or np.any(amplitude == 0):
        raise ValueError("these samples are not a scripted answer's")
    edges = np.flatnonzero(np.diff(amplitude)) + 1
    blocks = [block for block in np.split(amplitude, edges) if len(block)]
    return [(int(block[0]) // AMPLITUDE_STEP - 1, len(block)) for block in blocks]


@attrs.define(eq=False)
class ScriptedPlugin:
    """The plugin of the scripted model; ``sessions`` keeps every session it opened, newest last."""

    options: ScriptedOptions = ScriptedOptions()
    sessions: list[ScriptedSession] = attrs.field(factory=list)
    open_slots: int = attrs.field(init=False)
    running: bool = False

    def __attrs_post_init__(self) -> None:
        self.open_slots = self.options.slots

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self.options.name

    @property
    def unit(self) -> model.Unit:
        """Clock and rates."""
        options = self.options
        return model.Unit(options.period_ms, options.input_rate_hz, options.output_rate_hz)

    @property
    def defaults(self) -> SessionDefaults:
        """A native model, unless its traits say that it is turn-based."""
        return SessionDefaults(
            model=self.name,
            input_rate_hz=self.options.input_rate_hz,
            output_rate_hz=self.options.output_rate_hz,
            native_lane=not self._traits.turn_based,
        )

    @property
    def _traits(self) -> model.Traits:
        return self.options.traits or model.Traits(detects_speech=self.options.owns_turns)

    def traits(self, config: SessionConfig) -> model.Traits:
        """As the options say."""
        return self._traits

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """As the options say."""
        if self.options.shown is not None:
            return self.options.shown
        return Capabilities(
            supports_barge_in=self.options.barge_in,
            supports_session_resume=self.options.resume,
            supports_audio_truncate=self.options.truncate,
            supports_external_turn_signal=self.options.barge_in,
            chunk_period_ms=self.options.period_ms,
        )

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """Server VAD needs interruption (contract 9.1)."""
        self._check_detection(update.config)
        return update.config

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """Everything else may change."""
        self._check_detection(update.config)
        return update.config

    def _check_detection(self, config: SessionConfig) -> None:
        detection = config.turn_detection
        if detection is not None and detection.kind == "server_vad" and not self.options.barge_in:
            raise RemoteProtocolError(
                "unsupported_turn_detection", "this model cannot be interrupted", param="turn_detection"
            )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ready at once. Cancellation: stops."""
        self.running = True
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self.running = False

    async def open(self, config: SessionConfig, context: model.SessionContext) -> ScriptedSession:
        """Take a slot. Cancellation: before the slot is taken."""
        await trio.lowlevel.checkpoint()
        if self.open_slots == 0:
            raise model.OpenRefused("the scripted model has no slot left")
        self.open_slots -= 1
        session = ScriptedSession(self, config, context)
        self.sessions.append(session)
        return session

    def health(self) -> model.ModelHealth:
        """Alive while it runs."""
        return model.ModelHealth(ready=self.running, alive=self.running)
