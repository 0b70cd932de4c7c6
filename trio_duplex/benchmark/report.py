"""Results as a table and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from trio_duplex.benchmark.load import Run
from trio_duplex.benchmark.measures import MEASURES
from trio_duplex.benchmark.numbers import Spread, spread

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ResultExists", "as_json", "claim", "print_facts", "print_runs", "write_json"]

Json = dict[str, Any]

FORMAT: Final = 1
ENDINGS: Final = (".json", ".png")


class ResultExists(Exception):
    """A result of that name is there already, and is not overwritten; the message names it."""


def claim(stem: Path) -> dict[str, Path]:
    """The files of a result, by their endings; makes the folder.  Raises :class:`ResultExists`."""
    files = {ending: stem.with_name(stem.name + ending) for ending in ENDINGS}
    for file in files.values():
        if file.exists():
            raise ResultExists(f"{file} exists already; results are never overwritten, choose another --out")
    stem.parent.mkdir(parents=True, exist_ok=True)
    return files


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_json(facts: Json, settings: Json, runs: list[Run]) -> Json:
    """Everything but the raw samples; latencies in ms."""
    return {"format": FORMAT, "machine": facts, "settings": settings, "runs": [_run(run) for run in runs]}


def _run(run: Run) -> Json:
    return {
        "scenario": run.load.scenario,
        "sessions": run.load.sessions,
        "ramp_s": run.load.ramp_s,
        "seconds": run.load.seconds,
        "admitted": len(run.admitted),
        "refused": run.refused,
        "lost": run.lost,
        "latency_ms": _spreads(run.samples()),
        "counts": attrs.asdict(run.counts()),
        "server": {
            "cpu_cores": _cores(run),
            "memory_mb_max": max(run.memory_mb, default=None),
            "counters": run.server_counters(),
            "thread_lateness_ms_p99_worst": run.thread_lateness_ms(),
        },
        "others_cores": run.others_cores,
        "per_session": [
            {
                "number": caller.number,
                "refused": caller.refused,
                "lost": caller.lost,
                "errors": sorted({code for _, code in caller.record.error_codes}) if caller.record else [],
                "latency_ms": _spreads(run.samples_of(caller)),
                "counts": attrs.asdict(run.counts_of(caller)),
            }
            for caller in run.callers
        ],
    }


def _spreads(samples: dict[str, list[float]]) -> dict[str, Spread]:
    return {name: spread(values) for name, values in samples.items()}


def _cores(run: Run) -> float | None:
    return None if run.cpu_s is None else round(run.cpu_s / run.load.seconds, 3)


def write_json(file: Path, result: Json) -> None:
    """Raises ``FileExistsError`` instead of overwriting."""
    with file.open("xb") as out:
        out.write(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


# --- table ----------------------------------------------------------------------------------------------------------


def print_facts(console: Console, facts: Json) -> None:
    """One paragraph."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version)
    console.print(
        f"{facts['hardware']}: {facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}, "
        f"{packages}; commit {facts['commit']}, {facts['utc']}, load average before {facts['load_average_before']}",
        highlight=False,
        markup=False,
    )


def print_runs(console: Console, scenario: str, runs: list[Run]) -> None:
    """One column per run.  Latencies: p50 / p99 / max in ms."""
    from rich.table import Table

    table = Table(title=f"{scenario}; latencies: p50 / p99 / max in ms", title_justify="left")
    table.add_column("sessions")
    for run in runs:
        table.add_column(str(run.load.sessions), justify="right")
    spreads = [_spreads(run.samples()) for run in runs]
    for name, title in MEASURES.items():
        if any(numbers[name]["count"] for numbers in spreads):
            table.add_row(title, *(_cell(numbers[name]) for numbers in spreads))
    for title, cells in _rows(runs).items():
        if any(cell is not None for cell in cells):
            table.add_row(title, *("–" if cell is None else str(cell) for cell in cells))
    console.print(table)
    for run in runs:
        for what, reasons in (("refused", run.refused), ("ended early", run.lost)):
            for reason in sorted(set(reasons)):
                console.print(
                    f"{run.load.sessions} sessions: {reasons.count(reason)} {what}: {reason}", style="red", markup=False
                )


def _cell(numbers: Spread) -> str:
    if not numbers["count"]:
        return "–"
    return " / ".join(f"{numbers[name]:.1f}" for name in ("p50", "p99", "max"))


def _rows(runs: list[Run]) -> dict[str, list[object]]:
    counts = [run.counts() for run in runs]
    return {
        "admitted of asked": [f"{len(run.admitted)} of {run.load.sessions}" for run in runs],
        "answered of asked": [f"{c.answered} of {c.asked}" if c.asked else None for c in counts],
        "answered before the end": [c.answered_early if c.asked else None for c in counts],
        "interrupted of due": [
            f"{c.interruptions} of {c.interruptions_due}" if c.interruptions_due else None for c in counts
        ],
        "cancelled of asked": [f"{c.cancelled} of {c.cancels}" if c.cancels else None for c in counts],
        "gaps in the sound": [f"{c.underruns} in {c.audio_ms / 1000:.0f} s" if c.audio_ms else None for c in counts],
        "errors": [c.errors for c in counts],
        "server: missed deadlines": [_missed(run) for run in runs],
        "server: thread lateness p99": [run.thread_lateness_ms() for run in runs],
        "server: cores busy": [_cores(run) for run in runs],
        "server: memory, MiB": [max(run.memory_mb, default=None) for run in runs],
        "others: cores busy": [run.others_cores for run in runs],
    }


def _missed(run: Run) -> str | None:
    counters = run.server_counters()
    if "deadline_misses" not in counters:
        return None
    return f"{counters['deadline_misses']} of {counters.get('rows', '?')}"
