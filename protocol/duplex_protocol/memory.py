"""What a dialect remembers of its session between two events."""

from __future__ import annotations

import attrs

from duplex_protocol.shapes import View
from duplex_protocol.states import ResponsePhase
from duplex_protocol.values import SessionSnapshot


@attrs.define
class Bracket:
    """What a response has opened on the wire so far."""

    phase: ResponsePhase
    audio_part: bool = False
    text_part: bool = False
    speak_sent: bool = False


@attrs.define
class Memory:
    """What a dialect remembers of its session: the view, the last session object, the open responses."""

    view: View
    snapshot: SessionSnapshot | None = None
    open: dict[str, Bracket] = attrs.field(factory=dict)
    finished: dict[str, None] = attrs.field(factory=dict)

    @property
    def plain(self) -> bool:
        """Whether the plain view is shown."""
        return self.view == "plain"
