"""Whatever arrives, a dialect answers with a command or one typed error, and never half an effect."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duplex_protocol import wire
from duplex_protocol.appends import FIELDS as APPEND_FIELDS
from duplex_protocol.client_events import CLIENT_EVENTS, event_session
from duplex_protocol.commands import Command, UpdateSession
from duplex_protocol.errors import ERRORS, RemoteProtocolError
from duplex_protocol.native import NativeDialect
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.session_echo import render_session
from duplex_protocol.session_fields import FIELDS
from tests.protocol.wire_kit import DEFAULTS, TURN_BASED, attempt, snapshot

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)

ODD = st.sampled_from(["", "AAA=", "@@@", "pcm16", "wav", "audio", "text", "server_vad", "root", "inf", "é\u0000"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ODD
)
NAMES = sorted(
    {spelling for field in APPEND_FIELDS for spelling in (field.name, *field.aliases)}
    | {field.name for row in CLIENT_EVENTS.values() for field in row.fields}
    | {path.rpartition(".")[2] for field in FIELDS for path in field.paths}
    | {"type", "content", "role", "format", "rate", "input", "output", "audio", "session", "payload", "event"}
    | {"turn_detection", "threshold", "silence_duration_ms", "extra_body", "native_duplex", "id", "call_id", "response"}
)
KEYS = st.sampled_from(NAMES) | st.text(max_size=3)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=8)
TYPES = st.sampled_from([*CLIENT_EVENTS, "push_chunk", "signal_turn", "close", "session.create", "nonsense"])
DIALECTS = [RealtimeDialect("duplex"), RealtimeDialect("plain"), NativeDialect()]


@pytest.mark.parametrize("dialect", DIALECTS, ids=["duplex", "plain", "native"])
@given(kind=TYPES, fields=OBJECTS, event_id=st.none() | st.just("evt_1"))
@settings(CALM, max_examples=60)
def test_decode(dialect: Any, kind: str, fields: dict[str, Any], event_id: str | None) -> None:
    event = wire.parse(orjson.dumps({**fields, "type": kind, "event_id": event_id}))
    before = copy.deepcopy(event)
    outcome = attempt(dialect.decode, event)
    assert event == before
    if isinstance(outcome, RemoteProtocolError):
        assert outcome.code in ERRORS
        assert outcome.event_id == event_id
        assert outcome.message
    else:
        assert outcome
        assert all(isinstance(command, Command) and command.event_id == event_id for command in outcome)


@pytest.mark.parametrize("defaults", [DEFAULTS, TURN_BASED, attrs.evolve(DEFAULTS, lane_by_client=True)], ids=range(3))
@pytest.mark.parametrize("dialect", DIALECTS, ids=["duplex", "plain", "native"])
@given(first=OBJECTS, second=OBJECTS)
@settings(CALM, max_examples=15)
def test_session_objects(dialect: Any, defaults: Any, first: dict[str, Any], second: dict[str, Any]) -> None:
    first, second = orjson.loads(orjson.dumps(first)), orjson.loads(orjson.dumps(second))
    sent = copy.deepcopy((first, second))
    opened = attempt(dialect.parse_open, first, defaults)
    if isinstance(opened, RemoteProtocolError):
        assert opened.code in ERRORS
        return
    base = copy.deepcopy(opened.config)
    updated = attempt(dialect.parse_update, second, opened.config, defaults)
    assert (opened.config, (first, second)) == (base, sent), "nothing is changed in place"
    if isinstance(updated, RemoteProtocolError):
        assert updated.code in ERRORS
    else:
        again = dialect.parse_update(second, updated.config, defaults)
        assert again == updated, "the same update twice is one update"
    for config in {
        id(one): one.config for one in (opened, updated) if not isinstance(one, RemoteProtocolError)
    }.values():
        for view in ("duplex", "plain"):
            shown = render_session(snapshot(config), view)  # type: ignore[arg-type]
            assert wire.encode({"type": "session.updated", "session": shown}, event_id="e", server_event_seq=1)


@given(text=st.text(max_size=80) | st.binary(max_size=80))
@example(text='{"type":"a","b":1e999}')
@example(text=b'{"type":"\xff"}')
@settings(CALM, max_examples=60)
def test_parse(text: str | bytes) -> None:
    outcome = attempt(wire.parse, text)
    if isinstance(outcome, RemoteProtocolError):
        assert outcome.code in {"invalid_json", "bad_event"}
    else:
        assert isinstance(outcome["type"], str)


@given(fields=OBJECTS)
@settings(CALM, max_examples=60)
def test_an_update_event_gives_its_object(fields: dict[str, Any]) -> None:
    event = {"type": "session.update", "session": fields}
    (command,) = DIALECTS[0].decode(event)
    assert isinstance(command, UpdateSession)
    assert command.session == event_session(event) == fields
