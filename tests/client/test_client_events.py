"""Typed views of wire events (contract 21.2)."""

from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.client import AudioFormat, DuplexProtocolError, EventCollector, wrap_event
from trio_duplex.client.events import EVENT_CLASSES
from trio_duplex.client.response import ResponseTracker
from trio_duplex.client.session_state import SessionState, parse_frame

PCM = b"\x01\x02\x03\x04"
ENCODED = base64.b64encode(PCM).decode()


def test_common_accessors():
    event = wrap_event(
        {
            "type": "x",
            "event_id": "e",
            "session_id": "s",
            "response_id": "r",
            "item_id": "i",
            "server_event_seq": 4,
            "sample_rate_hz": 24000,
        }
    )
    assert (event.type, event.event_id, event.session_id, event.response_id, event.item_id) == ("x", "e", "s", "r", "i")
    assert (event.server_event_seq, event.sample_rate_hz) == (4, 24000)
    assert event.audio is None
    assert event.text is None


def test_response_id_falls_back_to_the_response_object():
    assert wrap_event({"type": "response.done", "response": {"id": "r"}}).response_id == "r"
    assert wrap_event({"type": "response.done", "response_id": "top", "response": {"id": "r"}}).response_id == "top"


@pytest.mark.parametrize("kind", ["response.output_audio.delta", "response.audio.delta"])
def test_audio_is_decoded(kind):
    event = wrap_event({"type": kind, "delta": ENCODED})
    assert event.audio == PCM
    assert event.audio is event.audio
    assert event.text is None
    assert wrap_event({"type": kind, "audio": ENCODED}).audio == PCM


@pytest.mark.parametrize("bad", ["***", "AAA", 7, None, "ä"])
def test_bad_base64_is_none(bad):
    assert wrap_event({"type": "response.output_audio.delta", "delta": bad}).audio is None


def test_other_events_never_decode():
    assert wrap_event({"type": "response.function_call_arguments.delta", "delta": ENCODED}).audio is None
    assert wrap_event({"type": "custom", "audio": ENCODED}).audio is None


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"text": "t", "delta": "d"}, "t"),
        ({"delta": "d"}, "d"),
        ({"transcript": "tr"}, "tr"),
        ({"delta": ""}, ""),
        ({"delta": 3}, None),
    ],
)
def test_text(raw, text):
    assert wrap_event({"type": "response.output_text.delta"} | raw).text == text


def test_session_created():
    event = wrap_event({"type": "session.created", "resume_token": "t", "incarnation": 2, "session": {"id": "s"}})
    assert (event.session, event.resume_token, event.incarnation, event.session_id) == ({"id": "s"}, "t", 2, "s")
    bare = wrap_event({"type": "session.created"})
    assert (bare.session, bare.resume_token, bare.incarnation) == ({}, None, 0)
    plain = wrap_event({"type": "session.created", "session": {"resume_token": "t", "incarnation": 1}})
    assert (plain.resume_token, plain.incarnation) == ("t", 1)


def test_error_envelope():
    event = wrap_event(
        {
            "type": "error",
            "event_id": "server_1",
            "error": {"type": "invalid_request_error", "code": "c", "message": "m", "event_id": "mine", "param": "p"},
        }
    )
    assert (event.code, event.message, event.related_event_id, event.param) == ("c", "m", "mine", "p")
    error = event.to_exception()
    assert isinstance(error, DuplexProtocolError)
    assert (error.code, error.event_id, error.raw["type"]) == ("c", "mine", "error")
    assert str(error) == "c: m"


def test_error_flat():
    event = wrap_event({"type": "error", "error": "Unknown session", "code": "session_resume_expired"})
    assert (event.code, event.message, event.related_event_id) == ("session_resume_expired", "Unknown session", None)


@pytest.mark.parametrize("raw", [{}, {"error": None}, {"error": {}}, {"error": []}, {"code": 5}])
def test_error_of_no_shape_still_says_something(raw):
    event = wrap_event({"type": "error"} | raw)
    assert event.message
    assert event.code is None


def test_closed_reason():
    assert wrap_event({"type": "session.closed", "reason": "timeout"}).reason == "timeout"
    assert wrap_event({"type": "session.closed", "event": {"reason": "timeout"}}).reason == "timeout"


@pytest.mark.parametrize("junk", [None, 3, "x", [], {"id": 5}, True])
def test_accessors_survive_any_shape(junk):
    keys = ["event_id", "session_id", "session", "response_id", "response", "item_id", "item", "metadata", "reason"]
    keys += ["server_event_seq", "sample_rate_hz", "delta", "audio", "text", "error", "code", "resume_token", "format"]
    for kind in ("session.created", "response.done", "response.output_audio.delta", "error", "session.closed", "x"):
        event = wrap_event({"type": kind} | dict.fromkeys(keys, junk))
        for name in dir(event):
            if not name.startswith("_") and not callable(getattr(event, name)):
                getattr(event, name)
    assert wrap_event({"type": "x", "server_event_seq": True}).server_event_seq is None


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from([0.5, -1e300, "", "r", "AAAA"])
NAMES = "id code message event_id audio_duration_ms metadata stage_metrics vllm_omni".split()  # noqa: SIM905
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
FIELDS = (  # noqa: SIM905
    "session response item error metadata response_id item_id session_id server_event_seq sample_rate_hz format delta "
    "audio text transcript reason resume_token incarnation code event vllm_omni response_request_metrics"
).split()
EVENTS = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from([*EVENT_CLASSES, "session.resync_required", "unknown"]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(st.lists(EVENTS, max_size=12))
def test_a_lying_server_cannot_kill_the_reader(events):
    """Whatever objects a server makes up, reading, remembering, demultiplexing and collecting them raises nothing."""
    state, tracker, collector = SessionState(), ResponseTracker(AudioFormat("pcm16", 24000)), EventCollector()
    for raw in events:
        event = parse_frame(orjson.dumps(raw).decode(), 0.0)
        assert event.raw == raw
        state.is_duplicate(event)
        state.absorb(event)
        state.end_of(event, closing=False)
        tracker.feed(event)
        collector.add(event)
    collector.timing_summary(after_s=0.0)
    tracker.end()
    assert tracker.queue.ended


@settings(derandomize=True, database=None)
@given(st.text() | st.binary())
def test_any_frame_can_be_parsed(frame):
    event = parse_frame(frame, 0.0)
    assert event is None or isinstance(event.type, str)
