"""A peer that vanishes without a trace is noticed in seconds (case L3; environment 2.4)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.realtime

ROOT = Path(__file__).parents[2]


def namespace_command() -> list[str] | None:
    """How to run something in a network namespace of its own here, or None."""
    if shutil.which("unshare") is None:
        return None
    for flags in ("-Urn", "-n"):
        command = ["unshare", flags]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def test_h5_l3_a_vanished_peer_is_noticed_idle_or_talking_and_others_stay() -> None:
    command = namespace_command()
    if command is None:
        pytest.skip("vanished peer NOT RUN: no permission to make a network namespace here")
    ran = subprocess.run(
        [*command, sys.executable, "-m", "tests.server.vanish_in_namespace"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    took = json.loads(ran.stdout)
    # user timeout 1.5 s, keepalive 1 + 2 x 1 s; the rest is the kernel's timer steps.
    assert 0.5 < took["talking"] < 8
    assert 0.5 < took["idle"] < 8
