"""One seed, one history: the order in which Trio runs ready tasks, drawn from a seed.

Trio shuffles every batch of ready tasks on purpose. Together with seeded ids (``Hub(id_seed=)``, ``open_rig(seed=)``)
and a ``MockClock`` a run is then a function of its seed, so a failure can be replayed: ``pytest --duplex-seed=N``.

Trio has no public switch for this; the two names used here are those that pytest-trio sets for Hypothesis. They are
touched in this file only, and put back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import trio
import trio.testing
from trio._core import _run as trio_run

__all__ = ["run_seeded", "schedule_is_seedable", "seeded_schedule"]

Result = TypeVar("Result")

_FLAG = "_ALLOW_DETERMINISTIC_SCHEDULING"


def schedule_is_seedable() -> bool:
    """Whether this version of Trio still draws its order of tasks from where we can seed it."""
    return hasattr(trio_run, _FLAG) and hasattr(trio_run, "_r")


@contextmanager
def seeded_schedule(seed: int) -> Iterator[None]:
    """Trio runs started inside draw their task order from ``seed``; the state before is restored at the end.

    Not for use inside a running Trio program. Raises RuntimeError when Trio can no longer be seeded.
    """
    if not schedule_is_seedable():
        raise RuntimeError(f"trio {trio.__version__} has no seedable order of tasks that we know of")
    random, flag = trio_run._r, getattr(trio_run, _FLAG)
    state = random.getstate()
    random.seed(seed)
    setattr(trio_run, _FLAG, True)
    try:
        yield
    finally:
        random.setstate(state)
        setattr(trio_run, _FLAG, flag)


def run_seeded(
    main: Callable[[], Awaitable[Result]],
    seed: int,
    *,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Result:
    """``trio.run(main)`` on a ``MockClock`` that jumps to the next deadline whenever all tasks wait, seeded.

    Raises what ``main`` raises. The clock starts at the same reading in every run.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(seed):
        return trio.run(main, clock=clock, instruments=list(instruments))
