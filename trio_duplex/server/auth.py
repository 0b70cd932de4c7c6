"""Who may connect: API keys and browser origins, checked before the upgrade (cases U1, U4, D6). No wire, no session.

Frameworks' own hooks for HTTP do not run for WebSockets, so this is the one place for both. Keys are kept as digests
and compared in constant time; neither a key nor anything a client presented as one is ever logged or echoed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import structlog

from trio_duplex.config import AuthSettings, DeployError
from trio_duplex.server.app import Refusal, Visitor
from trio_duplex.server.secrets import PREFIX, ClientSecret, ClientSecrets

__all__ = ["DEFAULT_KEYS_ENV", "KEY_SUBPROTOCOL", "Gate", "is_loopback", "load_keys", "with_keys_from_environment"]

DEFAULT_KEYS_ENV: Final = "TRIO_DUPLEX_API_KEYS"
"""The variable that the command line and the bare ASGI app read when the deployment names no source of keys."""

KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""How browsers, which cannot set headers on a WebSocket, carry the key: as an offered sub-protocol with this prefix."""

HOW: Final = (
    f"send 'Authorization: Bearer KEY', or offer the WebSocket sub-protocols 'realtime' and '{KEY_SUBPROTOCOL}KEY'"
)
CHALLENGE: Final = {"www-authenticate": 'Bearer realm="trio-duplex"'}

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Gate:
    """Decides about every visitor; ``DuplexApp.authorize`` is one.

    ``digests``: SHA-256 of each valid key; empty = no key is asked for. ``local_only``: without keys, peers elsewhere
    are refused. ``origins`` as in :class:`trio_duplex.config.AuthSettings`. ``secrets``: ephemeral keys, which open
    sessions and pages like any other key; None = there are none.
    """

    digests: tuple[bytes, ...] = attrs.field(default=(), repr=lambda digests: f"<{len(digests)} keys>")
    local_only: bool = True
    origins: tuple[str, ...] | None = None
    secrets: ClientSecrets | None = attrs.field(default=None, repr=False)

    @classmethod
    def build(cls, settings: AuthSettings, *, host: str | None = None) -> Gate:
        """The gate of a deployment that will listen on ``host`` (None: not known).

        Reads the keys. Raises :class:`trio_duplex.config.DeployError` when they cannot be read, when keys are required
        and there are none, and when the host lets other machines in and nobody said who may come.
        """
        if settings.required is False:
            log.warning("no_api_keys_asked", reason="auth.required is false")
            return cls(local_only=False, origins=settings.origins)
        keys = load_keys(settings, os.environ)
        if not keys and (settings.required or (host is not None and not is_loopback(host))):
            why = "auth.required is true" if settings.required else f"{host!r} lets other machines in"
            raise DeployError(
                f"API keys are needed ({why}): name a file with auth.keys_file or a variable with auth.keys_env "
                f"(trio-duplex serve: --api-keys-file, or {DEFAULT_KEYS_ENV}), or set auth.required: false (--no-auth)"
            )
        return cls(digests=tuple(_digest(key) for key in keys), origins=settings.origins)

    def __call__(self, visitor: Visitor) -> Refusal | None:
        """None = come in; else the HTTP answer. Never waits."""
        refusal = self._key_refusal(visitor) if self.digests else self._place_refusal(visitor)
        refusal = refusal or self._origin_refusal(visitor)
        if refusal is not None:
            log.info("refused", code=refusal.code, path=visitor.path, peer=visitor.client)
        return refusal

    def _key_refusal(self, visitor: Visitor) -> Refusal | None:
        presented = list(_presented(visitor))
        if not presented:
            return Refusal(
                401, "missing_api_key", f"no API key was sent: {HOW}; a key in the URL is not read", CHALLENGE
            )
        # Every pair is compared, so that the time says nothing about which key or candidate came close.
        matches = [hmac.compare_digest(_digest(key), digest) for key in presented for digest in self.digests]
        if any(matches) or self.secret_of(visitor) is not None:
            return None
        return Refusal(401, "invalid_api_key", "the API key that was sent is not one of this server's", CHALLENGE)

    def secret_of(self, visitor: Visitor) -> ClientSecret | None:
        """The live ephemeral key that the visitor presents."""
        if self.secrets is None:
            return None
        found = (self.secrets.find(key) for key in _presented(visitor) if key.startswith(PREFIX))
        return next((secret for secret in found if secret is not None), None)

    def owner_of(self, visitor: Visitor) -> bytes | None:
        """Digest of the API key that the visitor presents, or of the one behind its ephemeral key; None without."""
        for key in _presented(visitor):
            digest = _digest(key)
            if any([hmac.compare_digest(digest, each) for each in self.digests]):
                return digest
        secret = self.secret_of(visitor)
        return None if secret is None else secret.owner

    def _place_refusal(self, visitor: Visitor) -> Refusal | None:
        """A server without keys is for its own machine, however its app was started."""
        if not self.local_only or (visitor.client is not None and is_loopback(visitor.client[0])):
            return None
        return Refusal(
            401,
            "missing_api_key",
            f"this server has no API keys and serves its own machine only; give it some (variable {DEFAULT_KEYS_ENV}, "
            "or auth.keys_file) and send one, or set auth.required: false",
            CHALLENGE,
        )

    def _origin_refusal(self, visitor: Visitor) -> Refusal | None:
        """Only browsers send Origin; what it guards against are pages that use the user's own reach."""
        origin = visitor.headers.get("origin")
        if origin is None:
            return None
        if self.origins is not None:
            allowed = "*" in self.origins or origin.lower() in {one.lower() for one in self.origins}
        else:
            allowed = bool(self.digests) or _is_local_page(origin)
        if allowed:
            return None
        return Refusal(403, "origin_not_allowed", "pages of this origin may not connect: add it to auth.origins")


def load_keys(settings: AuthSettings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """All keys of the file and the variable that ``settings`` name.

    Raises :class:`trio_duplex.config.DeployError` for a source that is named and missing, empty, or has an unusable key
    (a key is printable ASCII without spaces); the message never holds a key.
    """
    keys: list[str] = []
    if settings.keys_file is not None:
        keys += _usable(_file_keys(settings.keys_file), f"auth.keys_file {settings.keys_file}")
    if settings.keys_env is not None:
        words = environ.get(settings.keys_env, "").replace(",", " ").split()
        keys += _usable(words, f"auth.keys_env {settings.keys_env}")
    return tuple(keys)


def with_keys_from_environment(settings: AuthSettings) -> AuthSettings:
    """What an entry point uses: :data:`DEFAULT_KEYS_ENV` counts when it is set and no other source is named.

    A program that embeds the server reads only what its deployment names.
    """
    unsaid = settings.required is not False and settings.keys_file is None and settings.keys_env is None
    return attrs.evolve(settings, keys_env=DEFAULT_KEYS_ENV) if unsaid and DEFAULT_KEYS_ENV in os.environ else settings


def is_loopback(host: str) -> bool:
    """Whether an address or name can only be reached from this machine; an unknown name counts as reachable."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _file_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DeployError(f"auth.keys_file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DeployError(f"auth.keys_file {path}: not a text file") from None
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def _usable(keys: list[str], where: str) -> list[str]:
    if not keys:
        raise DeployError(f"{where}: there is no key in it")
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise DeployError(f"{where}: key number {number} is not printable ASCII without spaces")
    return keys


def _presented(visitor: Visitor) -> Iterator[str]:
    """Whatever the visitor offers as a key."""
    scheme, _, credentials = visitor.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        yield credentials.strip()
    for word in visitor.subprotocols:
        if word.startswith(KEY_SUBPROTOCOL) and len(word) > len(KEY_SUBPROTOCOL):
            yield word.removeprefix(KEY_SUBPROTOCOL)


def _is_local_page(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
