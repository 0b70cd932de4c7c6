"""Client events to commands: the seed's examples, aliases, defaults, refusals (contract 2, 3.1, 4.2)."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pybase64
import pytest

from duplex_protocol import commands as c
from duplex_protocol import wire
from duplex_protocol.aliases import EVENT_ALIASES, OPENING_ALIASES, TURN_SIGNAL_COMMANDS
from duplex_protocol.client_events import CLIENT_EVENTS, event_session
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from tests.protocol.wire_kit import refusal

AUDIO = pybase64.b64encode_as_string(b"\x01\x02" * 8)
JPEG = pybase64.b64encode_as_string(b"\xff\xd8\xff\xe0jpeg")
PNG = pybase64.b64encode_as_string(b"\x89PNG\r\n\x1a\npng")


def decode(event: dict[str, Any], *, native: bool = False) -> c.Command:
    """One event through text, as a socket brings it."""
    dialect = NativeDialect() if native else RealtimeDialect()
    (command,) = dialect.decode(wire.parse(json.dumps(event)))
    return command


def refused(event: dict[str, Any], *, native: bool = False) -> tuple[str, str | None]:
    """Code and param of a refusal, which carries the event's id."""
    error = refusal(decode, {"event_id": "evt_77", **event}, native=native)
    assert error.event_id == "evt_77"
    assert error.message
    return error.code, error.param


SEED_EXAMPLES: list[tuple[dict[str, Any], c.Command]] = [
    ({"type": "session.heartbeat"}, c.Heartbeat()),
    ({"type": "session.event_ack", "server_event_seq": 48}, c.AckEvents(server_event_seq=48)),
    ({"type": "session.close"}, c.CloseSession()),
    (
        {
            "type": "input_audio_buffer.append",
            "event_id": "evt_0042",
            "audio": AUDIO,
            "input_audio_format": "pcm16",
            "sample_rate_hz": 16000,
            "duration_ms": 200,
            "audio_end_ms": 1200,
            "is_speech": True,
        },
        c.AppendAudio(
            event_id="evt_0042",
            audio=b"\x01\x02" * 8,
            encoding="pcm16",
            rate_hz=16000,
            hints=c.AppendHints(duration_ms=200, audio_end_ms=1200, is_speech=True),
        ),
    ),
    (
        {
            "type": "input_audio_buffer.append",
            "audio": AUDIO,
            "input_audio_format": "pcm16",
            "sample_rate_hz": 16000,
            "duration_ms": 200,
            "audio_end_ms": 1200,
            "video_frames": [JPEG, JPEG],
        },
        c.AppendAudio(
            audio=b"\x01\x02" * 8,
            encoding="pcm16",
            rate_hz=16000,
            hints=c.AppendHints(duration_ms=200, audio_end_ms=1200),
            video_frames=(JPEG, JPEG),
        ),
    ),
    (
        {"type": "input_audio_buffer.commit", "event_id": "evt_0060", "final": True},
        c.CommitInput(event_id="evt_0060"),
    ),
    ({"type": "input.commit", "final": True}, c.CommitInput()),
    ({"type": "input_audio_buffer.commit", "final": True, "is_speech": False}, c.CommitInput(is_speech=False)),
    ({"type": "input_audio_buffer.clear"}, c.ClearInput()),
    ({"type": "input.cancel"}, c.CancelInput()),
    ({"type": "input.text.append", "text": "and tomorrow?"}, c.AppendText(text="and tomorrow?")),
    ({"type": "conversation.item.delete", "item_id": "item_9b2d"}, c.DeleteItem(item_id="item_9b2d")),
    ({"type": "conversation.item.retrieve", "item_id": "item_resp_01"}, c.RetrieveItem(item_id="item_resp_01")),
    (
        {"type": "conversation.item.truncate", "item_id": "item_resp_01", "content_index": 0, "audio_end_ms": 1850},
        c.TruncateItem(item_id="item_resp_01", audio_end_ms=1850),
    ),
    (
        {"type": "response.create", "event_id": "evt_0070", "response": {"modalities": ["audio", "text"]}},
        c.CreateResponse(event_id="evt_0070", options={"modalities": ["audio", "text"]}),
    ),
    ({"type": "response.cancel", "response_id": "resp_01"}, c.CancelResponse(response_id="resp_01")),
    ({"type": "output_audio_buffer.clear"}, c.ClearOutput()),
    ({"type": "barge_in"}, c.BargeIn()),
    ({"type": "turn.signal", "event": "barge_in", "payload": {"source": "client_vad"}}, c.BargeIn()),
    (
        {
            "type": "playback.ack",
            "response_id": "resp_01",
            "item_id": "item_resp_01",
            "played_ms": 1000,
            "committed_ms": 1000,
        },
        c.AckPlayback(response_id="resp_01", item_id="item_resp_01", played_ms=1000, committed_ms=1000),
    ),
    (
        {
            "type": "playback.ack",
            "response_id": "resp_01",
            "played_ms": 1850,
            "committed_ms": 1850,
            "truncate": True,
        },
        c.AckPlayback(response_id="resp_01", played_ms=1850, committed_ms=1850, truncate=True),
    ),
]


@pytest.mark.parametrize(
    ("event", "command"), SEED_EXAMPLES, ids=lambda value: value["type"] if isinstance(value, dict) else ""
)
def test_seed_example(event: dict[str, Any], command: c.Command) -> None:
    assert decode(event) == command


def test_every_client_event_has_a_row_and_every_row_a_minimal_form() -> None:
    minimal: dict[str, dict[str, Any]] = {
        "session.event_ack": {"server_event_seq": 0},
        "input_audio_buffer.append": {"audio": AUDIO},
        "input.text.append": {"text": ""},
        "conversation.item.create": {"item": {"content": [{"type": "input_text", "text": "hi"}]}},
        "conversation.item.retrieve": {"item_id": "i"},
        "conversation.item.delete": {"item_id": "i"},
        "conversation.item.truncate": {"item_id": "i", "audio_end_ms": 0},
        "turn.signal": {"event": "user_started"},
    }
    assert len(CLIENT_EVENTS) == 21
    for name in CLIENT_EVENTS:
        event = {"type": name, "event_id": "evt_1", **minimal.get(name, {})}
        if name == "session.resume":
            assert refused({"type": name}) == ("unsupported_session_resume", None)
        else:
            assert decode(event).event_id == "evt_1"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "x" * 100_000},
        {"type": "input_audio_buffer.append", "audio": AUDIO, "format": "x" * 100_000},
        {"type": "input_audio_buffer.append", "audio": AUDIO, "sample_rate_hz": "9" * 100_000},
        {"type": "turn.signal", "event": "barge_in", "payload": "x" * 100_000},
        {"type": "conversation.item.create", "item": {"role": "x" * 100_000}},
    ],
    ids=range(5),
)
def test_an_error_never_repeats_a_long_value(event: dict[str, Any]) -> None:
    error = refusal(decode, event)
    assert len(error.message) + len(error.param or "") < 400


def test_unknown_fields_and_nulls_mean_nothing() -> None:
    bare = decode({"type": "playback.ack", "played_ms": 5})
    assert decode({"type": "playback.ack", "played_ms": 5, "truncate": None, "item_id": None, "new": {"x": 1}}) == bare


@pytest.mark.parametrize("name", ["nonsense", "session.create", "response.done", "input_audio_buffer.committed"])
def test_unknown_event(name: str) -> None:
    assert refused({"type": name})[0] == "unknown_event"


# --- aliases ----------------------------------------------------------------------------------------------------------


def test_the_alias_table() -> None:
    assert EVENT_ALIASES == {
        "input.audio.append": "input_audio_buffer.append",
        "push_chunk": "input_audio_buffer.append",
        "input_text.append": "input.text.append",
        "push_text": "input.text.append",
        "signal_turn": "turn.signal",
        "audio.playback_ack": "playback.ack",
        "close_session": "session.close",
        "close": "session.close",
        "session_close": "session.close",
    }


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("alias", [*EVENT_ALIASES])
def test_an_alias_means_its_event(alias: str, native: bool) -> None:
    payload = {"audio": AUDIO, "format": "pcm16", "text": "t", "event": "user_started", "played_ms": 3}
    same = decode({"type": EVENT_ALIASES[alias], **payload}, native=native)
    assert decode({"type": alias, **payload}, native=native) == same


@pytest.mark.parametrize("alias", ["push_chunk", "input.audio.append"])
def test_legacy_appends_default_to_wav(alias: str) -> None:
    assert decode({"type": alias, "audio": AUDIO}) == c.AppendAudio(audio=b"\x01\x02" * 8, encoding="wav")
    assert decode({"type": alias, "audio": AUDIO, "format": "audio/wav"}) == decode({"type": alias, "audio": AUDIO})


def test_the_canonical_append_takes_no_wav() -> None:
    event = {"type": "input_audio_buffer.append", "audio": AUDIO}
    assert decode(event) == c.AppendAudio(audio=b"\x01\x02" * 8)
    assert refused({**event, "format": "wav"}) == ("unsupported_audio_format", "format")


@pytest.mark.parametrize("word", sorted(TURN_SIGNAL_COMMANDS))
@pytest.mark.parametrize("signal", ["turn.signal", "signal_turn"])
def test_a_signal_that_names_a_command_becomes_it(word: str, signal: str) -> None:
    payload = {
        "item_id": "i1",
        "response_id": "r1",
        "audio_end_ms": 5,
        "reason": "x",
        "session": {"speed": 1},
        "item": {"content": [{"type": "input_text", "text": "hi"}]},
    }
    own = {"type": word, "event_id": "evt_1", **payload}
    assert decode({"type": signal, "event": word, "event_id": "evt_1", "payload": payload}) == decode(own)


def test_a_signals_own_keys_win_over_its_payload() -> None:
    signal = {
        "type": "turn.signal",
        "event": "response.cancel",
        "response_id": "own",
        "payload": {"response_id": "inner", "type": "session.close", "event_id": "inner", "event": "x"},
    }
    assert decode(signal) == c.CancelResponse(response_id="own")


def test_other_signals_stay_signals() -> None:
    signal = {"type": "turn.signal", "event": "user_started", "payload": {"a": 1}}
    assert decode(signal) == c.SignalTurn(event="user_started", payload={"a": 1})
    assert refused({"type": "turn.signal"}) == ("bad_event", "event")
    assert refused({"type": "turn.signal", "event": ""}) == ("bad_event", "event")
    assert refused({"type": "turn.signal", "event": ["barge_in"]}) == ("bad_event", "event")
    assert refused({"type": "turn.signal", "event": "barge_in", "payload": 5}) == ("bad_event", "payload")
    assert refused({"type": "turn.signal", "event": "hm", "payload": []}) == ("bad_event", "payload")


# --- appends ----------------------------------------------------------------------------------------------------------


def append(**fields: Any) -> c.AppendAudio:
    """An append with ordinary audio."""
    command = decode({"type": "input_audio_buffer.append", "audio": AUDIO, **fields})
    assert isinstance(command, c.AppendAudio)
    return command


@pytest.mark.parametrize("spelling", ["audio", "delta", "data"])
def test_audio_spellings(spelling: str) -> None:
    assert decode({"type": "input_audio_buffer.append", spelling: AUDIO}) == c.AppendAudio(audio=b"\x01\x02" * 8)


@pytest.mark.parametrize(
    ("fields", "encoding", "rate"),
    [
        ({}, None, None),
        ({"format": "s16le"}, "pcm16", None),
        ({"input_audio_format": "audio/pcm_f32le"}, "pcm_f32le", None),
        ({"format": {"type": "audio/pcm", "rate": 24000}}, "pcm16", 24000),
        ({"format": {"format": "mulaw", "sample_rate_hz": 8000}}, "g711_ulaw", 8000),
        ({"format": {"type": "alaw", "sample_rate": 16000}}, "g711_alaw", 16000),
        ({"format": {"type": "pcm", "rate": 24000}, "sample_rate_hz": 48000}, "pcm16", 48000),
        ({"sample_rate": 44100}, None, 44100),
        ({"sample_rate_hz": 16000.0}, None, 16000),
        ({"format": "pcm16", "input_audio_format": "alaw"}, "pcm16", None),
    ],
)
def test_append_formats(fields: dict[str, Any], encoding: str | None, rate: int | None) -> None:
    command = append(**fields)
    assert (command.encoding, command.rate_hz) == (encoding, rate)


@pytest.mark.parametrize("rate", [7999, 192_001, 16000.5, True, "16000", [16000]])
def test_a_bad_rate(rate: Any) -> None:
    base = {"type": "input_audio_buffer.append", "audio": AUDIO}
    assert refused({**base, "sample_rate_hz": rate}) == ("bad_event", "sample_rate_hz")
    assert refused({**base, "format": {"type": "pcm16", "rate": rate}}) == ("bad_event", "sample_rate_hz")


@pytest.mark.parametrize("word", ["mp3", "", 5, {"type": "opus"}, ["pcm16"]])
def test_a_bad_format(word: Any) -> None:
    event = {"type": "input_audio_buffer.append", "audio": AUDIO, "format": word}
    assert refused(event) == ("unsupported_audio_format", "format")


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({"speech": True}, {"is_speech": True}),
        ({"is_speech": False, "vad": {"is_speech": True}}, {"is_speech": False}),
        ({"vad": {"is_speech": True, "silence_rms": 0.01}}, {"is_speech": True, "silence_rms": 0.01}),
        ({"vad": {"probability": 0.7}, "speech_probability": 0.1}, {"speech_probability": 0.7}),
        ({"speech_probability": 0.6}, {"speech_probability": 0.6}),
        ({"overlap_silence_rms": 0.02, "vad": {"silence_rms": 0.01}}, {"silence_rms": 0.02}),
        ({"audio_duration_ms": 20, "audio_start_ms": 5}, {"duration_ms": 20, "audio_start_ms": 5}),
        ({"overlap": "interrupt"}, {"overlap_action": "interrupt"}),
        ({"overlap_action": "listen", "overlap": "drop"}, {"overlap_action": "listen"}),
        ({"force_barge_in": True, "force_listen": True}, {"force_barge_in": True, "force_listen": True}),
        ({"transcript": "a", "text": "b", "hints": {"transcript": "c"}}, {"transcript": "a"}),
        ({"text": "b", "hints": {"text": "c"}}, {"transcript": "b"}),
        ({"hints": {"text": "c"}}, {"transcript": "c"}),
        ({"duration_ms": -5}, {"duration_ms": 0}),
    ],
)
def test_append_hints(fields: dict[str, Any], hints: dict[str, Any]) -> None:
    assert append(**fields).hints == c.AppendHints(**hints)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"is_speech": "yes"}, "is_speech"),
        ({"is_speech": 1}, "is_speech"),
        ({"duration_ms": True}, "duration_ms"),
        ({"duration_ms": "20"}, "duration_ms"),
        ({"vad": True}, "vad"),
        ({"vad": {"is_speech": 1}}, "vad.is_speech"),
        ({"hints": []}, "hints"),
        ({"hints": {"text": 4}}, "hints.transcript"),
        ({"overlap": True}, "overlap_action"),
        ({"force_listen": 0}, "force_listen"),
        ({"transcript": {}}, "transcript"),
        ({"speech_probability": "0.5"}, "speech_probability"),
    ],
)
def test_hints_of_the_wrong_kind(fields: dict[str, Any], param: str) -> None:
    assert refused({"type": "input_audio_buffer.append", "audio": AUDIO, **fields}) == ("bad_event", param)


def test_video_frames() -> None:
    assert append(video_frames=[JPEG, None, PNG], max_slice_nums=1).video_frames == (JPEG, PNG)
    assert append(video_frames=[]).video_frames == ()
    assert append(video_frames=[None]).video_frames == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"video_frames": JPEG},
        {"video_frames": [JPEG, JPEG, JPEG]},
        {"video_frames": [""]},
        {"video_frames": [7]},
        {"video_frames": ["data:image/jpeg;base64," + JPEG]},
        {"video_frames": [pybase64.b64encode_as_string(b"GIF89a")]},
        {"video_frames": ["@@@@"]},
        {"video_frames": ["/9j/" + "A" * 4_000_000]},
        {"video_frames": [JPEG], "max_slice_nums": 2},
        {"max_slice_nums": True},
    ],
    ids=range(10),
)
def test_bad_video_frames(fields: dict[str, Any]) -> None:
    event = {"type": "input_audio_buffer.append", "audio": AUDIO, **fields}
    assert refused(event) == ("invalid_video_frames", "video_frames")


# --- the other fields -------------------------------------------------------------------------------------------------

WRONG_KINDS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"type": "session.update", "session": []}, ("bad_event", "session")),
    ({"type": "session.event_ack"}, ("invalid_event_ack", "server_event_seq")),
    ({"type": "session.event_ack", "server_event_seq": -1}, ("invalid_event_ack", "server_event_seq")),
    ({"type": "session.event_ack", "server_event_seq": 1.5}, ("invalid_event_ack", "server_event_seq")),
    ({"type": "session.event_ack", "server_event_seq": "1"}, ("invalid_event_ack", "server_event_seq")),
    ({"type": "session.event_ack", "server_event_seq": True}, ("invalid_event_ack", "server_event_seq")),
    ({"type": "input_audio_buffer.commit", "final": 1}, ("bad_event", "final")),
    ({"type": "input_audio_buffer.commit", "response_create": "yes"}, ("bad_event", "response_create")),
    ({"type": "input_audio_buffer.commit", "is_speech": 0}, ("bad_event", "is_speech")),
    ({"type": "input.cancel", "reason": 4}, ("bad_event", "reason")),
    ({"type": "input.text.append"}, ("bad_event", "text")),
    ({"type": "input.text.append", "text": 5}, ("bad_event", "text")),
    ({"type": "conversation.item.create"}, ("bad_event", "item")),
    ({"type": "conversation.item.create", "item": "hi"}, ("bad_event", "item")),
    ({"type": "conversation.item.retrieve"}, ("missing_item_id", "item_id")),
    ({"type": "conversation.item.delete"}, ("missing_item_id", "item_id")),
    ({"type": "conversation.item.delete", "item_id": ""}, ("missing_item_id", "item_id")),
    ({"type": "conversation.item.delete", "item_id": 9}, ("bad_event", "item_id")),
    ({"type": "conversation.item.truncate", "audio_end_ms": "x"}, ("missing_item_id", "item_id")),
    ({"type": "conversation.item.truncate", "item_id": "i"}, ("bad_event", "audio_end_ms")),
    ({"type": "conversation.item.truncate", "item_id": "i", "audio_end_ms": "9"}, ("bad_event", "audio_end_ms")),
    ({"type": "conversation.item.truncate", "item_id": "i", "audio_end_ms": True}, ("bad_event", "audio_end_ms")),
    (
        {"type": "conversation.item.truncate", "item_id": "i", "audio_end_ms": 9, "content_index": 0.5},
        ("bad_event", "content_index"),
    ),
    ({"type": "response.create", "response": "now"}, ("bad_event", "response")),
    ({"type": "response.cancel", "response_id": 1}, ("bad_event", "response_id")),
    ({"type": "barge_in", "response_id": []}, ("bad_event", "response_id")),
    ({"type": "playback.ack", "played_ms": "5"}, ("bad_event", "played_ms")),
    ({"type": "playback.ack", "played_ms": True}, ("bad_event", "played_ms")),
    ({"type": "playback.ack", "committed_ms": {}}, ("bad_event", "committed_ms")),
    ({"type": "playback.ack", "truncate": "no"}, ("bad_event", "truncate")),
    ({"type": "audio.playback_ack", "audio_ms": []}, ("bad_event", "played_ms")),
]


@pytest.mark.parametrize(("event", "expected"), WRONG_KINDS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("native", [False, True])
def test_wrong_kinds(event: dict[str, Any], expected: tuple[str, str], native: bool) -> None:
    assert refused(event, native=native) == expected


def test_playback_positions() -> None:
    assert decode({"type": "playback.ack", "audio_ms": 700}) == c.AckPlayback(played_ms=700)
    assert decode({"type": "playback.ack", "played_ms": 5, "audio_ms": 700}) == c.AckPlayback(played_ms=5)
    assert decode({"type": "playback.ack", "played_ms": -3, "committed_ms": -9}) == c.AckPlayback(
        played_ms=0, committed_ms=0
    )
    huge = decode({"type": "playback.ack", "played_ms": 1e300})
    assert isinstance(huge, c.AckPlayback)
    assert huge.played_ms == 2**53 - 1


@pytest.mark.parametrize(
    ("value", "drain"), [(None, None), (False, None), (True, "sent"), ("sent", "sent"), ("played", "played")]
)
def test_a_close_may_drain(value: Any, drain: Any) -> None:
    assert decode({"type": "session.close", "drain": value, "drain_timeout_s": 3}) == c.CloseSession(
        drain=drain, drain_timeout_s=3
    )
    assert refused({"type": "session.close", "drain": "later"}) == ("bad_event", "drain")
    assert refused({"type": "session.close", "drain_timeout_s": "3"}) == ("bad_event", "drain_timeout_s")


def test_truncate_leaves_the_sign_to_the_session() -> None:
    assert decode({"type": "conversation.item.truncate", "item_id": "i", "audio_end_ms": -1}) == c.TruncateItem(
        item_id="i", audio_end_ms=-1
    )


def test_commit_fields() -> None:
    commit = {"type": "input_audio_buffer.commit", "response_create": True, "final": False, "audio_ms": 12}
    assert decode(commit) == c.CommitInput(response_create=True, final=False, audio_end_ms=12)
    assert decode({"type": "input_audio_buffer.commit", "create_response": True}) == c.CommitInput(response_create=True)


@pytest.mark.parametrize(
    ("event", "session"),
    [
        ({"type": "session.update", "session": {"speed": 1}}, {"speed": 1}),
        ({"type": "session.update", "event_id": "e", "speed": 1}, {"speed": 1}),
        ({"type": "session.update", "event_id": "e", "session": None, "speed": 1}, {"speed": 1}),
        ({"type": "session.create", "session_id": "s", "session": {"speed": 1}}, {"speed": 1, "session_id": "s"}),
        ({"type": "session.create", "session_id": "s", "session": {"session_id": "t"}}, {"session_id": "t"}),
    ],
)
def test_the_session_object_of_an_event(event: dict[str, Any], session: dict[str, Any]) -> None:
    assert event_session(event) == session


def test_an_update_carries_its_raw_object() -> None:
    assert decode({"type": "session.update", "session": {"x": None}}) == c.UpdateSession(session={"x": None})


# --- the native dialect's differences ---------------------------------------------------------------------------------


def test_input_commit_wants_a_response_in_the_native_dialect_only() -> None:
    assert decode({"type": "input.commit"}, native=True) == c.CommitInput(response_create=True)
    assert decode({"type": "input.commit", "response_create": False}, native=True) == c.CommitInput(
        response_create=False
    )
    assert decode({"type": "input_audio_buffer.commit"}, native=True) == c.CommitInput()
    assert decode({"type": "input.commit"}) == c.CommitInput()


@pytest.mark.parametrize("name", ["session.create", *OPENING_ALIASES])
def test_an_opening_message_on_an_open_native_session(name: str) -> None:
    assert refused({"type": name, "session": {}}, native=True) == ("session_exists", None)


@pytest.mark.parametrize("command", [c.AppendAudio(audio=b"secret"), c.ItemAudio(audio=b"secret")])
def test_audio_never_shows_in_a_repr(command: Any) -> None:
    assert "secret" not in repr(command)
    assert attrs.has(type(command))
