"""Planted bugs: each file in ``plants/`` breaks a copy of the package in one place, and the kit must report it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import trio_duplex

HOME = Path(trio_duplex.__file__).parent.parent
PLANTS = sorted((Path(__file__).parent / "plants").glob("*.toml"))
ROOTS = ("trio_duplex", "protocol", "gpu")
TIMEOUT_S = 300


def plant(file: Path, copy: Path) -> dict[str, Any]:
    """Copy the package to ``copy`` and apply the substitutions of one file to it."""
    bug = tomllib.loads(file.read_text())
    for root in ROOTS:
        shutil.copytree(HOME / root, copy / root, ignore=shutil.ignore_patterns("__pycache__", "*.wav", "*.raw"))
    for edit in bug["edit"]:
        target = copy / edit["file"]
        source = target.read_text()
        assert source.count(edit["old"]) == 1, f"{file.name}: the place in {edit['file']} is no longer unique"
        target.write_text(source.replace(edit["old"], edit["new"]))
    return bug


def hunt(copy: Path) -> subprocess.CompletedProcess[str]:
    """Let the kit look for a broken promise in the copy."""
    paths = os.pathsep.join([str(copy), str(copy / "protocol"), str(copy / "gpu")])
    command = [sys.executable, "-m", "trio_duplex.testing.explore", "--first", "--seed", "1"]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, cwd=copy, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_there_are_enough() -> None:
    assert len(PLANTS) >= 15


@pytest.mark.parametrize("file", PLANTS, ids=lambda file: file.stem)
def test_each_plant_can_be_applied(file: Path, tmp_path: Path) -> None:
    bug = tomllib.loads(file.read_text())
    for edit in bug["edit"]:
        assert (HOME / edit["file"]).read_text().count(edit["old"]) == 1, edit["file"]
        compile((HOME / edit["file"]).read_text().replace(edit["old"], edit["new"]), edit["file"], "exec")


@pytest.mark.slow
@pytest.mark.parametrize("file", PLANTS, ids=lambda file: file.stem)
def test_the_kit_finds_it(file: Path, tmp_path: Path) -> None:
    bug = plant(file, tmp_path)
    result = hunt(tmp_path)
    assert result.returncode == 1, f"not found: {bug['about']}\n{result.stdout[-500:]}{result.stderr[-500:]}"
    assert any(name in result.stdout for name in bug["found_as"]), result.stdout + result.stderr
