"""Deploy files: YAML → attrs values. Unknown keys fail with the list of known ones; nothing is silently dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import attrs
import cattrs
import cattrs.errors
from cattrs.gen import make_dict_structure_fn

from trio_duplex.session.settings import SessionLimit, SessionSettings


class DeployError(Exception):
    """The deploy file cannot be used; the message is one line naming the file and the key."""


def _origins(_: object, attribute: attrs.Attribute[Any], value: tuple[str, ...] | None) -> None:
    for origin in value or ():
        if origin not in ("*", "null") and not (("://" in origin) and not origin.endswith("/")):
            raise ValueError(f"{attribute.name}: an origin looks like https://app.example.org, not {origin!r}")


@attrs.frozen(kw_only=True)
class AuthSettings:
    """Who may connect; :mod:`trio_duplex.server.auth` applies it.

    ``required``: None asks for a key from everybody when there are keys, and without any serves this machine only;
    True insists on keys; False opens the server to whoever reaches it. ``keys_file`` holds one key a line (``#`` begins
    a comment), ``keys_env`` names an environment variable with keys separated by spaces or commas; keys themselves
    never stand in a deploy file. ``origins``: the web pages that may connect, each ``scheme://host[:port]``, or ``*``;
    None = any page that has a key, and without keys only pages of this machine.
    """

    required: bool | None = None
    keys_file: Path | None = None
    keys_env: str | None = None
    origins: tuple[str, ...] | None = attrs.field(default=None, validator=_origins)


def _above_zero(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{attribute.name} must be greater than 0, got {value}")


def _not_negative(_: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must be 0 (no limit) or more, got {value}")


@attrs.frozen(kw_only=True)
class LimitSettings:
    """How much one client may take; :mod:`trio_duplex.server.access` applies it. None = no bound of its own.

    ``max_sessions_per_key``: live sessions of one API key and its ephemeral keys. ``max_input_speed``: audio of one
    session, as a multiple of real time, for long; ``input_burst_s`` seconds of audio may come at once.
    """

    max_sessions_per_key: int | None = attrs.field(default=None, validator=_above_zero)
    max_input_speed: float | None = attrs.field(default=4.0, validator=_above_zero)
    input_burst_s: float = attrs.field(default=300.0, validator=_above_zero)


@attrs.frozen
class Deployment:
    """One deployed model: which plugin, its options, the bounds of its sessions (contract 16.2), who may connect."""

    model: str
    session_mode: Literal["duplex", "turn"] = "duplex"
    active_stream_window: int = attrs.field(default=0, validator=_not_negative, kw_only=True)
    """How many sessions the engine serves at a time, 0 = no limit of its own; one more is ``resource_exhausted``."""
    duplex_session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()
    options: dict[str, Any] = attrs.field(factory=dict)
    """The model's own block, structured by its plugin."""


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)

    def number(value: Any, _: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number, got {value!r}")
        return float(value)

    def whole(value: Any, _: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, got {value!r}")
        return value

    def limit(value: Any, _: Any) -> SessionLimit:
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"expected a whole number or auto, got {value!r}")
        return value  # type: ignore[no-any-return]  # one of the two

    def text(value: Any, _: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {value!r}")
        return value

    def flag(value: Any, _: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {value!r}")
        return value

    for kind, hook in ((float, number), (int, whole), (str, text), (bool, flag)):
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(lambda kind: kind == SessionLimit, limit)
    converter.register_structure_hook(Path, lambda value, _: Path(text(value, str)))
    return converter


def structure(value: object, kind: type[Any], *, where: str) -> Any:
    """``value`` → an attrs value of ``kind``, strictly.

    Raises :class:`DeployError` with one line that names ``where`` and the key; an unknown key is answered with the
    known ones.
    """
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise DeployError(f"{where}: expected a mapping, got {type(value).__name__}")
    converter = _converter()
    converter.register_structure_hook(kind, make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True))
    try:
        return converter.structure(value, kind)
    except cattrs.errors.ClassValidationError as error:
        raise DeployError(f"{where}: {_first_fault(error, kind)}") from None


def _first_fault(error: BaseException, kind: type[Any], path: str = "") -> str:
    """The first leaf of cattrs' error tree, as one line."""
    if isinstance(error, cattrs.errors.ForbiddenExtraKeysError):
        known = ", ".join(a.name for a in attrs.fields(error.cl))
        unknown = ", ".join(sorted(repr(path + str(k)) for k in error.extra_fields))
        return f"unknown key {unknown}; known keys: {known}"
    if isinstance(error, cattrs.errors.ClassValidationError):
        with_notes, _ = error.group_exceptions()
        if with_notes:
            inner, note = with_notes[0]
            return _first_fault(inner, kind, f"{path}{note.name}.")
        return _first_fault(error.exceptions[0], kind, path)
    if isinstance(error, KeyError):
        return f"missing key {error.args[0]!r}"
    return f"{path.rstrip('.')}: {error}" if path else str(error)


def load_deployment(path: Path) -> Deployment:
    """Read a deploy file. Raises :class:`DeployError` for a missing file, bad YAML, unknown or wrong keys."""
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeployError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeployError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise DeployError(f"{path}: expected a mapping with the key 'model'")
    deployment: Deployment = structure(raw, Deployment, where=str(path))
    return deployment
