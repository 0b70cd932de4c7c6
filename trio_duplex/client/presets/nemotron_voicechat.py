"""Nemotron VoiceChat: 16 kHz float in, 22.05 kHz PCM16 out, 80 ms units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..values import AudioFormat, SessionConfig
from ._fields import configured

CHUNK_MS = 80
"""Send the input in chunks of one unit: `stream_pcm(..., chunk_ms=CHUNK_MS)`."""


def create_duplex_session_config(
    *,
    instructions: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    idle_timeout_s: float | None = None,
    extra_body: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> SessionConfig:
    """Tools and spoken answers.

    `tools` (at most five, fixed for the session) travel as `extra_body.realtime_tools`.

    `extra_body` and other overrides work as in the other presets.
    """
    own: dict[str, Any] = {} if tools is None else {"realtime_tools": [dict(tool) for tool in tools]}
    base = SessionConfig(
        input_audio=AudioFormat("pcm_f32le", 16_000),
        output_audio=AudioFormat("pcm16", 22_050),
        instructions=instructions,
        idle_timeout_s=idle_timeout_s,
        extra_body=own,
    )
    return configured(base, extra_body, overrides)
