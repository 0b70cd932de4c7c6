"""Every public name of contract section 21: is it there, with these arguments and defaults?"""

from __future__ import annotations

import inspect

import attrs
import pytest

import trio_duplex.client as client
from trio_duplex.client import presets

REQUIRED = inspect.Parameter.empty
DEFAULT_POLICY = client.ReconnectPolicy()

# name -> list of (argument, default); a star stands for keyword-only arguments from here on
CALLABLES = {
    "duplex_unit_boundary_ms": [("unit_index", REQUIRED)],
    "wrap_event": [("raw", REQUIRED)],
    "DuplexClient": [
        ("url", REQUIRED),
        "*",
        ("model", REQUIRED),
        ("config", None),
        ("session_id", None),
        ("reconnect", DEFAULT_POLICY),
        ("heartbeat_interval_s", 30.0),
        ("handshake_timeout_s", 30.0),
        ("connect", None),
    ],
    "DuplexClient.close": ["*", ("timeout_s", 20.0)],
    "DuplexClient.append_audio": [("pcm", REQUIRED), "*", ("is_speech", None), ("video_frames", None)],
    "DuplexClient.stream_pcm": [
        ("pcm", REQUIRED),
        "*",
        ("chunk_ms", 200),
        ("realtime", True),
        ("is_speech", None),
        ("video_frames", None),
        ("stacked_video_frames", None),
    ],
    "DuplexClient.commit": ["*", ("final", True), ("create_response", None)],
    "DuplexClient.cancel_response": [("response_id", None)],
    "DuplexClient.clear_input": [],
    "DuplexClient.ack_playback": [
        ("played_ms", REQUIRED),
        "*",
        ("response_id", None),
        ("item_id", None),
        ("committed_ms", None),
    ],
    "DuplexClient.events": [],
    "DuplexClient.responses": [],
    "DuplexClient.send": [("event", REQUIRED)],
    "DuplexClient.wait_for": [("*types", REQUIRED), "*", ("timeout_s", REQUIRED)],
    "ResponseHandle.audio": [],
    "ResponseHandle.wait": [("timeout_s", None)],
    "ReconnectPolicy.delay": [("attempt", REQUIRED)],
    "SessionConfig.to_session_payload": ["*", ("model", REQUIRED), ("session_id", None)],
    "AudioFormat": [("encoding", REQUIRED), ("sample_rate_hz", REQUIRED)],
    "AudioFormat.duration_ms": [("byte_count", REQUIRED)],
    "AudioFormat.byte_count": [("duration_ms", REQUIRED)],
    "DuplexSessionClosedError": [("reason", REQUIRED)],
    "DuplexProtocolError": [("message", REQUIRED), "*", ("code", None), ("event_id", None), ("raw", None)],
    "EventCollector": [],
    "EventCollector.consume": [("client", REQUIRED)],
    "EventCollector.response_id": [("event", REQUIRED)],
    "EventCollector.add": [("event", REQUIRED), "*", ("received_at_s", None)],
    "EventCollector.count": [("event_type", REQUIRED)],
    "EventCollector.audio_bytes": [("response_id", None)],
    "EventCollector.errors": [],
    "EventCollector.response_is_done": [("response_id", REQUIRED)],
    "EventCollector.response_text": [("response_id", REQUIRED)],
    "EventCollector.first_received_at": [("*types", REQUIRED), "*", ("after_s", 0.0)],
    "EventCollector.last_received_at": [("event_type", REQUIRED)],
    "EventCollector.timing_summary": [
        "*",
        ("after_s", REQUIRED),
        ("input_committed_at_s", None),
        ("response_id", None),
        ("measurement_origin", None),
    ],
    "EventCollector.global_timing_summary": [
        "*",
        ("after_s", REQUIRED),
        ("window_started_at_s", REQUIRED),
        ("response_ids", REQUIRED),
        ("measurement_origin", REQUIRED),
    ],
    "audio_data_url": [("source", REQUIRED), "*", ("mime", "audio/wav")],
    "image_data_url": [("source", REQUIRED), "*", ("mime", "image/jpeg")],
    "reference_audio_data_url": [("path", REQUIRED)],
    "read_pcm16_wav": [("path", REQUIRED), "*", ("sample_rate_hz", 16000)],
    "write_pcm16_wav": [("path", REQUIRED), ("pcm16", REQUIRED), "*", ("sample_rate_hz", REQUIRED)],
    "chunk_period_ms": [("events", REQUIRED), "*", ("default", 1000)],
    "has_residual_model_unit": [("pcm16", REQUIRED), "*", ("chunk_period_ms", REQUIRED)],
    "build_realtime_url": [
        ("url", REQUIRED),
        ("model", REQUIRED),
        "*",
        ("autostart", None),
        ("native_duplex", None),
        ("session_id", None),
        ("extra_query", None),
    ],
    "wait_for_condition": [("predicate", REQUIRED), "*", ("timeout_s", REQUIRED), ("label", REQUIRED)],
    "acknowledge_collected_playback": [("client", REQUIRED), ("collector", REQUIRED)],
    "summarize_session_request_metrics": [("turns", REQUIRED), "*", ("session_id", REQUIRED)],
    "distribution_summary": [("values", REQUIRED)],
    "metric_mean": [("values", REQUIRED)],
    "summarize_stage_metrics": [("turns", REQUIRED)],
    "concat_frames": [("frames", REQUIRED)],
    "concat_frames_b64": [("frames", REQUIRED), "*", ("quality", 95)],
    "unit_subframe_offsets": [("stack_frames", REQUIRED), "*", ("unit_s", 1.0)],
    "presets.minicpmo_4_5.create_duplex_session_config": ["*", ("ref_audio", None), ("extra_body", None)],
    "presets.personaplex.create_duplex_session_config": [("voice", "NATF2.pt"), ("persona", "")],
    "presets.nemotron_voicechat.create_duplex_session_config": [
        "*",
        ("instructions", None),
        ("tools", None),
        ("idle_timeout_s", None),
        ("extra_body", None),
    ],
    "presets.neutral.create_duplex_session_config": [],
}

# arguments beyond the contract, all optional and keyword-only
EXTENSIONS = {
    "wrap_event": {"received_at_s"},
    "EventCollector.consume": {"task_status"},
    "distribution_summary": {"digits"},
    "metric_mean": {"digits"},
    "presets.minicpmo_4_5.create_duplex_session_config": {"overrides"},
    "presets.personaplex.create_duplex_session_config": {"extra_body", "overrides"},
    "presets.nemotron_voicechat.create_duplex_session_config": {"overrides"},
    "presets.neutral.create_duplex_session_config": {"extra_body", "overrides"},
}

ATTRIBUTES = {
    "DuplexClient": "url model config session_id session_info resume_token incarnation",
    "ResponseHandle": ("response_id decision transcript text played_ms created_event done_event finished"),
    "EventCollector": "events event_received_at_s response_audio response_ids output_sample_rate_hz",
    "DuplexEvent": ("raw type event_id session_id response_id item_id server_event_seq sample_rate_hz audio text"),
}

EVENT_TYPES = {
    "SessionCreated": ["session.created"],
    "SessionResumed": ["session.resumed"],
    "SessionUpdated": ["session.updated"],
    "SessionClosed": ["session.closed"],
    "SessionExpired": ["session.expired"],
    "ResponseCreated": ["response.created"],
    "ResponseDone": ["response.done"],
    "AudioDelta": ["response.output_audio.delta", "response.audio.delta"],
    "TranscriptDelta": ["response.output_audio_transcript.delta", "response.audio_transcript.delta"],
    "TextDelta": ["response.output_text.delta", "response.text.delta"],
    "ListenDecision": ["response.listen"],
    "SpeakDecision": ["response.speak"],
    "ErrorEvent": ["error"],
    "ConnectionResumed": ["connection.resumed"],
}


def look_up(path: str) -> object:
    found: object = client
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("path", CALLABLES)
def test_signature(path):
    parameters = list(inspect.signature(look_up(path)).parameters.values())
    if "." in path and path.split(".")[0][0].isupper() and parameters and parameters[0].name == "self":
        del parameters[0]
    extra = EXTENSIONS.get(path, set())
    found = {parameter.name: parameter for parameter in parameters}
    assert extra <= found.keys()
    keyword_only = False
    expected_names = []
    for entry in CALLABLES[path]:
        if entry == "*":
            keyword_only = True
            continue
        name, default = entry
        if name.startswith("*"):
            assert found[name[1:]].kind is inspect.Parameter.VAR_POSITIONAL
            expected_names.append(name[1:])
            continue
        expected_names.append(name)
        kind = inspect.Parameter.KEYWORD_ONLY if keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert found[name].kind is kind
        assert found[name].default == default
    assert [name for name in found if name not in extra] == expected_names
    for name in extra:
        assert found[name].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def test_attributes():
    objects = {
        "DuplexClient": client.DuplexClient("ws://h", model="m"),
        "ResponseHandle": client.ResponseHandle("r", client.AudioFormat("pcm16", 24000)),
        "EventCollector": client.EventCollector(),
        "DuplexEvent": client.wrap_event({"type": "x"}),
    }
    for name, attributes in ATTRIBUTES.items():
        for attribute in attributes.split():
            assert hasattr(objects[name], attribute), f"{name}.{attribute}"


def test_constants():
    assert client.PCM16_SAMPLE_RATE == 16000
    assert client.PCM16_BYTES_PER_SAMPLE == 2
    assert client.DUPLEX_UNIT_MS == 1000
    assert client.DUPLEX_FIRST_UNIT_MS == 1000


def test_session_config_fields_and_defaults():
    config = client.SessionConfig()
    assert attrs.asdict(config, recurse=False) == {
        "modalities": ("audio", "text"),
        "input_audio": client.AudioFormat("pcm16", 16000),
        "output_audio": client.AudioFormat("pcm16", 24000),
        "instructions": None,
        "ref_audio": None,
        "voice": None,
        "auto_response": True,
        "temperature": None,
        "overlap_policy": None,
        "playback_commit_policy": None,
        "turn_detection": None,
        "idle_timeout_s": None,
        "max_output_tokens": None,
        "extra_body": {},
    }


def test_reconnect_policy_defaults():
    assert (DEFAULT_POLICY.max_attempts, DEFAULT_POLICY.backoff_s) == (5, (0.25, 4.0))


def test_errors_share_one_base():
    for error in (client.DuplexConnectionError, client.DuplexProtocolError, client.DuplexSessionClosedError):
        assert issubclass(error, client.DuplexClientError)
    assert str(client.DuplexSessionClosedError("timeout")) == "duplex session closed: timeout"


def test_every_wire_type_has_its_class():
    for name, types in EVENT_TYPES.items():
        cls = getattr(client, name)
        for wire_type in types:
            assert type(client.wrap_event({"type": wire_type})) is cls
    assert issubclass(client.SessionResumed, client.SessionCreated)
    assert type(client.wrap_event({"type": "weather.report"})) is client.DuplexEvent


def test_transport_is_abstract():
    with pytest.raises(TypeError):
        client.WebSocketTransport()
    for method in ("send", "recv", "close"):
        assert method in client.WebSocketTransport.__abstractmethods__


def test_everything_exported_exists():
    for name in client.__all__:
        assert hasattr(client, name)
    assert set(presets.__all__) == {"minicpmo_4_5", "nemotron_voicechat", "neutral", "personaplex"}
