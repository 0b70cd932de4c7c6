"""What a row of the client event table is made of: fields, and how a row reads an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from duplex_protocol.commands import Command
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.readers import Reader
from duplex_protocol.values import Json

Values = dict[str, Any]


@attrs.define
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


class FieldTable:
    """The fields of one JSON object. Reading costs one look-up per member that the object has."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._required = tuple(field for field in fields if field.missing is not None)
        self._spellings = {
            spelling: (rank, field.name, field.read)
            for field in fields
            for rank, spelling in enumerate((field.name, *field.aliases))
        }

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def read(self, holder: Json, prefix: str = "") -> Values:
        """Check the fields that ``holder`` has: first their presence, in the table's order, then their kinds.

        Unknown members are ignored and null counts as absent. ``prefix`` goes before the names in ``param``. Raises
        :class:`RemoteProtocolError`.
        """
        seen: dict[str, tuple[int, Reader, Any]] = {}
        spellings = self._spellings
        for key, value in holder.items():
            known = spellings.get(key)
            if known is None or value is None:
                continue
            rank, name, reader = known
            before = seen.get(name)
            if before is None or rank < before[0]:
                seen[name] = (rank, reader, value)
        for field in self._required:
            if field.name not in seen:
                param = prefix + field.name
                raise RemoteProtocolError(field.missing or "bad_event", f"{param} is missing", param=param)
        return {name: read(value, prefix + name) for name, (_, read, value) in seen.items()}


NO_FIELDS: Final = FieldTable()


@attrs.frozen
class ClientRow:
    """One client event: the seed's tier, what it does in own words, its fields and the builder of its command."""

    tier: int
    description: str
    build: Callable[[Said], Command]
    fields: FieldTable = NO_FIELDS
