"""No model in particular: the defaults of `SessionConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..values import SessionConfig
from ._fields import configured


def create_duplex_session_config(*, extra_body: Mapping[str, Any] | None = None, **overrides: Any) -> SessionConfig:
    """`SessionConfig(**overrides)`, under the name the other presets use."""
    return configured(SessionConfig(), extra_body, overrides)
