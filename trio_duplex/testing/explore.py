"""``python -m trio_duplex.testing.explore``: cancel everywhere, with random seeds for as long as asked, or one replay.

--minutes 5                      all scenarios, fresh seeds, until the time is over
--seed 7                         all scenarios once, with this seed
--scenario resume --kind caller --step 48 --seed 0      one run again, as printed by a failure
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from trio_duplex.testing.explorer import Report, explore, play_once
from trio_duplex.testing.scenarios import SCENARIOS
from trio_duplex.testing.scopes import KINDS

__all__ = ["explore_everything", "main"]

QUICK_STRIDES = {(True, False): 1, (True, True): 4, (False, False): 5, (False, True): 20}
"""In a quick exploration each n-th step is taken, by (thorough scenario, kind cancelled at all tasks' steps)."""


def explore_everything(
    seed: int, *, names: Sequence[str] = (), kinds: Sequence[str] = (), quick: bool = False, budget_s: float = 1e9
) -> Report:
    """All (or these) scenarios and kinds of scope with one seed; stops early when the real time is used up."""
    total = Report(seed)
    begun = time.perf_counter()
    for name in names or SCENARIOS:
        for kind in kinds or KINDS:
            scenario = SCENARIOS[name]
            stride = QUICK_STRIDES[scenario.thorough, KINDS[kind].everywhere] if quick else 1
            left_s = budget_s - (time.perf_counter() - begun)
            if left_s <= 0:
                return total
            total.add(explore(scenario, [kind], seed=seed, stride=stride, budget_s=left_s))
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m trio_duplex.testing.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, help="explore with fresh seeds for this long")
    parser.add_argument("--seed", type=int, help="the first seed (default: drawn)")
    parser.add_argument("--scenario", choices=list(SCENARIOS), action="append", default=[])
    parser.add_argument("--kind", choices=list(KINDS), action="append", default=[])
    parser.add_argument("--step", type=int, help="only this step: the replay of a failure")
    parser.add_argument("--quick", action="store_true", help="not every step, as in make test")
    parser.add_argument("--first", action="store_true", help="undisturbed runs first; stop at the first failure")
    parser.add_argument("--sites", action="store_true", help="name every await site that was never hit")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.step is not None:
        if len(options.scenario) != 1 or len(options.kind) != 1:
            parser.error("--step needs one --scenario and one --kind")
        return _replay(options.scenario[0], options.kind[0], options.step, seed)
    if options.first:
        return _hunt(seed, options.scenario)
    total = Report(seed)
    end = time.perf_counter() + 60 * (options.minutes or 0)
    while True:
        left_s = end - time.perf_counter() if options.minutes is not None else 1e9
        print(f"seed {seed}", flush=True)
        report = explore_everything(
            seed, names=options.scenario, kinds=options.kind, quick=options.quick, budget_s=left_s
        )
        print(report, flush=True)
        total.add(report)
        if options.minutes is None or time.perf_counter() >= end:
            break
        seed += 1
    if options.sites:
        print("await sites never hit:", *total.missed, sep="\n  ")
    return 1 if total.failures else 0


def _hunt(seed: int, names: Sequence[str]) -> int:
    """Look for one broken promise, the cheapest runs first."""
    for name in names or SCENARIOS:
        _, _, _, problems = play_once(SCENARIOS[name], "caller", None, seed=seed)
        if problems:
            print(f"{name}, undisturbed:", *problems, sep="\n  ")
            return 1
    for name in names or SCENARIOS:
        for kind in KINDS:
            report = explore_everything(seed, names=[name], kinds=[kind], quick=True)
            if report.failures:
                print(report.failures[0])
                return 1
    print("all promises were kept")
    return 0


def _replay(scenario: str, kind: str, step: int, seed: int) -> int:
    """One run, in words."""
    _, point, sites, problems = play_once(SCENARIOS[scenario], kind, step, seed=seed)
    if point is None:
        print(f"step {step} was not reached: nothing was cancelled")
    for site in sites:
        print(f"cancelled at {site}")
    for problem in problems:
        print(problem)
    print("a promise was broken" if problems else "all promises were kept")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
