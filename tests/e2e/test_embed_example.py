"""The README's embedding example: it runs as it stands, and the README shows exactly what runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.realtime

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "embed.py"


@pytest.mark.speech
def test_the_example_converses() -> None:
    question = ROOT / "tests" / "data" / "speech" / "cards_001.wav"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(question)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ten of clubs" in done.stdout.lower()


def test_the_readme_shows_the_example() -> None:
    code = EXAMPLE.read_text().split("import sys\n", 1)[1].strip()
    assert code in (ROOT / "README.md").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
