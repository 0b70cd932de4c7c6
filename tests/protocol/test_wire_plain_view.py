"""The plain view: what stock OpenAI clients need (contract 25), independent of the official SDK's types."""

from __future__ import annotations

import json
from typing import Any

import attrs
import orjson
import pytest

from duplex_protocol import commands as c
from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol import wire
from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.catalogue import BEYOND_THE_CATALOGUE, SERVER_EVENTS
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.handshake import choose_view, may_switch
from duplex_protocol.projection import FANOUT, never
from duplex_protocol.realtime import PLAIN_DELTA_BYTES, RealtimeDialect
from tests.protocol.wire_kit import (
    ANSWER,
    CALL,
    CANCELLED,
    COMMITTED,
    CREATED,
    DEFAULTS,
    DELTA,
    DONE,
    SESSION,
    frames,
    run,
    session_created,
    snapshot,
    types,
)


def plain(*events: e.Event) -> list[dict[str, Any]]:
    """The frames of some events in a fresh plain view."""
    return run(RealtimeDialect("plain"), *events)


def error_of(**fields: Any) -> dict[str, Any]:
    """The ``error`` object of a refusal."""
    (frame,) = plain(e.ErrorRaised(**{"message": "because", **fields}))
    body: dict[str, Any] = frame["error"]
    return body


# --- which view -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "update", "view"),
    [
        ({}, None, "plain"),
        ({"model": "m"}, None, "plain"),
        ({"model": "m"}, {"instructions": "x", "audio": {}, "turn_detection": None}, "plain"),
        (
            {"session_id": "s", "resume_token": "t", "incarnation": "0", "last_received_server_event_seq": "4"},
            None,
            "plain",
        ),
        ({"duplex": "1"}, None, "duplex"),
        ({"duplex": "TRUE"}, None, "duplex"),
        ({"duplex": "0"}, None, "plain"),
        ({"native_duplex": "yes"}, None, "duplex"),
        ({"minicpmo45_native_duplex": "on"}, None, "duplex"),
        ({"autostart": "0"}, None, "duplex"),
        ({"autostart": "off"}, None, "duplex"),
        ({"autostart": "1"}, None, "plain"),
        ({"resume": "1"}, None, "duplex"),
        ({"view": "duplex"}, None, "duplex"),
        ({"view": "openai", "duplex": "1"}, {"extra_body": {}}, "plain"),
        ({"view": "other"}, None, "plain"),
        ({}, {"overlap_policy": "listen_only"}, "duplex"),
        ({}, {"overlap_short_ack_ms": 5}, "duplex"),
        ({}, {"playback_commit_policy": "ack_only"}, "duplex"),
        ({}, {"extra_body": {}}, "duplex"),
        ({}, {"ref_audio": "x"}, "duplex"),
        ({}, {"idle_timeout_s": 5}, "duplex"),
        ({}, {"sample_rate_hz": 16000}, "duplex"),
    ],
    ids=str,
)
def test_the_choice(query: dict[str, str], update: dict[str, Any] | None, view: str) -> None:
    assert choose_view(query, update) == view


@pytest.mark.parametrize(("query", "may"), [({}, True), ({"view": "openai"}, False), ({"view": "other"}, True)])
def test_an_explicit_view_may_not_switch(query: dict[str, str], may: bool) -> None:
    assert may_switch(query, "plain") is may
    assert not may_switch(query, "duplex")


def test_the_view_may_switch_before_the_first_update() -> None:
    dialect = RealtimeDialect("plain", undecided=True)
    (created,) = run(dialect, session_created(by_update=False))
    assert "epoch" not in created["session"]
    assert dialect.meet_update({"extra_body": {}})
    (updated,) = run(dialect, e.SessionUpdated(session=snapshot()))
    assert updated["session"]["epoch"] == 0


@pytest.mark.parametrize(
    ("undecided", "first"), [(False, {"extra_body": {}}), (True, {"instructions": "x"})], ids=["decided", "plain first"]
)
def test_only_the_first_update_of_an_undecided_session_counts(undecided: bool, first: dict[str, Any]) -> None:
    dialect = RealtimeDialect("plain", undecided=undecided)
    assert not dialect.meet_update(first)
    assert not dialect.meet_update({"extra_body": {}})
    assert dialect.view == "plain"


# --- one table, two views ---------------------------------------------------------------------------------------------


def test_the_catalogue_says_what_the_table_does() -> None:
    """An event is omitted exactly where every row that sends it is closed to the plain view."""
    rows = [row for steps in FANOUT.values() for row in steps]
    catalogue = SERVER_EVENTS | BEYOND_THE_CATALOGUE
    assert {row.type for row in rows} == set(catalogue)
    for name, entry in catalogue.items():
        closed = all(row.plain is never for row in rows if row.type == name)
        assert closed == (entry.plain == "omitted"), name


UNASKED: list[e.Event] = [
    e.SessionClosed(session_id=SESSION, reason="timeout"),
    e.SessionExpired(session_id=SESSION, incarnation=0, reason="idle_ttl_expired"),
    e.SessionReplaced(session_id=SESSION, attachment_generation=1),
    e.ResyncRequired(session_id=SESSION, reason="journal_overflow"),
    e.SpeechStarted(item_id="i", audio_start_ms=0, detected_by_server=False),
    e.SpeechStopped(item_id="i", audio_end_ms=9, detected_by_server=False),
    e.ResponseListen(session_id=SESSION, epoch=0, reason="model_listen"),
    attrs.evolve(CALL, name=None),
    e.PlaybackAcknowledged(
        session_id=SESSION,
        epoch=0,
        item_id="i",
        played_ms=0,
        committed_ms=0,
        truncate=True,
        playback=v.Playback(),
        history_committed=False,
        asked=False,
    ),
    e.OverlapDecision(session_id=SESSION, epoch=0, policy="listen_only", action="drop", reason="x"),
    e.RuntimeControl(session_id=SESSION, epoch=0, result={}),
]


@pytest.mark.parametrize("event", UNASKED, ids=lambda event: type(event).__name__)
def test_nothing_of_ours_appears_unasked(event: e.Event) -> None:
    assert plain(event) == []


ASKED: list[tuple[e.Event, str]] = [
    (e.HeartbeatAck(session_id=SESSION), "session.heartbeat_ack"),
    (e.SessionClosed(session_id=SESSION, reason="session_close"), "session.closed"),
    (e.ResyncRequired(session_id=SESSION, reason="journal_gap"), "session.resync_required"),
    (
        e.SessionResumed(session_id=SESSION, incarnation=0, attachment_generation=2, resume_token="t"),
        "session.resumed",
    ),
    (
        e.PlaybackAcknowledged(
            session_id=SESSION,
            epoch=0,
            item_id="i",
            played_ms=0,
            committed_ms=0,
            truncate=False,
            playback=v.Playback(),
            history_committed=False,
        ),
        "playback.acknowledged",
    ),
    (e.TurnEvent(session_id=SESSION, event="user_started", turn_state="idle", epoch=0), "duplex.turn.event"),
]


@pytest.mark.parametrize(("event", "kind"), ASKED, ids=lambda value: type(value).__name__)
def test_a_client_that_asks_gets_the_answer(event: e.Event, kind: str) -> None:
    assert types(plain(event)) == [kind]


# --- session ----------------------------------------------------------------------------------------------------------


def test_the_session_object_is_openais() -> None:
    dialect = RealtimeDialect("plain")
    config = dialect.parse_open({"audio": {"output": {"voice": "marin"}}, "truncation": "auto"}, DEFAULTS).config
    (created,) = run(dialect, session_created(attrs.evolve(config, ref_audio="data:secret"), by_update=False))
    session = created["session"]
    assert (session["type"], session["object"], session["id"]) == ("realtime", "realtime.session", SESSION)
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["output"]["voice"] == "marin"
    assert (session["max_output_tokens"], session["truncation"]) == ("inf", "auto")
    assert (session["resume_token"], session["incarnation"]) == ("rt_3f9c", 0)
    assert set(created) == {"type", "session"}
    assert "secret" not in json.dumps(created)
    assert "capabilities" not in session


def test_g711_has_openais_names() -> None:
    config = v.SessionConfig(
        model="m", input_format=AudioFormat("g711_ulaw", 8000), output_format=AudioFormat("g711_alaw", 8000)
    )
    (created,) = plain(session_created(config, by_update=False))
    audio = created["session"]["audio"]
    assert (audio["input"]["format"], audio["output"]["format"]) == ({"type": "audio/pcmu"}, {"type": "audio/pcma"})


def test_a_resume_by_url_starts_with_session_created() -> None:
    dialect = RealtimeDialect("plain")
    run(dialect, session_created(by_update=False))
    resumed = e.SessionResumed(
        session_id=SESSION, incarnation=0, attachment_generation=2, resume_token="rt_new", by_query=True
    )
    (group,) = dialect.project(resumed)
    assert not group.numbered
    (frame,) = group.frames
    assert frame["type"] == "session.created"
    assert frame["session"]["resume_token"] == "rt_new"
    assert frame["session"]["audio"]["input"]["format"]["type"] == "audio/pcm"
    assert types(run(RealtimeDialect("duplex"), resumed)) == ["session.resumed"]


# --- items ------------------------------------------------------------------------------------------------------------


def test_the_transcript_comes_once() -> None:
    by_type = {frame["type"]: frame for frame in plain(COMMITTED)}
    told = by_type["conversation.item.input_audio_transcription.completed"]
    assert told["transcript"] == "what is the weather today"
    assert told["usage"] == {"type": "duration", "seconds": 1.82}
    for name in ("conversation.item.added", "conversation.item.done"):
        assert by_type[name]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert set(by_type["input_audio_buffer.committed"]) == {"type", "item_id", "previous_item_id"}
    (late,) = plain(e.InputTranscribed(item_id="i", transcript="words", audio_ms=500))
    assert late["usage"] == {"type": "duration", "seconds": 0.5}


def test_root_is_echoed_as_null() -> None:
    item = v.Item(id="i", content=(v.ContentPart("input_text", text="x"),))
    added, created, done = plain(e.ItemCreated(item=item, previous_item_id="root", predecessor_id=None))
    assert (added["previous_item_id"], created["previous_item_id"], done["previous_item_id"]) == (None, None, None)
    other = plain(e.ItemCreated(item=item, previous_item_id="a", predecessor_id="b"))
    assert [frame["previous_item_id"] for frame in other] == ["a", "a", "b"]


def test_no_audio_comes_back_in_items() -> None:
    raw = {"type": "input_audio", "audio": "A" * 5_000_000, "transcript": "t"}
    item = v.Item(id="i", content=(v.ContentPart("input_audio", transcript="t", raw=raw),))
    for frame in plain(
        e.ItemCreated(item=item, previous_item_id=None, predecessor_id=None), e.ItemRetrieved(item=item)
    ):
        assert frame["item"]["content"] == [{"type": "input_audio", "transcript": "t"}]


@pytest.mark.parametrize(
    ("status", "word"), [("cancelled", "incomplete"), ("failed", "incomplete"), ("completed", "completed")]
)
def test_item_status_words(status: Any, word: str) -> None:
    (frame,) = plain(e.ItemRetrieved(item=attrs.evolve(ANSWER, status=status)))
    assert frame["item"]["status"] == word


# --- responses --------------------------------------------------------------------------------------------------------


def test_a_response_has_no_extension() -> None:
    metadata = {"client_event_id": "response_create_1", "n": 5}
    own = attrs.evolve(CREATED, metadata=metadata)
    seen = plain(own, DELTA, attrs.evolve(DONE, metadata=metadata))
    assert "response.speak" not in types(seen)
    created, delta, done = seen[0], seen[5], seen[-2]
    assert created["response"]["metadata"] == {"client_event_id": "response_create_1", "n": "5"}
    assert done["response"]["metadata"] == created["response"]["metadata"]
    assert set(created) == set(done) == {"type", "response"}
    assert set(delta) == {"type", "response_id", "item_id", "output_index", "content_index", "delta"}
    assert created["response"]["output_modalities"] == ["audio"]


REASONS = [
    ("cancelled", "barge_in", None, "cancelled", "turn_detected"),
    ("cancelled", "turn_detected", None, "cancelled", "turn_detected"),
    ("cancelled", "client_cancelled", None, "cancelled", "client_cancelled"),
    ("cancelled", "output_audio_buffer_clear", None, "cancelled", "client_cancelled"),
    ("cancelled", "new_response", None, "cancelled", "client_cancelled"),
    ("cancelled", "something_else", None, "cancelled", "client_cancelled"),
    ("completed", None, "length", "incomplete", "max_output_tokens"),
    ("incomplete", "max_output_tokens", None, "incomplete", "max_output_tokens"),
]


@pytest.mark.parametrize(("status", "reason", "finish", "shown_status", "shown_reason"), REASONS)
def test_status_and_reason_words(
    status: Any, reason: str | None, finish: str | None, shown_status: str, shown_reason: str
) -> None:
    end = attrs.evolve(DONE, status=status, reason=reason, finish_reason=finish)
    response = plain(CREATED, DELTA, end)[-2]["response"]
    assert response["status"] == shown_status
    assert response["status_details"] == {"type": shown_status, "reason": shown_reason}


def test_a_failure_names_its_code_and_a_success_has_no_details() -> None:
    failed = attrs.evolve(DONE, status="failed", reason="chat_error")
    response = plain(CREATED, failed)[-2]["response"]
    assert response["status_details"] == {"type": "failed", "error": {"type": "server_error", "code": "chat_error"}}
    assert plain(CREATED, DONE)[-2]["response"]["status_details"] is None


def test_a_cancelled_answer_is_incomplete() -> None:
    seen = plain(CREATED, DELTA, CANCELLED)
    assert seen[-2]["response"]["output"][0]["status"] == "incomplete"
    assert seen[-3]["item"]["status"] == "incomplete"


def test_a_tool_call_is_announced_empty_and_in_progress() -> None:
    seen = plain(CALL)
    by_type = {frame["type"]: frame for frame in seen}
    for name in ("conversation.item.added", "response.output_item.added"):
        item = by_type[name]["item"]
        assert (item["status"], item["arguments"], item["name"]) == ("in_progress", "", "get_weather")
    for name in ("response.output_item.done", "conversation.item.done"):
        item = by_type[name]["item"]
        assert (item["status"], item["arguments"]) == ("completed", '{"city":"Hong Kong"}')
    assert by_type["response.function_call_arguments.done"]["name"] == "get_weather"


@pytest.mark.parametrize("size", [1, 2_000_000, PLAIN_DELTA_BYTES * 3])
def test_every_delta_stays_under_one_mebibyte_in_whole_samples(size: int) -> None:
    audio = bytes(size * 2)
    dialect = RealtimeDialect("plain")
    run(dialect, CREATED)
    groups = dialect.project(attrs.evolve(DELTA, audio=audio, end_of_turn=True))
    pieces = [frame["delta"] for frame in frames(groups) if frame["type"] == "response.output_audio.delta"]
    assert b"".join(pieces) == audio
    assert all(len(piece) % 2 == 0 for piece in pieces)
    seen = types(frames(groups))
    assert seen == ["response.output_audio.delta", "response.output_audio_transcript.delta"] * len(pieces)
    words = [frame["delta"] for frame in frames(groups) if frame["type"].endswith("transcript.delta")]
    assert "".join(words) == DELTA.text
    for frame in frames(groups):
        assert len(wire.encode(frame, event_id="event_" + "0" * 32, server_event_seq=2**50)) < 2**20


def test_an_idle_clear_names_no_response() -> None:
    (frame,) = plain(e.OutputCleared(session_id=SESSION, response_id=None, epoch=0))
    assert frame["response_id"] == ""


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "cause", "expected"),
    [
        ("response_not_active", None, "response_cancel_not_active"),
        ("response_already_active", None, "conversation_already_has_active_response"),
        ("item_not_found", None, "item_retrieve_invalid_item_id"),
        ("item_not_found", c.RetrieveItem, "item_retrieve_invalid_item_id"),
        ("item_not_found", c.DeleteItem, "item_delete_invalid_item_id"),
        ("item_not_found", c.TruncateItem, "item_truncate_invalid_item_id"),
        ("item_exists", None, "item_create_duplicate_item_id"),
        ("input_audio_buffer_empty", None, "input_audio_buffer_commit_empty"),
        ("bad_audio", None, "bad_audio"),
    ],
)
def test_openais_error_codes(code: str, cause: type[c.Command] | None, expected: str) -> None:
    assert error_of(code=code, cause=cause)["code"] == expected


def test_a_refused_cancel_reads_as_clients_expect() -> None:
    error = error_of(code="response_not_active", related_event_id="evt_1")
    assert error["message"] == "Cancellation failed: because"
    assert error["event_id"] == "evt_1"


def test_an_error_holds_nothing_of_ours() -> None:
    assert set(error_of(code="input_backpressure", retryable=True)) == {"type", "code", "message"}


def test_handshake_errors_are_never_flat() -> None:
    error = RemoteProtocolError("config_timeout", "late")
    for flat in (True, False):
        frame = RealtimeDialect("plain").handshake_error(error, flat=flat)
        assert orjson.loads(wire.encode(frame, event_id="event_1", server_event_seq=None)) == {
            "type": "error",
            "event_id": "event_1",
            "error": {"type": "invalid_request_error", "code": "config_timeout", "message": "late"},
        }
