"""MiniCPM-o 4.5: 16 kHz PCM16 in, 24 kHz PCM16 out, one-second units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..values import SessionConfig
from ._fields import configured


def create_duplex_session_config(
    *, ref_audio: str | None = None, extra_body: Mapping[str, Any] | None = None, **overrides: Any
) -> SessionConfig:
    """The model's native lane with honest history.

    `ref_audio` is the assistant's voice clip as a data URL; the server refuses a session without one
    (`ref_audio_required`). `extra_body` is merged over the preset's; other overrides replace `SessionConfig` fields.
    """
    base = SessionConfig(
        ref_audio=ref_audio,
        overlap_policy="listen_only",
        playback_commit_policy="ack_only",
        extra_body={"native_duplex": True, "force_listen_count": 0},
    )
    return configured(base, extra_body, overrides)
