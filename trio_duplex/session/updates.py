"""Session commands: update, heartbeat, event acks (contract 17, 15.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import trio

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import SessionConfig
from trio_duplex.models.plugin import SessionOverloaded, Traits, traits_of
from trio_duplex.session.journal import CursorAhead
from trio_duplex.session.lanes import (
    check_detection_lock,
    check_identity,
    check_input_lock,
    check_lane,
    kept_detection,
    open_detector,
)
from trio_duplex.session.server_vad import Detector

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


async def update_session(session: Session, command: cmd.UpdateSession) -> None:
    """Atomic: all checks in the order of contract 17, then the swap, then ``session.updated``.

    In the plain view the first update counts as the opening one: until the first audio or item everything may still
    be set. Cancellation: the session is ending; the old configuration stands.
    """
    if session.dialect.meet_update(command.session):
        session.strict = True
    update = kept_detection(session, session.dialect.parse_update(command.session, session.config, session.defaults))
    still_opening = not session.strict and not session.audio_appended and not len(session.conversation)
    check_input_lock(session, update)
    if not still_opening:
        check_identity(session, update)
        check_detection_lock(session, update)
    # A stock client names a model of its own making; the deployed one is the one there is.
    kept = attrs.evolve(update, config=attrs.evolve(update.config, model=session.config.model))
    if still_opening:
        checked = session.plugin.check(kept)
    else:
        checked = session.plugin.check_update(session.config, kept, audio_started=session.audio_started)
    config = attrs.evolve(checked, idle_timeout_s=session.config.idle_timeout_s)
    traits, capabilities = traits_of(session.plugin, config), session.plugin.capabilities(config)
    check_lane(config, capabilities, traits, strict=session.strict)
    detector, swapped = session.detector, False
    if config.turn_detection != session.config.turn_detection or traits != session.traits:
        detector, swapped = await new_detector(session, config, traits), True
    # Nothing can be refused any more and no checkpoint follows: the swap.
    session.touch(lease=True)
    adopt(session, config)
    if swapped:
        if session.detector is not None:
            session.detector.close()
        session.detector = detector
    session.wake_timers()
    session.emit(ev.SessionUpdated(session=session.snapshot()))


async def new_detector(session: Session, config: SessionConfig, traits: Traits) -> Detector | None:
    """The detector of an update; the first one of a server has to load, which the session's end does not wait for.

    Raises ``server_vad_initialization_failed``. Cancellation: nothing is taken.
    """
    detector: Detector | None = None
    scope = session.loading = trio.CancelScope()
    with scope:
        detector = await open_detector(
            session.scorer,
            config,
            traits,
            model_rate_hz=session.plugin.unit.input_rate_hz,
            origin_ms=session.clock_ms,
        )
    session.loading = None
    if scope.cancelled_caught:
        raise RemoteProtocolError("session_closed", "the session is closing")
    return detector


def adopt(session: Session, config: SessionConfig) -> None:
    """Use ``config`` from now on. No checkpoint."""
    rate_changed = config.input_format != session.config.input_format
    held = session.holds_input
    session.config = config
    session.traits = traits_of(session.plugin, config)
    session.capabilities = session.plugin.capabilities(config)
    session.model.reconfigure(config)
    if held and not session.holds_input:
        release_held(session)
    if rate_changed and session.detector is not None:
        session.detector.input_rate_hz = None


def release_held(session: Session) -> None:
    """The model hears everything from now on: what was held back of the open item goes first. No checkpoint."""
    audio = session.input.take_audio()
    frames = [frame for group in session.input.frames for frame in group]
    session.input.frames.clear()
    try:
        if session.feed is not None:
            session.feed.push(audio, tuple(frames), epoch=session.epoch.number)
        else:
            session.model.submit(audio, video_frames=frames)
    except SessionOverloaded:
        session.input.failed = True


async def heartbeat(session: Session, command: cmd.Heartbeat) -> None:
    """Refreshes the lease. Cancellation: there is no checkpoint."""
    session.touch(lease=True)
    session.emit(ev.HeartbeatAck(session_id=session.id))


async def ack_events(session: Session, command: cmd.AckEvents) -> None:
    """Trim the journal (contract 15.1). Cancellation: there is no checkpoint."""
    try:
        session.journal.trim(command.server_event_seq)
    except CursorAhead:
        raise RemoteProtocolError(
            "invalid_event_ack", "server_event_seq is beyond the last event", param="server_event_seq"
        ) from None


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.UpdateSession: update_session,
    cmd.Heartbeat: heartbeat,
    cmd.AckEvents: ack_events,
}
