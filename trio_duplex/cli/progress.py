"""How far a model has got with loading: a bar on a terminal, log lines elsewhere. Both on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["LoadingProgress"]

LINE_EVERY: Final = 0.25
"""Part of one piece of work after which another line is logged."""


class LoadingProgress:
    """A model's ``progress`` callback. What it is told is shown within :meth:`showing`, until :meth:`close`.

    ``console`` None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._model = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = False
        self._what: str | None = None
        self._told = 0.0

    @contextmanager
    def showing(self, model: str) -> Iterator[None]:
        """Show how the model of this name loads, until :meth:`close` or the end of the block."""
        self._begin(model)
        try:
            yield
        finally:
            self.close()

    def _begin(self, model: str) -> None:
        from rich.console import Console

        # Standard output holds results only.
        console = Console(stderr=True, highlight=False) if self._console is None else self._console
        self._model, self._shown = model, True
        if console.is_terminal:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(f"loading model {self._model!r}", total=None)
            self._bar.start()
        else:
            self._log()

    def close(self) -> None:
        """Take the bar away; idempotent."""
        self._shown = False
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __call__(self, what: str, part: float) -> None:
        """Show that ``part`` (0 … 1) is done of ``what``."""
        if not self._shown:
            return
        if self._bar is not None:
            assert self._task is not None
            self._bar.update(self._task, description=what, total=1.0, completed=part)
        elif what != self._what or part >= self._told + LINE_EVERY:
            self._log(what=what, percent=round(100 * part))
            self._what, self._told = what, part

    def _log(self, **facts: object) -> None:
        import structlog  # comes with the server extra

        structlog.get_logger(__name__).info("model_loading", model=self._model, **facts)
