"""Openings that are refused: one error, then close 1000, and nothing is left (contract 6.1)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from duplex_protocol.errors import error_row
from duplex_protocol.profiles import ProfileName
from tests.wire.error_cases import HELD, VAD, fingerprint, inner
from tests.wire.stack import Json, append, open_stack
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedOptions, ScriptedPlugin, ScriptedSession
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.scripted_vad import ScriptedVad

# --- handshake stage: one error, then close 1000; nothing is left -----------------------------------------------------


@attrs.frozen(kw_only=True)
class Opening:
    """A connection that is refused. ``flat`` is the form (contract 6.1); ``stays``: the client may try again."""

    code: str
    first: Json | str | None = None
    flat: bool = True
    param: str | None = None
    query: Json = attrs.field(factory=lambda: {"duplex": 1})
    path: str = "/v1/realtime"
    options: ScriptedOptions | ProfileName = ScriptedOptions()
    stays: bool = False
    live: bool = False
    headers: dict[str, str] = attrs.field(factory=dict)


def opening(**session: Any) -> Json:
    return {"type": "session.update", "event_id": "evt_1", "session": session}


RESUME: Json = {"type": "session.resume", "session_id": "sess_1", "incarnation": 0, "resume_token": "@token"}
OPENINGS: list[Opening] = [
    Opening(code="config_timeout"),
    Opening(code="config_timeout", path="/v1/duplex"),
    Opening(code="invalid_json", first="{"),
    Opening(code="invalid_json", first="{", path="/v1/duplex"),
    Opening(code="bad_event", first="[]"),
    Opening(code="bad_event", first={"type": "session.heartbeat"}, query={"autostart": 0}),
    Opening(code="bad_event", first={"type": "session.heartbeat"}, query={"resume": 1}),
    Opening(code="bad_event", first={"type": "session.update"}, path="/v1/duplex"),
    Opening(code="event_too_large", first='{"type":"session.update","x":"' + "x" * 15_728_640 + '"}', stays=True),
    Opening(code="unsupported", query={"duplex": 0}),
    Opening(code="beta_api_shape_disabled", headers={"openai-beta": "realtime=v1"}, flat=False),
    Opening(code="model_not_found", first=opening(model="other"), flat=False, param="session.model"),
    Opening(code="session_exists", first=opening(session_id="sess_1"), flat=False, live=True,
            param="session.session_id"),
    Opening(code="resource_exhausted", first=opening(), flat=False, options=ScriptedOptions(slots=0)),
    Opening(code="unsupported_audio_format", first=opening(input_audio_format="mp3"), flat=False, stays=True,
            param="audio.input.format"),
    Opening(code="unsupported_turn_detection", first=opening(turn_detection={"type": "x"}), flat=False, stays=True,
            param="turn_detection"),
    Opening(code="invalid_request_error", first=opening(voice=3), flat=False, param="voice"),
    Opening(code="server_vad_initialization_failed", first=opening(**VAD), flat=False, param="turn_detection",
            options=ScriptedOptions(traits=HELD, owns_turns=False)),
    Opening(code="server_vad_requires_native_duplex", flat=False, options="qwen3_omni", param="turn_detection",
            first=opening(turn_detection={"type": "server_vad", "interrupt_response": True})),
    Opening(code="ref_audio_required", first=opening(extra_body={"native_duplex": True}), flat=False,
            options="minicpmo_4_5", param="ref_audio"),
    Opening(code="unsupported_ref_audio_path", first=opening(ref_audio="/x"), flat=False, options="minicpmo_4_5",
            param="ref_audio"),
    Opening(code="unsupported_nemotron_duplex_mode", first=opening(), flat=False, options="nemotron_voicechat",
            param="extra_body.auto_response"),
    Opening(code="invalid_duplex_runtime_config", first=opening(voice="x"), flat=False, options="personaplex",
            param="voice"),
    Opening(code="runtime_native_stage_role_required", first=opening(extra_body={"native_duplex": True}), flat=False,
            options="chat_fallback", param="extra_body.native_duplex"),
    Opening(code="invalid_session_resume", first={**RESUME, "session_id": ""}, param="session_id"),
    Opening(code="invalid_session_resume", first={**RESUME, "resume_token": None}, param="resume_token"),
    Opening(code="invalid_session_resume", first={**RESUME, "incarnation": True}, param="incarnation"),
    Opening(code="invalid_session_resume", first={**RESUME, "last_received_server_event_seq": -1},
            param="last_received_server_event_seq"),
    Opening(code="invalid_session_resume", query={"duplex": 1, "session_id": "sess_1", "resume_token": "x",
            "incarnation": "one"}, param="incarnation"),
    Opening(code="session_resume_expired", first={**RESUME, "session_id": "sess_unknown"}),
    Opening(code="session_resume_conflict", first={**RESUME, "incarnation": 3}, live=True),
    Opening(code="session_resume_conflict", first={**RESUME, "last_received_server_event_seq": 99}, live=True),
    Opening(code="invalid_resume_token", first={**RESUME, "resume_token": "rt_guess"}, live=True),
    Opening(code="unsupported_session_resume", first=RESUME, live=True, options=ScriptedOptions(resume=False)),
    Opening(code="unsupported_session_resume", first=RESUME, path="/v1/duplex"),
]  # fmt: skip


@pytest.mark.parametrize("case", OPENINGS, ids=lambda case: f"{case.code}-{case.path[4:]}-{case.param}")
async def test_a_refused_opening(case: Opening, autojump_clock: trio.testing.MockClock) -> None:
    plugin = ProfilePlugin(case.options) if isinstance(case.options, str) else ScriptedPlugin(case.options)
    async with open_stack(plugin) as stack:
        live = await stack.duplex({"session_id": "sess_1"}) if case.live else None
        token = live.of("session.created")[0].get("resume_token", "rt_none") if live else "rt_none"
        before = fingerprint(stack.session) if live else None
        slots, opened = plugin.open_slots, stack.hub.statistics().opened
        stack.headers = case.headers
        wire = await stack.connect(case.path, **case.query)
        first = case.first
        if isinstance(first, dict):
            first = {k: token if v == "@token" else v for k, v in first.items()}
            await wire.send(first)
        elif first is not None:
            await wire.send_raw(first)
        event = await wire.until("error")
        assert event["event_id"]
        assert "server_event_seq" not in event
        assert isinstance(event["error"], str) is case.flat
        error = inner(event)
        assert error["code"] == case.code
        assert error.get("param") == case.param
        assert error.get("retryable") == error_row(case.code).retryable
        if not case.flat:
            assert error["type"] == error_row(case.code).error_class
            assert error.get("event_id") == ("evt_1" if case.first else None)
        if case.stays:
            await wire.send("session.update", session={})
            await wire.until("session.updated")
            return
        assert (await wire.over()).code == 1000
        assert wire.types == ["error"]
        assert (plugin.open_slots, stack.hub.statistics().opened) == (slots, opened)
        if live is not None:
            await live.settled()
            assert fingerprint(stack.session) == before


async def test_duplex_session_busy(autojump_clock: trio.testing.MockClock) -> None:
    """L7, L8: told at once, with a retry hint; the others do not notice."""
    async with open_stack(settings=SessionSettings(max_sessions=1)) as stack:
        first = await stack.duplex()
        begun = trio.current_time()
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session={}, event_id="evt_1")
        error = await wire.error()
        assert error["code"] == "duplex_session_busy"
        assert (error["type"], error["event_id"], error["retryable"]) == ("rate_limit_error", "evt_1", True)
        assert trio.current_time() == begun
        assert (await wire.over()).code == 1000
        await first.settled()


async def test_runtime_open_failed(autojump_clock: trio.testing.MockClock) -> None:
    class Broken(ScriptedPlugin):
        async def open(self, config: Any, context: Any) -> ScriptedSession:
            raise ValueError("no")

    async with open_stack(Broken()) as stack:
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session={}, event_id="evt_1")
        error = await wire.error()
        assert (error["code"], error["type"], error["event_id"]) == ("runtime_open_failed", "server_error", "evt_1")
        assert (await wire.over()).code == 1000
        assert stack.hub.statistics().sessions == 0


async def test_commits_that_wait(autojump_clock: trio.testing.MockClock) -> None:
    """input_backpressure by turns: the fifth commit that waits behind a slow append is dropped whole."""
    async with open_stack(ProfilePlugin("qwen3_omni"), scorer=ScriptedVad(delay_s=1)) as stack:
        wire = await stack.duplex(VAD)
        for _ in range(6):
            await wire.send(append(320, rate_hz=24_000))
            await wire.send("input_audio_buffer.commit", event_id="evt_c")
        error = await wire.error()
        assert (error["code"], error["type"], error["retryable"]) == ("input_backpressure", "rate_limit_error", True)
