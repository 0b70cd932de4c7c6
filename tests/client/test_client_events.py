"""Typed views of wire events (contract 21.2)."""

from __future__ import annotations

import base64

import pytest

from trio_duplex.client import DuplexProtocolError, wrap_event

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
