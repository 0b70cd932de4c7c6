"""What a deploy file can say about PersonaPlex. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import attrs

__all__ = ["UNIT_MS", "PersonaPlexOptions"]

UNIT_MS = 80


def _at_least(limit: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and value < limit:
            raise ValueError(f"{attribute.name} must be at least {limit}, got {value}")

    return check


@attrs.frozen(kw_only=True)
class PersonaPlexOptions:
    """The ``options`` block of a deployment; what each key does is said in ``deploy/personaplex.yaml``.

    Raises ``ValueError`` for a value out of its range.
    """

    name: str = "nvidia/personaplex-7b-v1"
    checkpoint: Path = Path("personaplex-7b-v1")
    devices: tuple[str, ...] = ("auto",)
    rows: int | None = attrs.field(default=None, validator=_at_least(1))
    kv: Literal["native", "fp8"] = "native"
    columns_per_session: int | None = attrs.field(default=None, validator=_at_least(1))
    max_step_share: float = attrs.field(default=0.75, validator=_at_least(0.0))
    gather_window_ms: float = attrs.field(default=16.0, validator=_at_least(0.0))
    stuck_after_s: float = attrs.field(default=10.0, validator=_at_least(0.1))
    kernels: bool = True

    text_temperature: float = 0.7
    text_top_k: int = 25
    audio_temperature: float = 0.8
    audio_top_k: int = 250
    seed: int | None = None

    patience_ms: int = attrs.field(default=80, validator=_at_least(0))
    lead_units: int = attrs.field(default=2, validator=_at_least(1))
    max_backlog_ms: int = attrs.field(default=4000, validator=_at_least(UNIT_MS))

    onset_energy: float = attrs.field(default=0.01, validator=_at_least(0.0))
    onset_ms: int = attrs.field(default=240, validator=_at_least(UNIT_MS))
    quiet_energy: float = attrs.field(default=0.004, validator=_at_least(0.0))
    quiet_ms: int = attrs.field(default=800, validator=_at_least(UNIT_MS))
    cancel_mute_ms: int = attrs.field(default=10_000, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        if not self.devices:
            raise ValueError("devices: name at least one")
        if self.quiet_energy > self.onset_energy:
            raise ValueError("quiet_energy must not be above onset_energy: the gate would flutter")
