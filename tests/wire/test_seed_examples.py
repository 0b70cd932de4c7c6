"""The examples of the wire contract that need a session's history, sent through the whole stack.

Their shapes alone are golden in tests/protocol; the plain ones are the worked examples of test_examples.
"""

from __future__ import annotations

import json
from typing import Any

import trio

from duplex_protocol.examples import CLIENT_EXAMPLES
from tests.protocol.wire_kit import matches
from tests.wire.conversations import demo, open_native, reach
from tests.wire.stack import ReadableIds, append, b64, open_stack, wave
from trio_duplex.models.plugin import ToolCalled
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedOptions
from trio_duplex.testing.profiles import ProfilePlugin

JPEG = "/9j/4AAQSkZJRg=="


async def test_an_append_with_camera_frames(autojump_clock: trio.testing.MockClock) -> None:
    """They ride the append that closes a one-second unit and reach the model with it."""
    async with demo() as (stack, wire):
        await wire.send(
            {
                **CLIENT_EXAMPLES["session.update"].event,
                "session": {
                    **CLIENT_EXAMPLES["session.update"].event["session"],
                    "extra_body": {"native_duplex": True, "auto_response": True},
                },
            }
        )
        await wire.until("session.updated")
        for part in range(5):
            frames = {"video_frames": [JPEG, JPEG]} if part == 4 else {}
            await wire.send(
                {
                    "type": "input_audio_buffer.append",
                    "audio": b64(wave(200)),
                    "input_audio_format": "pcm16",
                    "sample_rate_hz": 16000,
                    "duration_ms": 200,
                    "audio_end_ms": 200 * (part + 1),
                    **frames,
                }
            )
        await wire.settled()
        assert not wire.of("error")
        assert [unit.video_frames for unit in stack.model.units] == [(JPEG, JPEG)]


async def test_a_silence_declaration(autojump_clock: trio.testing.MockClock) -> None:
    """No append reaches the model; answered with response.listen."""
    async with demo() as (stack, wire):
        wire = await reach("heard", stack, wire)
        await wire.send("input_audio_buffer.commit", final=True, is_speech=False)
        listen = await wire.until("response.listen")
        assert listen["response"]["metadata"]["reason"] == "silence_or_noise"
        committed = wire.of("input_audio_buffer.committed")[0]["event"]
        assert (committed["empty"], committed["is_speech"], committed["no_response"]) == (True, False, True)
        assert stack.model.units == []


async def test_a_deferred_commit(autojump_clock: trio.testing.MockClock) -> None:
    async with demo() as (stack, wire):
        wire = await reach("speaking", stack, wire)
        await wire.send(append(1000, sample_rate_hz=16_000))
        await wire.send("input_audio_buffer.commit", response_create=True)
        committed = await wire.until("input_audio_buffer.committed", 2)
        example = (
            '{"type": "input_audio_buffer.committed", "previous_item_id": "item_resp_01", "item_id": "item_02",'
            ' "event": {"type": "input.committed", "session_id": "sess_demo_01", "turn_id": 2, "epoch": 0,'
            ' "history_len": 2, "message": {"…": "…"}, "overlap_deferred": true, "response_create_deferred": true,'
            ' "…": "…"}}'
        )
        matches(json.loads(example), committed, frozenset({"event_id", "server_event_seq"}))


async def test_a_tool_result(autojump_clock: trio.testing.MockClock) -> None:
    async with demo() as (stack, wire):
        await open_native(wire)
        stack.model.hear(ToolCalled(call_id="call_7d1f", name="get_weather", arguments='{"city":"Hong Kong"}'))
        await wire.until("response.done")
        await wire.send(
            "conversation.item.create",
            item={"type": "function_call_output", "call_id": "call_7d1f", "output": '{"temperature_c": 24}'},
        )
        await wire.until("conversation.item.done", 2)
        assert stack.model.tool_outputs == [("call_7d1f", '{"temperature_c": 24}')]
        assert not wire.of("error")


async def test_a_truncating_ack(autojump_clock: trio.testing.MockClock) -> None:
    async with demo() as (stack, wire):
        wire = await reach("answered", stack, wire)
        ack = {"response_id": "resp_01", "played_ms": 1850, "committed_ms": 1850, "truncate": True}
        await wire.send("playback.ack", **ack)
        event = (await wire.until("playback.acknowledged"))["event"]
        assert (event["truncate"], event["playback"]["committed_ms"], event["history_committed"]) == (True, 1850, True)
        history = stack.model.context.history()
        assert history[-1].text == "It is sunny, 24 degrees."[: 13 + 11 * 850 // 1000].rstrip()


async def test_a_server_vad_update(autojump_clock: trio.testing.MockClock) -> None:
    from trio_duplex.testing.scripted_vad import ScriptedVad

    async with open_stack(ScriptedOptions(owns_turns=False), scorer=ScriptedVad(), ids=ReadableIds()) as stack:
        wire = await stack.duplex()
        detection: dict[str, Any] = {
            "type": "server_vad",
            "threshold": 0.5,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 500,
        }
        await wire.send("session.update", session={"turn_detection": detection, "overlap_policy": "barge_in_on_speech"})
        session = (await wire.until("session.updated", 2))["session"]
        assert session["turn_detection"] == {**detection, "interrupt_response": True, "create_response": True}
        assert session["overlap_policy"] == "barge_in_on_speech"
        await wire.send(append(320))
        await wire.until("input_audio_buffer.speech_started")


async def test_a_refused_opening_is_told_in_the_envelope(autojump_clock: trio.testing.MockClock) -> None:
    async with demo() as (stack, wire):
        assert stack.hub.statistics().sessions == 0
        bad = {"turn_detection": {"type": "server_vad", "interrupt_response": False}}
        opening = CLIENT_EXAMPLES["session.update"].event
        await wire.send({**opening, "session": {**opening["session"], **bad}})
        example = {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "code": "unsupported_turn_detection",
                "message": "…",
                "event_id": "evt_0001",
                "param": "turn_detection",
            },
        }
        matches(example, await wire.until("error"), frozenset({"event_id"}))
        await open_native(wire)  # correctable: the same socket may try again


async def test_busy(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(settings=SessionSettings(max_sessions=4)) as stack:
        for _ in range(4):
            await stack.duplex()
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session={})
        error = await wire.error()
        assert error["type"] == "rate_limit_error"
        assert error["code"] == "duplex_session_busy"
        assert error["message"] == "duplex session capacity reached (max_sessions=4)"


async def test_a_handshake_error_is_flat(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.connect(duplex=1, autostart=0)
        await wire.send(CLIENT_EXAMPLES["session.resume"].event)
        await wire.over()
        example = {
            "type": "error",
            "error": "Unknown or expired duplex session: sess_demo_01",
            "code": "session_resume_expired",
        }
        matches(example, wire.events[0], frozenset({"event_id"}))


async def test_expiry_of_a_detached_session(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody is there to read session.expired; a later resume is told."""
    async with demo() as (stack, wire):
        await open_native(wire)
        wire.socket.drop()
        await trio.sleep(40)
        wire = await stack.connect(duplex=1, autostart=0)
        await wire.send(CLIENT_EXAMPLES["session.resume"].event)
        await wire.over()
        assert wire.events[0]["code"] == "session_resume_expired"
        assert stack.hub.statistics().sessions == 0


async def test_a_malformed_tool_call(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin("nemotron_voicechat"), ids=ReadableIds()) as stack:
        wire = await stack.duplex({"session_id": "sess_demo_01", "extra_body": {"auto_response": True}})
        stack.model.hear(ToolCalled(call_id=None, name="get_weather", arguments="{"))
        event = (await wire.until("duplex.function_call.done"))["event"]
        assert event["call_id"] is None
        assert "response.created" not in wire.types
