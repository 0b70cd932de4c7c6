"""What travels through a session's mailbox beside its clients' commands."""

from __future__ import annotations

import attrs

from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.models.plugin import ModelResult


@attrs.frozen
class HeardResult:
    """A model result on its way through the mailbox."""

    result: ModelResult


@attrs.frozen
class EndRequest:
    """Close or expire the session. ``expired`` chooses the terminal event."""

    reason: str
    expired: bool = False
    cancel_reason: str | None = None


@attrs.frozen
class RefusedEvent:
    """A client event that did not decode; refused in its place among the others (O1)."""

    error: RemoteProtocolError


Internal = HeardResult | RefusedEvent | EndRequest
