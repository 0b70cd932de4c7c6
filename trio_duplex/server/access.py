"""What a key may use once it is in: its own sessions only so many, audio only so fast, ephemeral keys their session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import attrs
import orjson
import trio

from duplex_protocol import commands as cmd
from duplex_protocol import wire
from duplex_protocol.audio_formats import append_format
from duplex_protocol.dialect import Dialect
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import Json
from trio_duplex.config import LimitSettings
from trio_duplex.hub import Hub
from trio_duplex.server.app import HttpReply, Visitor, json_reply
from trio_duplex.server.auth import Gate
from trio_duplex.server.secrets import ClientSecrets, TooManySecrets, bind, parse_secret_request
from trio_duplex.session.core import Session

__all__ = ["Access", "AudioBudget", "bound_command", "check_rate"]


@attrs.define(eq=False)
class AudioBudget:
    """A token bucket of audio milliseconds: ``factor`` of them a millisecond, at most ``burst_ms`` saved up."""

    factor: float
    burst_ms: float
    _left_ms: float = attrs.field(init=False)
    _at_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left_ms = self.burst_ms
        self._at_s = trio.current_time()

    def take(self, duration_ms: float) -> bool:
        """Whether so much more audio may come now; if not, nothing is taken."""
        now_s = trio.current_time()
        self._left_ms = min(self.burst_ms, self._left_ms + (now_s - self._at_s) * 1000 * self.factor)
        self._at_s = now_s
        if duration_ms > self._left_ms:
            return False
        self._left_ms -= duration_ms
        return True


@attrs.define(eq=False)
class Access:
    """The bounds of one server, per key and per session. Everything here runs on the Trio thread and never waits."""

    hub: Hub
    gate: Gate
    limits: LimitSettings
    _budgets: WeakKeyDictionary[Session, AudioBudget] = attrs.field(factory=WeakKeyDictionary)
    _owners: WeakKeyDictionary[Session, bytes] = attrs.field(factory=WeakKeyDictionary)
    _opening: Counter[bytes] = attrs.field(factory=Counter)

    @property
    def secrets(self) -> ClientSecrets | None:
        """The ephemeral keys; None where none are given out."""
        return self.gate.secrets

    def bound(self, visitor: Visitor) -> Json:
        """The configuration that the visitor's ephemeral key is bound to; empty for anybody else."""
        secret = self.gate.secret_of(visitor)
        return {} if secret is None else secret.session

    @contextmanager
    def opening(self, visitor: Visitor) -> Iterator[list[Session]]:
        """Around the opening of a session, which the block puts into the list.

        Raises ``resource_exhausted`` when the visitor's API key (or the one behind its ephemeral key) has all the
        sessions that one key may have.
        """
        owner = self.gate.owner_of(visitor)
        most = self.limits.max_sessions_per_key
        if owner is None or most is None:
            yield []
            return
        live = sum(each == owner and session.close_reason is None for session, each in self._owners.items())
        if live + self._opening[owner] >= most:
            raise RemoteProtocolError("resource_exhausted", f"one API key may have {most} sessions at a time")
        self._opening[owner] += 1
        opened: list[Session] = []
        try:
            yield opened
        finally:
            self._opening[owner] -= 1
            for session in opened:
                self._owners[session] = owner

    def budget(self, session: Session) -> AudioBudget | None:
        """How much audio a session may send, whichever sockets it comes by; None: as much as it likes."""
        factor = self.limits.max_input_speed
        if factor is None:
            return None
        budget = self._budgets.get(session)
        if budget is None:
            budget = self._budgets[session] = AudioBudget(factor, self.limits.input_burst_s * 1000)
        return budget

    # --- POST /v1/realtime/client_secrets ---

    def client_secrets_page(self, body: bytes, visitor: Visitor) -> HttpReply:
        """Give out an ephemeral key. An ephemeral key gives out none."""
        if self.secrets is None or self.gate.secret_of(visitor) is not None:
            return _fault(403, RemoteProtocolError("bad_event", "an ephemeral key cannot ask for another"))
        try:
            # The same caps as for events: depth, members, finite numbers.
            raw = wire.parse(orjson.dumps({"type": "client_secrets", "body": orjson.loads(body or b"{}")}))["body"]
            if not isinstance(raw, dict):
                raise RemoteProtocolError("bad_event", "the body is a JSON object")
            request = parse_secret_request(raw)
            self._check_session(request.session)
            value, expires_at = self.secrets.issue(request, self.gate.owner_of(visitor))
        except orjson.JSONDecodeError:
            return _fault(400, RemoteProtocolError("bad_event", "the body is not JSON"))
        except RemoteProtocolError as error:
            return _fault(400, error)
        except TooManySecrets:
            return _fault(429, RemoteProtocolError("resource_exhausted", "too many ephemeral keys are live"))
        session = {"type": "realtime", "model": self.hub.plugin.name, **request.session}
        return json_reply(
            200, {"value": value, "expires_at": expires_at, "session": session}, {"cache-control": "no-store"}
        )

    def _check_session(self, session: Json) -> None:
        """A configuration that could not be opened is refused now, not in the browser later."""
        dialect: Dialect = RealtimeDialect()
        self.hub.plugin.check(dialect.parse_open(session, self.hub.plugin.defaults))
        if session.get("model") not in (None, self.hub.plugin.name):
            message = f"this server runs {self.hub.plugin.name!r}"
            raise RemoteProtocolError("model_not_found", message, param="session.model")


def check_rate(budget: AudioBudget, session: Session, command: cmd.AppendAudio) -> None:
    """Raises ``input_backpressure`` for audio that comes faster than a session may send it for long."""
    # The format may still change with an update that waits ahead of this: for a bound the present one will do.
    fmt = append_format(session.config.input_format, command.encoding, command.rate_hz)
    if not budget.take(fmt.duration_ms(len(command.audio))):
        raise RemoteProtocolError(
            "input_backpressure",
            f"audio comes faster than {budget.factor:g} times real time",
            event_id=command.event_id,
        )


def bound_command(command: cmd.UpdateSession, bound: Json) -> cmd.UpdateSession:
    """A ``session.update`` with the bound fields in their place."""
    if not bound:
        return command
    return attrs.evolve(command, session=bind(command.session, {k: v for k, v in bound.items() if k != "type"}))


def _fault(status: int, error: RemoteProtocolError) -> HttpReply:
    fault = {"type": "invalid_request_error", "code": error.code, "message": error.message, "param": error.param}
    return json_reply(status, {"error": fault})
