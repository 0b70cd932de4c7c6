"""Slots that a model does not give back are kept aside for the reaper (contract 15.4, 16.1, 22; cases C1, L1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from duplex_protocol.values import SessionConfig
from tests.wire.stack import Stack, Wire, open_stack
from trio_duplex.hub import SHUTDOWN_TIMEOUT_S
from trio_duplex.models import plugin as model
from trio_duplex.server.metrics import MetricsPage
from trio_duplex.session.core import CLEANUP_TIMEOUT_S
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedOptions, ScriptedPlugin
from trio_duplex.testing.scripted_model import ScriptedSession

INTERVAL_S = 7.0
ONE = SessionSettings(max_sessions=1, reaper_interval_s=INTERVAL_S)
TWO = SessionSettings(max_sessions=2, reaper_interval_s=INTERVAL_S)


@attrs.define(eq=False)
class Stubborn(ScriptedSession):
    """A session whose slot does not come back while its plugin is stubborn; ``asked`` are the times it was asked."""

    asked: list[float] = attrs.field(factory=list)

    async def aclose(self) -> None:
        """Raise, hang, or give the slot back. Cancellation: the slot is not back."""
        self.asked.append(trio.current_time())
        assert isinstance(self.plugin, StubbornPlugin)
        if self.plugin.stubborn == "fails":
            raise RuntimeError("cannot let go")
        if self.plugin.stubborn == "hangs":
            await trio.sleep_forever()
        await ScriptedSession.aclose(self)


@attrs.define(eq=False)
class StubbornPlugin(ScriptedPlugin):
    stubborn: str = ""

    async def open(self, config: SessionConfig, context: model.SessionContext) -> ScriptedSession:
        """Take a slot. Cancellation: before the slot is taken."""
        await trio.lowlevel.checkpoint()
        if self.open_slots == 0:
            raise model.OpenRefused("no slot left")
        self.open_slots -= 1
        session = Stubborn(self, config, context)
        self.sessions.append(session)
        return session


@asynccontextmanager
async def stubborn(how: str, settings: SessionSettings = ONE) -> AsyncIterator[tuple[Stack, StubbornPlugin]]:
    plugin = StubbornPlugin(ScriptedOptions(slots=settings.session_limit))
    plugin.stubborn = how
    async with open_stack(plugin, settings=settings) as stack:
        yield stack, plugin


async def close_in_vain(wire: Wire) -> None:
    await wire.send("session.close")
    assert (await wire.error())["code"] == "runtime_close_failed"


async def refusal(stack: Stack, **session: Any) -> str:
    """The code with which one more session is refused."""
    wire = await stack.connect(duplex=1)
    await wire.send({"type": "session.update", "session": session})
    code: str = (await wire.error())["code"]
    return code


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_the_slot_is_kept_until_the_reaper_gets_it_back(how: str, autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn(how) as (stack, plugin):
        wire = await stack.duplex()
        began = trio.current_time()
        await close_in_vain(wire)
        assert trio.current_time() - began == pytest.approx(CLEANUP_TIMEOUT_S)
        assert plugin.open_slots == 0
        # Nobody else gets it, and nobody is told that the session was closed.
        assert await refusal(stack) == "duplex_session_busy"
        await trio.sleep(10 * INTERVAL_S)
        assert await refusal(stack) == "duplex_session_busy"
        assert not wire.of("session.closed")
        assert not wire.ended.is_set()

        plugin.stubborn = ""
        before = trio.current_time()
        closed = await wire.until("session.closed")
        assert trio.current_time() - before <= INTERVAL_S + CLEANUP_TIMEOUT_S
        assert closed["reason"] == "session_close"
        assert wire.types[-1] == "session.closed"
        assert (await wire.over()).code == 1000
        assert [e["error"]["code"] for e in wire.of("error")] == ["runtime_close_failed"]
        assert plugin.open_slots == 1
        assert stack.hub.statistics().sessions == 0
        await stack.duplex()


async def test_it_is_asked_once_every_interval_and_others_talk_on(autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn("fails", TWO) as (stack, plugin):
        kept, other = await stack.duplex(), await stack.duplex()
        session = plugin.sessions[0]
        assert isinstance(session, Stubborn)
        await close_in_vain(kept)
        since = trio.current_time()
        session.asked.clear()
        await trio.sleep(3.5 * INTERVAL_S)
        assert [at - since for at in session.asked] == pytest.approx([INTERVAL_S, 2 * INTERVAL_S, 3 * INTERVAL_S])
        await other.settled()
        assert not other.of("error")


async def test_one_that_hangs_does_not_delay_another(autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn("hangs", TWO) as (stack, plugin):
        hangs, fails = await stack.duplex(), await stack.duplex()
        await close_in_vain(hangs)
        await close_in_vain(fails)
        second = plugin.sessions[1]
        await trio.sleep(0.1)
        free = StubbornPlugin(plugin.options)
        free.open_slots = 0
        second.plugin = free  # only this one lets go from here on
        before = trio.current_time()
        await fails.until("session.closed")
        assert trio.current_time() - before <= INTERVAL_S + CLEANUP_TIMEOUT_S
        assert free.open_slots == 1
        assert not hangs.of("session.closed")
        assert stack.hub.statistics().kept_slots == 1


async def test_an_expired_session_says_so_only_when_its_slot_is_back(autojump_clock: trio.testing.MockClock) -> None:
    settings = attrs.evolve(ONE, idle_ttl_s=5.0)
    async with stubborn("fails", settings) as (stack, plugin):
        wire = await stack.duplex()
        assert (await wire.error())["code"] == "runtime_close_failed"
        await trio.sleep(2 * INTERVAL_S)
        assert not wire.of("session.expired")
        plugin.stubborn = ""
        assert (await wire.until("session.expired"))["reason"] == "idle_ttl_expired"


async def test_a_kept_session_cannot_be_resumed_and_its_id_is_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn("fails", TWO) as (stack, _):
        wire = await stack.duplex({"session_id": "mine"})
        (created,) = wire.of("session.created")
        await close_in_vain(wire)
        await wire.send({"type": "session.heartbeat"})
        wire.socket.drop()
        assert await refusal(stack, session_id="mine") == "session_exists"
        again = await stack.connect(resume=1)
        await again.send(
            {
                "type": "session.resume",
                "session_id": "mine",
                "resume_token": created["resume_token"],
                "incarnation": 0,
                "last_received_server_event_seq": 1,
            }
        )
        assert (await again.until("error"))["code"] == "session_resume_expired"


async def test_it_is_counted_where_operators_look(autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn("fails") as (stack, plugin):
        page = MetricsPage(stack.hub)

        def shown(name: str, **labels: str) -> float:
            return next(
                sample.value
                for family in text_string_to_metric_families(page.text())
                for sample in family.samples
                if sample.name == "trio_duplex_" + name and sample.labels == labels
            )

        wire = await stack.duplex()
        assert stack.hub.statistics().kept_slots == stack.hub.health()[1]["kept_slots"] == 0
        await close_in_vain(wire)
        await trio.sleep(1.5 * INTERVAL_S)
        assert stack.hub.statistics().kept_slots == stack.hub.health()[1]["kept_slots"] == 1
        assert stack.hub.statistics().sessions == 1
        assert stack.hub.health()[1]["admits"] is False
        assert shown("sessions", state="cleanup_failed") == 1
        assert shown("sessions", state="closing") == 0
        assert shown("cleanup_failures_total") == shown("cleanup_retries_total") == 1
        plugin.stubborn = ""
        await wire.until("session.closed")
        assert stack.hub.statistics().kept_slots == stack.hub.health()[1]["kept_slots"] == 0
        assert shown("sessions", state="cleanup_failed") == 0
        assert shown("cleanup_failures_total") == 1
        assert shown("cleanup_retries_total") == 2


async def test_a_stop_asks_at_once_and_says_the_end(autojump_clock: trio.testing.MockClock) -> None:
    async with stubborn("fails", attrs.evolve(ONE, reaper_interval_s=1000.0)) as (stack, plugin):
        wire = await stack.duplex()
        await close_in_vain(wire)
        plugin.stubborn = ""
        before = trio.current_time()
        stack.hub.stop()
        await wire.until("session.closed")
        assert trio.current_time() == before
        assert plugin.open_slots == 1


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_stop_does_not_wait_for_a_slot_that_never_comes(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The hub ends in bounded time; the socket is closed, but nobody is told that the session was."""
    async with stubborn(how) as (stack, _):
        wire = await stack.duplex()
        await close_in_vain(wire)
        session = stack.session
        before = trio.current_time()
        stack.hub.stop()
        assert (await wire.over()).code == 1001
        assert trio.current_time() - before <= SHUTDOWN_TIMEOUT_S + 0.01
        assert not wire.of("session.closed")
        assert session.ended.is_set()
        assert stack.hub.statistics().sessions == stack.hub.statistics().kept_slots == 0


async def test_a_session_that_fails_to_clean_up_while_the_hub_stops_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with stubborn("hangs") as (stack, _):
        wire = await stack.duplex()
        before = trio.current_time()
        stack.hub.stop()
        assert (await wire.over()).code == 1001
        assert trio.current_time() - before <= SHUTDOWN_TIMEOUT_S + CLEANUP_TIMEOUT_S + 0.01
        assert not wire.of("session.closed")
        assert stack.hub.statistics().sessions == 0


@pytest.mark.parametrize("interval", [0, -1.0, 0.0])
def test_the_interval_is_positive(interval: float) -> None:
    with pytest.raises(ValueError, match="reaper_interval_s must be greater than 0"):
        SessionSettings(reaper_interval_s=interval)
