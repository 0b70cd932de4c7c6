"""Units for a model that needs input to think and to speak: the turn itself, then silence (contract 10.1, 10.4).

Everything here runs inside the epoch's scope: a barge-in ends it, so no silence is ever aimed at the next answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from duplex_protocol import events as ev
from trio_duplex.models.plugin import GenerationFailed, SessionOverloaded
from trio_duplex.session.unit_feed import UnitFeed

if TYPE_CHECKING:
    from trio_duplex.session.core import Session
    from trio_duplex.session.speaking import Generation


async def run_units(session: Session, generation: Generation) -> None:
    """Feed what the answer is about, then as much silence as the model needs and may have.

    The answer's end comes with a result of the model; this returns when it came or when feeding is over.
    Raises :class:`GenerationFailed` ``runtime_append_failed``. Cancellation: no further unit is handed over.
    """
    feed = session.feed
    assert feed is not None
    try:
        for turn in generation.work.turns:
            if turn.audio is not None:
                for frames in turn.video_frames[:-1]:
                    feed.push(turn.audio[:0], frames, epoch=generation.epoch)
                last = turn.video_frames[-1] if turn.video_frames else ()
                listen = generation.work.force_listen
                feed.push(turn.audio, last, epoch=generation.epoch, is_speech=True, force_listen=listen)
                feed.pad(epoch=generation.epoch, is_speech=True, force_listen=listen)
                turn.audio = None
        await _continue(session, generation, feed)
    except SessionOverloaded as error:
        raise GenerationFailed("runtime_append_failed", str(error)) from None


async def _continue(session: Session, generation: Generation, feed: UnitFeed) -> None:
    """Silence at the pace of the units; real input takes precedence. Cancellation: between two units."""
    limits = session.traits.silence_units
    if limits is None:
        return
    period_s = session.plugin.unit.period_ms / 1000
    limit = limits[0] if generation.explicit else limits[1]
    fed = 0
    while fed < limit:
        due_s = max(feed.last_input_s, feed.last_fed_s) + period_s
        await trio.sleep_until(due_s)
        if not generation.current:
            return
        if max(feed.last_input_s, feed.last_fed_s) + period_s > trio.current_time():
            continue
        fed += 1
        feed.silence(epoch=generation.epoch, force_listen=fed == limit)
    await trio.sleep(period_s)
    if not generation.current:
        return
    response = generation.response
    session.emit(
        ev.ResponseListen(
            session_id=session.id,
            epoch=generation.epoch,
            reason="continuation_limit",
            response_id=response.id if response is not None else None,
        )
    )
    session.generation_over(generation, None, told=True)
