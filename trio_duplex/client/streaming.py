"""Cutting PCM into appends and placing camera frames on them (contract 21.4 `append_audio`, `stream_pcm`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from .values import AudioFormat, duplex_unit_boundary_ms


def bare_base64(frame: str) -> str:
    """`frame` without a `data:...;base64,` prefix; the wire wants the bare text."""
    if frame.startswith("data:"):
        _, comma, payload = frame.partition(",")
        return payload if comma else frame
    return frame


def append_message(
    pcm: bytes,
    audio_format: AudioFormat,
    *,
    audio_end_ms: float,
    is_speech: bool | None,
    video_frames: Sequence[str] | None,
) -> dict[str, Any]:
    """One `input_audio_buffer.append`. `audio_end_ms` is the end of this chunk since the start of the session.

    The audio in it is still bytes: whether it has to become text is the link's business.
    """
    message: dict[str, Any] = {
        "type": "input_audio_buffer.append",
        "audio": pcm if type(pcm) is bytes else memoryview(pcm).tobytes(),
        "format": audio_format.encoding,
        "sample_rate_hz": audio_format.sample_rate_hz,
        "duration_ms": round(audio_format.duration_ms(len(pcm))),
        "audio_end_ms": round(audio_end_ms),
    }
    if is_speech is not None:
        message["is_speech"] = is_speech
    if video_frames:
        message["video_frames"] = [bare_base64(frame) for frame in video_frames]
    return message


@attrs.frozen
class Slice:
    """One chunk of a stream: bytes, where it ends in ms since the start of the stream, and the frames it carries."""

    pcm: bytes
    end_ms: float
    frames: tuple[str, ...]


def slices(
    pcm: bytes,
    audio_format: AudioFormat,
    *,
    chunk_ms: float,
    video_frames: Sequence[str] | None = None,
    stacked_video_frames: Sequence[str] | None = None,
) -> Iterator[Slice]:
    """Cut `pcm` into chunks of `chunk_ms` (the last may be shorter; ValueError if that is no whole sample).

    Frame k, followed by its composite k, rides the chunk whose end reaches the boundary of unit k; the last of each
    repeats. A chunk that passes several boundaries carries the newest unit's frames only, since an append holds one
    group.
    """
    size = audio_format.byte_count(chunk_ms)
    if size <= 0:
        raise ValueError(f"chunk_ms={chunk_ms} is shorter than one sample")
    unit = 0
    for start in range(0, len(pcm), size):
        chunk = pcm[start : start + size]
        end_ms = audio_format.duration_ms(start + len(chunk))
        reached: int | None = None
        while duplex_unit_boundary_ms(unit) <= end_ms:
            reached = unit
            unit += 1
        frames: tuple[str, ...] = ()
        if reached is not None:
            frames = tuple(
                track[min(reached, len(track) - 1)] for track in (video_frames, stacked_video_frames) if track
            )
        yield Slice(chunk, end_ms, frames)
