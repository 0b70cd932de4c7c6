"""Bounds and timers of sessions: the deploy keys of ``duplex_session`` (contract 16.2) as one value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import attrs

from trio_duplex.session.mailbox import MailboxLimits

SessionLimit = int | Literal["auto"]
AUTO_SESSIONS: Final = 1024
"""What ``auto`` amounts to before the model's own admission, which knows better."""


def _positive(instance: Any, attribute: attrs.Attribute[Any], value: float | Literal["auto"] | None) -> None:
    if value == "auto":
        return
    if value is not None and not value > 0:
        raise ValueError(f"{attribute.name} must be greater than 0, got {value}")


@attrs.frozen
class SessionSettings:
    """Times in seconds, sizes in bytes; names and defaults are the deploy keys of contract 16.2.

    ``max_sessions`` ``auto``: as many as the model itself admits (only for models that measure themselves).
    ``max_pending_appends_per_session`` None: only their bytes are bounded (the peer's newer releases do so; 4 was the
    older ones'). ``max_pending_output_*``: what may wait for an attached socket for longer than
    ``attachment_io_timeout_s``. ``completed_append_cache_size``: appends that are recognised when a client sends them
    again after a resume. ``server_vad_model_path``: the TorchScript file of another silero network. ``warmup_frames``:
    units of silence that the model hears before the server is ready; negative: what the model warms up by itself is
    left out too, where it can do without.
    """

    max_sessions: SessionLimit = attrs.field(default=32, validator=_positive)
    idle_ttl_s: float | None = attrs.field(default=300.0, validator=_positive)
    disconnect_grace_s: float = attrs.field(default=30.0, validator=_positive)
    reaper_interval_s: float = attrs.field(default=5.0, validator=_positive)
    resume_replay_ttl_s: float = attrs.field(default=60.0, validator=_positive)
    resume_replay_max_bytes_per_session: int = attrs.field(default=8 * 1024 * 1024, validator=_positive)
    attachment_io_timeout_s: float = attrs.field(default=5.0, validator=_positive)
    max_pending_input_bytes_per_session: int = attrs.field(default=16 * 1024 * 1024, validator=_positive)
    max_pending_turns_per_session: int = attrs.field(default=4, validator=_positive)
    max_pending_appends_per_session: int | None = attrs.field(default=None, validator=_positive)
    max_pending_output_bytes: int = attrs.field(default=2 * 1024 * 1024, validator=_positive)
    max_pending_output_events: int = attrs.field(default=512, validator=_positive)
    completed_append_cache_size: int = attrs.field(default=256, validator=_positive)
    server_vad_model_path: Path | None = None
    warmup_frames: int = 0

    @property
    def session_limit(self) -> int:
        """``max_sessions`` as a number."""
        return AUTO_SESSIONS if self.max_sessions == "auto" else self.max_sessions

    @property
    def mailbox_limits(self) -> MailboxLimits:
        """The mailbox's share of the bounds."""
        return MailboxLimits(
            max_pending_input_bytes=self.max_pending_input_bytes_per_session,
            max_pending_turns=self.max_pending_turns_per_session,
            max_pending_appends=self.max_pending_appends_per_session,
        )
