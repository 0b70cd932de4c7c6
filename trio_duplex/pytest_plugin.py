"""pytest plugin, loaded by the entry point ``pytest11``: ``--duplex-seed`` and fixtures for pytest-trio.

Fixtures (all need pytest-trio; the clock is its ``autojump_clock``, so that waiting costs nothing):

- ``duplex_seed``: the run's seed, printed when the test fails; the order of tasks and all ids follow from it.
- ``scripted_options``: override it in your test file to script the model.
- ``duplex_rig``: a hub, a scripted model and a network in memory; checked and counted after the test.
- ``duplex_hub``, ``scripted_model``: the rig's parts.
- ``duplex_client``: an entered :class:`trio_duplex.client.DuplexClient` on a connection in memory.

Nothing of the package is imported before one of these is used.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trio_duplex.client import DuplexClient
    from trio_duplex.hub import Hub
    from trio_duplex.testing.rig import Rig
    from trio_duplex.testing.scripted_model import ScriptedOptions, ScriptedPlugin

SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--duplex-seed N``: replay the run that printed N."""
    group = parser.getgroup("trio-duplex")
    group.addoption("--duplex-seed", type=int, default=None, help="seed of ids and task order in duplex fixtures")


@pytest.fixture
def duplex_seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """The seed of this test: ``--duplex-seed``, else a fresh one."""
    from trio_duplex.testing.schedule import seeded_schedule

    chosen = request.config.getoption("--duplex-seed")
    seed = random.SystemRandom().randrange(2**31) if chosen is None else int(chosen)
    request.node.stash[SEED] = seed
    with seeded_schedule(seed):
        yield seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed to the report of a failure."""
    report = yield
    if report.failed and SEED in item.stash:
        report.sections.append(("trio-duplex", f"replay with: pytest --duplex-seed={item.stash[SEED]}"))
    return report


@pytest.fixture
def scripted_options() -> ScriptedOptions:
    """How the scripted model behaves; override it in your test file."""
    from trio_duplex.testing.scripted_model import ScriptedOptions

    return ScriptedOptions()


if importlib.util.find_spec("pytest_trio") is not None:
    from pytest_trio import trio_fixture  # type: ignore[import-untyped]

    @trio_fixture  # type: ignore[untyped-decorator]
    async def duplex_rig(
        duplex_seed: int, autojump_clock: object, scripted_options: ScriptedOptions
    ) -> AsyncIterator[Rig]:
        """A whole system in memory; on leaving every promise is checked. Cancellation: it is put away unchecked."""
        from trio_duplex.testing.rig import open_rig

        async with open_rig(scripted_options, seed=duplex_seed) as rig:
            yield rig

    @pytest.fixture
    def duplex_hub(duplex_rig: Rig) -> Hub:
        """The rig's hub, running."""
        return duplex_rig.hub

    @pytest.fixture
    def scripted_model(duplex_rig: Rig) -> ScriptedPlugin:
        """The rig's model; ``sessions`` holds what it was asked."""
        return duplex_rig.plugin

    @trio_fixture  # type: ignore[untyped-decorator]
    async def duplex_client(duplex_rig: Rig) -> AsyncIterator[DuplexClient]:
        """A client with an open session. Cancellation: it leaves without waiting."""
        async with duplex_rig.client() as client:
            yield client
