"""The opening of a connection, per route (contract 1, 4, 6.1, 15.3): from an accepted socket to an attachment."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import structlog
import trio

from duplex_protocol import wire
from duplex_protocol.client_events import OPENING_NAMES, event_session
from duplex_protocol.dialect import Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.handshake import choose_view, may_switch
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import Json
from trio_duplex.hub import Hub, ResumeRequest, ResyncNeeded
from trio_duplex.server.access import Access
from trio_duplex.server.secrets import bind
from trio_duplex.server.socket import SocketLike, payload_bytes
from trio_duplex.session.attachment import Attachment
from trio_duplex.session.core import Session

log = structlog.get_logger(__name__)

FIRST_MESSAGE_TIMEOUT_S = 10.0
WARM_UP_TIMEOUT_S = 120.0

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

BETA_WORD = "realtime=v1"
BETA_SUBPROTOCOL = "openai-beta.realtime-v1"

CORRECTABLE = frozenset({"unsupported_audio_format", "unsupported_turn_detection", "event_too_large"})
"""Refusals of an opening message after which the client may try once more on the same socket (contract 6.1)."""


class HandshakeEnded(Exception):
    """The client was told why and the socket was closed."""


@attrs.frozen
class Entrance:
    """A finished handshake: the session, this socket's attachment, and events that are still to be taken."""

    session: Session
    attachment: Attachment
    held: tuple[Json, ...] = ()


def truthy(query: Mapping[str, str], name: str) -> bool:
    """Whether a query word says yes (contract 1)."""
    return query.get(name, "").lower() in TRUE_WORDS


class Handshake:
    """Shared steps of both routes. ``run`` raises :class:`HandshakeEnded` or returns the entrance."""

    def __init__(self, socket: SocketLike, hub: Hub, access: Access | None = None) -> None:
        self.socket = socket
        self.hub = hub
        self.access = access

    async def run(self) -> Entrance:
        """Accept the socket and open or resume a session.

        Cancellation: a session opened so far and not attached ends at once, its slot is free.
        """
        await self._wait_warm()
        await self.socket.accept("realtime")
        return await self.enter()

    async def enter(self) -> Entrance:
        """The route's own rules. Cancellation: as :meth:`Handshake.run`."""
        raise NotImplementedError

    async def _wait_warm(self) -> None:
        """Hold the connection before the accept while the model warms up (contract 1)."""
        with trio.move_on_after(WARM_UP_TIMEOUT_S):
            await self.hub.ready.wait()
            return
        await self.socket.reject(503, b'{"error":{"code":"warming_up","message":"the model is still loading"}}')
        raise HandshakeEnded

    async def _end(self, dialect: Dialect, error: RemoteProtocolError, *, flat: bool) -> HandshakeEnded:
        await self._tell(dialect, error, flat=flat)
        await self.socket.close(1000)
        return HandshakeEnded(error.code)

    async def _tell(self, dialect: Dialect, error: RemoteProtocolError, *, flat: bool) -> None:
        self.hub.tally.openings_refused[error.code] += 1
        frame = self.hub.encode(dialect.handshake_error(error, flat=flat), None)
        await self.socket.send(frame)
        self.hub.tally.sent_bytes += len(frame)

    async def _first_message(self, dialect: Dialect, deadline_s: float) -> Json:
        """The next parsed message before the deadline; an over-long one may be followed by another."""
        while True:
            message: str | bytes | None = None
            with trio.move_on_at(deadline_s):
                message = await self.socket.receive()
            if message is None:
                raise await self._end(
                    dialect, RemoteProtocolError("config_timeout", "no opening message within 10 seconds"), flat=True
                )
            self.hub.tally.received_bytes += payload_bytes(message)
            try:
                return wire.parse(message)
            except RemoteProtocolError as error:
                if error.code != "event_too_large":
                    raise await self._end(dialect, error, flat=True) from None
                await self._tell(dialect, error, flat=True)

    async def _open(
        self, dialect: Dialect, raw: Json, *, by_update: bool, strict: bool, held: tuple[Json, ...] = ()
    ) -> Entrance:
        """Open a session and attach; whatever happens in between, no session is left without an owner."""
        if self.access is None:
            update = dialect.parse_open(raw, self.hub.plugin.defaults)
            session = await self.hub.open_session(dialect, update, opened_by_update=by_update, strict=strict)
        else:
            update = dialect.parse_open(bind(raw, self.access.bound(self.socket)), self.hub.plugin.defaults)
            with self.access.opening(self.socket) as opened:
                session = await self.hub.open_session(dialect, update, opened_by_update=by_update, strict=strict)
                opened.append(session)
        # No checkpoint between opening and attaching: the session always has an owner or a grace timer.
        return Entrance(session, session.attach(0), held)


class RealtimeHandshake(Handshake):
    """``/v1/realtime``: autostart, opening ``session.update``, ``session.resume`` by message or by URL."""

    async def enter(self) -> Entrance:
        """The first message decides, unless the URL names a model (or resumes).

        Cancellation: as :meth:`Handshake.run`.
        """
        query = self.socket.query
        if self._speaks_beta():
            error = RemoteProtocolError(
                "beta_api_shape_disabled",
                "the beta dialect is not served: leave out OpenAI-Beta and the beta sub-protocol",
            )
            raise await self._end(RealtimeDialect(view="plain"), error, flat=False)
        if "duplex" in query and not truthy(query, "duplex"):
            error = RemoteProtocolError("unsupported", "this server has no other handler than the duplex one")
            raise await self._end(RealtimeDialect(), error, flat=True)
        resume_only = truthy(query, "resume") or query.get("autostart", "").lower() in FALSE_WORDS
        view = choose_view(query, None)
        dialect = RealtimeDialect(view=view, undecided=may_switch(query, view))
        if "resume_token" in query and "session_id" in query:
            return await self._resume(dialect, _resume_from_query(query), by_query=True)
        if not resume_only and ("model" in query or view == "plain"):
            return await self._autostart(dialect, {})
        deadline = trio.current_time() + FIRST_MESSAGE_TIMEOUT_S
        while True:
            event = await self._first_message(dialect, deadline)
            kind = event["type"]
            if kind == "session.resume":
                return await self._resume(dialect, event)
            if kind == "session.update":
                entrance = await self._open_by_update(dialect, event)
                if entrance is not None:
                    return entrance
                continue
            if resume_only:
                error = RemoteProtocolError(
                    "bad_event", f"the first message must be session.update or session.resume, not {kind}"
                )
                raise await self._end(dialect, error, flat=True)
            return await self._autostart(dialect, event)

    def _speaks_beta(self) -> bool:
        """Whether the client asked for OpenAI's beta dialect, by header or sub-protocol (contract 25)."""
        words = {word.strip().lower() for word in self.socket.headers.get("openai-beta", "").split(",")}
        return BETA_WORD in words or BETA_SUBPROTOCOL in self.socket.subprotocols

    async def _autostart(self, dialect: RealtimeDialect, event: Json) -> Entrance:
        """Open a default session before any client message; ``event`` is then an ordinary first command."""
        query = self.socket.query
        raw: Json = {"model": query["model"]} if "model" in query else {}
        if "session_id" in query:
            raw["session_id"] = query["session_id"]
        if truthy(query, "native_duplex") or truthy(query, "minicpmo45_native_duplex"):
            raw["extra_body"] = {"native_duplex": True}
        try:
            held = (event,) if event else ()
            return await self._open(dialect, raw, by_update=False, strict=dialect.view == "duplex", held=held)
        except RemoteProtocolError as error:
            raise await self._end(dialect, error, flat=False) from None

    async def _open_by_update(self, dialect: RealtimeDialect, event: Json) -> Entrance | None:
        """The opening ``session.update``; None when it was refused in a way that the client may correct."""
        event_id = event.get("event_id")
        try:
            raw = event_session(event)
            dialect.view = choose_view(self.socket.query, raw)
            return await self._open(dialect, raw, by_update=True, strict=dialect.view == "duplex")
        except RemoteProtocolError as error:
            error.event_id = error.event_id or (event_id if isinstance(event_id, str) else None)
            if error.code in CORRECTABLE:
                await self._tell(dialect, error, flat=False)
                return None
            raise await self._end(dialect, error, flat=False) from None

    async def _resume(self, dialect: RealtimeDialect, event: Json, *, by_query: bool = False) -> Entrance:
        """Re-attach; every refusal is flat and ends the connection."""
        try:
            session, attachment = self.hub.resume(attrs.evolve(_resume_request(event), by_query=by_query))
        except RemoteProtocolError as error:
            raise await self._end(dialect, error, flat=True) from None
        except ResyncNeeded as needed:
            await self.socket.send(needed.frame)
            self.hub.tally.sent_bytes += len(needed.frame)
            await self.socket.close(1000)
            raise HandshakeEnded from None
        return Entrance(session, attachment)


class NativeHandshake(Handshake):
    """``/v1/duplex``: one of three opening messages, no query autostart, no resume."""

    async def enter(self) -> Entrance:
        """The first message must open. Cancellation: as :meth:`Handshake.run`."""
        dialect = NativeDialect()
        event = await self._first_message(dialect, trio.current_time() + FIRST_MESSAGE_TIMEOUT_S)
        if event["type"] == "session.resume":
            error = RemoteProtocolError("unsupported_session_resume", "this dialect cannot resume")
            raise await self._end(dialect, error, flat=True)
        if event["type"] not in OPENING_NAMES:
            error = RemoteProtocolError("bad_event", "the first message must be session.create")
            raise await self._end(dialect, error, flat=True)
        try:
            return await self._open(dialect, event_session(event), by_update=True, strict=True)
        except RemoteProtocolError as error:
            raise await self._end(dialect, error, flat=True) from None


def _resume_from_query(query: Mapping[str, str]) -> Json:
    """The resume fields of a URL (stock clients can set nothing else); numbers arrive as text."""
    fields: Json = {"session_id": query.get("session_id"), "resume_token": query.get("resume_token")}
    for name in ("incarnation", "last_received_server_event_seq"):
        word = query.get(name)
        if word is not None:
            fields[name] = int(word) if word.isdecimal() and len(word) < 16 else word
    fields.setdefault("incarnation", 0)
    return fields


def _resume_request(event: Json) -> ResumeRequest:
    """Check the shape of a resume (contract 15.3, step 1)."""
    session_id, token = event.get("session_id"), event.get("resume_token")
    incarnation, seq = event.get("incarnation"), event.get("last_received_server_event_seq", 0)
    checks = (
        ("session_id", isinstance(session_id, str) and bool(session_id)),
        ("resume_token", isinstance(token, str) and bool(token)),
        ("incarnation", isinstance(incarnation, int) and not isinstance(incarnation, bool)),
        ("last_received_server_event_seq", isinstance(seq, int) and not isinstance(seq, bool) and seq >= 0),
    )
    for name, good in checks:
        if not good:
            raise RemoteProtocolError("invalid_session_resume", f"session.resume needs a valid {name}", param=name)
    return ResumeRequest(
        session_id=str(session_id),
        resume_token=str(token),
        incarnation=int(incarnation or 0),
        last_received_server_event_seq=int(seq),
    )
