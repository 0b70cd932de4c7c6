"""The single fields of a ``session`` object as a table: spellings, readers, what null means (contract 2.1, 17)."""

from __future__ import annotations

from typing import Any, Final

import attrs

from duplex_protocol import readers
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.readers import Reader
from duplex_protocol.values import Json

POLICIES: Final = ("listen_only", "barge_in_on_speech")
COMMIT_POLICIES: Final = ("commit_all_on_done", "ack_only")
MODALITIES: Final = frozenset({"audio", "text"})

EXTRA_BODY_ALIASES: Final[dict[str, str]] = {"minicpmo45_native_duplex": "native_duplex"}
EXTRA_BODY_FIELDS: Final = frozenset(
    {
        "overlap_policy",
        "overlap_short_ack_ms",
        "overlap_barge_in_ms",
        "overlap_silence_rms",
        "playback_commit_policy",
        "ref_audio",
        "tts_ref_audio",
    }
)
"""Keys of ``extra_body`` that are session fields; they are read as such and leave ``extra_body``."""


def wrong_field(param: str, message: str) -> RemoteProtocolError:
    """The refusal of a session field of the wrong kind."""
    return RemoteProtocolError("invalid_request_error", message, param=param)


def _checked(reader: Reader) -> Reader:
    """A reader whose refusal has the code of session objects."""

    def read(value: Any, param: str) -> Any:
        try:
            return reader(value, param)
        except RemoteProtocolError as error:
            raise wrong_field(param, error.message) from None

    return read


def _known_word(*words: str) -> Reader:
    """A word of a closed set; an unknown one silently means the first (contract 4.1, 11)."""

    def read(value: Any, param: str) -> str:
        if not isinstance(value, str):
            raise wrong_field(param, f"{param} must be a string")
        return value if value in words else words[0]

    return read


def _positive(value: Any, param: str) -> float:
    checked = readers.number(value, param)
    if checked <= 0:
        raise wrong_field(param, f"{param} must be positive")
    return float(checked)


def _voice(value: Any, param: str) -> str:
    """A name, or OpenAI's object ``{id}``."""
    if isinstance(value, dict):
        value = value.get("id")
    if not isinstance(value, str):
        raise wrong_field(param, f"{param} must be a string")
    return value


def _token_limit(value: Any, _: str) -> int | None:
    """A positive whole number; words for "no limit" and anything that is no usable limit mean none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None


def _modalities(value: Any, param: str) -> tuple[str, ...]:
    right = isinstance(value, list) and bool(value)
    if not right or not all(isinstance(one, str) and one in MODALITIES for one in value):
        raise RemoteProtocolError(
            "unsupported_response_modality", "modalities are audio and text, at least one of them", param=param
        )
    return tuple(dict.fromkeys(value))


def _objects(value: Any, param: str) -> tuple[Json, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise wrong_field(param, f"{param} must be an array of objects")
    return tuple(value)


@attrs.frozen
class SessionField:
    """One field of :class:`~duplex_protocol.values.SessionConfig`: its paths in order of precedence and its reader.

    ``at_open`` limits it to the opening object; ``null_keeps``: null never means a change.
    """

    name: str
    paths: tuple[str, ...]
    read: Reader
    at_open: bool = False
    null_keeps: bool = False

    @property
    def param(self) -> str:
        """The name in errors."""
        return self.name


FIELDS: Final[tuple[SessionField, ...]] = (
    SessionField("model", ("model",), _checked(readers.word), null_keeps=True),
    SessionField("voice", ("voice", "audio.output.voice"), _voice),
    SessionField(
        "ref_audio", ("ref_audio", "extra_body.ref_audio", "extra_body.tts_ref_audio"), _checked(readers.text)
    ),
    SessionField("instructions", ("instructions",), _checked(readers.text)),
    SessionField("modalities", ("modalities", "output_modalities"), _modalities),
    SessionField("temperature", ("temperature",), _checked(readers.number)),
    SessionField("max_tokens", ("max_response_output_tokens", "max_output_tokens", "max_tokens"), _token_limit),
    SessionField("speed", ("speed", "audio.output.speed"), _checked(readers.number)),
    SessionField("idle_timeout_s", ("idle_timeout_s",), _checked(_positive), at_open=True),
    SessionField("overlap_policy", ("extra_body.overlap_policy", "overlap_policy"), _known_word(*POLICIES)),
    SessionField(
        "overlap_short_ack_ms",
        ("extra_body.overlap_short_ack_ms", "overlap_short_ack_ms"),
        _checked(readers.not_negative),
    ),
    SessionField(
        "overlap_barge_in_ms",
        ("extra_body.overlap_barge_in_ms", "overlap_barge_in_ms"),
        _checked(readers.not_negative),
    ),
    SessionField(
        "overlap_silence_rms",
        ("extra_body.overlap_silence_rms", "overlap_silence_rms"),
        _checked(readers.not_negative),
    ),
    SessionField(
        "playback_commit_policy",
        ("extra_body.playback_commit_policy", "playback_commit_policy"),
        _known_word(*COMMIT_POLICIES),
    ),
    SessionField(
        "transcription", ("input_audio_transcription", "audio.input.transcription"), _checked(readers.object_)
    ),
    SessionField(
        "noise_reduction", ("audio.input.noise_reduction", "input_audio_noise_reduction"), _checked(readers.object_)
    ),
    SessionField("tools", ("tools",), _objects),
    SessionField("tool_choice", ("tool_choice",), readers.anything),
    SessionField("metadata", ("metadata",), _checked(readers.object_)),
    SessionField("include", ("include",), readers.anything),
    SessionField("prompt", ("prompt",), readers.anything),
    SessionField("tracing", ("tracing",), readers.anything),
)

KEPT_ON_NULL: Final = frozenset({"instructions", "voice", "ref_audio", "modalities"})
"""Fields for which the plain view reads null as "not said" (stock clients send it without meaning a change)."""

CONSUMED_KEYS: Final = frozenset(
    {path.split(".")[0] for field in FIELDS for path in field.paths}
    | {"session_id", "id", "object", "type", "audio", "turn_detection", "sample_rate_hz", "sample_rate"}
    | {"input_audio_format", "output_audio_format", "response_format", "event_id"}
    | {"state", "turn_state", "epoch", "turn_id", "active_request_id", "active_response_id"}
    | {"active_response_turn_id", "playback", "capabilities", "expires_at", "incarnation", "resume_token"}
)
"""Top-level keys that we know or that are ours to say; all others are echoed as they came."""


def section(session: Json, path: str) -> Json:
    """The object at ``path``, empty when absent or null. Raises ``invalid_request_error`` for another kind."""
    value: Any = session
    for key in path.split("."):
        value = value.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise wrong_field(path, f"{path} must be an object")
    return value if isinstance(value, dict) else {}


def find(session: Json, paths: tuple[str, ...]) -> tuple[bool, Any]:
    """``(named, value)`` of the first path with a value; ``(True, None)`` when a path is there, but only as null."""
    named = False
    for path in paths:
        head, _, key = path.rpartition(".")
        holder: Any = section(session, head) if head else session
        if key in holder:
            named = True
            if holder[key] is not None:
                return True, holder[key]
    return named, None
