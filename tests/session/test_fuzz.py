"""Any sequence of client events, right and wrong, against every kind of model and view: the log keeps its invariants.

One terminal per answer, brackets closed, numbers gapless, one transcript delta per audio delta, the ledger in order,
nothing of a dead epoch, never ``internal_error`` (issue: "Bad input").
"""

from __future__ import annotations

from typing import Any

import attrs
import pybase64
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex_protocol.values import TextMark
from tests.session.talk import Json, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import (
    InputUnit,
    Listened,
    ModelFailed,
    ModelResult,
    Speech,
    SpeechStarted,
    SpeechStopped,
    Spoke,
    ToolCalled,
    Traits,
    Turn,
    TurnEnded,
    TurnTranscribed,
)
from trio_duplex.testing import Fail, Piece, ScriptedOptions, ScriptedSession
from trio_duplex.testing.scripted_model import square_wave
from trio_duplex.testing.scripted_vad import ScriptedVad


def speaks_in_silence(session: ScriptedSession, unit: InputUnit) -> list[ModelResult]:
    count = len(session.units)
    if unit.force_listen or count % 3 == 0:
        return [Listened(epoch=unit.epoch, turn_done=count % 4 == 0)]
    speech = Speech(
        audio=square_wave(0, 100, 24_000), text=f"u{count} ", marks=(TextMark(3, 100),), end_of_turn=count % 5 == 0
    )
    return [Spoke(epoch=unit.epoch, speech=speech)]


def script(request: Any) -> list[Any]:
    kind = len(request.history) % 4
    return [[], [Piece("a "), Piece("b ")], [Piece("a "), Fail("engine_error")], [Piece(f"w{k} ") for k in range(9)]][
        kind
    ]


MODELS = {
    "hears": ScriptedOptions(script=script),
    "unable": ScriptedOptions(script=script, barge_in=False, truncate=False),
    "held": ScriptedOptions(
        script=script, owns_turns=False, traits=Traits(detects_speech=False, holds_manual_input=True, video="used")
    ),
    "units": ScriptedOptions(
        owns_turns=False,
        unit_script=speaks_in_silence,
        traits=Traits(detects_speech=False, holds_manual_input=True, whole_units=True, silence_units=(8, 64)),
    ),
    "clocked": ScriptedOptions(
        owns_turns=False, unit_script=speaks_in_silence, traits=Traits(detects_speech=False, whole_units=True)
    ),
    "turns": ScriptedOptions(
        script=script, owns_turns=False, traits=Traits(detects_speech=False, turn_based=True, video="refused")
    ),
}

AUDIO = {"loud": loud(160), "long": loud(900), "quiet": quiet(640), "odd": b"\x01\x02\x03"}
IDS = ["item_1", "item_2", "item_nobody", "resp_nobody", "$last", "$first", "$item"]

appends = st.builds(
    lambda name, hints: append(AUDIO[name], **hints),
    st.sampled_from(sorted(AUDIO)),
    st.fixed_dictionaries(
        {},
        optional={
            "is_speech": st.booleans(),
            "force_barge_in": st.booleans(),
            "force_listen": st.booleans(),
            "overlap_action": st.sampled_from(["barge_in", "listen", "ack", "drop", "dance"]),
            "transcript": st.sampled_from(["yes", "what now"]),
            "format": st.sampled_from(["pcm16", "g711_ulaw", "mp3"]),
            "video_frames": st.sampled_from([["/9j/AAAA"], ["@"], []]),
        },
    ),
)


def event(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=fields)


EVENTS: st.SearchStrategy[Json] = st.one_of(
    appends,
    appends,
    event(
        "input_audio_buffer.commit",
        response_create=st.booleans(),
        is_speech=st.booleans(),
        audio_end_ms=st.integers(-5, 9000),
    ),
    event("input_audio_buffer.clear"),
    event("input.cancel"),
    event("input.text.append", text=st.sampled_from(["hi", "  "])),
    event("barge_in"),
    event("turn.signal", event=st.sampled_from(["barge_in", "user_started", ""])),
    event(
        "response.create",
        response=st.sampled_from(
            [{}, {"modalities": ["text"]}, {"conversation": "none"}, {"voice": "x"}, {"metadata": {"a": "b"}}]
        ),
    ),
    event("response.cancel", response_id=st.sampled_from(IDS)),
    event("output_audio_buffer.clear", response_id=st.sampled_from(IDS)),
    event(
        "playback.ack",
        response_id=st.sampled_from(IDS),
        item_id=st.sampled_from(IDS),
        played_ms=st.integers(-10, 3000),
        committed_ms=st.integers(-10, 3000),
        truncate=st.booleans(),
    ),
    event(
        "conversation.item.truncate",
        item_id=st.sampled_from(IDS),
        audio_end_ms=st.integers(-1, 3000),
        content_index=st.integers(-1, 2),
    ),
    event("conversation.item.delete", item_id=st.sampled_from(IDS)),
    event("conversation.item.retrieve", item_id=st.sampled_from(IDS)),
    event(
        "conversation.item.create",
        item=st.sampled_from(
            [
                {"id": "item_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "y"}]},
                {"type": "function_call_output", "call_id": "call_1", "output": "1"},
                {
                    "id": "item_2",
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_audio", "audio": pybase64.b64encode(loud(320)).decode()}],
                },
            ]
        ),
        previous_item_id=st.sampled_from(["root", "item_1", "nowhere"]),
    ),
    event(
        "session.update",
        session=st.sampled_from(
            [
                {"temperature": 0.5},
                {"extra_body": {"auto_response": True}},
                {"extra_body": {"auto_response": False}},
                {"turn_detection": {"type": "server_vad"}},
                {"turn_detection": None},
                {"playback_commit_policy": "ack_only"},
                {"playback_commit_policy": "commit_all_on_done"},
                {"sample_rate_hz": 8000},
                {"voice": "b"},
                {"output_audio_format": "g711_alaw"},
            ]
        ),
    ),
    event("session.heartbeat"),
    event("session.event_ack", server_event_seq=st.integers(-1, 40)),
    event("no.such.event"),
)

RESULTS: st.SearchStrategy[ModelResult] = st.one_of(
    st.builds(SpeechStarted, audio_start_ms=st.integers(0, 3000)),
    st.builds(SpeechStopped, audio_end_ms=st.integers(0, 3000)),
    st.builds(
        lambda text, speech, respond: TurnEnded(turn=Turn(0, 100, text, speech=speech), respond=respond),
        st.none() | st.just("words"),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(lambda: TurnTranscribed(turn=Turn(0, 5, "late", item_id="item_2"))),
    st.builds(Listened, turn_done=st.booleans(), epoch=st.none() | st.integers(0, 2)),
    st.builds(
        lambda epoch, last: Spoke(
            epoch=epoch, speech=Speech(audio=square_wave(1, 50, 24_000), text="s ", end_of_turn=last)
        ),
        st.integers(0, 2),
        st.booleans(),
    ),
    st.just(ToolCalled(call_id="call_1", name="f", arguments="{}")),
    st.just(ToolCalled(call_id=None, name="f", arguments="{")),
    st.builds(
        ModelFailed,
        code=st.just("engine_error"),
        message=st.just("x"),
        fails_response=st.booleans(),
        loses_input=st.booleans(),
    ),
)


@attrs.frozen
class Wait:
    """Let time pass, in s; ``paused``: nobody reads meanwhile."""

    seconds: float
    paused: bool = False


STEPS = st.one_of(
    EVENTS, EVENTS, EVENTS, RESULTS, st.builds(Wait, st.sampled_from([0.0, 0.1, 0.35, 2.0]), st.booleans())
)


def named(event_: Json, events: list[Json]) -> Json:
    """Replace the placeholders by ids that were seen."""
    created = [e.get("response_id") or e["response"]["id"] for e in events if e["type"] == "response.created"]
    items = [e["item"]["id"] for e in events if e["type"] in ("conversation.item.added", "conversation.item.created")]
    known = {
        "$last": created[-1] if created else "none",
        "$first": created[0] if created else "none",
        "$item": items[-1] if items else "none",
    }
    out = {}
    for key, value in event_.items():
        word = known.get(value, value) if isinstance(value, str) else value
        if key == "item_id" and value in ("$last", "$first"):
            word = f"item_{word}"
        out[key] = word
    return out


def check_more(events: list[Json]) -> None:
    """Beyond ``check_log``: brackets of items, ledgers, and no fault of our own."""
    assert not [e for e in events if e["type"] == "error" and e["error"]["code"] == "internal_error"], events[-3:]
    created = [e["response_id"] for e in events if e["type"] == "response.created"]
    done = [e["response_id"] for e in events if e["type"] == "response.done"]
    assert sorted(created) == sorted(done)
    added = [e["item"]["id"] for e in events if e["type"] == "conversation.item.added"]
    gone = {e["item_id"] for e in events if e["type"] == "conversation.item.deleted"}
    finished = [e["item"]["id"] for e in events if e["type"] == "conversation.item.done"]
    assert set(added) - set(finished) <= gone
    assert set(finished) <= set(added)
    for e in events:
        playback = e.get("event", {}).get("playback") or e.get("response", {}).get("metadata", {}).get("playback")
        if playback:
            assert (
                playback["generated_ms"] >= playback["sent_ms"] >= max(playback["played_ms"], playback["committed_ms"])
            )
    epochs = [e["event"]["epoch"] for e in events if e["type"] == "input_audio_buffer.committed"]
    assert epochs == sorted(epochs)
    started = [e["item_id"] for e in events if e["type"] == "input_audio_buffer.speech_started"]
    stopped = [e["item_id"] for e in events if e["type"] == "input_audio_buffer.speech_stopped"]
    assert len(started) == len(set(started))
    assert len(stopped) == len(set(stopped))
    assert set(stopped) <= set(started)
    assert events[-1]["type"] == "session.closed"
    assert events[-1]["reason"] == "session_close"


async def converse(model: str, config: Json, steps: list[Any], view: str = "duplex") -> list[Json]:
    async with talking(MODELS[model], config=config, scorer=ScriptedVad(), view=view) as talk:
        for step in steps:
            if isinstance(step, Wait):
                talk.reader.paused = step.paused
                await trio.sleep(step.seconds)
                talk.reader.resume()
                talk.reader.paused = False
            elif isinstance(step, dict):
                talk.send(named(step, talk.events))
            elif model in ("hears", "unable") or isinstance(step, Spoke | Listened | ToolCalled | ModelFailed):
                talk.model.hear(step)
        await trio.sleep(0.5)
        talk.send("session.close")
        with trio.fail_after(100):
            await talk.reader.ended.wait()
        assert talk.model.closed
        return talk.events


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    model=st.sampled_from(sorted(MODELS)),
    auto=st.booleans(),
    policy=st.sampled_from(["ack_only", "commit_all_on_done"]),
    steps=st.lists(STEPS, max_size=40),
)
def test_any_sequence_keeps_the_invariants(model: str, auto: bool, policy: str, steps: list[Any]) -> None:
    config = {"extra_body": {"auto_response": auto}, "playback_commit_policy": policy, "sample_rate_hz": 16_000}
    clock = trio.testing.MockClock(autojump_threshold=0)
    events = trio.run(converse, model, config, steps, clock=clock)
    check_log(events)
    check_more(events)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    model=st.sampled_from(sorted(MODELS)),
    view=st.sampled_from(["plain", "native"]),
    auto=st.booleans(),
    steps=st.lists(STEPS, max_size=40),
)
def test_no_view_breaks_a_session(model: str, view: str, auto: bool, steps: list[Any]) -> None:
    """The other projections of the same sessions: numbers gapless, every answer ended, no fault of our own."""
    config = {"sample_rate_hz": 16_000}
    if view == "native":
        config["extra_body"] = {"auto_response": auto}  # type: ignore[assignment]
    clock = trio.testing.MockClock(autojump_threshold=0)
    events = trio.run(converse, model, config, steps, view, clock=clock)
    numbers = [e["server_event_seq"] for e in events if "server_event_seq" in e]
    assert numbers == list(range(1, len(numbers) + 1))
    codes = [e.get("code") or e["error"]["code"] for e in events if e["type"] == "error"]
    assert "internal_error" not in codes
    created = [e.get("response_id") or e["response"]["id"] for e in events if e["type"] == "response.created"]
    ends = ("response.done", "audio.cancelled")
    done = {e.get("response_id") or e["response"]["id"] for e in events if e["type"] in ends}
    assert set(created) <= done
    assert len(created) == len(set(created))
