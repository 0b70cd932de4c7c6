"""Sealing the buffered input into a user item, and what may answer it (contract 10.1, 10.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pybase64

from duplex_protocol import commands as cmd
from duplex_protocol import events as ev
from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import ContentPart, Item, Json
from trio_duplex.models.plugin import FloatAudio, Turn
from trio_duplex.samples import encode_samples
from trio_duplex.session.conversation import user_audio_item
from trio_duplex.session.endings import promote_when_played, response_active, start_answer
from trio_duplex.session.epochs import advance_epoch
from trio_duplex.session.speaking import start_generation
from trio_duplex.session.speech import close_speech, forget_input, judged_end_ms
from trio_duplex.session.work import Work, merged

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

NATIVE_AUDIO_MESSAGE = "native-duplex:input-audio"


async def commit_input(session: Session, command: cmd.CommitInput) -> None:
    """``input_audio_buffer.commit``: cases a – g of contract 10.1 on a native lane, 10.2 on a turn-based one.

    Cancellation: the session is ending.
    """
    session.touch(lease=True)
    if session.traits.turn_based and session.detector is not None:
        raise RemoteProtocolError(
            "server_vad_manual_commit_unsupported", "the server ends turns; turn_detection null commits by hand"
        )
    if session.input.failed:
        forget_input(session)
        raise RemoteProtocolError("commit_aborted", "audio ahead of this commit was lost; it was dropped as a whole")
    if session.traits.turn_based:
        await commit_message(session, command)
        return
    if session.input.empty:
        raise RemoteProtocolError(
            "input_audio_buffer_empty", "input_audio_buffer.commit requires a non-empty input audio buffer."
        )
    finish_held(session)
    end_ms = command.audio_end_ms
    auto = session.config.auto_response
    if command.is_speech is False:
        drop_audio(session)
        commit_nothing(session, audio_end_ms=end_ms)
        return
    active = response_active(session)
    if active and not auto and session.input.only_overlapped(session.config.overlap_short_ack_ms):
        drop_audio(session)
        commit_nothing(session, audio_end_ms=end_ms, overlap_ack=True)
        return
    short = session.judges_speech and session.input.speech_ms <= session.config.overlap_short_ack_ms
    turn = take_turn(session, end_ms)
    if not turn.speech:
        commit_nothing(session, audio_end_ms=turn.audio_end_ms if end_ms is None else end_ms)
        return
    asked = bool(command.response_create)
    wanted = asked or auto
    deferred = active and (not auto or session.generation is not None)
    commit_turn(session, turn, deferred=wanted if deferred else None)
    work = Work([turn], wanted=wanted, precreate=asked and not auto, force_listen=short and asked and not auto)
    answer(session, work, deferred=deferred)


def answer(session: Session, work: Work, *, deferred: bool) -> None:
    """Start the answer to committed input, defer it behind a running one, or leave it for ``response.create``."""
    if deferred:
        session.deferred = merged(session.deferred, work)
        if session.generation is None and session.last_response is not None:
            session.epoch.start_soon(
                partial(promote_when_played, session, session.last_response), name=f"playback {session.id}"
            )
    elif work.wanted:
        start_answer(session, work)
    else:
        session.unanswered = merged(session.unanswered, work)


# --- the buffered input -------------------------------------------------------------------------------------------


def finish_held(session: Session) -> None:
    """The turn's audio ends here: what the filter of the rate conversion still holds is its last part. No checkpoint.

    A model that hears everything gets it with the next append: its stream goes on.
    """
    if session.holds_input and session.detector is None and session.input.held:
        session.input.hold(session.hearing.flush(), ())


def take_turn(session: Session, end_hint_ms: float | None) -> Turn:
    """Everything since the last commit as one turn: from the session's own hands, or ended inside the model."""
    buffer = session.input
    start_ms = int(session.clock_ms if buffer.start_ms is None else buffer.start_ms)
    if session.holds_input:
        detected = session.detector.close_utterance() if session.detector is not None else None
        if detected is not None:
            buffer.held.append(at_model_rate(session, detected.audio))
            start_ms = detected.audio_start_ms
        speech = bool(buffer.held) if session.detector is not None else buffer.speech_ms > 0
        turn = Turn(start_ms, int(session.clock_ms), speech=speech)
        turn.audio, turn.video_frames = buffer.take_audio(), tuple(buffer.frames)
    else:
        if session.feed is not None:
            session.feed.pad(epoch=session.epoch.number, is_speech=buffer.speech_ms > 0)
        if session.detector is not None:
            session.detector.reset()
        turn = session.model.end_turn()
        session.committed_ms = max(session.committed_ms, turn.audio_end_ms)
        if session.judges_speech:
            turn.speech = turn.speech and buffer.speech_ms > 0
            turn.audio_start_ms, turn.audio_end_ms = start_ms, int(session.clock_ms)
    if session.judges_speech:
        turn.audio_end_ms = int(judged_end_ms(session) if end_hint_ms is None else end_hint_ms) or turn.audio_end_ms
    if turn.transcript is None:
        turn.transcript = buffer.hinted_transcript
    return turn


def drop_audio(session: Session) -> None:
    """The buffered audio is no input; the open item itself is still to be committed."""
    session.input.held.clear()
    session.input.frames.clear()
    session.overlap_ms = 0.0
    if session.feed is not None:
        session.feed.drop()
    if session.detector is not None:
        session.detector.reset()
    if not session.holds_input:
        session.model.drop_input()


def at_model_rate(session: Session, audio: FloatAudio) -> FloatAudio:
    """Audio of the detector (16 kHz) at the rate of the model's input."""
    from trio_duplex.resampling import Resampler
    from trio_duplex.turn_detection import SAMPLE_RATE_HZ

    rate_hz = session.plugin.unit.input_rate_hz
    if rate_hz == SAMPLE_RATE_HZ:
        return audio
    resampler = Resampler(SAMPLE_RATE_HZ, rate_hz)
    return np.concatenate([resampler.push(audio), resampler.flush()])


# --- commits of a native lane -------------------------------------------------------------------------------------


def commit_turn(session: Session, turn: Turn, *, deferred: bool | None = None, known: Item | None = None) -> None:
    """The commit fan-out of a user turn, and its place in history. No checkpoint.

    ``deferred``: None = not deferred, else whether a response to it is wanted later. ``known``: the item is announced
    already (``conversation.item.create``) and stands in the conversation.
    """
    if known is None:
        item_id = session.input.open_item(session.ids)
        close_speech(session, turn.audio_end_ms)
        item = user_audio_item(item_id, turn.transcript)
        previous = session.conversation.tail_id
        session.conversation.add(item, history_text=turn.transcript or "")
        session.input.reset()
    else:
        item, previous = known, session.conversation.predecessor(known.id)
    turn.item_id = item.id
    committed(
        session,
        attrs.evolve(
            input_committed(session, item, previous, native_message(turn.transcript)),
            item_known=known is not None,
            transcript=turn.transcript,
            audio_ms=max(0, turn.audio_end_ms - turn.audio_start_ms),
            overlap_deferred=None if deferred is None else True,
            response_create_deferred=deferred,
        ),
    )


def input_committed(
    session: Session, item: Item, previous: str | None, message: Json, *, counts: bool = True
) -> ev.InputCommitted:
    """What every commit says of its session as it stands now. ``counts``: it is a turn, the next one."""
    return ev.InputCommitted(
        session_id=session.id,
        turn_id=session.turn_id + counts,
        epoch=session.epoch.number,
        history_len=session.conversation.history_len,
        item=item,
        previous_item_id=previous,
        message=message,
    )


def committed(session: Session, event: ev.InputCommitted) -> None:
    """Count a commit and say it. No checkpoint."""
    session.turn_id = event.turn_id
    session.overlap_ms = 0.0
    if session.last_response is not None and session.last_response.done:
        session.last_response.commits_after_end += 1
    if session.generation is None:
        session.turn_state = "user_committed"
    session.emit(event)


def commit_nothing(session: Session, *, audio_end_ms: float | None, overlap_ack: bool = False) -> None:
    """A commit of silence, noise or a short acknowledgement: an empty item, nothing in history (10.1 c, e)."""
    item_id = session.input.open_item(session.ids)
    close_speech(session, judged_end_ms(session) if audio_end_ms is None else audio_end_ms)
    item = user_audio_item(item_id, "", is_speech=False)
    previous = session.conversation.tail_id
    session.conversation.add(item)
    session.input.reset()
    if session.generation is None:
        session.turn_state = "idle"
    session.emit(
        attrs.evolve(
            input_committed(session, item, previous, native_message(None), counts=False),
            transcript="",
            empty=True,
            no_response=True,
            is_speech=False,
            overlap_ack=overlap_ack,
            native_audio=not session.traits.turn_based,
        )
    )
    if not overlap_ack:
        session.emit(
            ev.ResponseListen(
                session_id=session.id, epoch=session.epoch.number, reason="silence_or_noise", model_listen=False
            )
        )


def native_message(transcript: str | None) -> Json:
    """``input.committed.message`` of the native lane (contract 10.1)."""
    content: list[Json] = [{"type": "audio_url", "audio_url": {"url": NATIVE_AUDIO_MESSAGE}}]
    if transcript:
        content.append({"type": "text", "text": transcript})
    return {"role": "user", "content": content}


# --- commits of a turn-based lane ---------------------------------------------------------------------------------


async def commit_message(session: Session, command: cmd.CommitInput) -> None:
    """A client's commit on a turn-based lane: typed text and audio form one user message (contract 10.2).

    Cancellation: the session is ending.
    """
    if command.is_speech is False and not session.input.text:
        if session.input.empty:
            raise RemoteProtocolError("input_audio_buffer_empty", "nothing was appended")
        drop_audio(session)
        commit_nothing(session, audio_end_ms=command.audio_end_ms)
        return
    finish_held(session)
    text = "".join(session.input.text).strip()
    if session.input.empty or (not text and not session.input.held_samples):
        commit_empty_message(session)
        return
    turn = take_turn(session, command.audio_end_ms)
    wanted = bool(command.response_create) or session.config.auto_response
    seal_message(session, turn, text=text)
    if not wanted:
        return
    if session.generation is not None:
        await advance_epoch(session, "new_response", keep_work=True)
    start_generation(session, Work([turn]), precreate=True)


def commit_empty_message(session: Session) -> None:
    """Nothing to say: told as an empty commit without an item; stock clients expect OpenAI's error instead."""
    if not session.strict:
        raise RemoteProtocolError("input_audio_buffer_empty", "nothing was appended")
    session.input.reset()
    session.emit(
        attrs.evolve(
            input_committed(
                session, Item(id=""), session.conversation.tail_id, {"role": "user", "content": []}, counts=False
            ),
            native_audio=False,
            empty=True,
        )
    )


def seal_message(session: Session, turn: Turn, *, text: str = "", store: bool = True) -> None:
    """The commit fan-out of a message of a turn-based lane. ``store`` false: its place in history is still to come."""
    item_id = session.input.open_item(session.ids)
    close_speech(session, turn.audio_end_ms)
    wav = wav_of(session, turn.audio)
    turn.item_id, turn.audio = item_id, None
    content: list[ContentPart] = [ContentPart("input_text", text=text)] if text else []
    if wav is not None:
        content.append(ContentPart("input_audio", transcript=turn.transcript))
    item = Item(id=item_id, role="user", status="completed", content=tuple(content))
    previous = session.conversation.tail_id
    words = " ".join(w for w in (text, turn.transcript) if w)
    record = session.conversation.add(item, history_text=words if store else None)
    session.conversation.keep_sound(record, wav)
    turn.transcript = words or None
    session.input.reset()
    committed(
        session,
        attrs.evolve(
            input_committed(session, item, previous, chat_message(text, wav)),
            transcript=content[-1].transcript if wav is not None else None,
            audio_ms=max(0, turn.audio_end_ms - turn.audio_start_ms),
            native_audio=False,
        ),
    )


def wav_of(session: Session, audio: FloatAudio | None) -> bytes | None:
    """Audio at the model's rate as a 16-bit WAV, None for none."""
    if audio is None or not len(audio):
        return None
    return encode_samples(audio, AudioFormat("wav", session.plugin.unit.input_rate_hz))


def chat_message(text: str, wav: bytes | None) -> Json:
    """``input.committed.message`` of a turn-based lane: the real content."""
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    if wav is not None:
        url = "data:audio/wav;base64," + pybase64.b64encode(wav).decode("ascii")
        content.append({"type": "audio_url", "audio_url": {"url": url}})
    return {"role": "user", "content": content}


HANDLERS: dict[type[cmd.Command], Callable[..., Awaitable[None]]] = {cmd.CommitInput: commit_input}
