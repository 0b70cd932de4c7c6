"""The account of deadlines itself, and that the demo model's engine says how late its frames were."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from duplex_protocol.values import Deadlines, SessionConfig
from tests.models.test_demo_threads import StandIns
from trio_duplex.models.deadlines import KEPT, DeadlineAccount
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.demo.threads import ThreadEngine
from trio_duplex.models.plugin import Listened, SessionContext, deadlines_of


def test_an_empty_account_has_no_lateness() -> None:
    assert DeadlineAccount().snapshot() == Deadlines()
    assert Deadlines().as_wire() == {
        "units": 0,
        "missed": 0,
        "lateness_ms_p50": None,
        "lateness_ms_p99": None,
        "lateness_ms_max": None,
    }


def test_percentiles_are_nearest_rank_and_early_is_negative() -> None:
    account = DeadlineAccount()
    for ms in range(-99, 1):  # -99 … 0 ms: none is late, not even the one at its deadline
        account.add(ms / 1000)
    assert account.snapshot().missed == 0
    account.add(0.0123456)
    taken = account.snapshot()
    assert (taken.units, taken.missed) == (101, 1)
    assert taken.lateness_ms_p50 == pytest.approx(-49)  # the 51st of 101
    assert taken.lateness_ms_p99 == pytest.approx(0)  # the 100th
    assert taken.lateness_ms_max == pytest.approx(12.3456)
    assert taken.as_wire()["lateness_ms_max"] == 12.346


def test_memory_is_bounded_and_the_worst_is_not_forgotten() -> None:
    account = DeadlineAccount()
    account.add(1.0)
    for _ in range(KEPT):
        account.add(-0.001)
    taken = account.snapshot()
    assert (taken.units, taken.missed) == (KEPT + 1, 1)
    assert taken.lateness_ms_p99 == pytest.approx(-1.0)
    assert taken.lateness_ms_max == pytest.approx(1000.0)


async def test_frames_of_the_demo_model_are_accounted() -> None:
    """On the real threads: one unit a frame, also after the session was closed."""
    networks = StandIns()
    engine = ThreadEngine(DemoOptions(), max_sessions=2, networks=networks)
    plugin = DemoPlugin(engine=engine)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(plugin.run)
            session = await plugin.open(SessionConfig(model="demo"), SessionContext("s", tuple))
            await nursery.start(session.run)
            assert deadlines_of(session) == Deadlines()
            session.submit(np.zeros(3 * 512, np.float32))
            assert await session.results.receive() == Listened()  # a whole unit of 96 ms was judged
            await session.aclose()
            taken = session.deadlines()
            assert taken.units == 3
            assert taken.lateness_ms_max is not None
            assert taken.lateness_ms_max > -20.0  # a frame is due 20 ms after it was handed in, so not earlier
            (numbers,) = plugin.model_threads().values()
            assert numbers.rows == 3
            assert 0 < numbers.step_s_sum < 20
            nursery.cancel_scope.cancel()
