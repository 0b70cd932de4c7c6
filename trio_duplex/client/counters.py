"""What a client counts, and the reading of it that it shows."""

from __future__ import annotations

import attrs


@attrs.define
class LinkCounters:
    """Kept by the link."""

    frames_received: int = 0
    frames_ignored: int = 0
    duplicates_dropped: int = 0
    acks_sent: int = 0
    resumes: int = 0


@attrs.frozen
class ClientStatistics:
    """A reading of the client's counters; see `DuplexClient.statistics`."""

    frames_received: int
    """Everything that came in."""
    frames_ignored: int
    """Binary frames and text that was no JSON event."""
    duplicates_dropped: int
    """Replayed events that had been seen before."""
    acks_sent: int
    """Acknowledgements of events."""
    resumes: int
    """Connections after the first that carried the session."""
    events_dropped: int
    """Events that fell out of the buffers of slow `events()` consumers alive now."""
