"""Errors that the model or its engine says: what they end, and what goes on (contract 6.2)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from duplex_protocol.errors import error_row
from tests.wire.error_cases import HANGS, MANUAL, committed, hanging, heard
from tests.wire.stack import append, open_stack
from trio_duplex.models.plugin import ModelFailed
from trio_duplex.testing import Fail, Piece, ScriptedOptions, ScriptedPlugin, ScriptedSession

# --- what the engine says ---------------------------------------------------------------------------------------------

SAID_BY_THE_ENGINE = [
    "runtime_append_failed",
    "runtime_signal_failed",
    "runtime_abort_failed",
    "runtime_touch_failed",
    "runtime_touch_unsupported",
    "runtime_close_failed",
    "response_error",
    "chat_error",
    "nemotron_function_call_parse_error",
    "runtime_data_plane_text_without_audio",
    "native_duplex_prefill_failed",
    "engine_error",
    "stale_fence",
    "failed_precondition",
    "not_found",
    "invalid_argument",
    "invalid_capability",
    "timeout",
    "duplex_error",
]
FATAL = ["runtime_append_task_failed", "runtime_data_plane_stream_failed", "native_kv_replica_lost", "unknown_session"]


@pytest.mark.parametrize("code", SAID_BY_THE_ENGINE)
async def test_an_engine_error_ends_the_answer_only(code: str, autojump_clock: trio.testing.MockClock) -> None:
    """The error, then the failed terminal; the session goes on with the next turn."""
    scripts = iter([[Piece("Well, "), Fail(code)], [Piece("Again.")]])
    async with open_stack(ScriptedOptions(script=lambda _: next(scripts))) as stack:
        wire = await stack.duplex(MANUAL)
        await committed(stack, wire)
        await wire.send("response.create")
        done = await wire.until("response.done")
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == (code, error_row(code).error_class)
        assert wire.types.index("error") < wire.types.index("response.done")
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"] == {"type": "failed", "reason": code}
        await heard(stack, wire)
        await wire.send("input_audio_buffer.commit", response_create=True)
        again = await wire.until("response.done", 2)
        assert again["response"]["status"] == "completed"


@pytest.mark.parametrize("code", SAID_BY_THE_ENGINE)
async def test_an_engine_error_without_an_answer_is_only_told(
    code: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_stack() as stack:
        wire = await stack.duplex()
        stack.model.hear(ModelFailed(code=code, message="so"))
        error = await wire.error()
        assert (error["code"], error["type"], error["message"]) == (code, error_row(code).error_class, "so")
        await wire.settled()
        assert stack.session.state == "open"


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("speaking", [True, False])
async def test_a_fatal_error_is_followed_by_closed(
    code: str, speaking: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Error, answer failed, session.closed with the code as the reason, close 1000; the slot is free."""
    async with open_stack(HANGS) as stack:
        wire = await stack.duplex(MANUAL)
        if speaking:
            await hanging(stack, wire)
        if code == "runtime_data_plane_stream_failed":
            stack.model.break_results()
        else:
            stack.model.hear(ModelFailed(code=code, message="so", fatal=True))
        gone = await wire.over()
        kinds = [k for k in wire.types if k in ("error", "response.done", "session.closed")]
        assert kinds == ["error", *(["response.done"] if speaking else []), "session.closed"]
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == (code, error_row(code).error_class)
        if speaking:
            assert wire.of("response.done")[0]["response"]["status"] == "failed"
        assert wire.events[-1]["reason"] == code
        assert gone.code == 1000
        assert stack.hub.statistics().sessions == 0
        assert error_row(code).session_ends


async def test_internal_error_ends_one_session(autojump_clock: trio.testing.MockClock) -> None:
    class Crashing(ScriptedSession):
        def end_turn(self) -> Any:
            raise ZeroDivisionError

    class Plugin(ScriptedPlugin):
        async def open(self, config: Any, context: Any) -> ScriptedSession:
            session = await super().open(config, context)
            crashing = len(self.sessions) == 2
            return Crashing(self, config, context) if crashing else session

    async with open_stack(Plugin()) as stack:
        other = await stack.duplex()
        wire = await stack.duplex(MANUAL)
        await wire.send(append(320))
        await wire.send("input_audio_buffer.commit", event_id="evt_1")
        await wire.over()
        error = wire.of("error")[0]["error"]
        assert (error["code"], error["type"]) == ("internal_error", "server_error")
        assert wire.events[-1]["type"] == "session.closed"
        assert wire.events[-1]["reason"] == "internal_error"
        await other.settled()
