"""Deadlines of a session as its client receives them, and as the server's own statistics show them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.wire.stack import append, open_stack
from trio_duplex.client import Deadlines, EventCollector, summarize_session_request_metrics, wrap_event
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions

Json = dict[str, Any]

LATE = ScriptedOptions(lateness_ms=(-40.0, -30.0, 5.5, -20.0), script=lambda _: [Piece("hi")])
ASKED: Json = {"extra_body": {"auto_response": True, "return_stage_metrics": True}}
# One utterance: 320 ms of speech and 640 of silence are 9 whole units of 100 ms (of 96: frames of 32 ms complete them).
UNITS = 9
ACCOUNT: Json = {
    "units": UNITS,
    "missed": 2,
    "lateness_ms_p50": -30.0,
    "lateness_ms_p99": 5.5,
    "lateness_ms_max": 5.5,
}


async def one_turn(wire: Any, rate_hz: int = 16_000) -> None:
    await wire.send(append(320, rate_hz=rate_hz))
    await wire.send(append(640, amplitude=0, rate_hz=rate_hz))
    await wire.until("response.done")


async def test_session_closed_carries_the_account_of_the_session(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(LATE) as stack:
        wire = await stack.duplex()
        await one_turn(wire)
        (done,) = wire.of("response.done")
        assert "deadlines" not in done["response"]["metadata"], "nobody asked for metrics"
        assert stack.session.statistics().deadlines is not None
        assert stack.session.statistics().deadlines.as_wire() == ACCOUNT
        assert (stack.hub.statistics().deadline_units, stack.hub.statistics().deadline_misses) == (UNITS, 2)
        await wire.send("session.close")
        closed = await wire.until("session.closed")
        assert closed["deadlines"] == ACCOUNT
        typed = wrap_event(closed)
        assert typed.deadlines == Deadlines(  # type: ignore[attr-defined]
            units=UNITS, missed=2, lateness_ms_p50=-30.0, lateness_ms_p99=5.5, lateness_ms_max=5.5
        )
        # The ended session's account stays in the totals.
        assert (stack.hub.statistics().deadline_units, stack.hub.statistics().deadline_misses) == (UNITS, 2)


async def test_response_done_carries_it_when_metrics_were_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(LATE) as stack:
        wire = await stack.duplex(ASKED)
        await one_turn(wire)
        (done,) = wire.of("response.done")
        assert done["response"]["metadata"]["deadlines"] == ACCOUNT
        assert wrap_event(done).deadlines.units == UNITS  # type: ignore[attr-defined]
        collector = EventCollector()
        for event in wire.events:
            collector.add(event)
        summary = collector.timing_summary(after_s=0.0)
        assert summary["deadlines"] == ACCOUNT
        turns = [{"deadlines": {"units": 1, "missed": 0}}, summary]
        assert summarize_session_request_metrics(turns, session_id="s")["deadlines"] == ACCOUNT


async def test_session_expired_carries_it(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(LATE, settings=SessionSettings(idle_ttl_s=5.0)) as stack:
        wire = await stack.duplex()
        await one_turn(wire)
        expired = await wire.until("session.expired")
        assert expired["deadlines"] == ACCOUNT
        assert wrap_event(expired).deadlines.missed == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("cancel", [False, True])
async def test_the_native_dialect_has_it_flat(cancel: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(LATE) as stack:
        wire = await stack.native(ASKED)
        await wire.send(append(320))
        await wire.send(append(640, amplitude=0))
        await wire.until("response.created")
        if cancel:
            await wire.send("response.cancel")
        done = await wire.until("audio.cancelled" if cancel else "response.done")
        assert done["deadlines"] == ACCOUNT
        await wire.send("session.close")
        assert (await wire.until("session.closed"))["deadlines"] == ACCOUNT


async def test_the_plain_view_shows_none_of_it(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(LATE) as stack:
        wire = await stack.plain({"instructions": "be short"})
        await one_turn(wire, rate_hz=24_000)
        assert stack.session.statistics().deadlines is not None
        await wire.send("session.close")
        await wire.until("session.closed")
        assert "deadlines" not in str(wire.events)


async def test_a_model_without_deadlines_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions(script=lambda _: [Piece("hi")])) as stack:
        wire = await stack.duplex(ASKED)
        await one_turn(wire)
        assert stack.session.statistics().deadlines is None
        await wire.send("session.close")
        await wire.until("session.closed")
        assert "deadlines" not in str(wire.events)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"units": "1", "missed": 0}, {"units": 1.5, "missed": True}])
def test_a_client_takes_no_account_from_nonsense(value: object) -> None:
    assert wrap_event({"type": "session.closed", "deadlines": value}).deadlines is None  # type: ignore[attr-defined]
