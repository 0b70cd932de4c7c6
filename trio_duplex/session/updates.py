"""Session commands: update, heartbeat, event acks (contract 17, 15.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import SessionConfig
from trio_duplex.session.journal import CursorAhead

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


async def update_session(session: Session, command: cmd.UpdateSession) -> None:
    """Atomic: all checks, then the swap, then ``session.updated``."""
    update = session.dialect.parse_update(command.session, session.config, session.defaults)
    if session.strict or session.audio_started or not session.input.empty:
        check_fixed_fields(session, session.config, update)
    config = session.plugin.check_update(session.config, update, audio_started=session.audio_started)
    session.touch(lease=True)
    session.config = config
    session.capabilities = session.plugin.capabilities(config)
    session.model.reconfigure(config)
    session.wake_timers()
    session.emit(ev.SessionUpdated(session=session.snapshot()))


def check_fixed_fields(session: Session, old: SessionConfig, update: ConfigUpdate) -> None:
    """Refuse changes of what cannot change after creation, in the order of contract 17; the same value is fine."""
    new, named = update.config, update.named
    if "model" in named and old.model and new.model != old.model:
        raise RemoteProtocolError("model_update_unsupported", "the model cannot change", param="session.model")
    if "voice" in named and new.voice != old.voice and session.audio_started:
        raise RemoteProtocolError(
            "voice_update_after_audio_unsupported",
            "the voice cannot change after audio was made",
            param="session.voice",
        )
    if "ref_audio" in named and new.ref_audio is not None and new.ref_audio != old.ref_audio:
        raise RemoteProtocolError(
            "ref_audio_update_unsupported", "the reference audio cannot change", param="session.ref_audio"
        )
    if "native_duplex" in named and new.native_duplex != old.native_duplex:
        raise RemoteProtocolError(
            "native_duplex_mode_update_unsupported",
            "the lane cannot change",
            param="session.extra_body.native_duplex",
        )


async def heartbeat(session: Session, command: cmd.Heartbeat) -> None:
    """Refreshes the lease."""
    session.touch(lease=True)
    session.emit(ev.HeartbeatAck(session_id=session.id))


async def ack_events(session: Session, command: cmd.AckEvents) -> None:
    """Trim the journal (contract 15.1)."""
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
