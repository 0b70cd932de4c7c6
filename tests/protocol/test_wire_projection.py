"""Order and cardinality of what a native event becomes in the duplex view (contract 5, 5.1, 7, 15.1, 19)."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol.errors import LocalProtocolError
from duplex_protocol.native import FLAT
from duplex_protocol.projection import FANOUT, FINISHED_KEPT
from duplex_protocol.realtime import RealtimeDialect
from tests.protocol.wire_kit import (
    CALL,
    CANCELLED,
    COMMITTED,
    CREATED,
    DELTA,
    DONE,
    SESSION,
    TEXT,
    frames,
    run,
    types,
)

SPEAK = e.ResponseSpeak(session_id=SESSION, response_id="resp_01", item_id="item_resp_01", epoch=0)


def shown(*events: e.Event) -> list[dict[str, Any]]:
    """The frames of some events in a fresh duplex view."""
    return run(RealtimeDialect(), *events)


def test_every_native_event_has_its_rows() -> None:
    everything = {cls for cls in vars(e).values() if isinstance(cls, type) and issubclass(cls, e.Event)} - {e.Event}
    assert set(FANOUT) == everything
    assert set(FLAT) == everything
    with pytest.raises(LocalProtocolError):
        RealtimeDialect().project(e.Event())


# --- the response -----------------------------------------------------------------------------------------------------


def test_speak_comes_once_and_before_the_first_audio() -> None:
    twice = shown(CREATED, DELTA, DELTA)
    assert types(twice).count("response.speak") == 1
    assert types(twice)[5:] == [
        "response.speak",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
    ]
    assert types(shown(CREATED, SPEAK, SPEAK, DELTA)).count("response.speak") == 1
    silent = attrs.evolve(DELTA, model_speak=False)
    assert "response.speak" not in types(shown(CREATED, silent))


def test_every_audio_delta_is_followed_by_one_transcript_delta() -> None:
    empty = attrs.evolve(DELTA, text="")
    pair = shown(CREATED, empty)[-2:]
    assert types(pair) == ["response.output_audio.delta", "response.output_audio_transcript.delta"]
    assert pair[1]["delta"] == ""


def test_text_without_audio_is_a_transcript_delta_only() -> None:
    assert types(shown(CREATED, attrs.evolve(DELTA, audio=b"")))[5:] == ["response.output_audio_transcript.delta"]
    assert shown(CREATED, attrs.evolve(DELTA, audio=b"", text=""))[5:] == []


def test_deltas_are_droppable_together_and_nothing_else_is() -> None:
    dialect = RealtimeDialect()
    groups = dialect.project(CREATED) + dialect.project(DELTA) + dialect.project(DONE)
    droppable = [types(list(group.frames)) for group in groups if group.droppable]
    assert droppable == [["response.output_audio.delta", "response.output_audio_transcript.delta"]]
    assert all(group.numbered for group in groups)


def test_a_text_response_opens_no_audio_part() -> None:
    text_only = attrs.evolve(CREATED, modalities=("text",))
    done = attrs.evolve(DONE, had_audio=False, transcript="", text="Tomorrow looks")
    assert types(shown(text_only, TEXT, TEXT, done)) == [
        "response.created",
        "conversation.item.added",
        "conversation.item.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ]


def test_the_text_part_comes_after_an_audio_part() -> None:
    done = attrs.evolve(DONE, text="Tomorrow looks")
    both = shown(CREATED, DELTA, TEXT, done)
    parts = [
        (frame["type"], frame["content_index"], frame["part"]["type"])
        for frame in both
        if frame["type"].startswith("response.content_part")
    ]
    assert parts == [
        ("response.content_part.added", 0, "audio"),
        ("response.content_part.added", 1, "text"),
        ("response.content_part.done", 0, "audio"),
        ("response.content_part.done", 1, "text"),
    ]
    assert {f["content_index"] for f in both if f["type"].startswith("response.output_text")} == {1}


def test_audio_on_a_text_response_opens_its_part_late() -> None:
    late = shown(attrs.evolve(CREATED, modalities=("text",)), DELTA, DONE)
    assert types(late).count("response.content_part.added") == 1
    assert types(late).count("response.content_part.done") == 1


def test_unknown_modalities_count_as_audio() -> None:
    assert types(shown(attrs.evolve(CREATED, modalities=())))[-1] == "response.content_part.added"


SILENT = attrs.evolve(
    CANCELLED,
    had_audio=False,
    transcript="",
    item=v.Item(
        id="item_resp_01",
        role="assistant",
        status="cancelled",
        content=(v.ContentPart("output_audio", transcript=""),),
    ),
)


def test_a_response_cancelled_before_any_output() -> None:
    assert types(shown(CREATED, SILENT))[5:] == [
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ]


def test_on_a_cancel_the_item_is_cut_but_the_transcript_is_what_was_sent() -> None:
    cut = attrs.evolve(CANCELLED.item, content=(v.ContentPart("output_audio", transcript="It is"),))
    cancelled = attrs.evolve(CANCELLED, item=cut, transcript="It is sunny")
    by_type = {frame["type"]: frame for frame in shown(CREATED, DELTA, cancelled)}
    assert by_type["response.output_audio_transcript.done"]["transcript"] == "It is sunny"
    assert by_type["response.content_part.done"]["part"]["transcript"] == "It is sunny"
    for item in (
        by_type["response.output_item.done"]["item"],
        by_type["conversation.item.done"]["item"],
        by_type["response.done"]["response"]["output"][0],
    ):
        assert (item["status"], item["content"][0]["transcript"]) == ("cancelled", "It is")


def test_the_raw_terminal_stands_in_the_metadata() -> None:
    done = shown(CREATED, CANCELLED)[-2]["response"]
    assert done["metadata"] == {
        "type": "audio.cancelled",
        "session_id": SESSION,
        "response_id": "resp_01",
        "reason": "barge_in",
        "cancelled_epoch": 0,
        "epoch": 1,
        "committed_ms": 2400,
        "playback": DONE.playback.as_wire(),
    }
    failed = attrs.evolve(CANCELLED, status="failed", reason="runtime_append_failed", next_epoch=None)
    done = shown(CREATED, failed)[-2]["response"]
    assert done["status_details"] == {"type": "failed", "reason": "runtime_append_failed"}
    assert done["metadata"]["type"] == "response.done"
    assert done["metadata"]["status"] == "failed"


def test_a_second_terminal_and_late_events_give_nothing() -> None:
    dialect = RealtimeDialect()
    run(dialect, CREATED, DELTA, DONE)
    listen = e.ResponseListen(session_id=SESSION, epoch=0, reason="model_listen", response_id="resp_01")
    assert run(dialect, DONE, CANCELLED, DELTA, TEXT, SPEAK, listen) == []


@pytest.mark.parametrize("event", [DELTA, TEXT, SPEAK, DONE], ids=lambda event: type(event).__name__)
def test_nothing_may_come_before_the_response(event: e.Event) -> None:
    dialect = RealtimeDialect()
    with pytest.raises(LocalProtocolError):
        dialect.project(event)
    assert types(run(dialect, CREATED, DONE))[0] == "response.created"


def test_an_id_is_never_used_twice() -> None:
    dialect = RealtimeDialect()
    run(dialect, CREATED)
    with pytest.raises(LocalProtocolError):
        dialect.project(CREATED)
    assert types(run(dialect, DONE))[-1] == "rate_limits.updated"
    with pytest.raises(LocalProtocolError):
        dialect.project(CREATED)


def test_finished_responses_do_not_pile_up() -> None:
    dialect = RealtimeDialect()
    for number in range(FINISHED_KEPT * 2):
        name = f"resp_{number}"
        run(dialect, attrs.evolve(CREATED, response_id=name), attrs.evolve(DONE, response_id=name))
    memory = dialect._memory
    assert memory.open == {}
    assert len(memory.finished) == FINISHED_KEPT


def test_a_listen_that_ends_a_response_names_it_and_the_done_follows() -> None:
    named = e.ResponseListen(
        session_id=SESSION,
        epoch=0,
        reason="silence_or_noise",
        model_listen=False,
        buffering=True,
        response_id="resp_01",
    )
    listen, *terminal = shown(CREATED, named, attrs.evolve(DONE, had_audio=False, transcript="", committed=False))[5:]
    assert (listen["type"], listen["response_id"], listen["response"]["id"]) == (
        "response.listen",
        "resp_01",
        "resp_01",
    )
    assert listen["response"]["metadata"]["model_listen"] is False
    assert listen["response"]["metadata"]["buffering"] is True
    assert terminal[-2]["response_id"] == "resp_01"


def test_the_clients_metadata_stands_beside_ours() -> None:
    own = attrs.evolve(CREATED, metadata={"trace": "turn-3"}, conversation="none", prompt={"id": "p"})
    metadata = shown(own)[0]["response"]["metadata"]
    assert metadata["trace"] == "turn-3"
    assert metadata["duplex_event"]["conversation"] == "none"
    assert metadata["duplex_event"]["prompt"] == {"id": "p"}


def test_brackets_close_whatever_the_order_of_output() -> None:
    """Every ``added`` has its ``done`` for all short outputs and all ends."""
    outputs = [DELTA, TEXT, SPEAK, attrs.evolve(DELTA, audio=b""), attrs.evolve(DELTA, model_speak=False)]
    for modalities in (("audio", "text"), ("text",), ()):
        for chosen in itertools.product(outputs, repeat=3):
            for status in ("completed", "cancelled", "failed", "incomplete"):
                words = "".join(event.text for event in chosen if isinstance(event, e.AudioDelta))
                text = "".join(event.delta for event in chosen if isinstance(event, e.TextDelta))
                had_audio = any(isinstance(event, e.AudioDelta) and event.audio for event in chosen)
                end = attrs.evolve(DONE, status=status, had_audio=had_audio, transcript=words, text=text, reason="x")
                seen = types(shown(attrs.evolve(CREATED, modalities=modalities), *chosen, end))
                for pair in ("response.content_part", "response.output_item"):
                    assert seen.count(f"{pair}.added") == seen.count(f"{pair}.done"), seen
                assert seen.count("conversation.item.added") == seen.count("conversation.item.done") == 1
                assert seen.count("response.output_audio.delta") <= seen.count("response.output_audio_transcript.delta")
                assert seen[-2:] == ["response.done", "rate_limits.updated"]


# --- items and commits ------------------------------------------------------------------------------------------------


def test_a_known_item_is_not_announced_again() -> None:
    assert types(shown(attrs.evolve(COMMITTED, item_known=True))) == [
        "input_audio_buffer.committed",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.done",
    ]


def test_only_the_first_transcript_is_told() -> None:
    parts = (
        v.ContentPart("input_text", text="t"),
        v.ContentPart("input_audio", transcript=""),
        v.ContentPart("input_audio", transcript="one"),
        v.ContentPart("input_audio", transcript="two"),
    )
    told = [
        frame
        for frame in shown(attrs.evolve(COMMITTED, item=v.Item(id="i", content=parts)))
        if frame["type"].endswith("transcription.completed")
    ]
    assert [(frame["content_index"], frame["transcript"]) for frame in told] == [(2, "one")]


def test_a_silence_commit_still_has_its_item() -> None:
    silence = v.Item(id="i", content=(v.ContentPart("input_audio", transcript="", is_speech=False),))
    commit = attrs.evolve(COMMITTED, item=silence, empty=True, no_response=True, is_speech=False, overlap_ack=True)
    seen = shown(commit)
    assert types(seen) == [
        "conversation.item.added",
        "conversation.item.created",
        "input_audio_buffer.committed",
        "conversation.item.done",
    ]
    assert seen[0]["item"]["content"] == [{"type": "input_audio", "transcript": "", "is_speech": False}]
    event = seen[2]["event"]
    named = {"empty": True, "no_response": True, "is_speech": False, "overlap_ack": True}
    assert {key: event[key] for key in named} == named


def test_a_commit_without_an_item() -> None:
    (frame,) = shown(attrs.evolve(COMMITTED, item=v.Item(id=""), empty=True))
    assert (frame["type"], frame["item_id"]) == ("input_audio_buffer.committed", None)


def test_a_late_transcript() -> None:
    (frame,) = shown(e.InputTranscribed(item_id="i", transcript="words", audio_ms=500))
    assert frame == {
        "type": "conversation.item.input_audio_transcription.completed",
        "item_id": "i",
        "content_index": 0,
        "transcript": "words",
    }


def test_created_items() -> None:
    raw = {"type": "input_audio", "audio": "AAAA", "own": 1}
    item = v.Item(id="i", content=(v.ContentPart("input_audio", raw=raw),))
    event = e.ItemCreated(item=item, previous_item_id="root", predecessor_id="p")
    added, created, done = shown(event)
    assert (added["previous_item_id"], created["previous_item_id"], done["previous_item_id"]) == ("root", "root", "p")
    assert added["item"]["content"] == [raw]
    assert types(shown(attrs.evolve(event, done=False))) == ["conversation.item.added", "conversation.item.created"]


def test_what_an_item_knows_about_its_audio() -> None:
    part = v.ContentPart("output_audio", transcript="hi", audio_duration_ms=400, audio_text_marks=(v.TextMark(2, 300),))
    (frame,) = shown(e.ItemRetrieved(item=v.Item(id="i", role="assistant", content=(part,))))
    assert frame["item"]["content"] == [
        {
            "type": "output_audio",
            "transcript": "hi",
            "audio_duration_ms": 400,
            "audio_text_marks": [{"text_chars": 2, "audio_end_ms": 300}],
        }
    ]


def test_other_item_kinds() -> None:
    output = v.Item(id="i", type="function_call_output", role=None, call_id="c", output="o")
    (frame,) = shown(e.ItemRetrieved(item=output))
    assert frame["item"] == {
        "id": "i",
        "object": "realtime.item",
        "type": "function_call_output",
        "status": "completed",
        "call_id": "c",
        "output": "o",
    }


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_tool_call_is_a_response_of_its_own() -> None:
    seen = shown(CALL)
    assert types(seen) == [
        "response.created",
        "conversation.item.added",
        "conversation.item.created",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ]
    assert seen[0]["response"]["status"] == "in_progress"
    assert seen[3]["item"]["status"] == "completed"
    assert seen[8]["response"]["output"] == [seen[3]["item"]]


@pytest.mark.parametrize("missing", [{"call_id": None}, {"name": None}, {"call_id": ""}])
def test_a_malformed_tool_call_is_shown_raw(missing: dict[str, Any]) -> None:
    assert types(shown(attrs.evolve(CALL, **missing))) == ["duplex.function_call.done"]


@pytest.mark.parametrize(
    ("event", "numbered"),
    [
        (e.SessionResumed(session_id=SESSION, incarnation=0, attachment_generation=2, resume_token="t"), False),
        (e.SessionReplaced(session_id=SESSION, attachment_generation=1), False),
        (e.ResyncRequired(session_id=SESSION, reason="journal_gap"), False),
        (e.ResyncRequired(session_id=SESSION, reason="journal_overflow"), True),
        (e.HeartbeatAck(session_id=SESSION), True),
        (e.SessionExpired(session_id=SESSION, incarnation=0, reason="idle_ttl_expired"), True),
        (e.ErrorRaised(code="bad_event", message="m"), True),
    ],
    ids=str,
)
def test_what_has_no_number(event: e.Event, numbered: bool) -> None:
    assert [group.numbered for group in RealtimeDialect().project(event)] == [numbered]


def test_a_turn_event_is_passed_through() -> None:
    (frame,) = shown(e.TurnEvent(session_id=SESSION, event="user_started", turn_state="idle", epoch=0))
    assert frame == {
        "type": "duplex.turn.event",
        "event": {
            "type": "turn.event",
            "session_id": SESSION,
            "event": "user_started",
            "turn_state": "idle",
            "epoch": 0,
        },
    }


def test_a_retryable_error_says_so() -> None:
    (frame,) = shown(e.ErrorRaised(code="input_backpressure", message="m", retryable=True))
    assert frame["error"] == {
        "type": "rate_limit_error",
        "code": "input_backpressure",
        "message": "m",
        "retryable": True,
    }


def test_frames_are_never_shared_between_steps() -> None:
    dialect = RealtimeDialect()
    first, second = frames(dialect.project(COMMITTED)), frames(dialect.project(COMMITTED))
    assert first == second
    first[0]["item"]["content"].clear()
    assert frames(dialect.project(COMMITTED)) == second
