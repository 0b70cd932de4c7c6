"""Bounds and timers of sessions: the deploy keys of ``duplex_session`` (contract 16.2) as one value."""

from __future__ import annotations

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
        )
