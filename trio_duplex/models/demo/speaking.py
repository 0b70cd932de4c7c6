"""Speaking: an answer's text → clauses → pieces of sound → units at real-time pace."""

from __future__ import annotations

import math

import attrs
import numpy as np
import numpy.typing as npt
import trio

from duplex_gpu.clauses import Clause, split_clauses
from trio_duplex.models.demo.engine import Clip, Engine, EngineFailed, EngineGone, Reading
from trio_duplex.models.demo.preparation import Preparation
from trio_duplex.models.demo.unit_cutter import UnitCutter
from trio_duplex.models.plugin import Say, Speech

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
    last: bool


class _End:
    pass


_Part = _Begin | Clip | _End


async def speak(
    answer: str,
    say: Say,
    *,
    engine: Engine,
    cutter: UnitCutter,
    pacer: Pacer,
    prepared: Preparation | None = None,
) -> None:
    """Say ``answer`` at real-time pace, synthesising a few pieces ahead; returns when the last unit is out.

    ``prepared`` may hold (or be about to hold) the first sound of this answer, or of another: then it is cancelled.
    Raises ``EngineFailed`` or ``EngineGone`` after what could be said was said.
    Cancellation: queued synthesis is dropped, running synthesis abandoned, and nothing more is said.
    """
    clauses = split_clauses(answer)
    if not clauses:  # nothing in it can be spoken
        say(Speech(audio=NO_AUDIO, text=answer, end_of_turn=True))
        await trio.lowlevel.checkpoint()
        return
    failures: list[EngineFailed | EngineGone] = []
    send, receive = trio.open_memory_channel[_Part](PIECES_AHEAD)
    async with trio.open_nursery() as nursery, receive:
        nursery.start_soon(_synthesize, engine, clauses, prepared, send, failures)
        async for part in receive:
            match part:
                case _Begin(clause, last):
                    cutter.begin_clause(clause, last=last)
                    continue
                case Clip():
                    units = cutter.add(part)
                case _End():
                    units = cutter.end_clause()
            for unit in units:
                await pacer.wait()
                say(unit)
    for failure in failures:
        raise failure


async def _synthesize(
    engine: Engine,
    clauses: list[Clause],
    prepared: Preparation | None,
    send: trio.MemorySendChannel[_Part],
    failures: list[EngineFailed | EngineGone],
) -> None:
    """Cancellation: the piece under way is abandoned."""
    async with send:
        try:
            for number, clause in enumerate(clauses, start=1):
                await send.send(_Begin(clause.text, last=number == len(clauses)))
                sound = await _prepared_sound(prepared, clause.text) if number == 1 and prepared else None
                if sound is None:
                    reading = engine.read(clause.text)
                else:
                    clip, reading = sound
                    await send.send(clip)
                while (piece := await reading.next("now" if number == 1 else "later")) is not None:
                    await send.send(piece)
                await send.send(_End())
        except (EngineFailed, EngineGone) as failure:
            failures.append(failure)


async def _prepared_sound(prepared: Preparation, clause: str) -> tuple[Clip, Reading] | None:
    """Cancellation: nothing is taken."""
    if prepared.clause != clause:  # it was thought of under another truth
        prepared.cancel()
        return None
    await prepared.settled.wait()
    return prepared.take_sound()


async def write(answer: str, say: Say) -> None:
    """Hand out ``answer`` as text without sound, clause by clause.

    Cancellation: stops between two clauses.
    """
    texts = [clause.text for clause in split_clauses(answer)] or [answer]
    for number, text in enumerate(texts, start=1):
        await trio.lowlevel.checkpoint()
        say(Speech(audio=NO_AUDIO, text=text, end_of_turn=number == len(texts)))
