"""One response: what it said so far, and its final item. A value with a life cycle, no tasks."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import trio

from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.item_events import ItemReference, ReadItem
from duplex_protocol.values import ContentPart, Item, ItemStatus, Json, ResponseStatus, TextMark
from trio_duplex.session.playback import PlaybackLedger, cut_text, merge_marks


@attrs.frozen
class ResponseOptions:
    """What one response overrides (contract 12.4); None = the session's value.

    ``context``: items that it is to answer instead of the conversation.
    """

    modalities: tuple[str, ...] | None = None
    output_format: AudioFormat | None = None
    conversation: str | None = None
    metadata: Json | None = None
    prompt: Any = None
    instructions: str | None = None
    context: tuple[ReadItem | ItemReference, ...] | None = None
    raw: Json = attrs.field(factory=dict)


@attrs.frozen
class Delta:
    """One delta that was handed to the journal: its text and where the audio stood after it, in ms."""

    kind: Literal["audio", "text"]
    text: str
    end_ms: int


@attrs.define(eq=False)
class Response:
    """A visible response of one epoch.

    ``deltas`` are those the journal accepted, in order; :meth:`retract` removes the ones that an ended epoch took back
    before any socket saw them. ``status`` leaves ``in_progress`` exactly once. ``first_audio_s`` is when its audio
    began to be sent, ``played`` is set once the client acknowledged all of it, ``interrupted`` once its playback was
    cut short. ``finish_reason`` is the model's own word for its end. ``whole_text``: of what was not heard to its end
    nothing is remembered.
    """

    id: str
    epoch: int
    turn_id: int
    modalities: tuple[str, ...]
    output_format: AudioFormat
    options: ResponseOptions = ResponseOptions()
    whole_text: bool = False
    status: ResponseStatus = "in_progress"
    reason: str | None = None
    finish_reason: str | None = None
    speak_announced: bool = False
    deltas: list[Delta] = attrs.field(factory=list)
    marks: tuple[TextMark, ...] = ()
    ledger: PlaybackLedger = attrs.field(factory=PlaybackLedger)
    out_samples: int = 0
    commits_after_end: int = 0
    first_audio_s: float | None = None
    played: trio.Event = attrs.field(factory=trio.Event)
    interrupted: bool = False

    @property
    def item_id(self) -> str:
        """The assistant item's id (contract 7.1)."""
        return f"item_{self.id}"

    @property
    def in_history(self) -> bool:
        """False for out-of-band answers (``conversation: none``)."""
        return self.options.conversation != "none"

    @property
    def done(self) -> bool:
        """Terminal: nothing can change the status any more (O15)."""
        return self.status != "in_progress"

    @property
    def transcript(self) -> str:
        """Exact join of the transcript deltas."""
        return "".join(d.text for d in self.deltas if d.kind == "audio")

    @property
    def text(self) -> str:
        """Exact join of the text deltas."""
        return "".join(d.text for d in self.deltas if d.kind == "text")

    @property
    def had_audio(self) -> bool:
        """Whether any audio delta stands."""
        return any(d.kind == "audio" for d in self.deltas)

    @property
    def is_mute(self) -> bool:
        """An answer that should have been heard has words and no sound."""
        return "audio" in self.modalities and bool(self.transcript) and self.out_samples == 0

    def add_audio(self, text: str, samples: int, marks: tuple[TextMark, ...]) -> int:
        """Account one audio delta of ``samples`` output samples; returns the cumulative duration in whole ms."""
        self.out_samples += samples
        end_ms = self.out_samples * 1000 // self.output_format.rate_hz
        self.deltas.append(Delta("audio", text, end_ms))
        if marks:
            self.marks = merge_marks(self.marks, marks)
        self.ledger.sent(end_ms)
        return end_ms

    def add_text(self, text: str) -> None:
        """Account one text delta."""
        self.deltas.append(Delta("text", text, self.ledger.sent_ms))

    def retract(self, deltas: list[Delta]) -> None:
        """Take back deltas that were never sent (always the newest ones) and correct the ledger."""
        gone = {id(d) for d in deltas}
        if not gone:
            return
        self.deltas = [d for d in self.deltas if id(d) not in gone]
        self.ledger.unsent(max((d.end_ms for d in self.deltas if d.kind == "audio"), default=0))

    def heard_text(self, at_ms: float) -> str:
        """What of the spoken text was heard by ``at_ms``."""
        if self.whole_text:
            return self.transcript.rstrip() if at_ms >= self.ledger.generated_ms > 0 else ""
        return cut_text(self.transcript, at_ms, marks=self.marks, duration_ms=self.ledger.generated_ms)

    def item(self, status: ItemStatus, *, transcript: str | None = None) -> Item:
        """The assistant item; ``transcript`` overrides the spoken text (cuts).

        An audio part stands whenever audio was among the modalities, even if nothing was said.
        """
        content: list[ContentPart] = []
        if "audio" in self.modalities or self.had_audio:
            content.append(
                ContentPart(
                    "output_audio",
                    transcript=self.transcript if transcript is None else transcript,
                    audio_duration_ms=self.ledger.sent_ms,
                    audio_text_marks=self.marks,
                )
            )
        if self.text or "audio" not in self.modalities:
            content.append(ContentPart("output_text", text=self.text))
        return Item(id=self.item_id, role="assistant", status=status, content=tuple(content))
