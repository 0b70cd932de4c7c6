"""Results as a picture: every measure a panel, every number of sessions a column of dots."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trio_duplex.benchmark.load import Run
from trio_duplex.benchmark.measures import MEASURES
from trio_duplex.benchmark.numbers import spread

__all__ = ["draw"]

DOTS: Final = 400
"""Per column; of more samples every n-th is shown, and the largest."""
COLUMNS: Final = 3
FIT: Final = 6
"""Labels of the common size beside each other; more get smaller ones."""


def draw(file: Path, title: str, runs: list[Run]) -> None:
    """Dots are samples, the bars p50 and p99.  ``file`` must not exist."""
    samples = [run.samples() for run in runs]
    names = [name for name in MEASURES if any(found[name] for found in samples)] or ["decision"]
    rows = -(-len(names) // COLUMNS)
    width = min(COLUMNS, len(names))
    figure = Figure(figsize=(4.2 * width + 0.6, 3.4 * rows + 0.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, width, squeeze=False).flatten()
    labels = [f"{run.load.scenario}\n{run.load.sessions}" for run in runs]
    for panel, name in zip(panels, names, strict=False):
        for place, found in enumerate(samples):
            _column(panel, place, found[name])
        panel.set_title(MEASURES[name], fontsize=10)
        panel.set_xticks(range(len(runs)), labels, fontsize=8 if len(runs) <= FIT else 6)
        panel.set_xlim(-0.6, len(runs) - 0.4)
        panel.set_ylabel("ms", fontsize=8)
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        panel.grid(axis="y", alpha=0.3)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.suptitle(f"{title}\nby sessions; dots: samples, dark: p50, red: p99", fontsize=10)
    with file.open("xb") as out:
        figure.savefig(out, format="png")


def _column(panel: Any, place: int, values: list[float]) -> None:
    if not values:
        return
    ordered = sorted(values)
    shown = ordered[:: -(-len(ordered) // DOTS)] + ordered[-1:]
    panel.plot([place + 0.3 * ((7 * n) % 11 / 11 - 0.5) for n in range(len(shown))], shown, ".", color="#2f6db3",
               alpha=0.4, markersize=4)  # fmt: skip
    numbers = spread(values)
    for rank, colour in (("p50", "#22303c"), ("p99", "#c0392b")):
        panel.plot([place - 0.32, place + 0.32], [numbers[rank]] * 2, color=colour, linewidth=1.8)
