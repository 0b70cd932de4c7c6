"""Session objects: spellings, defaults, refusals, what null means, echoes (contract 2.1, 2.2, 3.2, 4.1, 17, 25)."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest

from duplex_protocol import values as v
from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.session_echo import render_session
from duplex_protocol.shapes import View
from tests.protocol.wire_kit import DEFAULTS, TURN_BASED, refusal, snapshot

SEED_OPENING: dict[str, Any] = {
    "model": "openbmb/MiniCPM-o-4_5",
    "session_id": "sess_demo_01",
    "modalities": ["audio", "text"],
    "instructions": "You are a concise voice assistant.",
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "ref_audio": "data:audio/wav;base64,UklGRg==",
    "turn_detection": None,
    "overlap_policy": "listen_only",
    "playback_commit_policy": "ack_only",
    "temperature": 0.7,
    "idle_timeout_s": 300,
    "extra_body": {"auto_response": True, "native_duplex": True, "force_listen_count": 0},
}


def opened(
    session: dict[str, Any],
    defaults: SessionDefaults = DEFAULTS,
    flavour: Literal["duplex", "plain", "native"] = "duplex",
) -> ConfigUpdate:
    """What an opening object gives."""
    dialect = NativeDialect() if flavour == "native" else RealtimeDialect(flavour)
    return dialect.parse_open(session, defaults)


def updated(
    session: dict[str, Any], base: v.SessionConfig, defaults: SessionDefaults = DEFAULTS, view: View = "duplex"
) -> ConfigUpdate:
    """What a later object gives."""
    return RealtimeDialect(view).parse_update(session, base, defaults)


def test_the_seeds_opening() -> None:
    update = opened(SEED_OPENING)
    assert update.session_id == "sess_demo_01"
    assert update.config == v.SessionConfig(
        model="openbmb/MiniCPM-o-4_5",
        instructions="You are a concise voice assistant.",
        ref_audio="data:audio/wav;base64,UklGRg==",
        playback_commit_policy="ack_only",
        temperature=0.7,
        idle_timeout_s=300.0,
        extra_body={"auto_response": True, "native_duplex": True, "force_listen_count": 0},
    )
    assert update.config.auto_response
    assert update.config.native_duplex is True
    assert {"model", "ref_audio", "native_duplex", "turn_detection", "idle_timeout_s"} <= update.named


def test_an_empty_opening_is_the_deployments_defaults() -> None:
    update = opened({}, SessionDefaults("m", input_rate_hz=24_000, output_rate_hz=22_050, idle_timeout_s=7.0))
    assert update.config == v.SessionConfig(
        model="m",
        input_format=AudioFormat("pcm16", 24_000),
        output_format=AudioFormat("pcm16", 22_050),
        idle_timeout_s=7.0,
    )
    assert (update.named, update.session_id) == (frozenset(), None)


def test_native_dialect_defaults() -> None:
    config = opened({}, flavour="native").config
    assert config.modalities == ("text", "audio")
    assert config.output_format == AudioFormat("wav", 24_000)
    assert config.input_format == AudioFormat("pcm16", 16_000)
    assert opened({}, TURN_BASED, "native").config.input_format == AudioFormat("pcm16", 16_000)
    assert config.playback_commit_policy == "commit_all_on_done"
    assert opened({"overlap_policy": "barge_in_on_speech"}, flavour="native").config.overlap_policy == (
        "barge_in_on_speech"
    )


@pytest.mark.parametrize(
    ("session", "attribute", "value"),
    [
        ({"output_modalities": ["text"]}, "modalities", ("text",)),
        ({"modalities": ["text"], "output_modalities": ["audio"]}, "modalities", ("text",)),
        ({"audio": {"output": {"voice": "marin"}}}, "voice", "marin"),
        ({"voice": "a", "audio": {"output": {"voice": "b"}}}, "voice", "a"),
        ({"voice": None, "audio": {"output": {"voice": "b"}}}, "voice", "b"),
        ({"audio": {"output": {"voice": {"id": "voice_1"}}}}, "voice", "voice_1"),
        ({"audio": {"output": {"speed": 1.5}}}, "speed", 1.5),
        ({"max_response_output_tokens": 5, "max_tokens": 9}, "max_tokens", 5),
        ({"max_output_tokens": 6}, "max_tokens", 6),
        ({"max_tokens": "inf"}, "max_tokens", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": -4}, "max_tokens", None),
        ({"max_tokens": 2.5}, "max_tokens", None),
        ({"max_tokens": True}, "max_tokens", None),
        ({"input_audio_transcription": {"model": "whisper-1"}}, "transcription", {"model": "whisper-1"}),
        ({"audio": {"input": {"transcription": {"model": "w"}}}}, "transcription", {"model": "w"}),
        ({"input_audio_noise_reduction": {"type": "near_field"}}, "noise_reduction", {"type": "near_field"}),
        ({"audio": {"input": {"noise_reduction": {"type": "f"}}}}, "noise_reduction", {"type": "f"}),
        ({"overlap_short_ack_ms": -5}, "overlap_short_ack_ms", 0),
        ({"overlap_silence_rms": 0.01}, "overlap_silence_rms", 0.01),
        ({"overlap_policy": "nonsense"}, "overlap_policy", "listen_only"),
        ({"playback_commit_policy": "nonsense"}, "playback_commit_policy", "commit_all_on_done"),
        (
            {"playback_commit_policy": "x", "extra_body": {"playback_commit_policy": "ack_only"}},
            "playback_commit_policy",
            "ack_only",
        ),
        ({"overlap_barge_in_ms": 5, "extra_body": {"overlap_barge_in_ms": 9}}, "overlap_barge_in_ms", 9),
        ({"extra_body": {"ref_audio": "data:x"}}, "ref_audio", "data:x"),
        ({"extra_body": {"tts_ref_audio": "data:y"}}, "ref_audio", "data:y"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools", ({"type": "function", "name": "f"},)),
        ({"tool_choice": "none"}, "tool_choice", "none"),
        ({"metadata": {"a": "b"}}, "metadata", {"a": "b"}),
        ({"tracing": "auto"}, "tracing", "auto"),
        ({"include": ["x"]}, "include", ["x"]),
        ({"prompt": {"id": "p"}}, "prompt", {"id": "p"}),
    ],
    ids=str,
)
def test_spellings_and_values(session: dict[str, Any], attribute: str, value: Any) -> None:
    assert getattr(opened(session).config, attribute) == value


def test_extra_body_folds_the_lane_alias_and_keeps_strangers() -> None:
    config = opened({"extra_body": {"minicpmo45_native_duplex": True, "own": 1}}).config
    assert config.extra_body == {"native_duplex": True, "own": 1}
    both = opened({"extra_body": {"minicpmo45_native_duplex": True, "native_duplex": False}}).config
    assert both.extra_body == {"native_duplex": False}
    assert opened({"extra_body": {"full_duplex": True}}).config.auto_response
    assert not opened({}).config.auto_response


def test_extra_body_merges_key_by_key() -> None:
    base = opened(SEED_OPENING).config
    merged = updated({"extra_body": {"force_listen_count": None, "more": 2}}, base).config
    assert merged.extra_body == {"auto_response": True, "native_duplex": True, "more": 2}
    assert base.extra_body["force_listen_count"] == 0


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ({"input_audio_format": "pcm16"}, AudioFormat("pcm16", 16_000)),
        ({"input_audio_format": "f32le"}, AudioFormat("pcm_f32le", 16_000)),
        ({"input_audio_format": "ulaw"}, AudioFormat("g711_ulaw", 8_000)),
        ({"input_audio_format": "ulaw", "sample_rate_hz": 16000}, AudioFormat("g711_ulaw", 16_000)),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000}}}}, AudioFormat("pcm16", 24_000)),
        ({"audio": {"input": {"format": {"type": "audio/pcma"}}}}, AudioFormat("g711_alaw", 8_000)),
        ({"audio": {"input": {"sample_rate_hz": 48000}}}, AudioFormat("pcm16", 48_000)),
        ({"audio": {"input": {"sample_rate": 48000}}}, AudioFormat("pcm16", 48_000)),
        ({"sample_rate": 44100}, AudioFormat("pcm16", 44_100)),
        ({"sample_rate_hz": 8000, "audio": {"input": {"sample_rate_hz": 48000}}}, AudioFormat("pcm16", 8_000)),
        ({"input_audio_format": "pcm", "audio": {"input": {"format": "alaw"}}}, AudioFormat("pcm16", 16_000)),
    ],
    ids=str,
)
def test_input_formats_of_a_native_session(session: dict[str, Any], expected: AudioFormat) -> None:
    assert opened(session).config.input_format == expected


def test_turn_based_sessions_take_the_formats_own_rates() -> None:
    assert opened({}, TURN_BASED).config.input_format == AudioFormat("pcm16", 24_000)
    assert opened({"input_audio_format": "f32le"}, TURN_BASED).config.input_format == AudioFormat("pcm_f32le", 16_000)


def test_the_lane_may_be_the_clients_choice() -> None:
    defaults = SessionDefaults("m", lane_by_client=True)
    assert opened({}, defaults).config.input_format.rate_hz == 24_000
    assert opened({"extra_body": {"native_duplex": True}}, defaults).config.input_format.rate_hz == 16_000
    vad = {"turn_detection": {"type": "server_vad"}}
    assert (
        opened({**vad, "extra_body": {"native_duplex": True}}, defaults).config.overlap_policy == "barge_in_on_speech"
    )
    assert opened(vad, defaults).config.overlap_policy == "listen_only"


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ({"output_audio_format": "alaw"}, AudioFormat("g711_alaw", 8_000)),
        ({"response_format": "wav"}, AudioFormat("wav", 24_000)),
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16000}}}}, AudioFormat("pcm16", 16_000)),
        ({"audio": {"output": {"sample_rate_hz": 16000}}}, AudioFormat("pcm16", 16_000)),
        ({"output_audio_format": "pcm16", "audio": {"output": {"sample_rate": 8000}}}, AudioFormat("pcm16", 8_000)),
        ({"sample_rate_hz": 8000}, AudioFormat("pcm16", 24_000)),
    ],
    ids=str,
)
def test_output_formats(session: dict[str, Any], expected: AudioFormat) -> None:
    assert opened(session).config.output_format == expected


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"input_audio_format": "mp3"}, "audio.input.format"),
        ({"input_audio_format": "wav"}, "audio.input.format"),
        ({"input_audio_format": 5}, "audio.input.format"),
        ({"sample_rate_hz": 1}, "audio.input.format"),
        ({"sample_rate_hz": True}, "audio.input.format"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": "16000"}}}}, "audio.input.format"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "channels": 2}}}}, "audio.input.format"),
        ({"output_audio_format": "pcm_f32le"}, "audio.output.format"),
        ({"output_audio_format": "opus"}, "audio.output.format"),
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 1}}}}, "audio.output.format"),
    ],
    ids=str,
)
def test_refused_formats(session: dict[str, Any], param: str) -> None:
    error = refusal(opened, session)
    assert (error.code, error.param) == ("unsupported_audio_format", param)


def test_a_format_update_keeps_what_it_does_not_name() -> None:
    base = opened({"input_audio_format": "pcm16", "sample_rate_hz": 48000}).config
    assert updated({"input_audio_format": "pcm16"}, base).config.input_format.rate_hz == 48_000
    assert updated({"sample_rate_hz": 8000}, base).config.input_format == AudioFormat("pcm16", 8_000)
    assert updated({"input_audio_format": "ulaw"}, base).config.input_format == AudioFormat("g711_ulaw", 8_000)
    assert updated({"speed": 2}, base).config.input_format == base.input_format


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"modalities": []}, "unsupported_response_modality", "modalities"),
        ({"modalities": ["video"]}, "unsupported_response_modality", "modalities"),
        ({"modalities": "audio"}, "unsupported_response_modality", "modalities"),
        ({"output_modalities": [["audio"]]}, "unsupported_response_modality", "modalities"),
        ({"model": 5}, "invalid_request_error", "model"),
        ({"model": ""}, "invalid_request_error", "model"),
        ({"voice": 5}, "invalid_request_error", "voice"),
        ({"instructions": ["x"]}, "invalid_request_error", "instructions"),
        ({"ref_audio": {}}, "invalid_request_error", "ref_audio"),
        ({"temperature": "hot"}, "invalid_request_error", "temperature"),
        ({"temperature": True}, "invalid_request_error", "temperature"),
        ({"speed": []}, "invalid_request_error", "speed"),
        ({"idle_timeout_s": 0}, "invalid_request_error", "idle_timeout_s"),
        ({"idle_timeout_s": "300"}, "invalid_request_error", "idle_timeout_s"),
        ({"overlap_policy": 5}, "invalid_request_error", "overlap_policy"),
        ({"overlap_short_ack_ms": "700"}, "invalid_request_error", "overlap_short_ack_ms"),
        ({"extra_body": {"overlap_silence_rms": True}}, "invalid_request_error", "overlap_silence_rms"),
        ({"extra_body": []}, "invalid_request_error", "extra_body"),
        ({"extra_body": {"native_duplex": "yes"}}, "invalid_request_error", "extra_body.native_duplex"),
        ({"extra_body": {"auto_response": 1}}, "invalid_request_error", "extra_body.auto_response"),
        ({"tools": {}}, "invalid_request_error", "tools"),
        ({"tools": ["f"]}, "invalid_request_error", "tools"),
        ({"metadata": []}, "invalid_request_error", "metadata"),
        ({"input_audio_transcription": "whisper"}, "invalid_request_error", "transcription"),
        ({"audio": "pcm16"}, "invalid_request_error", "audio"),
        ({"audio": {"input": 5}}, "invalid_request_error", "audio.input"),
        ({"audio": {"output": []}}, "invalid_request_error", "audio.output"),
        ({"session_id": 5}, "invalid_request_error", "session_id"),
        ({"session_id": ""}, "invalid_request_error", "session_id"),
        ({"session_id": "a\nb"}, "invalid_request_error", "session_id"),
        ({"session_id": "\x1b[31m"}, "invalid_request_error", "session_id"),
        ({"session_id": "x" * 257}, "invalid_request_error", "session_id"),
    ],
    ids=str,
)
def test_refusals(session: dict[str, Any], code: str, param: str) -> None:
    error = refusal(opened, session)
    assert (error.code, error.param) == (code, param)


# --- updates ----------------------------------------------------------------------------------------------------------


def test_an_update_changes_only_what_it_names_and_null_restores_the_default() -> None:
    base = opened({**SEED_OPENING, "tools": [{"name": "f"}], "tracing": "auto"}).config
    update = updated({"temperature": None, "tracing": None, "tools": None, "max_tokens": 20}, base)
    assert update.config == attrs.evolve(base, temperature=None, tracing=None, tools=(), max_tokens=20)
    assert update.named == {"temperature", "tracing", "tools", "max_tokens"}
    assert updated({}, base) == ConfigUpdate(base)


def test_what_is_ignored_after_creation() -> None:
    base = opened(SEED_OPENING).config
    ignored = {"session_id": "other", "id": "x", "object": "realtime.session", "type": "realtime", "idle_timeout_s": 5}
    assert updated(ignored, base) == ConfigUpdate(base)


def test_null_instructions_are_named_in_the_duplex_view_and_nothing_in_the_plain_view() -> None:
    base = opened(SEED_OPENING).config
    named = updated({"instructions": None, "voice": None}, base)
    assert named.named == {"instructions", "voice"}
    assert named.config.instructions is None
    assert updated({"instructions": None, "voice": None, "model": None}, base, view="plain") == ConfigUpdate(
        base, strict=False
    )


def test_a_refused_update_leaves_the_base_alone() -> None:
    base = opened(SEED_OPENING).config
    before = attrs.asdict(base)
    assert refusal(updated, {"speed": 2, "extra_body": {"a": 1}, "tools": 5}, base).param == "tools"
    assert attrs.asdict(base) == before


# --- the duplex echo --------------------------------------------------------------------------------------------------


def test_the_echo_repeats_what_the_client_set() -> None:
    session = {
        "tools": [{"name": "f"}],
        "tool_choice": "auto",
        "metadata": {"k": "v"},
        "include": ["i"],
        "prompt": {"id": "p"},
        "input_audio_noise_reduction": {"type": "near_field"},
        "audio": {"input": {"mine": 1}, "output": {"voice": "v"}, "stray": True},
        "new_key": [1],
        "state": "a client cannot say this",
    }
    shown = render_session(snapshot(opened(session).config), "duplex")
    for key in ("tools", "tool_choice", "metadata", "include", "prompt", "input_audio_noise_reduction", "new_key"):
        assert shown[key] == session[key]
    assert shown["audio"] == {
        "input": {"mine": 1, "format": {"type": "audio/pcm", "rate": 16000}, "sample_rate_hz": 16000},
        "output": {"voice": "v", "format": {"type": "audio/pcm", "rate": 24000}},
        "stray": True,
    }
    assert shown["state"] == "open"
    assert shown["voice"] == "v"


def test_turn_detection_stands_in_both_places_once_it_was_set() -> None:
    config = opened({"turn_detection": {"type": "server_vad"}}).config
    shown = render_session(snapshot(config), "duplex")
    assert shown["turn_detection"] == shown["audio"]["input"]["turn_detection"]
    assert shown["turn_detection"]["silence_duration_ms"] == 500
    off = render_session(snapshot(updated({"turn_detection": None}, config).config), "duplex")
    assert (off["turn_detection"], off["audio"]["input"]["turn_detection"]) == (None, None)
    never = render_session(snapshot(opened({}).config), "duplex")
    assert "turn_detection" not in never["audio"]["input"]


# --- the plain view ---------------------------------------------------------------------------------------------------


def test_the_plain_view_is_24_khz_unless_told_otherwise() -> None:
    for defaults in (DEFAULTS, TURN_BASED, SessionDefaults("m", output_rate_hz=22_050)):
        config = opened({}, defaults, "plain").config
        assert (config.input_format, config.output_format) == (
            AudioFormat("pcm16", 24_000),
            AudioFormat("pcm16", 24_000),
        )
    g711 = {"audio": {"input": {"format": {"type": "audio/pcmu"}}, "output": {"format": {"type": "audio/pcma"}}}}
    config = opened(g711, flavour="plain").config
    assert (config.input_format, config.output_format) == (
        AudioFormat("g711_ulaw", 8_000),
        AudioFormat("g711_alaw", 8_000),
    )


def test_the_plain_view_serves_conversations_only() -> None:
    error = refusal(opened, {"type": "transcription"}, flavour="plain")
    assert (error.code, error.param) == ("invalid_request_error", "type")


LIVEKIT_OPENING: dict[str, Any] = {
    "type": "realtime",
    "model": "gpt-realtime",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "noise_reduction": None,
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {
                "type": "semantic_vad",
                "create_response": True,
                "eagerness": "medium",
                "interrupt_response": True,
            },
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "speed": 1.0, "voice": "marin"},
    },
    "max_output_tokens": "inf",
    "tool_choice": "auto",
    "tools": [],
    "tracing": None,
}


@pytest.mark.parametrize("defaults", [DEFAULTS, TURN_BASED])
def test_everything_a_stock_client_sets_at_once_is_accepted(defaults: SessionDefaults) -> None:
    base = opened({}, defaults, "plain").config
    config = updated(LIVEKIT_OPENING, base, defaults, "plain").config
    assert (config.voice, config.speed, config.tool_choice, config.tools) == ("marin", 1.0, "auto", ())
    again = updated(LIVEKIT_OPENING, config, defaults, "plain").config
    assert again == config
