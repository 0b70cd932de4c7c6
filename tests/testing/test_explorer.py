"""The explorer over our own scenarios: at least 1,500 cancel points, no promise broken, and it is not blind."""

from __future__ import annotations

import time

import pytest
import trio

from trio_duplex.testing import Rig, run_seeded
from trio_duplex.testing.explore import explore_everything, main
from trio_duplex.testing.explorer import Report, Scenario, explore, play_once
from trio_duplex.testing.scenarios import SCENARIOS, full_turn
from trio_duplex.testing.scopes import KINDS

SEED = 20_260


@pytest.fixture(scope="module")
def report() -> Report:
    return explore_everything(SEED, quick=True)


def test_every_cancel_point_keeps_the_promises(report: Report) -> None:
    report.check()


def test_enough_is_covered(report: Report, record_property: pytest.Function) -> None:
    assert len(report.points) >= 1_500
    assert len(set(report.points)) == len(report.points), "a cancel point is counted once"
    explored = {(p.scenario, p.kind) for p in report.points}
    missing = {(s, k) for s in SCENARIOS for k in KINDS} - explored
    assert missing == {("close_during_append", "response"), ("stale_token", "response")}, "there nobody answers"


def test_await_sites_are_hit_and_the_rest_is_named(report: Report) -> None:
    hit = {(site.file, site.line) for site in report.sites}
    assert len(hit) >= 80
    assert not hit & {(site.file, site.line) for site in report.missed}
    rooms = {site.file.split("/")[0] for site in report.sites}
    assert rooms == {"client", "hub.py", "server", "session"}


def test_a_run_is_a_function_of_its_seed() -> None:
    scenario = SCENARIOS["barge_in"]
    counted = {play_once(scenario, "connection", None, seed=3)[0] for _ in range(3)}
    assert len(counted) == 1
    first, second = (play_once(scenario, "connection", 60, seed=3) for _ in range(2))
    assert first == second


def test_other_seeds_give_other_orders() -> None:
    def steps(seed: int) -> list[str]:
        names: list[str] = []

        class Names(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                names.append(task.name)

        async def play() -> None:
            from trio_duplex.testing import open_rig

            async with open_rig(seed=0) as rig:
                await full_turn(rig)

        run_seeded(play, seed, instruments=[Names()])
        return names

    assert steps(1) == steps(1)
    assert any(steps(1) != steps(seed) for seed in range(2, 6))


# --- it sees what is broken ---


async def _leaks_a_slot_when_cancelled(rig: Rig) -> None:
    rig.plugin.open_slots -= 1
    await trio.sleep(1)
    rig.plugin.open_slots += 1


def test_a_leak_under_cancellation_is_found_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    report = explore(Scenario("leaky", _leaks_a_slot_when_cancelled), ["caller"])
    assert report.failures
    (failure, *_) = report.failures
    assert {v.invariant for v in failure.violations} == {"conserved_slots"}
    assert f"--scenario leaky --kind caller --step {failure.point.step}" in failure.replay
    with pytest.raises(AssertionError, match="conserved_slots"):
        report.check()


def test_a_scenario_that_fails_by_itself_is_refused() -> None:
    async def broken(rig: Rig) -> None:
        raise ValueError("no")

    with pytest.raises(RuntimeError, match="fails without any cancellation"):
        explore(broken, ["caller"])


def test_the_command_replays_one_step(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--scenario", "full_turn", "--kind", "caller", "--step", "20", "--seed", "1"])
    out = capsys.readouterr().out
    assert status == 0
    assert "cancelled at client/" in out
    assert "all promises were kept" in out


def test_the_budget_is_kept() -> None:
    begun = time.perf_counter()
    report = explore(SCENARIOS["full_turn"], ["epoch"], budget_s=0.5)
    assert report.points
    assert time.perf_counter() - begun < 10
