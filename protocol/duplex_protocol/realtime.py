"""The dialect of ``/v1/realtime``, in two views: the seed's (duplex) and OpenAI's own (plain); contract 5, 25."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import attrs

from duplex_protocol.client_events import decode_event
from duplex_protocol.commands import Command
from duplex_protocol.dialect import ConfigUpdate, Projected, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.events import AudioDelta, Event
from duplex_protocol.frames_session import envelope, flat_error
from duplex_protocol.handshake import is_update_trait
from duplex_protocol.memory import Memory
from duplex_protocol.projection import project
from duplex_protocol.session_object import parse_open, parse_update
from duplex_protocol.shapes import View
from duplex_protocol.values import Json, SessionConfig

PLAIN_DELTA_BYTES: Final = 480_000
"""Most audio in one plain-view delta, so that its event stays under 1 MiB; divisible by every sample size."""


class RealtimeDialect:
    """One session's realtime dialect; survives its sockets.

    ``undecided``: the session was autostarted in the plain view, and its first update may still show a client that
    knows the duplex one (:meth:`meet_update`).
    """

    name: Literal["realtime", "native"] = "realtime"
    supports_resume: bool = True

    def __init__(self, view: View = "duplex", *, undecided: bool = False) -> None:
        self._memory = Memory(view)
        self._undecided = undecided

    @property
    def view(self) -> View:
        """Which view the client sees."""
        return self._memory.view

    @view.setter
    def view(self, view: View) -> None:
        self._memory.view = view
        self._undecided = False

    def meet_update(self, session: Json) -> bool:
        """The first update of an undecided session fixes the view, before anything of it is parsed or projected."""
        switches = self._undecided and any(is_update_trait(key) for key in session)
        self._undecided = False
        if switches:
            self._memory.view = "duplex"
        return switches

    def decode(self, event: Json) -> tuple[Command, ...]:
        """One parsed client event → its command. Raises :class:`RemoteProtocolError` with its ``event_id``."""
        return (decode_event(event, native=False),)

    def parse_open(self, session: Json, defaults: SessionDefaults) -> ConfigUpdate:
        """The opening configuration; in the plain view 24 kHz PCM16 unless told otherwise."""
        return parse_open(session, defaults, flavour=self.view)

    def parse_update(self, session: Json, base: SessionConfig, defaults: SessionDefaults) -> ConfigUpdate:
        """A later update on top of ``base``."""
        return parse_update(session, base, defaults, flavour=self.view)

    def project(self, event: Event) -> list[Projected]:
        """One native event → its wire events; audio values are raw ``bytes`` until they are encoded."""
        if type(event) is AudioDelta and self.view == "plain" and len(event.audio) > PLAIN_DELTA_BYTES:
            return [group for piece in _cut(event) for group in project(self._memory, piece)]
        return project(self._memory, event)

    def handshake_error(self, error: RemoteProtocolError, *, flat: bool) -> Json:
        """The error of the handshake stage; stock clients of the plain view understand the envelope only."""
        if flat and self.view == "duplex":
            return flat_error(error)
        return envelope(
            self.view,
            error.code,
            error.message,
            param=error.param,
            event_id=error.event_id,
            retryable=error.retryable,
        )


def _cut(event: AudioDelta) -> Iterator[AudioDelta]:
    """Pieces of a long chunk; the first carries the text, the last the end-of-turn flag."""
    starts = range(0, len(event.audio), PLAIN_DELTA_BYTES)
    for start in starts:
        yield attrs.evolve(
            event,
            audio=event.audio[start : start + PLAIN_DELTA_BYTES],
            text=event.text if start == 0 else "",
            end_of_turn=event.end_of_turn and start == starts[-1],
        )
