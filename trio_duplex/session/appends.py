"""One append on its way: format, verdict, overlap, then to the model or into the session's hands (contract 9 – 11)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import structlog

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.audio_formats import AudioFormat, append_format, check_whole_samples
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import FloatAudio, SessionOverloaded
from trio_duplex.samples import decode_samples
from trio_duplex.session.audio_io import unwrapped
from trio_duplex.session.endings import response_active
from trio_duplex.session.input_buffer import text_bytes
from trio_duplex.session.interrupting import barge_in_on_overlap
from trio_duplex.session.overlap import INTERRUPT_WORDS, Decision, Overlap, Vad, decide
from trio_duplex.session.speech import close_speech, judged_end_ms, open_speech
from trio_duplex.session.speech_verdict import holds_speech
from trio_duplex.session.utterances import hear_append, speech_began, utterances_heard

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

BYTES_PER_SAMPLE = 2


@attrs.frozen(eq=False)
class Chunk:
    """An append that passed its checks: samples at the model's rate, what the client says, and the verdict.

    ``vad`` is the server detector's word on it, None without one.
    """

    samples: FloatAudio = attrs.field(repr=False)
    duration_ms: float
    hints: cmd.AppendHints
    frames: tuple[str, ...] = attrs.field(repr=False)
    speech: bool
    vad: Vad | None = None


async def append_audio(session: Session, command: cmd.AppendAudio) -> None:
    """Take one append. Raises what refuses it as a whole; then nothing happened.

    Cancellation: the session is ending; the append is lost.
    """
    fmt = append_format(session.config.input_format, command.encoding, command.rate_hz)
    audio, fmt = unwrapped(command.audio, fmt)
    check_lane_format(session, fmt)
    check_whole_samples(audio, fmt)
    check_framing(session, fmt, len(audio))
    frames = usable_frames(session, command.video_frames)
    check_room(session, fmt, len(audio))
    check_words(session, command.hints.transcript)
    samples = await decoded(session, audio, fmt)
    session.touch(lease=True)
    session.audio_appended = True
    hints = possible_hints(session, command)
    duration_ms = fmt.duration_ms(len(audio))
    heard = None
    if session.detector is not None:
        session.detector.input_rate_hz = fmt.rate_hz
        heard = await hear_append(session, samples, command.event_id)
        if heard is None:
            return
        speech_began(session, heard)
        speech = heard.speech
        vad: Vad | None = "onset" if heard.onset else "active" if heard.active else "silent"
    else:
        # What is still all in the filter of the rate conversion is judged as it came: it is not empty (9.2).
        speech, vad = verdict(session, hints, samples if len(samples) else decode_samples(audio, fmt)), None
    chunk = Chunk(samples, duration_ms, hints, frames, speech, vad)
    if not evaluated(session, chunk) or await overlapped(session, chunk):
        take(session, chunk)
    session.clock_ms += duration_ms
    if heard is not None:
        utterances_heard(session, heard)


def verdict(session: Session, hints: cmd.AppendHints, samples: FloatAudio) -> bool:
    """Whether the append holds speech (9.2); nobody asks while a model hears and answers all by itself."""
    if session.model_detects and session.config.auto_response:
        return bool(hints.is_speech)
    return holds_speech(hints, samples, session.config.overlap_silence_rms)


async def decoded(session: Session, audio: bytes, fmt: AudioFormat) -> FloatAudio:
    """The samples at the model's rate. A command that wins over a hanging append (22) cuts a very long one short.

    Raises ``runtime_append_failed`` then. Cancellation: the session is ending.
    """
    hearing = session.hearing
    if hearing.is_short(audio, fmt):
        return hearing.decode_short(audio, fmt)
    with session.bind(math.inf):
        return await hearing.decode(audio, fmt)
    hearing.reset()
    raise RemoteProtocolError("runtime_append_failed", "a command behind this append could not wait for it")


# --- checks -------------------------------------------------------------------------------------------------------


def check_lane_format(session: Session, fmt: AudioFormat) -> None:
    """What server VAD may hear (contract 9.1): one rate within a stream; turn-based lanes 16 or 24 kHz PCM16."""
    detector = session.detector
    if detector is None:
        return
    plain_pcm = fmt.encoding == "pcm16" and fmt.rate_hz in (16_000, 24_000)
    if session.traits.turn_based and session.strict and not plain_pcm:
        raise RemoteProtocolError(
            "unsupported_audio_format", "server_vad hears mono pcm16 at 16 or 24 kHz", param="audio.input.format"
        )
    if detector.input_rate_hz not in (None, fmt.rate_hz):
        raise RemoteProtocolError("bad_audio", "the sample rate changed within one stream", param="audio")


def check_framing(session: Session, fmt: AudioFormat, size: int) -> None:
    """Models that take audio in one form only say so (contract 6.2, 16.3); the plain view's is converted instead."""
    framing = session.traits.framing
    if framing is None or not session.strict:
        return
    if (fmt.encoding, fmt.rate_hz) != (framing.encoding, framing.rate_hz):
        raise RemoteProtocolError(
            "bad_event", f"this model hears {framing.encoding} at {framing.rate_hz} Hz only", param="format"
        )
    if framing.max_samples is not None and size > framing.max_samples * fmt.bytes_per_sample:
        raise RemoteProtocolError(
            "bad_event", f"one append may have {framing.max_samples} samples for this model", param="audio"
        )


def usable_frames(session: Session, frames: tuple[str, ...]) -> tuple[str, ...]:
    """Camera frames, where the model looks at them; one that does not look either ignores or refuses (18)."""
    if not frames or session.traits.video == "used":
        return frames
    if session.traits.video == "refused":
        raise RemoteProtocolError("invalid_input_modality", "this model takes no video frames", param="video_frames")
    return ()


def check_room(session: Session, fmt: AudioFormat, size: int) -> None:
    """Bound one append, and what the session itself holds back, in bytes of PCM16 at the model's rate (16.3)."""
    limit = session.settings.max_pending_input_bytes_per_session
    new = size // fmt.bytes_per_sample * session.input_rate_hz // fmt.rate_hz
    held = session.held_samples if session.holds_input else 0
    if (held + new) * BYTES_PER_SAMPLE > limit:
        raise RemoteProtocolError("input_backpressure", f"more than {limit} bytes of audio wait for their commit")


def check_words(session: Session, words: str | None) -> None:
    """Bound the text and the transcript hints that wait for their commit (16.3)."""
    limit = session.settings.max_pending_input_bytes_per_session
    if words and session.input.words_bytes + text_bytes(words) > limit:
        raise RemoteProtocolError("input_backpressure", f"more than {limit} bytes of text wait for their commit")


def possible_hints(session: Session, command: cmd.AppendAudio) -> cmd.AppendHints:
    """The hints without a barge-in that the model cannot do; asking for one is an error, the append goes on (11)."""
    hints = command.hints
    wants = hints.force_barge_in or hints.overlap_action in INTERRUPT_WORDS
    if not wants or session.capabilities.supports_barge_in:
        return hints
    named = "force_barge_in" if hints.force_barge_in else "overlap_action"
    session.refuse(
        RemoteProtocolError("barge_in_unsupported", "this model cannot be interrupted", param=named), command.event_id
    )
    return hints


# --- overlap ------------------------------------------------------------------------------------------------------


def evaluated(session: Session, chunk: Chunk) -> bool:
    """Whether there is an answer to be overlapped, and the policy looks at this append at all (contract 11).

    An auto-responding model hears and decides by itself, unless policy or client ask for a barge-in that it can do. A
    model that detects speech itself hears pauses too, and its own onset is what interrupts.
    """
    if session.traits.turn_based or not response_active(session):
        return False
    hints, config = chunk.hints, session.config
    asks = hints.force_barge_in or hints.overlap_action in INTERRUPT_WORDS
    interrupts = config.overlap_policy == "barge_in_on_speech"
    if not config.auto_response:
        hinted = asks or hints.overlap_action is not None or hints.force_listen
        return hinted or not session.model_detects or (chunk.speech and not interrupts)
    return session.capabilities.supports_barge_in and (asks or (interrupts and not session.model_detects))


async def overlapped(session: Session, chunk: Chunk) -> bool:
    """Apply the overlap policy to an append that is :func:`evaluated`; false when it is not to be kept.

    Cancellation: the session is ending.
    """
    hints = chunk.hints
    overlap = Overlap(
        policy=session.config.overlap_policy,
        short_ack_ms=session.config.overlap_short_ack_ms,
        barge_in_ms=session.config.overlap_barge_in_ms,
        auto_response=session.config.auto_response,
        can_barge_in=session.capabilities.supports_barge_in,
        speech=chunk.speech,
        duration_ms=chunk.duration_ms if hints.duration_ms is None else hints.duration_ms,
        accumulated_ms=session.overlap_ms,
        action_word=hints.overlap_action,
        force_barge_in=hints.force_barge_in,
        force_listen=hints.force_listen,
        transcript=hints.transcript,
        vad=chunk.vad,
    )
    decision = decide(overlap)
    session.overlap_ms = decision.accumulated_ms
    if decision.action == "barge_in":
        # The chunk itself is kept: it begins the new input, under the new epoch.
        await barge_in_on_overlap(
            session,
            reason=decision.reason,
            cancel_reason=decision.cancel_reason or "barge_in",
            duration_ms=overlap.duration_ms,
            overlap_ms=decision.overlap_ms,
        )
        return True
    report(session, decision, overlap.duration_ms)
    if decision.forget:
        forget_overlap(session)
    return decision.buffer


def report(session: Session, decision: Decision, duration_ms: float) -> None:
    """``overlap.decision`` of an append that does not interrupt."""
    session.emit(
        ev.OverlapDecision(
            session_id=session.id,
            epoch=session.epoch.number,
            policy=session.config.overlap_policy,
            action=decision.action,
            reason=decision.reason,
            overlap_ms=int(decision.overlap_ms),
            duration_ms=int(duration_ms),
            buffer_audio=decision.buffer,
            defer_runtime_append=decision.defer,
            force_listen=decision.force_listen,
        )
    )


def forget_overlap(session: Session) -> None:
    """The overlap was no input after all: an item that it alone opened is stopped and forgotten (contract 11)."""
    buffer = session.input
    if buffer.item_id is None or buffer.overlap_ms < buffer.speech_ms:
        return
    close_speech(session, judged_end_ms(session))
    if not session.holds_input:
        session.model.drop_input()
    buffer.reset()


# --- keeping ------------------------------------------------------------------------------------------------------


def take(session: Session, chunk: Chunk) -> None:
    """Keep the append: hand it to the model or hold it, count it, and announce the first speech of an item."""
    buffer, hints = session.input, chunk.hints
    holds = session.holds_input
    judges = holds or not session.traits.detects_speech
    idle_silence = (
        holds
        and not session.traits.turn_based
        and session.detector is None
        and not chunk.speech
        and buffer.speech_ms == 0
    )
    if holds and session.detector is not None:
        if chunk.frames:
            buffer.frames.append(chunk.frames)
    elif not idle_silence:
        hand_over(session, chunk, holds=holds)
    if buffer.start_ms is None and not idle_silence:
        buffer.start_ms = session.clock_ms
    buffer.appends += 1
    buffer.audio_ms += chunk.duration_ms
    if hints.audio_end_ms is not None:
        buffer.end_hint_ms = hints.audio_end_ms
    if chunk.speech:
        buffer.speech_ms += chunk.duration_ms
        if response_active(session):
            buffer.overlap_ms += chunk.duration_ms
    if hints.transcript and (chunk.speech or not judges):
        buffer.add_hint(hints.transcript)
    if chunk.speech and judges and session.detector is None:
        open_speech(session, hints.audio_start_ms or 0)
    if session.generation is None:
        session.turn_state = "user_speaking"
        if idle_silence and not response_active(session):
            session.turn_state = "idle"
            session.emit(
                ev.ResponseListen(
                    session_id=session.id, epoch=session.epoch.number, reason="silence_or_noise", model_listen=False
                )
            )


def hand_over(session: Session, chunk: Chunk, *, holds: bool) -> None:
    """To the model, unit by unit where it wants units, or into the session's own hands."""
    if holds:
        session.input.hold(chunk.samples, chunk.frames)
        return
    try:
        if session.feed is not None:
            session.feed.push(
                chunk.samples,
                chunk.frames,
                epoch=session.epoch.number,
                is_speech=chunk.speech,
                force_listen=chunk.hints.force_listen or chunk.vad in ("onset", "active"),
            )
        else:
            session.model.submit(chunk.samples, video_frames=chunk.frames)
    except SessionOverloaded:
        raise RemoteProtocolError("input_backpressure", "the model cannot take this session's audio now") from None


async def append_text(session: Session, command: cmd.AppendText) -> None:
    """``input.text.append`` belongs to the chat lane; no reply event. Cancellation: there is no checkpoint."""
    if not session.traits.turn_based:
        raise RemoteProtocolError(
            "native_text_append_unsupported",
            "input.text.append works in the chat lane only; use conversation.item.create",
        )
    check_words(session, command.text)
    session.touch(lease=True)
    session.input.add_text(command.text)
    if session.generation is None:
        session.turn_state = "user_speaking"


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {
    cmd.AppendAudio: append_audio,
    cmd.AppendText: append_text,
}
