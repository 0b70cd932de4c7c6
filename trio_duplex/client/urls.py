"""Building the address of a session (contract 21.4 "URL building", 21.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

REALTIME_PATH = "/v1/realtime"

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def build_realtime_url(
    url: str,
    model: str,
    *,
    autostart: bool | None = None,
    native_duplex: bool | None = None,
    session_id: str | None = None,
    extra_query: Mapping[str, str] | None = None,
) -> str:
    """`url` as a WebSocket address of a duplex session.

    http becomes ws and https wss, any other scheme raises ValueError; an empty path becomes `/v1/realtime`. Adds
    `duplex=1`, `model` and the given options to the query; what the URL says already wins, except that
    `native_duplex` overwrites.
    """
    defaults: dict[str, str] = {"duplex": "1", "model": model}
    if autostart is not None:
        defaults["autostart"] = "1" if autostart else "0"
    if session_id is not None:
        defaults["session_id"] = session_id
    if extra_query is not None:
        defaults.update(extra_query)
    forced = {} if native_duplex is None else {"native_duplex": "1" if native_duplex else "0"}
    return _with_query(url, defaults=defaults, forced=forced)


def client_url(url: str, model: str) -> str:
    """What `DuplexClient` connects to: `build_realtime_url` with `autostart` forced to 0, since it always opens with
    its own `session.update`."""
    return _with_query(url, defaults={"duplex": "1", "model": model}, forced={"autostart": "0"})


def _with_query(url: str, *, defaults: Mapping[str, str], forced: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ValueError(f"expected a ws://, wss://, http:// or https:// URL, got {url!r}")
    query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in forced]
    present = {key for key, _ in query}
    query += [(key, value) for key, value in defaults.items() if key not in present and key not in forced]
    query += forced.items()
    path = parts.path if parts.path not in ("", "/") else REALTIME_PATH
    # Model names hold slashes; they are legal in a query and easier to read unescaped.
    quoting: Callable[..., str] = quote
    return urlunsplit((scheme, parts.netloc, path, urlencode(query, safe="/", quote_via=quoting), ""))
