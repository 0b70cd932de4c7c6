"""PersonaPlex: 24 kHz float in, 24 kHz PCM16 out, 80 ms units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..values import AudioFormat, SessionConfig
from ._fields import configured


def create_duplex_session_config(
    voice: str = "NATF2.pt", persona: str = "", *, extra_body: Mapping[str, Any] | None = None, **overrides: Any
) -> SessionConfig:
    """A persona with a voice.

    `voice` is one of the model's bundled voice prompts, `persona` the role text (sent as `instructions`).

    `extra_body` and other overrides work as in the other presets.
    """
    base = SessionConfig(
        input_audio=AudioFormat("pcm_f32le", 24_000),
        output_audio=AudioFormat("pcm16", 24_000),
        voice=voice,
        instructions=persona,
    )
    return configured(base, extra_body, overrides)
