"""``trio-duplex serve`` shows how loading goes: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import yaml
from rich.console import Console
from structlog.testing import capture_logs

from duplex_gpu.personaplex.random_checkpoint import TINY, tiny_text_model, write_checkpoint
from trio_duplex.cli.progress import LoadingProgress
from trio_duplex.config import Deployment
from trio_duplex.inprocess import open_hub
from trio_duplex.models.registry import build_plugin
from trio_duplex.session.settings import SessionSettings

DEPLOY = Path(__file__).parents[2] / "deploy" / "personaplex.yaml"


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "weights"
    write_checkpoint(folder, text_model=tiny_text_model(TINY.lm.text_vocab), voices=("NATF2",))
    return folder


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    page = io.StringIO()
    progress = LoadingProgress(Console(file=page, force_terminal=True, width=100))
    with capture_logs() as lines, progress.showing("demo"):
        progress("loading the voice", 0.5)
        progress._bar.refresh()  # type: ignore[union-attr]
        progress.close()
        shown = page.getvalue()
        progress("too late", 1.0)
    assert "loading the voice" in shown
    assert "50%" in shown
    assert "too late" not in page.getvalue()
    assert not lines


def test_elsewhere_there_is_a_line_for_each_piece_of_work_and_each_quarter() -> None:
    progress = LoadingProgress(plain_console())
    with capture_logs() as lines:
        progress("before", 0.0)
        with progress.showing("demo"):
            for percent in range(0, 101, 5):
                progress("loading a", percent / 100)
            progress("loading b", 0.0)
        progress("after", 1.0)
    assert [(line.get("what"), line.get("percent")) for line in lines] == [
        (None, None),
        ("loading a", 0),
        ("loading a", 25),
        ("loading a", 50),
        ("loading a", 75),
        ("loading a", 100),
        ("loading b", 0),
    ]
    assert {(line["event"], line["model"], line["log_level"]) for line in lines} == {("model_loading", "demo", "info")}


async def test_personaplex_tells_about_its_weights(checkpoint: Path) -> None:
    """The callback that the deployment was built with hears of every file, in order, on the Trio thread."""
    told: list[tuple[str, float]] = []

    def progress(what: str, part: float) -> None:
        assert trio.lowlevel.in_trio_run()
        told.append((what, part))

    options: dict[str, Any] = {"checkpoint": str(checkpoint), "devices": ["cpu"], "rows": 2}
    plugin = build_plugin(Deployment("personaplex", options=options), progress)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(plugin.run)
            nursery.cancel_scope.cancel()
    works = list(dict.fromkeys(what for what, _ in told))
    assert works[-2:] == ["warming up", "timing the step"]
    assert len(works) == 4
    assert all(what.startswith("loading ") for what in works[:2])
    for what in works[:2]:
        parts = [part for name, part in told if name == what]
        assert parts == sorted(parts)
        assert parts[-1] > 0.7  # a tensor that is not needed is not read


async def test_personaplex_hears_the_warm_up_frames(checkpoint: Path) -> None:
    """``warmup_frames`` through the whole model: its slot is back, and the step has run with them."""
    options: dict[str, Any] = {"checkpoint": str(checkpoint), "devices": ["cpu"], "rows": 1}
    deployment = Deployment("personaplex", options=options, duplex_session=SessionSettings(warmup_frames=2))
    async with open_hub(deployment) as hub:
        ready, detail = hub.health()
        assert ready
        assert detail["open_sessions"] == 0
        assert detail["replicas"][0]["thread"]["rows"] >= 3  # the prompts, and two units
        async with hub.connect():
            assert hub.statistics().sessions == 1


def served(checkpoint: Path, tmp_path: Path) -> list[str]:
    raw = yaml.safe_load(DEPLOY.read_text(encoding="utf-8"))
    raw["options"] |= {"checkpoint": str(checkpoint), "devices": ["cpu"], "rows": 2}
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return [sys.executable, "-m", "trio_duplex.cli", "serve", "--deploy", str(deploy), "--port", "0"]


def test_the_command_logs_it(checkpoint: Path, tmp_path: Path) -> None:
    command = [*served(checkpoint, tmp_path), "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"ready after" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    lines = [orjson.loads(line) for line in errors.splitlines() if line.startswith(b"{")]
    works = [line["what"] for line in lines if line["event"] == "model_loading" and "what" in line]
    assert list(dict.fromkeys(works))[-2:] == ["warming up", "timing the step"]


def test_the_command_draws_it_on_a_terminal(checkpoint: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        served(checkpoint, tmp_path), stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert b"ready after" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        drawn = b""
        try:
            while chunk := os.read(ours, 65536):
                drawn += chunk
        except OSError:
            pass  # the other end is closed
        os.close(ours)
        assert process.wait(timeout=30) == 0
    assert b"timing the step" in drawn
    assert b"%" in drawn
    assert b"model_loading" not in drawn
