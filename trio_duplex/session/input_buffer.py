"""What of the user's input is not committed yet: the open item and how much audio it holds. Holds no samples."""

from __future__ import annotations

import attrs

from trio_duplex.session.ids import IdSource


@attrs.define
class InputBuffer:
    """The open input item.

    ``item_id`` is allocated at its first speech or at the commit, whichever is first; ``audio_ms`` counts everything
    appended since the last commit, ``appends`` the events; ``transcript_hints`` are the client's own words about it.
    """

    item_id: str | None = None
    speech_started: bool = False
    speech_stopped: bool = False
    audio_ms: float = 0.0
    appends: int = 0
    transcript_hints: list[str] = attrs.field(factory=list)

    @property
    def empty(self) -> bool:
        """Nothing was appended since the last commit or clear."""
        return self.appends == 0

    def open_item(self, ids: IdSource) -> str:
        """The open item's id, allocated now if there is none."""
        if self.item_id is None:
            self.item_id = ids.item()
        return self.item_id

    def add_hint(self, hint: str) -> None:
        """Add a transcript hint; a consecutive repeat of the same hint is ignored (contract 9.2)."""
        if not self.transcript_hints or self.transcript_hints[-1] != hint:
            self.transcript_hints.append(hint)

    @property
    def hinted_transcript(self) -> str | None:
        """The stripped join of the hints, None when there is none."""
        return " ".join(self.transcript_hints).strip() or None

    def reset(self) -> None:
        """Start the next item."""
        self.__init__()  # type: ignore[misc]
