"""``input_audio_buffer.append``: its fields and what is folded into one command (contract 2.1, 3.1, 9.2, 18)."""

from __future__ import annotations

from typing import Any, Final

from duplex_protocol import readers
from duplex_protocol.audio_formats import Encoding, encoding_of, rate_of, split_format
from duplex_protocol.commands import AppendAudio, AppendHints
from duplex_protocol.rows import Field, FieldTable, Said, Values


def _rate(value: Any, param: str) -> int:
    return rate_of(value, code="bad_event", param=param)


FIELDS: Final = FieldTable(
    Field("audio", readers.base64_audio, ("delta", "data"), missing="bad_event", note="base64, whole samples"),
    Field("format", readers.anything, ("input_audio_format",), note="a word or an object with type and rate"),
    Field("sample_rate_hz", _rate, ("sample_rate",)),
    Field("duration_ms", readers.positive_ms, ("audio_duration_ms",)),
    Field("audio_start_ms", readers.positive_ms),
    Field("audio_end_ms", readers.positive_ms),
    Field("is_speech", readers.flag, ("speech",)),
    Field("speech_probability", readers.number),
    Field("vad", readers.object_, note="is_speech, speech_probability or probability, silence_rms"),
    Field("overlap_silence_rms", readers.not_negative),
    Field("overlap_action", readers.text, ("overlap",)),
    Field("force_barge_in", readers.flag),
    Field("force_listen", readers.flag),
    Field("transcript", readers.text, ("text",)),
    Field("hints", readers.object_, note="transcript or text"),
    Field("video_frames", readers.video_frames, note="at most 2 base64 JPEG or PNG images"),
    Field("max_slice_nums", readers.one_slice, note="absent or 1"),
)

_VAD_FIELDS: Final = FieldTable(
    Field("is_speech", readers.flag),
    Field("speech_probability", readers.number, ("probability",)),
    Field("silence_rms", readers.not_negative),
)
_HINT_FIELDS: Final = FieldTable(Field("transcript", readers.text, ("text",)))
_NO_HINTS: Final = AppendHints()
_HINTING: Final = frozenset(field.name for field in FIELDS) - {
    "audio",
    "format",
    "sample_rate_hz",
    "video_frames",
    "max_slice_nums",
}


def append(said: Said) -> AppendAudio:
    """The command of an append; raises ``unsupported_audio_format`` for a format that may not come in."""
    values = said.values
    encoding, rate_hz = _named_format(values, legacy_wav=said.legacy_wav)
    return AppendAudio(
        event_id=said.event_id,
        audio=values["audio"],
        encoding=encoding,
        rate_hz=rate_hz,
        hints=_NO_HINTS if _HINTING.isdisjoint(values) else _hints(values),
        video_frames=values.get("video_frames", ()),
    )


def _named_format(values: Values, *, legacy_wav: bool) -> tuple[Encoding | None, int | None]:
    """Encoding and rate that the event itself names; the two legacy aliases mean WAV when they name none."""
    word, object_rate = split_format(values.get("format"))
    encoding: Encoding | None = "wav" if legacy_wav else None
    if word is not None:
        encoding = encoding_of(word, param="format", direction="legacy_in" if legacy_wav else "in")
    rate: int | None = values.get("sample_rate_hz")
    if rate is None and object_rate is not None:
        rate = _rate(object_rate, "sample_rate_hz")
    return encoding, rate


def _hints(values: Values) -> AppendHints:
    """What the client says about the audio; the event's own fields come before those inside ``vad`` and ``hints``.

    The exception is the probability: the detector's own stands in ``vad`` (order of contract 9.2).
    """
    vad = _VAD_FIELDS.read(values["vad"], "vad.") if "vad" in values else {}
    more = _HINT_FIELDS.read(values["hints"], "hints.") if "hints" in values else {}
    said = values.get
    return AppendHints(
        duration_ms=said("duration_ms"),
        audio_start_ms=said("audio_start_ms"),
        audio_end_ms=said("audio_end_ms"),
        is_speech=said("is_speech", vad.get("is_speech")),
        speech_probability=vad.get("speech_probability", said("speech_probability")),
        silence_rms=said("overlap_silence_rms", vad.get("silence_rms")),
        overlap_action=said("overlap_action"),
        force_barge_in=said("force_barge_in", False),
        force_listen=said("force_listen", False),
        transcript=said("transcript", more.get("transcript")),
    )
