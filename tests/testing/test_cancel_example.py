"""The user's test file in ``examples/`` is short, and passes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "test_cancel_everywhere.py"


def test_the_example_cancels_everywhere() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    spec = importlib.util.spec_from_file_location("cancel_everywhere", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_cancelled_at_every_step()
