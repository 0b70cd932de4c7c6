"""User items with audio through ``conversation.item.create`` (contract 10.3): an append and a commit in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from duplex_protocol.audio_formats import AudioFormat, append_format, check_whole_samples
from duplex_protocol.commands import AppendHints, ItemAudio
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Item
from trio_duplex.models.plugin import FloatAudio, SessionOverloaded, Turn
from trio_duplex.session.audio_io import InputDecoder
from trio_duplex.session.commits import (
    chat_message,
    commit_turn,
    committed,
    input_committed,
    native_message,
    wav_of,
)
from trio_duplex.session.conversation import ItemRecord, item_text, untranscribed_part, with_transcript
from trio_duplex.session.speech_verdict import holds_speech
from trio_duplex.session.work import Work, merged

if TYPE_CHECKING:
    from trio_duplex.session.core import Session

PARAM = "item.content.audio"
NO_HINTS = AppendHints()


async def decode_item_audio(session: Session, parts: tuple[ItemAudio, ...]) -> FloatAudio | None:
    """The parts that hold speech as one block at the model's rate; None for an item without audio parts.

    Raises ``bad_audio`` or ``unsupported_audio_format``; then nothing happened. Cancellation: nothing happened either.
    """
    if not parts:
        return None
    blocks: list[FloatAudio] = []
    for part in parts:
        fmt = append_format(session.config.input_format, part.encoding, part.rate_hz)
        check_item_format(session, fmt)
        check_whole_samples(part.audio, fmt, param=PARAM)
        decoder = InputDecoder(session.plugin.unit.input_rate_hz)
        block = np.concatenate([await decoder.decode(part.audio, fmt, param=PARAM), decoder.flush()])
        if session.traits.turn_based or holds_speech(NO_HINTS, block, session.config.overlap_silence_rms):
            blocks.append(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def check_item_format(session: Session, fmt: AudioFormat) -> None:
    """Under server VAD of a turn-based session an item's audio has the session's format (contract 9.1)."""
    if session.traits.turn_based and session.detector is not None and fmt != session.config.input_format:
        raise RemoteProtocolError("bad_audio", "the audio must have the session's format and rate", param=PARAM)


def commit_item_audio(session: Session, item: Item, audio: FloatAudio, *, announce: bool) -> None:
    """Store an announced item's audio: committed and done, no response. ``announce`` false: it is done already."""
    record = session.conversation.get(item.id)
    assert record is not None
    start_ms = int(session.clock_ms)
    end_ms = int(session.clock_ms + len(audio) * 1000 / session.plugin.unit.input_rate_hz)
    words = item_text(item)
    if session.traits.turn_based:
        session.conversation.keep_sound(record, wav_of(session, audio))
        record.history_text = words
        session.unanswered = merged(session.unanswered, Work(stored=True))
        if announce:
            say_committed(session, record, words, end_ms - start_ms)
        return
    if not len(audio):
        say_nothing(session, item)
        return
    if session.holds_input:
        turn = Turn(start_ms, end_ms, words or None, audio=audio)
    else:
        try:
            if session.feed is not None:
                session.feed.push(audio, epoch=session.epoch.number, is_speech=True)
                session.feed.pad(epoch=session.epoch.number, is_speech=True)
            else:
                session.model.submit(audio)
        except SessionOverloaded:
            session.refuse(RemoteProtocolError("input_backpressure", "the model cannot take this audio now"))
            say_nothing(session, item)
            return
        turn = session.model.end_turn()
        turn.speech = True
        index = untranscribed_part(item)
        if turn.transcript and index is not None:
            record.item = with_transcript(item, index, turn.transcript)
        turn.transcript = item_text(record.item) or None
    record.history_text = turn.transcript or ""
    session.clock_ms += end_ms - start_ms
    commit_turn(session, turn, known=record.item)
    session.unanswered = merged(session.unanswered, Work([turn]))


def say_committed(session: Session, record: ItemRecord, words: str, audio_ms: int) -> None:
    """The commit fan-out of an announced item of a turn-based lane."""
    item = record.item
    committed(
        session,
        attrs.evolve(
            input_committed(session, item, session.conversation.predecessor(item.id), chat_message(words, record.wav)),
            item_known=True,
            audio_ms=audio_ms,
            native_audio=False,
        ),
    )


def say_nothing(session: Session, item: Item) -> None:
    """An announced item whose audio held no speech: finished, but no turn."""
    quiet = tuple(
        attrs.evolve(part, transcript=part.transcript or "", is_speech=False) if part.type == "input_audio" else part
        for part in item.content
    )
    item = attrs.evolve(item, content=quiet)
    record = session.conversation.get(item.id)
    assert record is not None
    record.item = item
    session.emit(
        attrs.evolve(
            input_committed(
                session, item, session.conversation.predecessor(item.id), native_message(None), counts=False
            ),
            item_known=True,
            transcript="",
            empty=True,
            no_response=True,
            is_speech=False,
        )
    )
