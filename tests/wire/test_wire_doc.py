# ruff: noqa: N802 - tests of a case carry its id
"""The wire reference says what the code does: fresh, complete, its examples and its tests exist (case U6)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from duplex_protocol.aliases import EVENT_ALIASES
from duplex_protocol.catalogue import SERVER_EVENTS
from duplex_protocol.client_events import CLIENT_EVENTS
from duplex_protocol.dialect import MAX_EVENT_BYTES
from duplex_protocol.error_meanings import ERROR_MEANINGS
from duplex_protocol.errors import ERRORS
from duplex_protocol.examples import CLIENT_EXAMPLES
from duplex_protocol.examples_server import SERVER_EXAMPLES
from duplex_protocol.model_rules import MAX_TOOLS
from duplex_protocol.profiles import GATES
from duplex_protocol.wire import MAX_DEPTH, MAX_EVENT_ID_CHARS, MAX_MEMBERS
from duplex_protocol.wire_doc import markdown
from duplex_protocol.wire_events import CLIENT_TEST, SERVER_TEST, shortened
from duplex_protocol.wire_prose import LIMITS
from trio_duplex.server.connection import MAX_REFUSALS_IN_A_ROW
from trio_duplex.server.handshake import FIRST_MESSAGE_TIMEOUT_S
from trio_duplex.session.draining import DEFAULT_DRAIN_S, MAX_DRAIN_S
from trio_duplex.session.items import MAX_TOOL_RESULTS
from trio_duplex.session.settings import SessionSettings

ROOT = Path(__file__).parents[2]
WIRE = ROOT / "docs" / "wire.md"
BLOCK = re.compile(r"^### (\S+)\n(.*?)(?=^### |^## |\Z)", re.M | re.S)


def test_the_reference_is_fresh() -> None:
    assert WIRE.read_text() == markdown() + "\n", "run: python -m duplex_protocol.catalogue > docs/wire.md"


def test_U6_every_example_of_the_reference_is_executed_by_its_test() -> None:
    blocks = dict(BLOCK.findall(WIRE.read_text()))
    assert list(blocks) == [*CLIENT_EVENTS, *SERVER_EVENTS]
    assert len(blocks) == 63
    examples = {**{name: one.event for name, one in CLIENT_EXAMPLES.items()}, **SERVER_EXAMPLES}
    for name, text in blocks.items():
        (shown,) = re.findall(r"```json\n(.*?)\n```", text, re.S)
        assert json.loads(shown) == shortened(examples[name])
        assert "- tier " in text
        assert "fields: " in text
        base = CLIENT_TEST if name in CLIENT_EVENTS else SERVER_TEST
        assert f"`{base}[{name}]`" in text


@pytest.mark.parametrize("test", [CLIENT_TEST, SERVER_TEST])
def test_the_named_tests_exist(test: str) -> None:
    path, _, function = test.partition("::")
    source = (ROOT / path).read_text()
    assert f"def {function}(name: str" in source
    table = "CLIENT_EXAMPLES" if test == CLIENT_TEST else "SERVER_EXAMPLES"
    assert f'@pytest.mark.parametrize("name", list({table}))\nasync def {function}(' in source


def test_every_other_table_is_in_it() -> None:
    text = WIRE.read_text()
    assert set(ERROR_MEANINGS) == set(ERRORS)
    for name in [*ERRORS, *EVENT_ALIASES, *(gate.flag for gate in GATES)]:
        assert f"`{name}`" in text
    for gate in GATES:
        assert set(gate.events) <= {*CLIENT_EVENTS, *SERVER_EVENTS}


def test_the_limits_are_those_of_the_code() -> None:
    settings = SessionSettings()
    shown = {what: limit for what, limit, _ in LIMITS}
    assert shown["one inbound text frame"] == f"{MAX_EVENT_BYTES // 2**20} MiB of UTF-8"
    assert shown["nesting and members of one event"] == f"{MAX_DEPTH} levels, {MAX_MEMBERS // 1000} 000 members"
    assert shown["`event_id`"] == f"{MAX_EVENT_ID_CHARS} characters"
    assert shown["first message"] == f"{FIRST_MESSAGE_TIMEOUT_S:.0f} s"
    assert shown["no life sign (lease)"] == f"{settings.idle_ttl_s:.0f} s"
    assert shown["detached"] == f"{settings.disconnect_grace_s:.0f} s"
    journal_mib = settings.resume_replay_max_bytes_per_session // 2**20
    assert shown["journal of a session"] == f"{journal_mib} MiB, {settings.resume_replay_ttl_s:.0f} s per event"
    assert shown["one write to a socket"] == f"{settings.attachment_io_timeout_s:.0f} s"
    assert shown["waiting input of a session"] == f"{settings.max_pending_input_bytes_per_session // 2**20} MiB"
    assert shown["commits that wait"] == str(settings.max_pending_turns_per_session)
    assert shown["refusals by back-pressure in a row"] == str(MAX_REFUSALS_IN_A_ROW)
    assert shown["tool results that wait"] == str(MAX_TOOL_RESULTS)
    assert shown["tools of Nemotron VoiceChat"] == str(MAX_TOOLS)
    assert shown["drain of `session.close`"] == f"{DEFAULT_DRAIN_S:.0f} s, at most {MAX_DRAIN_S:.0f} s"
