"""Silence through a whole model session before anybody may come in (``warmup_frames``, contract 16.2; case G4)."""

from __future__ import annotations

from typing import Final

import numpy as np
import structlog
import trio

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.values import SessionConfig
from trio_duplex.models.plugin import (
    FloatAudio,
    InputUnit,
    ModelPlugin,
    ModelSession,
    SessionContext,
    UnitSession,
    traits_of,
)

__all__ = ["FRAME_TIMEOUT_S", "warm_up"]

log = structlog.get_logger(__name__)

FRAME_TIMEOUT_S: Final = 10.0
"""How long the model may take to say something to one frame; it is fed the next one then."""


async def warm_up(plugin: ModelPlugin, frames: int) -> None:
    """Open a session, let it hear ``frames`` units of silence one by one, and close it: nothing of it is left.

    A turn-based model hears committed turns only, and is left alone. Raises what the model raises. Cancellation: the
    session is closed.
    """
    config = plugin.check(ConfigUpdate(SessionConfig(model=plugin.name), strict=False))
    traits = traits_of(plugin, config)
    if traits.turn_based:
        return
    began_s = trio.current_time()
    session = await plugin.open(config, SessionContext("warmup", tuple))
    silence: FloatAudio = np.zeros(plugin.unit.input_rate_hz * plugin.unit.period_ms // 1000, np.float32)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            for _ in range(frames):
                _feed(session, silence, whole_units=traits.whole_units)
                with trio.move_on_after(FRAME_TIMEOUT_S) as limit:
                    await session.results.receive()
                if limit.cancelled_caught:
                    log.warning("warmup_frame_unanswered", model=plugin.name)
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(FRAME_TIMEOUT_S, shield=True):
            await session.aclose()
    log.info("warmed_up", model=plugin.name, frames=frames, seconds=round(trio.current_time() - began_s, 2))


def _feed(session: ModelSession, silence: FloatAudio, *, whole_units: bool) -> None:
    if whole_units:
        assert isinstance(session, UnitSession)
        session.submit_unit(InputUnit(epoch=0, audio=silence, force_listen=True, silence=True))
    else:
        session.submit(silence)
