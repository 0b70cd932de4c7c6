"""How a preset takes its caller's wishes: `extra_body` is merged over the preset's, other fields replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..values import SessionConfig


def configured(
    base: SessionConfig, extra_body: Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> SessionConfig:
    """TypeError for an override that is no field of `SessionConfig`."""
    merged = {**base.extra_body, **(extra_body or {})}
    return base.replace(**{"extra_body": merged, **overrides})
