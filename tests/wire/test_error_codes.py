"""Each error code of an established session, provoked through the whole stack.

Checked are class, param, event_id, that the socket stays open, and that nothing changed. Openings and the engine's own
errors have files of their own; ``test_every_code_has_a_case`` keeps the three whole.
"""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.errors import ERRORS, error_row
from tests.wire.error_cases import CASES, Case, fingerprint, inner
from tests.wire.stack import open_stack
from tests.wire.test_engine_errors import FATAL, SAID_BY_THE_ENGINE
from tests.wire.test_refused_openings import OPENINGS
from trio_duplex.testing import ScriptedPlugin
from trio_duplex.testing.profiles import ProfilePlugin


def case_id(case: Case) -> str:
    kind = case.event["type"] if isinstance(case.event, dict) else case.event
    return f"{case.code}-{kind}-{case.param}"


def plugin_of(case: Case) -> ScriptedPlugin:
    return ProfilePlugin(case.options) if isinstance(case.options, str) else ScriptedPlugin(case.options)


@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_a_refused_event_changes_nothing(case: Case, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(plugin_of(case), scorer=case.scorer) as stack:
        wire = await (stack.native(case.opening) if case.native else stack.duplex(case.opening))
        await case.before(stack, wire)
        await wire.settled()
        before, errors, seen = fingerprint(stack.session), len(wire.of("error")), len(wire.events)
        if case.raw is not None:
            await wire.send_raw(case.raw)
        else:
            event = {"type": case.event} if isinstance(case.event, str) else dict(case.event)
            if event.get("response_id") == "@first":
                event["response_id"] = wire.of("response.created")[0]["response_id"]
            await wire.send({**event, "event_id": "evt_1"})
        error = inner(await wire.until("error", errors + 1))
        assert error["code"] == case.code
        assert error["message"]
        assert error.get("param") == case.param
        if case.raw is None or "evt_1" in case.raw:
            assert error["event_id"] == "evt_1"
        if not case.native:
            assert error["type"] == error_row(case.code).error_class
            assert error.get("retryable") == error_row(case.code).retryable
        await wire.settled()  # the socket is open and the session lives
        if not case.spoils:
            assert [e["type"] for e in wire.events[seen:]] == ["error", "session.heartbeat_ack"]
            assert fingerprint(stack.session) == before


NOT_PROVOKED = {
    "invalid_session_config": "a later engine's word for what invalid_duplex_runtime_config says here",
    "session_update_aborted": "appends are applied before the update that follows them; none can fail beside it",
    "realtime_input_failed": "reading is one pure function that raises typed refusals only (fuzzed)",
    "runtime_open_unsupported": "an engine's word; this server's plugins refuse by OpenRefused",
    "runtime_contract_invalid": "server and engine are one process and one version",
    "runtime_native_runner_kv_required": "deployments are checked at start, not at the opening",
    "runtime_resume_failed": "there is no engine lease beside the session's own",
    "runtime_resume_unsupported": "there is no engine lease beside the session's own",
    "multi_api_duplex_unsupported": "one process serves; there are no API workers",
    "text_only_turn_unsupported": "a model that cannot answer in text says so with invalid_input_modality",
}
"""Codes of the vocabulary that nothing in this server says, with the reason."""


def test_every_code_has_a_case() -> None:
    named = {
        *(case.code for case in CASES),
        *(case.code for case in OPENINGS),
        *SAID_BY_THE_ENGINE,
        *FATAL,
        "duplex_session_busy",
        "runtime_open_failed",
        "internal_error",
    }
    assert named | set(NOT_PROVOKED) == set(ERRORS)
    assert not named & set(NOT_PROVOKED)
