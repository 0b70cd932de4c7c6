"""Speaking: an answer in the making → clauses → pieces of sound → units at real-time pace."""

from __future__ import annotations

import math

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trio_duplex.models.demo.engine import Clip, Engine, EngineFailed, EngineGone, Reading
from trio_duplex.models.demo.preparation import Preparation
from trio_duplex.models.demo.thinking import Script, Thought
from trio_duplex.models.demo.unit_cutter import UnitCutter
from trio_duplex.models.plugin import GenerationFailed, Say, Speech

__all__ = ["Pacer", "speak", "write"]

PIECES_AHEAD = 2
"""Pieces that wait, besides the one that is being played and the one that is being made (each about a second)."""
NO_AUDIO: npt.NDArray[np.int16] = np.zeros(0, np.int16)


class Pacer:
    """Lets one unit through per period, the first ``lead_units`` + 1 at once.

    When a unit comes so late that the lead is used up (at least one period), the listener has run dry: the clock
    starts anew.
    """

    def __init__(self, period_s: float, lead_units: int) -> None:
        self._period_s = period_s
        self._lead_s = lead_units * period_s
        self._late_s = max(lead_units, 1) * period_s
        self._due_s = -math.inf

    async def wait(self) -> None:
        """Return when the next unit may go out.  Cancellation: a checkpoint, nothing is counted."""
        now_s = trio.current_time()
        if now_s > self._due_s + self._late_s:
            self._due_s = now_s - self._lead_s
        await trio.sleep_until(self._due_s)
        self._due_s += self._period_s


@attrs.frozen(eq=False)
class _Begin:
    clause: str


@attrs.frozen(eq=False)
class _End:
    last: bool


_Part = _Begin | Clip | _End


async def speak(
    thought: Thought,
    say: Say,
    *,
    engine: Engine,
    cutter: UnitCutter,
    pacer: Pacer,
    prepared: Preparation | None = None,
) -> None:
    """Say an answer at real-time pace while it is thought, synthesising a few pieces ahead.

    Returns after the last unit.  Somebody runs ``thought``.  ``prepared`` may hold (or be about to hold) the first
    sound of this answer, or of another: then it is cancelled.
    Raises ``EngineFailed``, ``EngineGone`` or ``GenerationFailed`` after what could be said was said.
    Cancellation: queued synthesis is dropped, running synthesis abandoned, and nothing more is said.
    """
    script = Script(thought)
    begun = False
    failures: list[EngineFailed | EngineGone | GenerationFailed] = []
    send, receive = trio.open_memory_channel[_Part](PIECES_AHEAD)
    async with trio.open_nursery() as nursery, receive:
        nursery.start_soon(_synthesize, engine, script, prepared, send, failures)
        async for part in receive:
            match part:
                case _Begin(clause):
                    begun = True
                    cutter.begin_clause(clause)
                    continue
                case Clip():
                    units = cutter.add(part)
                case _End(last):
                    units = cutter.end_clause(last=last)
            for unit in units:
                await pacer.wait()
                say(attrs.evolve(unit, finish_reason=_reason(thought)) if unit.end_of_turn else unit)
    for failure in failures:
        raise failure
    if not begun and script.unspoken:  # nothing in it can be spoken
        say(Speech(audio=NO_AUDIO, text=script.unspoken, end_of_turn=True, finish_reason=_reason(thought)))


def _reason(thought: Thought) -> str | None:
    """Why an answer that was said to its end has ended there."""
    return "length" if thought.cut else None


async def _synthesize(
    engine: Engine,
    script: Script,
    prepared: Preparation | None,
    send: trio.MemorySendChannel[_Part],
    failures: list[EngineFailed | EngineGone | GenerationFailed],
) -> None:
    """Cancellation: the piece under way is abandoned."""
    async with send:
        try:
            clause = await script.next()
            first = True
            while clause is not None:
                await send.send(_Begin(clause))
                sound = await _prepared_sound(prepared, script.thought, clause) if first and prepared else None
                if sound is None:
                    reading = engine.read(clause)
                else:
                    clip, reading = sound
                    await send.send(clip)
                while (piece := await reading.next("now" if first else "later")) is not None:
                    await send.send(piece)
                clause = await script.next()
                first = False
                await send.send(_End(last=clause is None))
        except (EngineFailed, EngineGone, GenerationFailed) as failure:
            failures.append(failure)


async def _prepared_sound(prepared: Preparation, thought: Thought, clause: str) -> tuple[Clip, Reading] | None:
    """Cancellation: nothing is taken."""
    if prepared.thought is not thought and prepared.clause != clause:  # it was thought of under another truth
        prepared.cancel()
        return None
    await prepared.settled.wait()
    return prepared.take_sound()


async def write(thought: Thought, say: Say) -> None:
    """Hand out an answer as text without sound, clause by clause, while it is thought; an empty piece ends it.

    Raises ``GenerationFailed`` after what could be said was said.  Cancellation: stops between two clauses.
    """
    script = Script(thought)
    while (text := await script.next()) is not None:
        await trio.lowlevel.checkpoint()
        say(Speech(audio=NO_AUDIO, text=text))
    say(Speech(audio=NO_AUDIO, text=script.unspoken, end_of_turn=True, finish_reason=_reason(thought)))
