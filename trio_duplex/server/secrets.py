"""Ephemeral keys for browsers: ``POST /v1/realtime/client_secrets`` in OpenAI's shape. No wire, no sockets.

A page cannot keep an API key to itself. Its own backend, which has one, asks here for a key that lives for minutes and
is bound to a session configuration, and hands that to the page. Only digests are kept, in memory: after a restart all
ephemeral keys are void.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import attrs

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json

__all__ = ["PREFIX", "ClientSecret", "ClientSecrets", "SecretRequest", "TooManySecrets", "parse_secret_request"]

PREFIX: Final = "ek_"
MIN_S, MAX_S, DEFAULT_S = 10, 7200, 600
MAX_LIVE: Final = 10_000
"""Live ephemeral keys in all; each holds a configuration of at most 64 KiB."""


class TooManySecrets(Exception):
    """No more ephemeral keys until some have expired."""


@attrs.frozen(kw_only=True)
class SecretRequest:
    """What was asked for: how long the key opens sessions, in seconds, and the configuration it is bound to."""

    seconds: int
    session: Json


@attrs.frozen(kw_only=True)
class ClientSecret:
    """A live ephemeral key, without its text. ``owner``: digest of the API key that asked for it, None without keys."""

    expires_at_s: float
    session: Json = attrs.field(repr=False)
    owner: bytes | None = attrs.field(repr=False)


@attrs.define(eq=False)
class ClientSecrets:
    """All live ephemeral keys of a server. ``now_s`` is the Unix time (tests set it)."""

    now_s: Callable[[], float] = time.time
    _live: dict[bytes, ClientSecret] = attrs.field(factory=dict, repr=False)

    def issue(self, request: SecretRequest, owner: bytes | None) -> tuple[str, int]:
        """A fresh key (256 random bits) and the Unix second of its end. Raises :class:`TooManySecrets`."""
        now_s = self.now_s()
        if len(self._live) >= MAX_LIVE:
            self._live = {digest: each for digest, each in self._live.items() if each.expires_at_s > now_s}
            if len(self._live) >= MAX_LIVE:
                raise TooManySecrets
        value = PREFIX + secrets.token_urlsafe(32)
        expires_at_s = int(now_s) + request.seconds
        self._live[_digest(value)] = ClientSecret(expires_at_s=expires_at_s, session=request.session, owner=owner)
        return value, expires_at_s

    def find(self, presented: str) -> ClientSecret | None:
        """The live key that ``presented`` is, or None.

        Looked up by its SHA-256, so that the time it takes says nothing about any key's text.
        """
        digest = _digest(presented)
        secret = self._live.get(digest)
        if secret is not None and secret.expires_at_s <= self.now_s():
            del self._live[digest]
            return None
        return secret


def parse_secret_request(body: Json) -> SecretRequest:
    """Check the body of the request. Raises :class:`RemoteProtocolError` ``bad_event`` with ``param``."""
    _known(body, {"expires_after", "session"}, "")
    after: Any = body.get("expires_after")
    seconds: Any = DEFAULT_S
    if after is not None:
        if not isinstance(after, dict):
            raise RemoteProtocolError("bad_event", "expires_after is an object", param="expires_after")
        _known(after, {"anchor", "seconds"}, "expires_after.")
        if after.get("anchor", "created_at") != "created_at":
            raise RemoteProtocolError("bad_event", "the only anchor is created_at", param="expires_after.anchor")
        seconds = after.get("seconds", DEFAULT_S)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not MIN_S <= seconds <= MAX_S:
        message = f"a whole number of seconds from {MIN_S} to {MAX_S}"
        raise RemoteProtocolError("bad_event", message, param="expires_after.seconds")
    session: Any = body.get("session")
    if session is not None and not isinstance(session, dict):
        raise RemoteProtocolError("bad_event", "session is an object", param="session")
    return SecretRequest(seconds=seconds, session=session or {})


def bind(session: Json, bound: Json) -> Json:
    """What a client asks for, with the bound fields in their place: objects are merged, anything else is replaced."""
    merged = dict(session)
    for name, value in bound.items():
        mine = merged.get(name)
        merged[name] = bind(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def _known(value: Json, names: set[str], where: str) -> None:
    for name in value:
        if name not in names:
            raise RemoteProtocolError("bad_event", f"unknown field {where}{name}"[:200], param=f"{where}{name}"[:200])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
