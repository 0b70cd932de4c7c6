"""What each model takes at its opening and later (contract 17): refusals change nothing, good ones open."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.profiles import ProfileName
from tests.wire.profile_kit import ALL, AUTO, CF, MC, NV, OPENINGS, PP, QW, REF, tool
from tests.wire.stack import Json, open_stack
from trio_duplex.testing.profiles import MODELS, ProfilePlugin
from trio_duplex.testing.scripted_vad import ScriptedVad

# --- openings and updates ---------------------------------------------------------------------------------------------

NATIVE = {"native_duplex": True}
RESERVED = [
    *(
        (MC, key)
        for key in (
            "duplex_stage_sampling_params",
            "duplex_stage_max_tokens",
            "duplex_stage0_max_tokens",
            "duplex_scheduler_token_id",
            "duplex_first_append_context_tokens",
            "ref_audio_data",
            "ref_audio_format",
            "ref_audio_sample_rate_hz",
            "initial_user_text",
        )
    ),
    *((PP, key) for key in ("personaplex_prefill_slots", "personaplex_model_path")),
    *((NV, key) for key in ("nvc_prefill", "nvc_")),
]
INVALID = "invalid_duplex_runtime_config"
REFUSED_OPENINGS: list[tuple[ProfileName, Json, str, str]] = [
    (MC, {"extra_body": NATIVE}, "ref_audio_required", "ref_audio"),
    (MC, {"ref_audio": "/etc/voice.wav", "extra_body": NATIVE}, "unsupported_ref_audio_path", "ref_audio"),
    (
        MC,
        {"ref_audio": REF, "extra_body": {**NATIVE, "ref_audio_path": "/x"}},
        "unsupported_ref_audio_path",
        "extra_body.ref_audio_path",
    ),
    (
        MC,
        {"ref_audio": REF, "extra_body": {**NATIVE, "tts_ref_audio_path": "/x"}},
        "unsupported_ref_audio_path",
        "extra_body.tts_ref_audio_path",
    ),
    (
        MC,
        {"ref_audio": REF, "extra_body": {**NATIVE, "force_listen_count": -1}},
        INVALID,
        "extra_body.force_listen_count",
    ),
    (
        MC,
        {"ref_audio": REF, "extra_body": {**NATIVE, "sliding_window_mode": "wide"}},
        "invalid_sliding_window_config",
        "extra_body.sliding_window_mode",
    ),
    (
        MC,
        {"ref_audio": REF, "extra_body": {**NATIVE, "sliding_window_high": 10, "sliding_window_low": 10}},
        "invalid_sliding_window_config",
        "extra_body.sliding_window_low",
    ),
    (PP, {"extra_body": {"native_duplex": True}}, INVALID, "extra_body.native_duplex"),
    (PP, {"extra_body": {"minicpmo45_native_duplex": True}}, INVALID, "extra_body.native_duplex"),
    (PP, {"voice": "../NATF2.pt"}, INVALID, "voice"),
    (PP, {"voice": "NATF9.pt"}, INVALID, "voice"),
    (PP, {"voice": "alloy"}, INVALID, "voice"),
    (PP, {"turn_detection": {"type": "server_vad"}}, "unsupported_turn_detection", "turn_detection"),
    (NV, {}, "unsupported_nemotron_duplex_mode", "extra_body.auto_response"),
    (
        NV,
        {"extra_body": {"auto_response": False}},
        "unsupported_nemotron_duplex_mode",
        "extra_body.auto_response",
    ),
    (NV, {**AUTO, "tools": [tool(f"t{k}") for k in range(6)]}, INVALID, "tools"),
    (NV, {**AUTO, "tools": [tool(None)]}, INVALID, "tools"),
    (
        NV,
        {"extra_body": {"auto_response": True, "realtime_tools": [tool("")]}},
        INVALID,
        "extra_body.realtime_tools",
    ),
    (NV, {**AUTO, "turn_detection": {"type": "server_vad"}}, "unsupported_turn_detection", "turn_detection"),
    (QW, AUTO, INVALID, "extra_body.auto_response"),
    (QW, {"tools": [tool()]}, INVALID, "tools"),
    (QW, {"ref_audio": REF}, INVALID, "ref_audio"),
    (
        QW,
        {"turn_detection": {"type": "server_vad", "interrupt_response": True}},
        "server_vad_requires_native_duplex",
        "turn_detection",
    ),
    (
        QW,
        {"turn_detection": {"type": "server_vad"}, "overlap_policy": "barge_in_on_speech"},
        "server_vad_requires_native_duplex",
        "overlap_policy",
    ),
    *((name, {**OPENINGS[name], "extra_body": {**OPENINGS[name]["extra_body"], key: 1}}, INVALID, f"extra_body.{key}")
      for name, key in RESERVED),
]  # fmt: skip


@pytest.mark.parametrize(("name", "session", "code", "param"), REFUSED_OPENINGS)
async def test_a_refused_opening(
    name: ProfileName, session: Json, code: str, param: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_stack(ProfilePlugin(name), scorer=ScriptedVad()) as stack:
        wire = await stack.connect(duplex=1)
        await wire.send("session.update", session=session, event_id="evt_open")
        error = await wire.error()
        assert (error["code"], error["param"], error["event_id"]) == (code, param, "evt_open")
        assert error["type"] == "invalid_request_error"
        assert wire.types == ["error"]
        assert stack.hub.statistics().sessions == 0
        assert not stack.plugin.sessions


GOOD_OPENINGS: list[tuple[ProfileName, Json]] = [
    *((name, OPENINGS[name]) for name in ALL),
    (MC, {"modalities": ["text"], "extra_body": NATIVE}),
    (MC, {"extra_body": {**NATIVE, "tts_ref_audio": "https://voices.example/a.wav", "force_listen_count": 3}}),
    (MC, {"ref_audio": REF, "extra_body": {**NATIVE, "sliding_window_mode": "basic", "sliding_window_high": 8000}}),
    (PP, {"voice": "VARM4.pt", "instructions": "You are a pirate."}),
    (NV, {**AUTO, "tools": [tool(f"t{k}") for k in range(5)]}),
    (NV, {"extra_body": {"full_duplex": True, "realtime_tools": [{"type": "function", "function": {"name": "x"}}]}}),
    (NV, {"extra_body": {"auto_response": True, "native_duplex": False}}),
    (QW, {"turn_detection": {"type": "server_vad"}}),
    (CF, {"turn_detection": {"type": "server_vad", "create_response": False}, "extra_body": {"auto_response": True}}),
]


@pytest.mark.parametrize(("name", "session"), GOOD_OPENINGS)
async def test_a_good_opening(name: ProfileName, session: Json, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name), scorer=ScriptedVad()) as stack:
        wire = await stack.duplex(session)
        assert wire.types == ["session.created", "session.updated"]


async def test_personaplex_has_a_default_voice(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(PP)) as stack:
        wire = await stack.duplex({})
        assert wire.of("session.created")[0]["session"]["voice"] == "NATF2.pt"


REFUSED_UPDATES: list[tuple[ProfileName, Json, Json, str, str]] = [
    (MC, {"instructions": "be kind"}, {"instructions": "be rude"}, "instructions_update_unsupported", "instructions"),
    (MC, {"instructions": "be kind"}, {"instructions": None}, "instructions_update_unsupported", "instructions"),
    (MC, {}, {"ref_audio": "data:audio/wav;base64,AAAA"}, "ref_audio_update_unsupported", "session.ref_audio"),
    (
        MC,
        {},
        {"extra_body": {"native_duplex": False}},
        "native_duplex_mode_update_unsupported",
        "session.extra_body.native_duplex",
    ),
    (
        MC,
        {},
        {"extra_body": {"sliding_window_mode": "basic"}},
        "sliding_window_update_unsupported",
        "extra_body.sliding_window_mode",
    ),
    *(
        (name, {}, {"extra_body": NATIVE}, "native_duplex_mode_update_unsupported", "session.extra_body.native_duplex")
        for name in (CF, QW)
    ),
    *(
        (PP, {}, {"extra_body": {key: value}}, INVALID, "extra_body.native_duplex")
        for key in ("native_duplex", "minicpmo45_native_duplex")
        for value in (True, False)
    ),
    (MC, {}, {"extra_body": {"initial_user_text": "x"}}, INVALID, "extra_body.initial_user_text"),
    (PP, {"instructions": "be kind"}, {"instructions": "be rude"}, "persona_update_unsupported", "instructions"),
    (PP, {}, {"voice": "NATM1.pt"}, "voice_update_unsupported", "voice"),
    (NV, {"instructions": "be kind"}, {"instructions": "be rude"}, INVALID, "instructions"),
    (NV, {"tools": [tool()]}, {"tools": [tool("other")]}, INVALID, "tools"),
    (NV, {}, {"extra_body": {"realtime_tools": [tool()]}}, INVALID, "extra_body.realtime_tools"),
    (
        NV,
        {},
        {"extra_body": {"auto_response": False}},
        "unsupported_nemotron_duplex_mode",
        "extra_body.auto_response",
    ),
    (QW, {}, AUTO, INVALID, "extra_body.auto_response"),
    (QW, {}, {"tools": [tool()]}, INVALID, "tools"),
    *((name, {}, {"model": "another"}, "model_update_unsupported", "session.model") for name in ALL),
]


@pytest.mark.parametrize(("name", "opening", "update", "code", "param"), REFUSED_UPDATES)
async def test_a_refused_update_changes_nothing(
    name: ProfileName, opening: Json, update: Json, code: str, param: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Atomic: the same update with something harmless beside it leaves that unchanged too."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex({**OPENINGS[name], **opening})
        before = stack.session.config
        await wire.send("session.update", session={**update, "temperature": 0.123}, event_id="evt_up")
        error = await wire.error()
        assert (error["code"], error["param"], error["event_id"]) == (code, param, "evt_up")
        assert stack.session.config == before
        await wire.send("session.update", session={"temperature": 0.2})
        assert (await wire.until("session.updated", 2))["session"]["temperature"] == 0.2


SAME_LANE: list[tuple[ProfileName, Json, bool, Json]] = [
    (NV, AUTO, True, AUTO["extra_body"]),
    (NV, AUTO, False, AUTO["extra_body"]),
    (MC, {**OPENINGS[MC], "extra_body": NATIVE}, True, NATIVE),
    (MC, {}, False, {"native_duplex": False}),
    (CF, {}, False, {"native_duplex": False}),
    (QW, {}, False, {"native_duplex": False}),
]


@pytest.mark.parametrize(("name", "opening", "value", "shown"), SAME_LANE)
async def test_naming_the_lane_that_is_there_is_no_change(
    name: ProfileName, opening: Json, value: bool, shown: Json, autojump_clock: trio.testing.MockClock
) -> None:
    """Nemotron VoiceChat ignores the switch altogether (contract 20): it is not even shown."""
    async with open_stack(ProfilePlugin(name)) as stack:
        wire = await stack.duplex(opening)
        await wire.send("session.update", session={"extra_body": {"native_duplex": value}, "temperature": 0.25})
        updated = (await wire.until("session.updated", 2))["session"]
        assert (updated["temperature"], updated["extra_body"]) == (0.25, shown)
        assert not wire.of("error")


@pytest.mark.parametrize("name", ALL)
async def test_an_unchanged_value_is_no_change(name: ProfileName, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name)) as stack:
        opening = {**OPENINGS[name], "instructions": "be kind", "model": MODELS[name].name}
        wire = await stack.duplex(opening)
        await wire.send("session.update", session=opening)
        await wire.until("session.updated", 2)
        assert not wire.of("error")


@pytest.mark.parametrize("name", ALL)
async def test_a_stock_client_may_configure_any_model_at_first(
    name: ProfileName, autojump_clock: trio.testing.MockClock
) -> None:
    """Environment 8: the first update of an autostarted session sets everything at once; the same again is fine."""
    async with open_stack(ProfilePlugin(name), scorer=ScriptedVad()) as stack:
        everything: Json = {
            "instructions": "Be nice.",
            "audio": {
                "input": {"transcription": {"model": "whisper-1"}, "noise_reduction": None},
                "output": {"voice": "marin", "speed": 1.0},
            },
            "max_output_tokens": "inf",
            "tools": [],
            "tracing": None,
        }
        wire = await stack.plain(everything)
        assert not wire.of("error")
        session = wire.of("session.updated")[0]["session"]
        assert session["instructions"] == "Be nice."
        await wire.send("session.update", session={"type": "realtime", **everything})
        await wire.until("session.updated", 2)
        assert not wire.of("error")
