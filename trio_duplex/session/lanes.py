"""What a session's lane and model allow in its configuration, at the opening and later (contract 9.1, 17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Capabilities, SessionConfig
from trio_duplex.models.plugin import Traits
from trio_duplex.session.server_vad import Detector
from trio_duplex.vad_scorer import VadScorer, VadUnavailable

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)


def check_lane(config: SessionConfig, capabilities: Capabilities, traits: Traits, *, strict: bool) -> None:
    """Server VAD that interrupts needs a model that can be interrupted.

    Raises ``unsupported_turn_detection``. The plain view's ``semantic_vad`` leaves it all to the model.
    """
    detection = config.turn_detection
    if detection is None or traits.turn_based or detection.kind == "semantic_vad":
        return
    if not capabilities.supports_barge_in:
        raise RemoteProtocolError(
            "unsupported_turn_detection", "server_vad needs a model that can be interrupted", param="turn_detection"
        )


def holds_input(config: SessionConfig, traits: Traits) -> bool:
    """Whether the session keeps input back from the model until it is committed."""
    return traits.turn_based or (traits.holds_manual_input and not config.auto_response)


def needs_detector(config: SessionConfig, traits: Traits) -> bool:
    """Whether the session itself has to find speech: server VAD on a model that does not report it."""
    detection = config.turn_detection
    judges = not traits.detects_speech or holds_input(config, traits)
    return detection is not None and detection.kind == "server_vad" and judges


async def open_detector(
    scorer: VadScorer | None, config: SessionConfig, traits: Traits, *, model_rate_hz: int, origin_ms: float = 0.0
) -> Detector | None:
    """The detector that a configuration needs, None for none.

    Raises ``server_vad_initialization_failed``. Cancellation: no place in the scorer is taken.
    """
    if not needs_detector(config, traits):
        return None
    detection = config.turn_detection
    assert detection is not None
    try:
        if scorer is None:
            raise VadUnavailable("this server has no speech detector")
        stream = await scorer.open()
    except VadUnavailable as error:
        raise RemoteProtocolError("server_vad_initialization_failed", str(error), param="turn_detection") from None
    return Detector(stream, detection, model_rate_hz=model_rate_hz, origin_ms=origin_ms)


async def open_detection(
    scorer: VadScorer | None, config: SessionConfig, traits: Traits, *, model_rate_hz: int
) -> tuple[SessionConfig, Detector | None]:
    """The detector of a new session, and the configuration as it then holds.

    Where there is none to be had, a client that did not ask for one (it is the plain view's default) goes without.
    Raises and cancels as :func:`open_detector`.
    """
    try:
        return config, await open_detector(scorer, config, traits, model_rate_hz=model_rate_hz)
    except RemoteProtocolError as error:
        if config.turn_detection_named:
            raise
        log.warning("no_turn_detection", reason=error.message)
        return attrs.evolve(config, turn_detection=None), None


# --- updates ------------------------------------------------------------------------------------------------------


def check_input_lock(session: Session, update: ConfigUpdate) -> None:
    """On a turn-based lane with server VAD the input format stands once audio came (contract 9.1)."""
    old, new = session.config, update.config
    locked = session.traits.turn_based and session.audio_appended and old.turn_detection is not None
    if locked and new.input_format != old.input_format:
        raise RemoteProtocolError(
            "unsupported_audio_format",
            "the input format cannot change after the first audio",
            param="audio.input.format",
        )


def check_identity(session: Session, update: ConfigUpdate) -> None:
    """Model, voice, reference audio, lane, in the order of contract 17; an unchanged value is always fine."""
    old, new, named = session.config, update.config, update.named
    if "model" in named and session.strict and old.model and new.model != old.model:
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
    # A model that is always native takes the switch as its own business (20): it ignores it or refuses it by its rules.
    has_choice = session.defaults.lane_by_client or session.traits.turn_based
    if has_choice and "native_duplex" in named and bool(new.native_duplex) != bool(old.native_duplex):
        raise RemoteProtocolError(
            "native_duplex_mode_update_unsupported",
            "the lane cannot change",
            param="session.extra_body.native_duplex",
        )


def kept_detection(session: Session, update: ConfigUpdate) -> ConfigUpdate:
    """An update that names no turn detection leaves the one that heard audio already, also if it changes the view."""
    locked = session.traits.turn_based and session.audio_appended and "turn_detection" not in update.named
    old = session.config.turn_detection
    return attrs.evolve(update, config=attrs.evolve(update.config, turn_detection=old)) if locked else update


def check_detection_lock(session: Session, update: ConfigUpdate) -> None:
    """On a turn-based lane turn detection is fixed once audio came (contract 9.1)."""
    changed = update.config.turn_detection != session.config.turn_detection
    if changed and session.traits.turn_based and session.audio_appended:
        raise RemoteProtocolError(
            "unsupported_turn_detection", "turn_detection cannot change after the first audio", param="turn_detection"
        )
