"""Values, addresses and presets (contract 21.1, 21.4 "URL building", 21.6)."""

from __future__ import annotations

import random

import pytest

from trio_duplex.client import (
    AudioFormat,
    DuplexClient,
    ReconnectPolicy,
    SessionConfig,
    build_realtime_url,
    duplex_unit_boundary_ms,
)
from trio_duplex.client.presets import minicpmo_4_5, nemotron_voicechat, neutral, personaplex


@pytest.mark.parametrize(("index", "boundary"), [(-3, 1000), (0, 1000), (1, 2000), (7, 8000)])
def test_unit_boundaries(index, boundary):
    assert duplex_unit_boundary_ms(index) == boundary


def test_audio_format_arithmetic():
    pcm = AudioFormat("pcm16", 22050)
    assert pcm.bytes_per_sample == 2
    assert pcm.duration_ms(44100) == pytest.approx(1000.0)
    assert pcm.byte_count(80) == 1764 * 2
    assert pcm.byte_count(0.1) == 2 * 2  # 2.205 samples
    assert AudioFormat("pcm_f32le", 24000).byte_count(80) == 1920 * 4
    with pytest.raises(ValueError, match="g711_ulaw"):
        _ = AudioFormat("g711_ulaw", 8000).bytes_per_sample


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        AudioFormat("pcm16", 16000).sample_rate_hz = 8000
    with pytest.raises(AttributeError):
        SessionConfig().voice = "x"
    with pytest.raises(AttributeError):
        ReconnectPolicy().max_attempts = 1


def test_minimal_payload():
    assert SessionConfig().to_session_payload(model="m") == {
        "model": "m",
        "modalities": ["audio", "text"],
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "sample_rate_hz": 16000,
        "audio": {"input": {"sample_rate_hz": 16000}, "output": {"sample_rate_hz": 24000}},
        "turn_detection": None,
        "extra_body": {"auto_response": True},
    }


def test_full_payload():
    config = SessionConfig(
        instructions="be brief",
        ref_audio="data:audio/wav;base64,AA==",
        voice="v",
        auto_response=False,
        temperature=0.0,
        overlap_policy="listen_only",
        playback_commit_policy="ack_only",
        turn_detection={"type": "server_vad"},
        idle_timeout_s=60,
        max_output_tokens=9,
        extra_body={"native_duplex": True, "auto_response": "mine"},
    )
    payload = config.to_session_payload(model="m", session_id="s")
    assert payload["session_id"] == "s"
    assert payload["turn_detection"] == {"type": "server_vad"}
    assert payload["extra_body"] == {"auto_response": "mine", "native_duplex": True}
    for name in ("instructions", "ref_audio", "voice", "overlap_policy", "playback_commit_policy"):
        assert payload[name] == getattr(config, name)
    assert payload["temperature"] == 0.0
    assert payload["idle_timeout_s"] == 60
    assert payload["max_output_tokens"] == 9


def test_config_is_replaced_field_by_field():
    assert SessionConfig(voice="a").replace(temperature=0.5) == SessionConfig(voice="a", temperature=0.5)
    with pytest.raises(TypeError):
        SessionConfig().replace(colour="red")


def test_backoff_bounds():
    asked = []

    def uniform(low, high):
        asked.append((low, high))
        return high

    policy = ReconnectPolicy(uniform=uniform)
    assert [policy.delay(attempt) for attempt in range(6)] == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert {low for low, _ in asked} == {0.25}
    jittered = ReconnectPolicy(uniform=random.Random(1).uniform)
    assert all(0.25 <= jittered.delay(3) <= 2.0 for _ in range(100))
    assert jittered == ReconnectPolicy()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://h:8099", "ws://h:8099/v1/realtime?duplex=1&model=org/m&autostart=0"),
        ("http://h:8099/", "ws://h:8099/v1/realtime?duplex=1&model=org/m&autostart=0"),
        ("wss://h/other", "wss://h/other?duplex=1&model=org/m&autostart=0"),
        ("ws://h/v1/realtime?model=mine&x=1", "ws://h/v1/realtime?model=mine&x=1&duplex=1&autostart=0"),
        ("ws://h/v1/realtime?autostart=1&duplex=on", "ws://h/v1/realtime?duplex=on&model=org/m&autostart=0"),
    ],
)
def test_client_url(url, expected):
    assert DuplexClient(url, model="org/m").url == expected


@pytest.mark.parametrize("url", ["ftp://h/", "h:8099", "", "ws:///path"])
def test_bad_urls(url):
    with pytest.raises(ValueError, match="URL"):
        DuplexClient(url, model="m")


def test_build_realtime_url():
    assert build_realtime_url("http://h/v1/realtime", "m") == "ws://h/v1/realtime?duplex=1&model=m"
    assert build_realtime_url("https://h/v1/realtime", "m").startswith("wss://")
    assert build_realtime_url(
        "ws://h/v1/realtime?native_duplex=1&session_id=old&k=v",
        "m",
        autostart=True,
        native_duplex=False,
        session_id="new",
        extra_query={"k": "other", "z": "a b"},
    ) == ("ws://h/v1/realtime?session_id=old&k=v&duplex=1&model=m&autostart=1&z=a%20b&native_duplex=0")
    with pytest.raises(ValueError, match="URL"):
        build_realtime_url("ssh://h", "m")


def test_minicpm_preset():
    config = minicpmo_4_5.create_duplex_session_config(ref_audio="data:x", temperature=0.6)
    assert config.input_audio == AudioFormat("pcm16", 16000)
    assert config.output_audio == AudioFormat("pcm16", 24000)
    assert config.extra_body == {"native_duplex": True, "force_listen_count": 0}
    assert config.overlap_policy == "listen_only"
    assert config.playback_commit_policy == "ack_only"
    assert config.ref_audio == "data:x"
    assert config.temperature == 0.6
    merged = minicpmo_4_5.create_duplex_session_config(
        ref_audio="r",
        extra_body={"force_listen_count": 3, "return_stage_metrics": True},
        overlap_policy="barge_in_on_speech",
    )
    assert merged.extra_body == {"native_duplex": True, "force_listen_count": 3, "return_stage_metrics": True}
    assert merged.overlap_policy == "barge_in_on_speech"


def test_personaplex_preset():
    config = personaplex.create_duplex_session_config(persona="a pilot")
    assert config.voice == "NATF2.pt"
    assert config.instructions == "a pilot"
    assert config.input_audio == AudioFormat("pcm_f32le", 24000)
    assert config.output_audio == AudioFormat("pcm16", 24000)
    assert "native_duplex" not in config.extra_body
    assert personaplex.create_duplex_session_config("NATM1.pt").voice == "NATM1.pt"


def test_nemotron_preset():
    tool = {"type": "function", "name": "get_weather"}
    config = nemotron_voicechat.create_duplex_session_config(
        instructions="i", tools=[tool], idle_timeout_s=5, extra_body={"x": 1}
    )
    assert config.extra_body == {"realtime_tools": [tool], "x": 1}
    assert config.input_audio == AudioFormat("pcm_f32le", 16000)
    assert config.output_audio == AudioFormat("pcm16", 22050)
    assert (config.instructions, config.idle_timeout_s) == ("i", 5)
    assert "realtime_tools" not in nemotron_voicechat.create_duplex_session_config().extra_body


def test_neutral_preset():
    assert neutral.create_duplex_session_config() == SessionConfig()
    assert neutral.create_duplex_session_config(voice="v", extra_body={"a": 1}) == SessionConfig(
        voice="v", extra_body={"a": 1}
    )
    with pytest.raises(TypeError):
        neutral.create_duplex_session_config(colour="red")
