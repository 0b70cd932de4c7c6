"""Text frames in and out: size, shape, numbers, base64 (contract 1.2, 6; cases A6, H8)."""

from __future__ import annotations

import json

import orjson
import pytest

from duplex_protocol import wire
from duplex_protocol.dialect import MAX_EVENT_BYTES
from duplex_protocol.errors import LocalProtocolError, RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from tests.protocol.wire_kit import refusal


def test_an_event_is_parsed() -> None:
    assert wire.parse('{"type":"session.heartbeat","event_id":"evt_1"}') == {
        "type": "session.heartbeat",
        "event_id": "evt_1",
    }


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"type":"x"', "{'type':1}", '{"type":"x"} {}', b"\xff\xfe", "\ud800"]
)
def test_not_json(text: str | bytes) -> None:
    assert refusal(wire.parse, text).code == "invalid_json"


@pytest.mark.parametrize("text", ["[]", "1", '"type"', "null", "true"])
def test_not_an_object(text: str) -> None:
    assert refusal(wire.parse, text).code == "bad_event"


@pytest.mark.parametrize("kind", ["", "7", "null", "[]", '""'])
def test_no_type(kind: str) -> None:
    member = f',"type":{kind}' if kind else ""
    text = f'{{"event_id":"evt_9"{member}}}'
    error = refusal(wire.parse, text)
    assert (error.code, error.param, error.event_id) == ("bad_event", "type", "evt_9")


@pytest.mark.parametrize("event_id", [7, True, [], {}, "x" * 513])
def test_an_event_id_is_a_string_of_bounded_length(event_id: object) -> None:
    error = refusal(wire.parse, json.dumps({"type": "session.heartbeat", "event_id": event_id}))
    assert (error.code, error.param, error.event_id) == ("bad_event", "event_id", None)


def test_size_counts_utf8_bytes() -> None:
    head, tail = '{"type":"input.text.append","text":"', '"}'
    room = MAX_EVENT_BYTES - len(head) - len(tail)
    assert wire.parse(head + "x" * room + tail)["type"] == "input.text.append"
    assert refusal(wire.parse, head + "x" * (room + 1) + tail).code == "event_too_large"
    two_byte = "é" * (room // 2)
    assert wire.parse(head + two_byte + tail)["text"] == two_byte
    assert refusal(wire.parse, head + two_byte + "éé" + tail).code == "event_too_large"


@pytest.mark.parametrize("as_bytes", [False, True])
def test_an_oversized_event_names_its_id_when_it_stands_in_front(as_bytes: bool) -> None:
    text = '{"type":"input_audio_buffer.append","event_id":"evt_5","audio":"' + "A" * MAX_EVENT_BYTES + '"}'
    error = refusal(wire.parse, text.encode() if as_bytes else text)
    assert (error.code, error.event_id) == ("event_too_large", "evt_5")


def test_an_id_inside_another_object_is_not_taken_for_the_events_own() -> None:
    assert refusal(wire.parse, '{"item":{"event_id":"evt_5"},').event_id is None


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('{"type":"session.update","event_id":"e","session":{"temperature":1e999}}', "temperature"),
        ('{"type":"playback.ack","event_id":"e","played_ms":-1e999}', "played_ms"),
        ('{"type":"playback.ack","event_id":"e","played_ms":NaN}', "played_ms"),
        ('{"type":"playback.ack","event_id":"e","played_ms":Infinity}', "played_ms"),
        ('{"type":"playback.ack","event_id":"e","played_ms":-Infinity}', "played_ms"),
        ('{"type":"x","event_id":"e","item":{"content":[1,{"n":1e400}]}}', "item.content[1].n"),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_h8_a_number_that_is_not_finite_is_named(text: str, param: str, as_bytes: bool) -> None:
    error = refusal(wire.parse, text.encode() if as_bytes else text)
    assert (error.code, error.param, error.event_id) == ("bad_event", param, "e")


def test_broken_json_beside_an_infinite_number_is_still_broken_json() -> None:
    assert refusal(wire.parse, '{"type":"x","a":1e999,').code == "invalid_json"


@pytest.mark.parametrize("levels", [70, 2000, 200_000])
def test_too_deep(levels: int) -> None:
    text = '{"type":"x","event_id":"e","a":' + "[" * levels + "]" * levels + "}"
    error = refusal(wire.parse, text)
    assert (error.code, error.event_id) == ("bad_event", "e")


def test_depth_is_bounded_exactly() -> None:
    def nested(levels: int) -> str:
        return '{"type":"x","a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"

    assert wire.parse(nested(wire.MAX_DEPTH))
    assert refusal(wire.parse, nested(wire.MAX_DEPTH + 1)).code == "bad_event"


def test_too_many_members() -> None:
    many = json.dumps({"type": "x", "event_id": "e", "a": [0] * wire.MAX_MEMBERS})
    error = refusal(wire.parse, many)
    assert (error.code, error.event_id) == ("bad_event", "e")


@pytest.mark.parametrize(
    ("audio", "code"),
    [("@@@", "bad_audio"), ("AAA", "bad_audio"), ("AA\\nA=", "bad_audio"), ("", "bad_event"), (None, "bad_event")],
)
def test_a6_bad_audio_is_an_error_event_with_the_id(audio: str | None, code: str) -> None:
    member = "" if audio is None else f',"audio":"{audio}"'
    event = wire.parse(f'{{"type":"input_audio_buffer.append","event_id":"evt_6"{member}}}')
    error = refusal(RealtimeDialect().decode, event)
    assert (error.code, error.param, error.event_id) == (code, "audio", "evt_6")


def test_encoding_is_compact_and_carries_id_and_number() -> None:
    frame = {"type": "response.output_audio.delta", "delta": b"\x00\x01\x02\xff", "text": "é"}
    sent = wire.encode(frame, event_id="event_1", server_event_seq=7)
    assert (
        sent
        == (
            '{"type":"response.output_audio.delta","event_id":"event_1","delta":"AAEC/w==","text":"é","server_event_seq":7}'
        ).encode()
    )
    assert frame["delta"] == b"\x00\x01\x02\xff"


def test_an_unnumbered_event_has_no_number() -> None:
    assert orjson.loads(wire.encode({"type": "x"}, event_id="event_1", server_event_seq=None)) == {
        "type": "x",
        "event_id": "event_1",
    }


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_outgoing_number_is_infinite(number: float) -> None:
    sent = wire.encode({"type": "x", "n": [number]}, event_id="event_1", server_event_seq=None)
    assert json.loads(sent, parse_constant=pytest.fail)["n"] == [None]


@pytest.mark.parametrize("value", [object(), {1}, 10**30, "\ud800"])
def test_what_json_cannot_say_is_our_bug(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        wire.encode({"type": "x", "n": value}, event_id="event_1", server_event_seq=None)


# --- crowds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "crowd",
    ["[" + "1," * 60_000 + "1]", "[" + "1," * 60_000 + "NaN]", "[" + "[]," * 60_000 + "[]]", "[" * 60_000],
    ids=["numbers", "not finite", "arrays", "depth"],
)
def test_a_crowd_is_refused_before_it_is_built(crowd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of objects would take seconds and a gigabyte, and every session would wait for them."""

    def no_loads(text: object) -> object:
        raise AssertionError("it was built")

    monkeypatch.setattr(wire.orjson, "loads", no_loads)
    monkeypatch.setattr(wire.json, "loads", no_loads)
    with pytest.raises(RemoteProtocolError) as caught:
        wire.parse(f'{{"type": "x", "event_id": "evt_1", "a": {crowd}}}')
    assert (caught.value.code, caught.value.event_id) == ("bad_event", "evt_1")


@pytest.mark.parametrize("inside", ["a, b, [c], {d} ", 'he said "no", ', "back\\slash, ", 'end\\", '])
def test_a_long_text_full_of_punctuation_is_no_crowd(inside: str) -> None:
    text = inside * 60_000
    for frame in (orjson.dumps({"type": "x", "text": text}).decode(), orjson.dumps({"type": "x", "text": text})):
        assert wire.parse(frame)["text"] == text


def test_the_bound_itself_is_met_exactly() -> None:
    """The event's own members count too."""
    for members, fine in ((wire.MAX_MEMBERS - 2, True), (wire.MAX_MEMBERS - 1, False)):
        frame = orjson.dumps({"type": "x", "a": [1] * members}).decode()
        if fine:
            assert len(wire.parse(frame)["a"]) == members
        else:
            with pytest.raises(RemoteProtocolError):
                wire.parse(frame)
