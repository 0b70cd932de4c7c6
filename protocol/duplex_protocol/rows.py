"""What a row of the client event table is made of: fields, and how a row reads an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from duplex_protocol.commands import Command
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.readers import Reader
from duplex_protocol.values import Json

Values = dict[str, Any]


@attrs.frozen
class Said:
    """What one client event said: its checked values and the facts around them that a builder may need."""

    values: Values
    event: Json = attrs.field(repr=False)
    event_id: str | None = None
    native: bool = False
    legacy_wav: bool = False

    def __getitem__(self, name: str) -> Any:
        """The checked value of a field, None when absent."""
        return self.values.get(name)


@attrs.frozen
class Field:
    """One field: canonical ``name`` (also its ``param`` in errors), reader, further spellings, presence.

    ``missing`` is the error code when the field is absent; None makes it optional. The first spelling present wins.
    """

    name: str
    read: Reader
    aliases: tuple[str, ...] = ()
    missing: str | None = None
    note: str = ""
    spellings: tuple[str, ...] = attrs.field(init=False, repr=False)

    @spellings.default
    def _all_spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def read_fields(fields: tuple[Field, ...], event: Json, prefix: str = "") -> Values:
    """Check the fields that ``event`` holds, in the order of ``fields``; null counts as absent.

    ``prefix`` goes before the names in ``param``. Raises :class:`RemoteProtocolError`.
    """
    values: Values = {}
    for field in fields:
        for spelling in field.spellings:
            value = event.get(spelling)
            if value is not None:
                values[field.name] = field.read(value, prefix + field.name)
                break
        else:
            if field.missing is not None:
                param = prefix + field.name
                raise RemoteProtocolError(field.missing, f"{param} is missing", param=param)
    return values


@attrs.frozen
class ClientRow:
    """One client event: the seed's tier, what it does in own words, its fields and the builder of its command."""

    tier: int
    description: str
    build: Callable[[Said], Command]
    fields: tuple[Field, ...] = ()
