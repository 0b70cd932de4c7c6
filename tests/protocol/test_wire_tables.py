"""The tables themselves: states, catalogue, errors, capabilities, the generated reference, purity."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import duplex_protocol
from duplex_protocol import commands as c
from duplex_protocol import states
from duplex_protocol.catalogue import SERVER_EVENTS
from duplex_protocol.client_events import CLIENT_EVENTS
from duplex_protocol.errors import ERRORS, LocalProtocolError, RemoteProtocolError, error_row
from duplex_protocol.profiles import GATES, PROFILES, gate_refusal, profile
from duplex_protocol.values import Capabilities, SessionState, TurnState
from duplex_protocol.wire_doc import markdown

PACKAGE = Path(duplex_protocol.__file__).parent
ALLOWED_IMPORTS = {"attrs", "cattrs", "orjson", "pybase64", "duplex_protocol"}

# --- states -----------------------------------------------------------------------------------------------------------


def test_walk_the_session_table() -> None:
    happenings = {what for _, what in states.SESSION_MOVES}
    for state, what in itertools.product(get_args(SessionState), happenings):
        if (state, what) in states.SESSION_MOVES:
            assert states.next_session_state(state, what) == states.SESSION_MOVES[state, what]
        else:
            before = dict(states.SESSION_MOVES)
            with pytest.raises(LocalProtocolError):
                states.next_session_state(state, what)
            assert before == states.SESSION_MOVES
    assert states.next_session_state("open", "close_begins") == "closing"
    with pytest.raises(LocalProtocolError):
        states.next_session_state("closed", "close_begins")


def test_walk_the_response_table() -> None:
    phases: list[Any] = [None, *get_args(states.ResponsePhase)]
    for phase, move in itertools.product(phases, get_args(states.ResponseMove)):
        if (phase, move) in states.RESPONSE_MOVES:
            assert states.next_response_phase(phase, move) == states.RESPONSE_MOVES[phase, move]
        else:
            with pytest.raises(LocalProtocolError):
                states.next_response_phase(phase, move)
    assert not [move for phase, move in states.RESPONSE_MOVES if phase == "done"]
    assert [move for phase, move in states.RESPONSE_MOVES if phase is None] == ["create"]


def test_every_command_has_a_place_in_every_state() -> None:
    everything = {
        cls for cls in vars(c).values() if isinstance(cls, type) and issubclass(cls, c.Command) and cls is not c.Command
    }
    assert set(states.COMMANDS) == everything
    assert set(states.ALLOWED) == set(get_args(SessionState))
    for command in everything:
        assert states.refusal("open", command) is None
        late = {None} if command in (c.CloseSession, c.AckEvents) else {"session_closed"}
        assert {states.refusal("closing", command), states.refusal("closed", command)} == late


def test_turn_states() -> None:
    assert set(states.TURN_STATE_AFTER.values()) == set(get_args(TurnState))


# --- catalogue and errors ---------------------------------------------------------------------------------------------


def test_the_catalogue_counts() -> None:
    assert (len(CLIENT_EVENTS), len(SERVER_EVENTS)) == (21, 42)
    assert all(row.tier in (1, 2, 3) and row.description for row in [*CLIENT_EVENTS.values(), *SERVER_EVENTS.values()])


SERVER_CLASS = {
    "internal_error",
    "runtime_open_failed",
    "runtime_open_unsupported",
    "runtime_append_failed",
    "runtime_append_task_failed",
    "runtime_signal_failed",
    "runtime_close_failed",
    "runtime_abort_failed",
    "runtime_data_plane_stream_failed",
    "runtime_data_plane_text_without_audio",
    "response_error",
    "chat_error",
    "server_vad_initialization_failed",
    "server_vad_inference_failed",
    "runtime_native_stage_role_required",
    "runtime_native_runner_kv_required",
    "runtime_touch_failed",
    "runtime_touch_unsupported",
    "commit_aborted",
    "nemotron_function_call_parse_error",
    "native_duplex_prefill_failed",
    "native_kv_replica_lost",
    "realtime_input_failed",
    "engine_error",
}
RATE_CLASS = {"duplex_session_busy", "resource_exhausted", "input_backpressure"}
FATAL = {
    "unknown_session",
    "runtime_append_task_failed",
    "runtime_data_plane_stream_failed",
    "native_kv_replica_lost",
}


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_error_classes(code: str) -> None:
    row = error_row(code)
    expected = "server_error" if code in SERVER_CLASS else "rate_limit_error" if code in RATE_CLASS else None
    assert row.error_class == (expected or "invalid_request_error")
    assert row.session_ends == (code in FATAL)
    assert RemoteProtocolError(code, "m").error_class == row.error_class


def test_every_named_code_is_in_the_table() -> None:
    assert set(ERRORS) >= SERVER_CLASS | RATE_CLASS | FATAL
    assert error_row("some_code_of_tomorrow").error_class == "invalid_request_error"
    assert error_row("timeout").retryable is True


def _raised_codes() -> set[str]:
    """Codes that appear in ``RemoteProtocolError("code", …)`` and ``code="…"`` of this package."""
    found: set[str] = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            if getattr(node.func, "id", "") == "RemoteProtocolError" and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
            found |= {
                str(k.value.value) for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)
            }
    return found - {"None"}


def test_this_package_raises_only_codes_of_the_table() -> None:
    assert _raised_codes() >= {"bad_event", "bad_audio", "invalid_json"}
    assert _raised_codes() <= set(ERRORS)


# --- capabilities, key by key (MC, PP, NV, CF, QW) --------------------------------------------------------------------

T, F = True, False
PCM_PATTERN = ["scheduler_data_plane"]
CLIENT_SERVER_MODEL = ["client_event", "server_policy", "model_native"]
TABLE: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "supports_session_adapter": (T, T, T, T, T),
    "supports_model_native_turn_policy": (T, T, T, F, F),
    "supports_external_turn_signal": (T, F, F, T, T),
    "supports_client_commit": (T, F, T, T, T),
    "supports_barge_in": (T, F, F, T, T),
    "supports_playback_ack": (T, T, T, T, T),
    "supports_input_append": (T, T, T, F, T),
    "supports_replace_latest_chunk": (F, F, F, T, T),
    "supports_reencode_context": (F, F, F, T, T),
    "supports_rollback_to_checkpoint": (F, F, F, F, F),
    "supports_turn_commit_only": (F, F, F, T, T),
    "supports_kv_lease": (F, F, F, F, F),
    "supports_core_kv_lease": (F, F, F, F, F),
    "supports_scheduler_native_append": (F, F, F, F, F),
    "supports_model_internal_state": (T, T, T, F, F),
    "supports_stage_resumption": (T, T, T, F, F),
    "supports_core_resumable_request": (T, T, T, F, F),
    "supports_stage_connector_handoff": (T, T, T, F, F),
    "supports_independent_io_streams": (T, T, T, F, F),
    "supports_realtime_endpoint": (T, T, T, T, T),
    "supports_multi_session": (T, T, T, F, F),
    "supports_multi_session_same_replica": (T, T, F, F, F),
    "supports_session_lease": (T, T, T, F, F),
    "supports_session_resume": (T, F, T, F, F),
    "session_admission_mode": ("engine_managed",) * 3 + ("serving_managed",) * 2,
    "supports_audio_truncate": (T, F, F, F, F),
    "requires_model_runner_kv": (T, T, T, F, F),
    "requires_native_stage_role": (T, T, T, F, F),
    "implementation_level": ("model_native_duplex",) * 3 + ("serving_session_adapter",) * 2,
    "adapter_patterns": (PCM_PATTERN,) * 3 + (["chunk_group_append"],) * 2,
    "input_modes": (["append_audio_chunk"],) * 3 + (["turn_commit_only", "reencode_context"],) * 2,
    "signal_sources": (
        ["model_native", "client_event", "server_policy"],
        ["model_native", "client_event"],
        ["model_native", "client_event"],
        CLIENT_SERVER_MODEL,
        CLIENT_SERVER_MODEL,
    ),
    "stage_handoff_transport": ("scheduler_data_plane",) * 3 + (None,) * 2,
    "chunk_period_ms": (1000, 80, 80, 1000, 1000),
    "target_barge_in_latency_ms": (None, None, None, 1000, 1000),
}


def test_capabilities_key_by_key() -> None:
    shown = [capabilities.as_wire() for capabilities in PROFILES.values()]
    assert all(list(one) == list(TABLE) for one in shown)
    for key, expected in TABLE.items():
        assert [one[key] for one in shown] == list(expected), key


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_one_session_is_not_many(name: str) -> None:
    alone, many = profile(name, max_sessions=1).as_wire(), profile(name, max_sessions=2).as_wire()
    assert many == dict(PROFILES)[name].as_wire()  # type: ignore[index]
    changed = {key for key in many if alone[key] != many[key]}
    assert changed <= {"supports_multi_session", "supports_multi_session_same_replica"}
    assert not any(alone[key] for key in ("supports_multi_session", "supports_multi_session_same_replica"))


def test_an_unknown_profile() -> None:
    with pytest.raises(LocalProtocolError, match="personaplex"):
        profile("nonsense", max_sessions=1)


def test_gates() -> None:
    for gate in GATES:
        assert hasattr(Capabilities(), gate.flag)
        assert gate.code is None or gate.code in ERRORS
    assert gate_refusal(c.BargeIn, PROFILES["minicpmo_4_5"]) is None
    assert gate_refusal(c.BargeIn, PROFILES["personaplex"]) == "barge_in_unsupported"
    assert gate_refusal(c.CommitInput, PROFILES["personaplex"]) is None


# --- the generated reference and purity -------------------------------------------------------------------------------


def test_the_reference_names_everything() -> None:
    text = markdown()
    for name in [*CLIENT_EVENTS, *SERVER_EVENTS, *ERRORS, *TABLE]:
        assert f"`{name}`" in text
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "duplex_protocol.catalogue"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == text.strip()


def test_no_clock_no_randomness_no_io() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                root = module.split(".")[0]
                assert root in ALLOWED_IMPORTS or root in sys.stdlib_module_names, f"{path.name}: {module}"
                assert root not in {
                    "time",
                    "random",
                    "secrets",
                    "uuid",
                    "datetime",
                    "socket",
                    "threading",
                    "asyncio",
                    "os",
                }
