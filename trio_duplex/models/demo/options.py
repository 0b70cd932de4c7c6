"""What a deployment may choose about the demo model."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from trio_duplex.models.chat import BrainOptions
from trio_duplex.turn_detection import FRAME_MS

__all__ = ["DemoOptions"]


def _frames(_options: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < FRAME_MS or value % FRAME_MS:
        raise ValueError(f"{attribute.name} must be a multiple of {FRAME_MS}, not {value}")


def _device(_options: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise ValueError(f"{attribute.name} must be cpu, cuda or cuda:N, not {value!r}")


@attrs.frozen(kw_only=True)
class DemoOptions:
    """Options of the demo model.  Raises ``ValueError`` for a value that makes no sense.

    ``device`` runs the speech detector (``cpu`` or ``cuda``); recognition and synthesis are always on the CPU.
    ``voice``: the ``.onnx`` file of a Piper voice (its ``.json``
    beside it), None for the one that comes as a package; ``speed`` 1.2 speaks a fifth faster.
    ``unit_ms`` paces decisions and output.  ``lead_units``: how many units of speech go out ahead of real time.
    ``early_silence_ms``: the silence after which an answer is prepared, before the turn is known to have ended;
    ``hasty_silence_ms`` the same for clients that end turns after ``early_silence_ms`` and a frame or less.
    ``max_utterance_ms``: longer speech is cut into turns.  ``max_backlog_ms``: input waiting to be heard, at most.
    ``stuck_after_s``: how long one step or job may take before the model is declared dead.
    ``brain``: a chat endpoint that thinks of the answers; None: the rules do, and they alone call tools.
    """

    name: str = "demo"
    device: str = attrs.field(default="cpu", validator=_device)
    voice: Path | None = None
    speed: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0.25), attrs.validators.le(4.0)])
    output_rate_hz: int = attrs.field(
        default=24_000, validator=[attrs.validators.ge(8_000), attrs.validators.le(192_000)]
    )
    unit_ms: int = attrs.field(default=96, validator=_frames)
    lead_units: int = attrs.field(default=1, validator=attrs.validators.ge(0))
    early_silence_ms: int = attrs.field(default=160, validator=_frames)
    hasty_silence_ms: int = attrs.field(default=64, validator=_frames)
    max_utterance_ms: int = attrs.field(
        default=60_000, validator=[attrs.validators.ge(1_000), attrs.validators.le(60_000)]
    )
    max_backlog_ms: int = attrs.field(default=120_000, validator=attrs.validators.ge(1_000))
    stuck_after_s: float = attrs.field(default=15.0, validator=attrs.validators.gt(0.0))

    brain: BrainOptions | None = None

    def early_silence_for(self, silence_duration_ms: int) -> int | None:
        """When to prepare an answer, for turns that end after ``silence_duration_ms``; None: only at the end."""
        for early_ms in (self.early_silence_ms, self.hasty_silence_ms):
            if silence_duration_ms > early_ms + FRAME_MS:
                return early_ms
        return None
