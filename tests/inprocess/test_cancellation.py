"""Cancelling the caller at every step of an in-process conversation leaves nothing behind (issue 4, done-when 3)."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.inprocess.inline_kit import OPTIONS, RecordingHub, converse
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedPlugin, check_history
from trio_duplex.testing.schedule import run_seeded
from trio_duplex.testing.truth import check_model_side


@attrs.define(eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels ``scope`` before the n-th step that any task takes while it is open; counts those steps."""

    step: int
    scope: trio.CancelScope | None = None
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is not None:
            if self.steps == self.step:
                self.scope.cancel()
            self.steps += 1


@attrs.frozen
class Outcome:
    """One run: how many steps it had, and whether it was cancelled in time."""

    steps: int
    cancelled: bool


def run_once(step: int, *, whole_hub: bool) -> Outcome:
    """Hold the conversation, cancelling at ``step``; then look at everything that could have been left."""
    instrument = CancelAt(step)
    scope_seen: list[trio.CancelScope] = []

    async def main() -> None:
        hub = RecordingHub(ScriptedPlugin(OPTIONS), SessionSettings(max_sessions=1))
        before = trio.lowlevel.current_statistics().tasks_living
        if whole_hub:
            with trio.CancelScope() as scope:
                scope_seen.append(scope)
                instrument.scope = scope
                async with hub, hub.connect() as client:
                    await converse(client)
            instrument.scope = None
        else:
            async with hub:
                await trio.testing.wait_all_tasks_blocked()
                inside = trio.lowlevel.current_statistics().tasks_living
                with trio.CancelScope() as scope:
                    scope_seen.append(scope)
                    instrument.scope = scope
                    async with hub.connect() as client:
                        await converse(client)
                instrument.scope = None
                # The slot is free the moment the block is left, not some time later.
                assert hub.statistics().sessions == 0
                assert hub.plugin.open_slots == OPTIONS.slots
                await trio.testing.wait_all_tasks_blocked()
                assert trio.lowlevel.current_statistics().tasks_living == inside
                async with hub.connect() as client:
                    await client.clear_input()
                    await client.wait_for("input_audio_buffer.cleared", timeout_s=5)
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert hub.plugin.open_slots == OPTIONS.slots
        assert all(model.closed for model in hub.plugin.sessions)
        assert hub.statistics().sessions == 0
        for log, model in zip(hub.logs, hub.plugin.sessions[-len(hub.logs) :] if hub.logs else (), strict=True):
            ended = bool(log) and log[-1]["type"] == "session.closed"
            assert not check_history(log, complete=ended)
            assert not check_model_side(model, log)

    run_seeded(main, 1, instruments=[instrument])
    return Outcome(instrument.steps, scope_seen[0].cancelled_caught)


@pytest.mark.parametrize("whole_hub", [False, True], ids=["client", "hub and client"])
def test_the_caller_cancelled_at_every_step(whole_hub: bool) -> None:
    plain = run_once(-1, whole_hub=whole_hub)
    assert not plain.cancelled
    assert plain.steps > 150
    cancelled = sum(run_once(step, whole_hub=whole_hub).cancelled for step in range(plain.steps))
    # Some last steps lie behind the last checkpoint of the block: nobody is there to be cancelled.
    assert cancelled > plain.steps * 0.9


def test_the_replay_is_exact() -> None:
    assert run_once(60, whole_hub=False) == run_once(60, whole_hub=False)
