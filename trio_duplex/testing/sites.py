"""Await sites: the lines of our source at which a task can be suspended, and so be cancelled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import attrs
import trio

import trio_duplex

__all__ = ["AwaitSite", "await_sites", "suspended_at"]

PACKAGE = Path(trio_duplex.__file__).parent

ROOMS = ("session", "hub.py", "server", "client")
"""What the explorer answers for: files and folders of the package."""


@attrs.frozen(order=True)
class AwaitSite:
    """One ``await``, ``async with`` or ``async for``: the file inside the package, its lines, and the code."""

    file: str
    line: int
    last_line: int = attrs.field(order=False, eq=False)
    code: str = attrs.field(order=False, eq=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


@lru_cache
def await_sites(rooms: Sequence[str] = ROOMS) -> tuple[AwaitSite, ...]:
    """All await sites of these rooms, sorted; an ``async with`` counts once for its way in and its way out."""
    found: set[AwaitSite] = set()
    for room in rooms:
        top = PACKAGE / room
        for path in [top] if top.is_file() else sorted(top.rglob("*.py")):
            found.update(_sites_of(path))
    return tuple(sorted(found))


def _sites_of(path: Path) -> Iterator[AwaitSite]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    name = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Await):
            first, last = node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.AsyncWith):
            first = node.items[0].context_expr.lineno
            last = node.items[-1].context_expr.end_lineno or first
        elif isinstance(node, ast.AsyncFor):
            first, last = node.lineno, node.iter.end_lineno or node.lineno
        else:
            continue
        yield AwaitSite(name, first, last, lines[first - 1].strip())


@lru_cache
def _by_file() -> dict[str, tuple[AwaitSite, ...]]:
    files: dict[str, list[AwaitSite]] = {}
    for site in await_sites():
        files.setdefault(site.file, []).append(site)
    return {name: tuple(sites) for name, sites in files.items()}


def suspended_at(task: trio.lowlevel.Task) -> Iterator[AwaitSite]:
    """The await sites of our rooms at which a task that is not running now is suspended, outermost first."""
    for frame, line in task.iter_await_frames():
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)):
            continue
        name = Path(file).relative_to(PACKAGE).as_posix()
        # The narrowest statement that spans the line: an await inside the arguments of another is its own site.
        spanning = [s for s in _by_file().get(name, ()) if s.line <= line <= s.last_line]
        if spanning:
            yield min(spanning, key=lambda s: (s.last_line - s.line, -s.line))
