"""What one caller does, fixed in advance: open loop, so a slow server cannot slow down its own load.

Times of speech come from the plan, not from the sender's luck: a chunk that goes out late makes the latency longer.
No clock and no network here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal, get_args

import attrs
import numpy as np
import numpy.typing as npt
import orjson
import pybase64

from trio_duplex.showcase.recordings import FIRST, SECOND, Recording, bundled

__all__ = ["CHUNK_MS", "CHUNK_S", "RATE_HZ", "SCENARIOS", "Plan", "Say", "Scenario", "Sounds", "Utterance", "plan_of"]

Scenario = Literal["listen", "question", "barge-in"]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)

RATE_HZ: Final = 16_000
CHUNK_MS: Final = 32
CHUNK_S: Final = CHUNK_MS / 1000
CHUNK_SAMPLES: Final = RATE_HZ * CHUNK_MS // 1000

INTERRUPT_AFTER_S: Final = 3.0
"""From the end of the question's recording to the beginning of the interruption."""
CANCEL_AFTER_S: Final = 4.0
"""From the end of the last recording to ``response.cancel``."""
CALM_S: Final = 2.0
NOISE_RMS: Final = 12.0
"""About -69 dB of full scale: a quiet room."""
NOISE_CHUNKS: Final = 199


@attrs.frozen
class Say:
    """A recording that begins with a chunk of the cycle; ``interrupts``: it is meant to interrupt an answer."""

    at_chunk: int
    recording: Recording
    interrupts: bool = False

    @property
    def chunks(self) -> int:
        """How many chunks it takes."""
        return math.ceil(len(self.recording.samples) / CHUNK_SAMPLES)


@attrs.frozen
class Utterance:
    """Somebody speaks; in seconds of ``trio.current_time()``, by the level of the recording."""

    speech_started_s: float
    speech_ended_s: float
    interrupts: bool = False


@attrs.frozen
class Plan:
    """A cycle of so many chunks that repeats: what is said in it, and in which chunks ``response.cancel`` is sent."""

    cycle_chunks: int
    says: tuple[Say, ...] = ()
    cancels: tuple[int, ...] = ()

    def utterances(self, started_s: float, offset_chunks: int, until_s: float) -> Iterator[Utterance]:
        """What a caller says whose first chunk begins at ``started_s``, its first cycle ``offset_chunks`` later."""
        cycle = 0
        while self.says:
            for say in self.says:
                begins_s = started_s + (offset_chunks + cycle * self.cycle_chunks + say.at_chunk) * CHUNK_S
                if begins_s >= until_s:
                    return
                recording = say.recording
                yield Utterance(
                    begins_s + recording.speech_start_ms / 1000,
                    begins_s + recording.speech_end_ms / 1000,
                    say.interrupts,
                )
            cycle += 1

    def place(self, chunk: int, offset_chunks: int) -> int | None:
        """Where in the cycle a caller's chunk is; None before its first cycle."""
        return None if chunk < offset_chunks else (chunk - offset_chunks) % self.cycle_chunks


def plan_of(scenario: Scenario, first: Recording | None = None, second: Recording | None = None) -> Plan:
    """``listen``: nobody speaks. ``question``: ask, hear the beginning of the answer, cancel it. ``barge-in``: ask,
    interrupt the answer by speaking, cancel the second answer. The recordings are the bundled ones unless given.
    """
    if scenario == "listen":
        return Plan(cycle_chunks=NOISE_CHUNKS)
    question = Say(0, first or bundled(FIRST))
    says = [question]
    if scenario == "barge-in":
        says.append(Say(question.chunks + _chunks(INTERRUPT_AFTER_S), second or bundled(SECOND), interrupts=True))
    cancel = says[-1].at_chunk + says[-1].chunks + _chunks(CANCEL_AFTER_S)
    return Plan(cycle_chunks=cancel + _chunks(CALM_S), says=tuple(says), cancels=(cancel,))


def _chunks(seconds: float) -> int:
    return math.ceil(seconds / CHUNK_S)


class Sounds:
    """Every message that callers of a plan send, built once and shared."""

    def __init__(self, plan: Plan) -> None:
        random = np.random.default_rng(20)
        room = random.normal(0.0, NOISE_RMS, NOISE_CHUNKS * CHUNK_SAMPLES).round().astype(np.int16)
        self._noise = [_append(part) for part in np.split(room, NOISE_CHUNKS)]
        self._spoken: dict[int, str] = {}
        for say in plan.says:
            for number in range(say.chunks):
                part = say.recording.samples[number * CHUNK_SAMPLES :][:CHUNK_SAMPLES].astype(np.int32)
                mixed = room[:CHUNK_SAMPLES].astype(np.int32)
                mixed[: len(part)] += part
                self._spoken[say.at_chunk + number] = _append(np.clip(mixed, -32768, 32767).astype(np.int16))

    def message(self, chunk: int, place: int | None) -> str:
        """The append of a caller's chunk; ``place``: where in the cycle it is."""
        spoken = self._spoken.get(place) if place is not None else None
        return self._noise[chunk % NOISE_CHUNKS] if spoken is None else spoken


def _append(samples: npt.NDArray[np.int16]) -> str:
    audio = pybase64.b64encode(samples.astype("<i2").tobytes()).decode("ascii")
    event = {"type": "input_audio_buffer.append", "audio": audio, "sample_rate_hz": RATE_HZ}
    return orjson.dumps(event).decode()
