"""When a failing detector is worth another error event.  Pure but for one line in the log."""

from __future__ import annotations

from typing import Final

import structlog

from trio_duplex.turn_detection import FRAME_MS

__all__ = ["Outage"]

log = structlog.get_logger(__name__)

OVER_FRAMES: Final = 1_000 // FRAME_MS
"""Frames in a row that must work before an outage counts as over; one that fails now and then is a single outage."""


class Outage:
    """Failing frames of one session's detector: the first is told to the client, the others are counted for the log."""

    def __init__(self) -> None:
        self.failed_frames = 0
        self._worked = 0

    def failed(self) -> bool:
        """A frame failed.  Whether the client is still to be told."""
        self._worked = 0
        self.failed_frames += 1
        return self.failed_frames == 1

    def worked(self) -> None:
        """A frame was judged."""
        if not self.failed_frames:
            return
        self._worked += 1
        if self._worked >= OVER_FRAMES:
            log.warning("detector_works_again", failed_frames=self.failed_frames)
            self.failed_frames = self._worked = 0
