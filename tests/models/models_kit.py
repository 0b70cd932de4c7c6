"""A demo engine on Trio's clock: the detector reads probabilities off the samples, the voice speaks in constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime

import attrs
import numpy as np
import numpy.typing as npt
import trio

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.values import SessionConfig, TurnDetection
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.demo.engine import Clip, EngineFailed, EngineGone, Heard, Urgency
from trio_duplex.models.demo.session import DemoSession
from trio_duplex.models.plugin import (
    HistoryEntry,
    Listened,
    ModelHealth,
    ModelResult,
    OpenRefused,
    ResponseRequest,
    SessionContext,
    Speech,
    Turn,
)

FloatAudio = npt.NDArray[np.float32]

NOON = datetime(2026, 11, 30, 12, 0)
FRAME = 512
VOICE_RATE_HZ = 22_050
WORD_MS = 200
PIECE_WORDS = 3
UNIT_SAMPLES = 2_304  # 96 ms at 24 kHz


@attrs.define
class VirtualEngine:
    """Speech is any sample above 0.5; an utterance says what ``words`` holds for the levels found in it.

    ``jobs`` are (second it was begun, kind, text or seconds of audio, urgency); ``given_up`` those cancelled.
    """

    words: dict[float, str] = attrs.field(factory=lambda: {0.9: "go forward ten meters"})
    detect_s: float = 0.001
    recognise_s: float = 0.060
    synthesise_s: float = 0.080
    slots: int = 4
    voice_rate_hz: int = VOICE_RATE_HZ
    jobs: list[tuple[float, str, str, Urgency]] = attrs.field(factory=list)
    given_up: list[str] = attrs.field(factory=list)
    failing: set[str] = attrs.field(factory=set)
    open_ears: list[VirtualEar] = attrs.field(factory=list)
    most_under_way: int = 0
    nursery: trio.Nursery | None = None
    gone: bool = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            await trio.sleep_forever()

    def open_ear(self, heard: Callable[[Heard], None]) -> VirtualEar:
        if len(self.open_ears) >= self.slots:
            raise OpenRefused("no slot")
        assert self.nursery is not None
        ear = VirtualEar(self, heard)
        self.open_ears.append(ear)
        self.nursery.start_soon(ear.run)
        return ear

    async def transcribe(self, audio: FloatAudio, urgency: Urgency) -> str:
        await self.work("asr", f"{len(audio) / 16_000:.3f}", urgency, self.recognise_s)
        levels = [round(float(level), 2) for level in audio[np.abs(audio) > 0.5]]
        return " ".join(self.words.get(level, "") for level in dict.fromkeys(levels)).strip()

    def read(self, text: str) -> VirtualReading:
        return VirtualReading(self, text)

    async def work(self, kind: str, what: str, urgency: Urgency, seconds: float) -> None:
        self.jobs.append((trio.current_time(), kind, what, urgency))
        done = False
        try:
            await trio.sleep(seconds)
            done = True
        finally:
            if not done:
                self.given_up.append(kind)
        if self.gone:
            raise EngineGone("the engine is gone")
        if kind in self.failing:
            raise EngineFailed(f"{kind} failed")

    def jobs_of(self, kind: str) -> list[tuple[float, str, Urgency]]:
        return [(at_s, what, urgency) for at_s, name, what, urgency in self.jobs if name == kind]

    def die(self) -> None:
        self.gone = True
        for ear in list(self.open_ears):
            ear.heard(Heard(failure=EngineGone("the engine is gone")))

    def health(self) -> ModelHealth:
        return ModelHealth(ready=self.nursery is not None, alive=not self.gone)


class VirtualEar:
    def __init__(self, engine: VirtualEngine, heard: Callable[[Heard], None]) -> None:
        self.engine = engine
        self.heard = heard
        self.closed = False
        self.under_way = 0
        self.frames, self._frames = trio.open_memory_channel[FloatAudio](math.inf)

    def submit(self, frame: FloatAudio) -> None:
        assert not self.closed
        assert frame.shape == (FRAME,)
        assert frame.dtype == np.float32
        if self.engine.gone:
            raise EngineGone("the engine is gone")
        self.under_way += 1
        self.engine.most_under_way = max(self.engine.most_under_way, self.under_way)
        self.frames.send_nowait(frame)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.frames.close()
            self.engine.open_ears.remove(self)

    async def run(self) -> None:
        async for frame in self._frames:
            await trio.sleep(self.engine.detect_s)
            self.under_way -= 1
            if self.closed:
                return
            if "vad" in self.engine.failing:
                self.heard(Heard(failure=EngineFailed("vad failed")))
            else:
                self.heard(Heard(float(np.clip(frame.mean(), 0.0, 1.0))))


class VirtualReading:
    """Every word lasts ``WORD_MS``, a piece holds ``PIECE_WORDS`` words; the samples are 1000."""

    def __init__(self, engine: VirtualEngine, text: str) -> None:
        self.engine = engine
        self.text = text
        self.pieces = virtual_pieces(text)

    async def next(self, urgency: Urgency) -> Clip | None:
        piece = next(self.pieces, None)
        if piece is not None:
            await self.engine.work("tts", self.text, urgency, self.engine.synthesise_s)
        return piece


def virtual_pieces(text: str) -> Iterator[Clip]:
    ends: list[int] = []
    place = 0
    for word in text.split():
        place = text.index(word, place) + len(word)
        ends.append(place)
    if ends:
        ends[-1] = len(text)
    marks = [(end, float(WORD_MS * number)) for number, end in enumerate(ends, start=1)]
    for begin in range(0, len(marks), PIECE_WORDS):
        some = marks[begin : begin + PIECE_WORDS]
        samples = VOICE_RATE_HZ * WORD_MS * len(some) // 1000
        yield Clip(np.full(samples, 1000, np.int16), tuple(some))


def level(value: float, ms: int) -> FloatAudio:
    """Constant samples, which the virtual detector takes for the probability ``value``."""
    return np.full(16 * ms, value, np.float32)


@attrs.define
class Talk:
    """One open session, what it said (with the second at which it did), and ways to feed it."""

    plugin: DemoPlugin
    engine: VirtualEngine
    session: DemoSession
    config: SessionConfig
    history: list[HistoryEntry]
    heard: list[tuple[float, ModelResult]] = attrs.field(factory=list)

    @property
    def results(self) -> list[ModelResult]:
        """Everything but the decisions to listen."""
        return [result for _, result in self.heard if not isinstance(result, Listened)]

    @property
    def listened(self) -> int:
        return sum(isinstance(result, Listened) for _, result in self.heard)

    def when(self, kind: type[ModelResult]) -> list[float]:
        return [at_s for at_s, result in self.heard if isinstance(result, kind)]

    async def collect(self) -> None:
        async for result in self.session.results:
            self.heard.append((trio.current_time(), result))

    async def hear(self, *parts: FloatAudio, chunk_ms: int = 32) -> None:
        """Stream in real time: a chunk is submitted when its last sample would have been spoken."""
        audio = np.concatenate(parts)
        for begin in range(0, len(audio), 16 * chunk_ms):
            chunk = audio[begin : begin + 16 * chunk_ms]
            await trio.sleep(len(chunk) / 16_000)
            self.session.submit(chunk)

    async def settle(self) -> None:
        """Let the detector finish."""
        await trio.sleep(2 * self.engine.detect_s)

    def request(self, turn: Turn | None = None, **changes: object) -> ResponseRequest:
        request = ResponseRequest(
            epoch=0, response_id="resp_1", config=self.config, history=tuple(self.history), turn=turn
        )
        return attrs.evolve(request, **changes)

    async def answer(self, request: ResponseRequest) -> list[tuple[float, Speech]]:
        said: list[tuple[float, Speech]] = []
        await self.session.respond(request, lambda speech: said.append((trio.current_time(), speech)))
        return said


def config_of(
    plugin: DemoPlugin, detection: TurnDetection | None = None, *, auto: bool | None = None, **changes: object
) -> SessionConfig:
    extra = {} if auto is None else {"auto_response": auto}
    config = SessionConfig(model="demo", turn_detection=detection, extra_body=extra)
    return plugin.check(ConfigUpdate(attrs.evolve(config, **changes)))


async def open_talk(
    nursery: trio.Nursery,
    engine: VirtualEngine | None = None,
    detection: TurnDetection | None = None,
    *,
    options: DemoOptions | None = None,
    auto: bool | None = None,
    listen: bool = True,
    **changes: object,
) -> Talk:
    """A plugin with one session, all of it in ``nursery`` (cancel it at the end)."""
    engine = engine or VirtualEngine()
    plugin = DemoPlugin(options, engine=engine, clock=lambda: NOON)
    if engine.nursery is None:
        await nursery.start(plugin.run)
    config = config_of(plugin, detection, auto=auto, **changes)
    history: list[HistoryEntry] = []
    session = await plugin.open(config, SessionContext("sess_1", lambda: tuple(history)))
    await nursery.start(session.run)
    talk = Talk(plugin, engine, session, config, history)
    if listen:
        nursery.start_soon(talk.collect)
    return talk
