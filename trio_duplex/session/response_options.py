"""Per-response options of ``response.create`` (contract 12.4). No session state."""

from __future__ import annotations

from typing import Any

from duplex_protocol.audio_formats import ENCODINGS, AudioFormat, encoding_of, rate_of, split_format
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.item_events import read_context
from duplex_protocol.values import Json
from trio_duplex.session.response import ResponseOptions

CONTEXT_PARAM = "response.input"
_NATIVE_REFUSED = (
    "instructions",
    "voice",
    "temperature",
    "max_output_tokens",
    "max_response_output_tokens",
    "max_tokens",
    "tools",
    "tool_choice",
)


def parse_options(raw: Json | None, dialect: str, *, strict: bool) -> ResponseOptions:
    """Check and fold the options. ``strict``: the native lane of the duplex view, which refuses what it cannot change.

    Null means absent. Raises :class:`RemoteProtocolError`: ``unsupported_audio_format``,
    ``unsupported_response_modality``, ``unsupported_native_response_options``, ``bad_event``,
    and for items of ``input`` what they are refused with elsewhere.
    """
    given = {k: v for k, v in (raw or {}).items() if v is not None}
    audio = given.get("audio")
    output: Any = audio.get("output") if isinstance(audio, dict) else None
    output = output if isinstance(output, dict) else {}
    output_format = _format(given, output)
    modalities = _modalities(given)
    if strict:
        refused = [k for k in _NATIVE_REFUSED if k in given] + (["audio.output.voice"] if output.get("voice") else [])
        if refused:
            raise RemoteProtocolError(
                "unsupported_native_response_options",
                f"this model cannot change {', '.join(refused)} for one response",
                param=f"response.{refused[0]}",
            )
    metadata = given.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise RemoteProtocolError("bad_event", "response.metadata must be an object", param="response.metadata")
    instructions = given.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise RemoteProtocolError("bad_event", "response.instructions must be text", param="response.instructions")
    conversation = given.get("conversation")
    if conversation is not None and not isinstance(conversation, str):
        raise RemoteProtocolError("bad_event", "response.conversation must be a word", param="response.conversation")
    return ResponseOptions(
        modalities=modalities,
        output_format=output_format,
        conversation=conversation,
        metadata=metadata,
        prompt=given.get("prompt"),
        instructions=instructions,
        context=read_context(given["input"], CONTEXT_PARAM) if "input" in given else None,
        raw=given,
    )


def _format(given: Json, output: Json) -> AudioFormat | None:
    for value in (given.get("output_audio_format"), given.get("response_format"), output.get("format")):
        if value is None:
            continue
        word, rate = split_format(value)
        encoding = encoding_of(word, param="response.output_audio_format", direction="out")
        if rate is None:
            rate = output.get("sample_rate_hz", ENCODINGS[encoding].default_rate_hz)
        hz = rate_of(rate, code="unsupported_audio_format", param="response.output_audio_format")
        return AudioFormat(encoding, hz)
    return None


def _modalities(given: Json) -> tuple[str, ...] | None:
    value = given.get("modalities", given.get("output_modalities"))
    if value is None:
        return None
    good = isinstance(value, list) and value and all(m in ("audio", "text") for m in value)
    if not good:
        raise RemoteProtocolError(
            "unsupported_response_modality",
            "modalities must be a non-empty list of audio and text",
            param="response.modalities",
        )
    return tuple(value)
