"""What a deployment may choose about a chat backend."""

from __future__ import annotations

import os
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import attrs

from duplex_protocol.values import Json

__all__ = ["SPOKEN_STYLE", "BrainOptions", "ChatOptions", "Endpoint", "Profile"]

Profile = Literal["chat_fallback", "qwen3_omni"]
"""Which column of the capability table a backend gets (contract 20); ``qwen3_omni`` also takes fewer settings (17)."""

COMPLETIONS: Final = "/chat/completions"

SPOKEN_STYLE: Final = (
    "You are in a spoken conversation; your words are read aloud. Answer in one to three short plain sentences. "
    "No lists, no markup, no emoji."
)


def _web_url(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{attribute.name} must be an http or https URL")
    _ = parts.port  # raises ValueError for one that is no port
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{attribute.name} must not hold credentials; name an environment variable in api_key_env")


def _set_variable(_instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not os.environ.get(value, "").strip():
        raise ValueError(f"{attribute.name}: the environment variable {value} is not set")


def _limit(_instance: object, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{attribute.name} must be at least 1")


def _one_of(*words: str) -> Any:
    return attrs.validators.in_(words)


_positive: Final = attrs.validators.gt(0)
_positive_s: Final = attrs.validators.gt(0.0)


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where an OpenAI-compatible server listens and how patient to be with it. Raises ``ValueError``.

    ``url``: its base (``http://host:8000/v1``) or the full address of its chat completions. ``model``: the name it
    serves. ``api_key_env``: the environment variable that holds the API key; the key itself is in no file and no log.
    ``trust_env``: honour proxy settings of the environment.

    Times in seconds: to connect, from the request to the first event of the answer, and between two events of it
    (comments that only keep the connection alive do not count). ``max_event_bytes`` bounds one event, and a whole
    answer that comes without streaming.
    """

    url: str = attrs.field(validator=_web_url)
    model: str = attrs.field(validator=attrs.validators.min_len(1))
    api_key_env: str | None = attrs.field(default=None, validator=_set_variable)
    trust_env: bool = False
    connect_timeout_s: float = attrs.field(default=5.0, validator=_positive_s)
    first_event_timeout_s: float = attrs.field(default=30.0, validator=_positive_s)
    stall_timeout_s: float = attrs.field(default=10.0, validator=_positive_s)
    max_event_bytes: int = attrs.field(default=8 * 1024 * 1024, validator=attrs.validators.ge(1024))

    @property
    def completions_url(self) -> str:
        """The address that requests go to."""
        base = self.url.rstrip("/")
        return base if base.endswith(COMPLETIONS) else base + COMPLETIONS

    @property
    def api_key(self) -> str | None:
        """The key, read when it is needed."""
        return os.environ.get(self.api_key_env, "").strip() or None if self.api_key_env else None


@attrs.frozen(kw_only=True)
class ChatOptions(Endpoint):
    """Options of the chat lane. Raises ``ValueError`` for a value that makes no sense.

    ``name``: the model's name on our wire (default: ``model``). ``output``: whether the backend speaks.
    ``audio_format`` and ``voice``: what it is asked for. ``audio_input``: the content part that carries a user's
    sound; ``none`` for a backend that only reads. ``max_tokens_field``: how it spells the limit. ``extra_body``: more
    fields of every request (sampling, ``chat_template_kwargs``). ``ref_audio``: whether a client's reference voice is
    passed on.

    ``bare_rate_hz``: the rate of audio that comes without metadata (OpenAI's ``delta.audio``).
    ``text_requires_complete_audio``: an answer that was not heard to its end is not remembered at all.

    ``max_lead_ms``: how far an answer may run ahead of real time; ``piece_ms``: the length of its pieces;
    ``speech_chars_per_s``: how fast text is taken to be spoken until its sound is complete.

    ``max_messages``, ``max_audios`` and ``max_bytes`` bound the history of a request, newest first.
    """

    name: str | None = None
    profile: Profile = attrs.field(default="chat_fallback", validator=_one_of("chat_fallback", "qwen3_omni"))
    output: Literal["audio", "text"] = attrs.field(default="audio", validator=_one_of("audio", "text"))
    audio_format: Literal["pcm16", "wav"] = attrs.field(default="pcm16", validator=_one_of("pcm16", "wav"))
    voice: str | None = None
    audio_input: Literal["input_audio", "audio_url", "none"] = attrs.field(
        default="input_audio", validator=_one_of("input_audio", "audio_url", "none")
    )
    ref_audio: Literal["refused", "forwarded"] = attrs.field(
        default="refused", validator=_one_of("refused", "forwarded")
    )
    max_tokens_field: str = "max_tokens"
    extra_body: Json = attrs.field(factory=dict)
    bare_rate_hz: int = attrs.field(default=24_000, validator=_positive)
    input_rate_hz: int = attrs.field(default=16_000, validator=_positive)
    output_rate_hz: int = attrs.field(default=24_000, validator=_positive)
    text_requires_complete_audio: bool = False
    max_lead_ms: int = attrs.field(default=1_000, validator=attrs.validators.ge(0))
    piece_ms: int = attrs.field(default=200, validator=[attrs.validators.ge(20), attrs.validators.le(2_000)])
    speech_chars_per_s: float = attrs.field(default=15.0, validator=_positive_s)
    max_messages: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    max_audios: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    max_bytes: int = attrs.field(default=8 * 1024 * 1024, validator=attrs.validators.ge(1024))

    @property
    def wire_name(self) -> str:
        """The model's name on our wire."""
        return self.name or self.model


@attrs.frozen(kw_only=True)
class BrainOptions(Endpoint):
    """Options of an endpoint as a brain, on top of :class:`Endpoint`'s.

    ``style`` stands before a client's instructions. ``max_tokens`` None: the endpoint's own limit.
    """

    style: str = SPOKEN_STYLE
    temperature: float | None = None
    max_tokens: int | None = attrs.field(default=300, validator=_limit)
    max_tokens_field: str = "max_tokens"
    max_messages: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    max_bytes: int = attrs.field(default=64 * 1024, validator=attrs.validators.ge(1024))
    extra_body: Json = attrs.field(factory=dict)
