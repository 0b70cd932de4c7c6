"""What a dialect is: a pair of pure mappings between wire text and the native vocabulary.

The session and the server know only this interface. One dialect object belongs to one session (it remembers which
brackets of a response it has opened) and survives its sockets.
"""

from __future__ import annotations

from typing import Literal, Protocol

import attrs

from duplex_protocol.commands import Command
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.events import Event
from duplex_protocol.values import Json, SessionConfig

MAX_EVENT_BYTES = 15 * 1024 * 1024
"""One inbound text frame, in UTF-8 bytes (contract 1.2); larger is ``event_too_large`` and the socket stays open."""


@attrs.frozen
class SessionDefaults:
    """What the deployment and its model say about a new session before the client does.

    ``input_rate_hz``/``output_rate_hz`` are the model's native rates (used when the client names none, contract 2.2);
    ``native_lane`` is true for model-native lanes. ``lane_by_client`` is true where ``extra_body.native_duplex`` picks
    the lane (MiniCPM-o): then that flag decides and ``native_lane`` is not read.
    """

    model: str
    input_rate_hz: int = 16_000
    output_rate_hz: int = 24_000
    native_lane: bool = True
    idle_timeout_s: float | None = 300.0
    lane_by_client: bool = False


@attrs.frozen
class ConfigUpdate:
    """A parsed configuration and the canonical names of the fields which the client named.

    ``strict`` is false for clients of the plain view, for whom a model fills in what they cannot know (contract 25).
    """

    config: SessionConfig
    named: frozenset[str] = frozenset()
    session_id: str | None = None
    strict: bool = True


@attrs.frozen
class Projected:
    """The wire events of one step, in order and without ``event_id`` and number.

    ``droppable`` marks audio and transcript deltas, which the journal removes unnumbered when their epoch ends; they
    stand or fall together (one transcript delta per audio delta). ``numbered`` is false for the few events that carry
    no ``server_event_seq`` (contract 15.1). ``size``: about how many bytes they will be on the wire, where the
    projection knows it without looking; 0 = it does not.
    """

    frames: tuple[Json, ...]
    droppable: bool = False
    numbered: bool = True
    size: int = 0


class Dialect(Protocol):
    """One wire dialect, bound to one session."""

    name: Literal["realtime", "native"]
    supports_resume: bool

    def decode(self, event: Json) -> tuple[Command, ...]:
        """One parsed client event of an established session → commands (usually one).

        Aliases are folded first. Raises :class:`RemoteProtocolError` (with ``event_id``) and then nothing happened.
        """
        ...

    def parse_open(self, session: Json, defaults: SessionDefaults) -> ConfigUpdate:
        """The opening configuration. Raises :class:`RemoteProtocolError` with ``param``."""
        ...

    def meet_update(self, session: Json) -> bool:
        """An update is applied next, this is its object: what it shows of its client counts from here on.

        Returns whether the client showed just now that it knows the duplex view (contract 25).
        """
        ...

    def parse_update(self, session: Json, base: SessionConfig, defaults: SessionDefaults) -> ConfigUpdate:
        """A later update on top of ``base``: all checks that need no session state. Same errors."""
        ...

    def project(self, event: Event) -> list[Projected]:
        """One native event → its wire events, in order (maybe none)."""
        ...

    def handshake_error(self, error: RemoteProtocolError, *, flat: bool) -> Json:
        """The error frame of the handshake stage, in the flat or the realtime form (contract 6.1)."""
        ...
