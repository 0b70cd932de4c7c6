"""How long one answer may be, as a session and ``response.create`` say it (contract 2.1, 12.4). Pure."""

from __future__ import annotations

from typing import Final

from duplex_protocol.values import Json

__all__ = ["token_limit"]

SPELLINGS: Final = ("max_response_output_tokens", "max_output_tokens", "max_tokens")


def token_limit(given: Json, otherwise: int | None) -> int | None:
    """The limit of a raw ``response`` object, else ``otherwise``: a positive whole number; all else means no limit."""
    for key in SPELLINGS:
        if key in given:
            value = given[key]
            whole = isinstance(value, int) and not isinstance(value, bool)
            return value if whole and value > 0 else None
    return otherwise
