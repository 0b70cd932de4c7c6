"""The ``session`` object of ``session.created`` and ``session.updated``, in both views (seed, contract 3.2, 25)."""

from __future__ import annotations

from typing import Any, Final

from duplex_protocol.audio_formats import AudioFormat, ga_format
from duplex_protocol.shapes import View, plain_modalities
from duplex_protocol.values import Json, SessionConfig, SessionSnapshot, TurnDetection

PLAIN_FORMATS: Final[dict[str, str]] = {"g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
"""OpenAI's G.711 names; every other encoding keeps its own type word and shows its rate."""

OPENAI_ONLY: Final = ("truncation", "parallel_tool_calls", "reasoning")
"""Session keys of OpenAI's that mean nothing here; the plain view echoes them too."""


def render_session(snapshot: SessionSnapshot, view: View) -> Json:
    """The effective session as the client sees it."""
    return _plain(snapshot) if view == "plain" else _duplex(snapshot)


def turn_detection(value: TurnDetection | None, view: View) -> Json | None:
    """The effective turn detection with all defaults filled; ``echo`` holds what is shown as the client sent it."""
    if value is None:
        return None
    switches = {"interrupt_response": value.interrupt_response, "create_response": value.create_response}
    if value.kind == "semantic_vad" or value.echo.get("type") == "semantic_vad":
        return {"type": "semantic_vad", **switches, **value.echo}
    shape: Json = {
        "type": value.kind,
        "threshold": value.threshold,
        "prefix_padding_ms": value.prefix_padding_ms,
        "silence_duration_ms": value.silence_duration_ms,
    }
    if value.min_speech_duration_ms is not None and view == "duplex":
        shape["min_speech_duration_ms"] = value.min_speech_duration_ms
    return shape | switches | value.echo


def _duplex(snapshot: SessionSnapshot) -> Json:
    config = snapshot.config
    detection = turn_detection(config.turn_detection, "duplex")
    modalities = list(config.modalities)
    shape: Json = {
        "object": "realtime.session",
        "type": "realtime",
        "id": snapshot.session_id,
        "model": config.model,
        "state": snapshot.state,
        "turn_state": snapshot.turn_state,
        "epoch": snapshot.epoch,
        "turn_id": snapshot.turn_id,
        "active_request_id": snapshot.active_request_id,
        "active_response_id": snapshot.active_response_id,
        "active_response_turn_id": snapshot.active_response_turn_id,
        "modalities": modalities,
        "output_modalities": modalities,
        "instructions": config.instructions,
        "voice": config.voice,
        "response_format": config.output_format.encoding,
        "input_audio_format": config.input_format.encoding,
        "output_audio_format": config.output_format.encoding,
        "audio": _audio(config, detection),
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
        "speed": config.speed,
        "idle_timeout_s": config.idle_timeout_s,
        "overlap_policy": config.overlap_policy,
        "overlap_short_ack_ms": config.overlap_short_ack_ms,
        "overlap_barge_in_ms": config.overlap_barge_in_ms,
        "overlap_silence_rms": config.overlap_silence_rms,
        "playback_commit_policy": config.playback_commit_policy,
        "turn_detection": detection,
        "input_audio_transcription": config.transcription,
        "tracing": config.tracing,
        "playback": snapshot.playback.as_wire(),
        "capabilities": snapshot.capabilities.as_wire(),
    }
    shape |= _when_set(config)
    for key, value in config.unknown.items():
        shape.setdefault(key, value)
    return shape


def _when_set(config: SessionConfig) -> Json:
    """Members that stand in the duplex view's object only when the client set them."""
    members: Json = {
        "ref_audio": config.ref_audio,
        "input_audio_noise_reduction": config.noise_reduction,
        "tools": list(config.tools) or None,
        "tool_choice": config.tool_choice,
        "metadata": config.metadata,
        "include": config.include,
        "prompt": config.prompt,
        "extra_body": config.extra_body or None,
    }
    return {key: value for key, value in members.items() if value is not None}


def _audio(config: SessionConfig, detection: Json | None) -> Json:
    """The client's ``audio`` object with the effective formats in it."""
    sent = config.audio or {}
    audio_in: Json = {
        **(sent.get("input") or {}),
        "format": ga_format(config.input_format),
        "sample_rate_hz": config.input_format.rate_hz,
    }
    if config.turn_detection_named:
        audio_in["turn_detection"] = detection
    audio_out: Json = {**(sent.get("output") or {}), "format": ga_format(config.output_format)}
    return {**sent, "input": audio_in, "output": audio_out}


def _plain(snapshot: SessionSnapshot) -> Json:
    """OpenAI's session object; no reference audio, nothing of ours."""
    config = snapshot.config
    audio_out: Json = {"format": plain_format(config.output_format), "speed": _or(config.speed, 1.0)}
    if config.voice is not None:
        audio_out["voice"] = config.voice
    shape: Json = {
        "object": "realtime.session",
        "type": "realtime",
        "id": snapshot.session_id,
        "model": config.model,
        "output_modalities": plain_modalities(config.modalities),
        "instructions": config.instructions or "",
        "audio": {
            "input": {
                "format": plain_format(config.input_format),
                "transcription": config.transcription,
                "noise_reduction": config.noise_reduction,
                "turn_detection": turn_detection(config.turn_detection, "plain"),
            },
            "output": audio_out,
        },
        "tools": list(config.tools),
        "tool_choice": _or(config.tool_choice, "auto"),
        "max_output_tokens": _or(config.max_tokens, "inf"),
        "tracing": config.tracing,
        "prompt": config.prompt,
        "include": config.include,
    }
    return shape | {key: config.unknown[key] for key in OPENAI_ONLY if key in config.unknown}


def plain_format(value: AudioFormat) -> Json:
    """OpenAI's object of an audio format."""
    name = PLAIN_FORMATS.get(value.encoding)
    return ga_format(value) if name is None else {"type": name}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
