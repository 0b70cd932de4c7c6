"""Help is instant, complete, and works in a client-only installation."""

from __future__ import annotations

import pytest

from tests.cli.command import run


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_the_group_names_its_commands(word: str) -> None:
    page = run(word)
    assert page.returncode == 0
    for name in ("serve", "talk", "demo"):
        assert f"\n  {name} " in page.stdout


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("serve", ("--deploy", "--host", "--port", "--log-format", "--log-level", "127.0.0.1", "8099")),
        (
            "talk",
            ("--url", "--wav", "--raw-rate", "--out", "--mic", "--input-device", "--output-device", "--list-devices"),
        ),
        ("demo", ("--out", "--deploy", "demo_out")),
    ],
)
def test_a_command_explains_its_options(name: str, options: tuple[str, ...]) -> None:
    page = run(name, "-h")
    assert page.returncode == 0
    for option in options:
        assert option in page.stdout


def test_help_loads_nothing_heavy() -> None:
    watch = (
        "import atexit, sys\n"
        "heavy = {'torch', 'numpy', 'trio', 'hypercorn', 'structlog', 'yaml', 'onnxruntime', 'matplotlib', 'rich'}\n"
        "atexit.register(lambda: print('LOADED', sorted(heavy & sys.modules.keys())))\n"
    )
    page = run("--help", prelude=watch)
    assert page.returncode == 0
    assert "LOADED []" in page.stdout


def test_help_works_without_any_extra() -> None:
    without = (
        "import sys\nfor name in ('torch', 'hypercorn', 'yaml', 'structlog', 'onnxruntime'): sys.modules[name] = None"
    )
    for arguments in (("-h",), ("serve", "-h"), ("talk", "-h"), ("demo", "-h")):
        assert run(*arguments, prelude=without).returncode == 0


def test_version() -> None:
    page = run("--version")
    assert page.returncode == 0
    assert page.stdout.startswith("trio-duplex, version ")


def test_an_unknown_command_is_a_usage_error() -> None:
    page = run("fly")
    assert page.returncode == 2
    assert "No such command 'fly'" in page.stderr
