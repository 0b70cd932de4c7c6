"""The arrows of the house: who may import whom, and what a light import must not pull in (design section 2)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FORBIDDEN = {
    "protocol/duplex_protocol": {
        "trio", "torch", "numpy", "hypercorn", "trio_websocket", "trio_duplex", "duplex_gpu",
        "time", "random", "secrets", "asyncio", "threading",
    },
    "gpu/duplex_gpu": {"trio", "hypercorn", "trio_websocket", "trio_duplex", "duplex_protocol"},
    "trio_duplex/session": {
        "orjson", "torch", "hypercorn", "trio_websocket", "trio_duplex.server", "trio_duplex.client",
    },
    "trio_duplex/client": {"torch", "hypercorn", "trio_duplex.server", "trio_duplex.session", "trio_duplex.hub"},
    "trio_duplex/live": {"torch", "hypercorn", "trio_duplex.server", "trio_duplex.session", "trio_duplex.hub"},
    "trio_duplex/models": {"trio_duplex.server", "trio_duplex.client", "trio_duplex.session"},
    "trio_duplex/server": {"torch", "trio_duplex.client"},
}  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    """Every module name that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_room_imports_only_what_it_may(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, f"{room} is empty"
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported(path)
        for banned in FORBIDDEN[room]
        if name == banned or name.startswith(banned + ".")
    ]
    assert not wrong


HEAVY = ("torch", "onnxruntime", "hypercorn", "matplotlib", "yaml", "structlog", "duplex_gpu")


@pytest.mark.parametrize("module", ["trio_duplex", "duplex_protocol", "duplex_protocol.realtime", "trio_duplex.client"])
def test_light_imports_stay_light(module: str) -> None:
    """A client-only install has none of the heavy packages: make importing them impossible and import."""
    code = f"import sys\nfor name in {HEAVY!r}: sys.modules[name] = None\nimport {module}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_resolve() -> None:
    import trio_duplex

    for name in trio_duplex.__all__:
        assert getattr(trio_duplex, name) is not None
    with pytest.raises(AttributeError):
        _ = trio_duplex.nothing  # type: ignore[attr-defined]


def test_no_catch_alls_outside_the_borders() -> None:
    """``except Exception`` stands only where a comment names the border; ``Cancelled`` is caught nowhere."""
    wrong = []
    for room in ("trio_duplex", "protocol", "gpu"):
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text()
            lines = source.splitlines()
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.ExceptHandler):
                    continue
                names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"bare"}
                names |= {n.attr for n in ast.walk(node.type) if isinstance(n, ast.Attribute)} if node.type else set()
                around = "\n".join(lines[max(0, node.lineno - 12) : node.lineno + 3]).lower()
                if "Cancelled" in names or "bare" in names:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
                elif isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
                    continue  # cleanup that passes everything on catches nothing
                elif names & {"Exception", "BaseException"} and "border" not in around:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_the_pytest_plugin_does_not_need_the_server() -> None:
    """It is loaded into every pytest run of an environment that has the package, client-only ones too."""
    code = f"import sys\nfor name in {HEAVY!r}: sys.modules[name] = None\nimport trio_duplex.pytest_plugin"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
