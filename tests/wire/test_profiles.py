"""The known models as scripted profiles: capability table, openings, updates, framing, gates (contract 17 - 20)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from duplex_protocol.profiles import GATES, PROFILES, ProfileName
from tests.protocol.test_wire_tables import TABLE
from tests.wire.profile_kit import ALL, AUTO, CF, JPEG, LONG, MC, NV, OPENINGS, PP, QW, REF, heard, say, speaking, tool
from tests.wire.stack import Json, append, b64, open_stack, wave
from trio_duplex.models.plugin import ToolCalled
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece
from trio_duplex.testing.profiles import MODELS, ProfilePlugin

# --- capabilities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("max_sessions", [1, 4])
async def test_capabilities_key_by_key(column: int, max_sessions: int, autojump_clock: trio.testing.MockClock) -> None:
    name = ALL[column]
    async with open_stack(ProfilePlugin(name, max_sessions=max_sessions)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        shown = wire.of("session.created")[0]["session"]["capabilities"]
        assert list(shown) == list(TABLE)
        for key, row in TABLE.items():
            expected = row[column]
            if key in ("supports_multi_session", "supports_multi_session_same_replica"):
                expected = expected and max_sessions > 1
            assert shown[key] == expected, key
        assert wire.of("session.updated")[0]["session"]["capabilities"] == shown


async def test_minicpmo_is_native_only_when_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(MC)) as stack:
        for extra in ({}, {"native_duplex": False}):
            wire = await stack.duplex({"extra_body": extra})
            assert wire.of("session.created")[0]["session"]["capabilities"] == PROFILES[CF].as_wire()
        wire = await stack.duplex({"ref_audio": REF, "extra_body": {"minicpmo45_native_duplex": True}})
        session = wire.of("session.created")[0]["session"]
        assert session["capabilities"] == PROFILES[MC].as_wire()
        assert session["extra_body"] == {"native_duplex": True}


@pytest.mark.parametrize(("name", "rate"), [(MC, 24_000), (PP, 24_000), (NV, 22_050), (CF, 24_000), (QW, 24_000)])
async def test_output_rate(name: ProfileName, rate: int, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name, LONG)) as stack:
        wire = await speaking(stack, name)
        delta = wire.of("response.output_audio.delta")[0]
        assert delta["sample_rate_hz"] == rate
        assert delta["metadata"]["audio_duration_ms"] == pytest.approx(
            200 if MODELS[name].traits.turn_based else MODELS[name].unit.period_ms, abs=1
        )


@pytest.mark.parametrize("name", ALL)
async def test_decisions_are_the_models_only_on_a_native_lane(
    name: ProfileName, autojump_clock: trio.testing.MockClock
) -> None:
    """Gate implementation_level: response.speak and response.listen come from models that decide."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await speaking(stack, name)
        await wire.until("response.done")
        native = not MODELS[name].traits.turn_based
        assert len(wire.of("response.speak")) == int(native)
        assert bool(wire.of("response.listen")) == native
        assert all(d["metadata"]["model_speak"] == native for d in wire.of("response.output_audio.delta"))
        item = wire.of("response.done")[0]["response"]["output"][0]
        assert item["content"][0]["transcript"] == "It is sunny, 24 degrees."


# --- framing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "event", "param"),
    [
        (PP, append(80, rate_hz=24_000, format="pcm16", sample_rate_hz=24_000), "format"),
        (PP, {**heard(NV, 80)}, "format"),
        (NV, append(80, format="pcm16", sample_rate_hz=16_000), "format"),
        (NV, heard(PP, 80), "format"),
        (NV, heard(NV, 81), "audio"),
    ],
)
async def test_a_form_the_model_does_not_take(
    name: ProfileName, event: Json, param: str, autojump_clock: trio.testing.MockClock
) -> None:
    """6.2 and 16.3: bad_event, and nothing of it happened."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        await wire.send({**event, "event_id": "evt_a"})
        error = await wire.error()
        assert (error["code"], error["param"], error["event_id"]) == ("bad_event", param, "evt_a")
        await wire.settled()
        assert wire.types == ["session.created", "session.updated", "error", "session.heartbeat_ack"]
        assert not stack.model.units
        await wire.send(heard(name, 80))
        await wire.until("input_audio_buffer.speech_started")


@pytest.mark.parametrize("name", [PP, NV])
async def test_a_stock_clients_audio_is_converted(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    """The plain view: PCM16 at 24 kHz in pieces of any length."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
        for _ in range(4):
            await wire.send("input_audio_buffer.append", audio=b64(wave(100, rate_hz=24_000)))
        for _ in range(8):
            await wire.send("input_audio_buffer.append", audio=b64(wave(100, 0, rate_hz=24_000)))
        await wire.until("response.done")
        assert not wire.of("error")


# --- video ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [PP, NV])
async def test_frames_are_ignored(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        await wire.send(heard(name, 80, video_frames=[JPEG]))
        await wire.settled()
        assert not wire.of("error")
        assert [unit.video_frames for unit in stack.model.units] == [()]


async def test_frames_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(QW)) as stack:
        wire = await stack.duplex({})
        await wire.send(heard(QW, 100, video_frames=[JPEG], event_id="evt_v"))
        error = await wire.error()
        assert (error["code"], error["param"], error["event_id"]) == (
            "invalid_input_modality",
            "video_frames",
            "evt_v",
        )
        await wire.send("input_audio_buffer.commit")
        await wire.settled()
        assert not wire.of("input_audio_buffer.speech_started"), "a refused append has no effect at all"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "frames",
    [[JPEG] * 3, ["data:image/jpeg;base64," + JPEG], ["AAAA"], [""], ["/9j/" + "A" * 4_000_000], "x", [1]],
    ids=["three", "data url", "no picture", "empty", "too long", "no list", "number"],
)
async def test_bad_frames(name: ProfileName, frames: Any, autojump_clock: trio.testing.MockClock) -> None:
    """18: checked before any effect of the append, whatever the model does with frames."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        await wire.send(heard(name, 80, video_frames=frames))
        assert (await wire.error())["code"] == "invalid_video_frames"
        await wire.settled()
        assert "input_audio_buffer.speech_started" not in wire.types


# --- gates ------------------------------------------------------------------------------------------------------------


def test_every_gate_has_its_test() -> None:
    here = globals()
    for gate in GATES:
        assert any(gate.flag in (one.__doc__ or "") for key, one in here.items() if key.startswith("test_")), gate.flag


@pytest.mark.parametrize("name", [MC, PP, NV])
async def test_barge_in(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    """Gate supports_barge_in: barge_in, turn.signal, overlap hints; refused without it and the answer goes on (U5)."""
    able = PROFILES[name].supports_barge_in
    asks: list[Json] = [
        {"type": "barge_in"},
        {"type": "turn.signal", "event": "barge_in"},
        heard(name, 40, force_barge_in=True),
        heard(name, 40, overlap_action="interrupt"),
    ]
    for ask in asks:
        async with open_stack(ProfilePlugin(name, LONG)) as stack:
            wire = await speaking(stack, name)
            response_id = wire.of("response.created")[0]["response_id"]
            await wire.send({**ask, "event_id": "evt_b"})
            if able:
                done = await wire.until("response.done")
                assert done["response"]["status"] == "cancelled"
                assert done["response"]["status_details"]["reason"] == "barge_in"
                assert stack.session.epoch.number == 1
            else:
                error = await wire.error()
                assert (error["code"], error["event_id"]) == ("barge_in_unsupported", "evt_b")
                await wire.settled()
                assert not wire.of("response.done")
                assert stack.session.active_response is not None
                assert stack.session.active_response.id == response_id
                assert stack.session.epoch.number == 0


@pytest.mark.parametrize("name", [PP, NV])
async def test_speech_over_a_model_that_cannot_be_interrupted(
    name: ProfileName, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_stack(ProfilePlugin(name, LONG)) as stack:
        wire = await speaking(stack, name)
        await say(wire, name, 10)
        await wire.settled()
        assert not wire.of("response.done")
        assert len(wire.of("response.output_audio.delta")) >= 10, "it goes on talking while it hears"


@pytest.mark.parametrize("name", ALL)
async def test_resume(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    """Gate supports_session_resume: token, resume, grace; without it a lost socket ends the session."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        created = wire.of("session.created")[0]
        able = PROFILES[name].supports_session_resume
        assert ("resume_token" in created) == able
        wire.socket.drop()
        await wire.over()
        await trio.sleep(1)
        assert stack.hub.statistics().sessions == int(able)
        again = await stack.connect(duplex=1, autostart=0)
        await again.send(
            "session.resume",
            session_id=created["session"]["id"],
            incarnation=0,
            resume_token=created.get("resume_token", "rt_none"),
            last_received_server_event_seq=2,
        )
        if able:
            assert (await again.until("session.resumed"))["attachment_generation"] == 2
        else:
            await again.over()
            assert again.events[0]["code"] == "session_resume_expired"


@pytest.mark.parametrize("name", [PP, QW])
async def test_resume_of_a_live_session_that_cannot(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex({**OPENINGS[name], "session_id": "sess_1"})
        other = await stack.connect(duplex=1, autostart=0)
        await other.send("session.resume", session_id="sess_1", incarnation=0, resume_token="rt_x")
        await other.over()
        assert other.events[0]["code"] == "unsupported_session_resume"
        await wire.settled()


@pytest.mark.parametrize("name", ALL)
async def test_truncate(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    """Gate supports_audio_truncate: without it the wire item is cut, the model's history is not (14.4)."""
    async with open_stack(ProfilePlugin(name, (Piece("one "), Piece("two "), Piece("three")))) as stack:
        wire = await speaking(stack, name)
        if not MODELS[name].traits.turn_based:
            await say(wire, name, 2, amplitude=0)
        done = await wire.until("response.done")
        item_id = done["response"]["output"][0]["id"]
        half = done["response"]["metadata"]["playback"]["sent_ms"] // 2
        await wire.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=half)
        assert (await wire.until("conversation.item.truncated"))["audio_end_ms"] == half
        await wire.send("conversation.item.retrieve", item_id=item_id)
        shown = (await wire.until("conversation.item.retrieved"))["item"]["content"][0]["transcript"]
        whole = "one two three"
        assert len(shown) < len(whole)
        (kept,) = [e.text for e in stack.model.context.history() if e.role == "assistant"]
        if PROFILES[name].supports_audio_truncate:
            assert kept == shown.strip()
        else:
            assert kept == whole


@pytest.mark.parametrize("name", [MC, PP, NV])
async def test_listen_decisions_keep_the_models_time(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    """Gate chunk_period_ms: one decision per whole unit of that length, however the audio was cut."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(OPENINGS[name])
        period = MODELS[name].unit.period_ms
        assert wire.of("session.created")[0]["session"]["capabilities"]["chunk_period_ms"] == period
        for _ in range(10):
            await wire.send(heard(name, period / 4, amplitude=0))
        await wire.until("response.listen", 2)
        await wire.settled()
        assert len(wire.of("response.listen")) == 2
        assert len(stack.model.units) == 2


# --- tools ------------------------------------------------------------------------------------------------------------


async def test_tool_calls_of_nemotron(autojump_clock: trio.testing.MockClock) -> None:
    """19: two calls at once are two whole sequences beside the answer; results go back, the model goes on."""
    async with open_stack(ProfilePlugin(NV, LONG)) as stack:
        wire = await speaking(stack, NV, {**AUTO, "tools": [tool(), tool("get_time")]})
        for call, name in (("call_1", "get_weather"), ("call_2", "get_time")):
            stack.model.hear(ToolCalled(call_id=call, name=name, arguments="{}"))
        await wire.until("rate_limits.updated", 2)
        calls = [e for e in wire.of("response.done") if e["response"]["output"][0]["type"] == "function_call"]
        assert [c["response"]["output"][0]["call_id"] for c in calls] == ["call_1", "call_2"]
        start = [e["response_id"] for e in wire.events if "response_id" in e].index(calls[0]["response_id"])
        own = [e for e in wire.events if e.get("response_id") == calls[0]["response_id"]]
        assert start > 0
        assert [e["type"] for e in own] == [
            "response.created",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.done",
        ]
        assert stack.session.epoch.number == 0
        assert stack.session.active_response is not None
        output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
        await wire.send("conversation.item.create", item=output)
        await wire.settled()
        assert stack.model.tool_outputs == [("call_1", "sunny")]
        for bad, param in (
            ({**output, "call_id": "call_9"}, "item.call_id"),
            ({**output, "call_id": None}, "item.call_id"),
            ({**output, "call_id": "call_2", "output": 3}, "item.output"),
            (output, "item.output"),
        ):
            count = len(wire.of("error")) + 1
            await wire.send("conversation.item.create", item=bad, event_id="evt_t")
            error = await wire.error(count)
            assert (error["code"], error["param"], error["event_id"]) == (
                "invalid_function_call_output",
                param,
                "evt_t",
            )
        assert stack.model.tool_outputs == [("call_1", "sunny")]


async def test_calls_stay_answerable_after_a_cancel(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(NV, LONG)) as stack:
        wire = await speaking(stack, NV)
        stack.model.hear(ToolCalled(call_id="call_1", name="get_weather", arguments="{}"))
        await wire.until("response.function_call_arguments.done")
        await wire.send("response.cancel")
        await wire.until("response.done", 2)
        output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
        await wire.send("conversation.item.create", item=output)
        await wire.settled()
        assert not wire.of("error")


# --- admission --------------------------------------------------------------------------------------------------------


async def test_slots_of_the_deployment(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(NV, max_sessions=1), settings=SessionSettings(max_sessions=1)) as stack:
        await stack.duplex(AUTO)
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session=AUTO)
        assert (await wire.error())["code"] == "duplex_session_busy"
