"""``trio-duplex bench`` in a process of its own: what it writes, what it refuses."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import orjson
import pytest
import trio

from tests.cli.command import error_line, run
from trio_duplex.config import Deployment
from trio_duplex.server.listener import BoundAddress
from trio_duplex.session.settings import SessionSettings
from trio_duplex.showcase.local_server import with_server
from trio_duplex.testing import ScriptedPlugin

QUICK = ("bench", "--hardware", "a desk", "--seconds", "1", "--ramp", "0.1")


async def bench_against(settings: SessionSettings, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command against a scripted server of this process."""

    async def work(bound: BoundAddress) -> subprocess.CompletedProcess[str]:
        call = partial(run, *QUICK, "--url", bound.ws_url, "--model", "scripted", *arguments)
        return await trio.to_thread.run_sync(call)

    with trio.fail_after(60):
        return await with_server(Deployment(model="scripted", duplex_session=settings), work, plugin=ScriptedPlugin())


async def test_it_prints_a_table_and_writes_json_and_a_picture(tmp_path: Path) -> None:
    done = await bench_against(
        SessionSettings(max_sessions=2), "--scenario", "listen", "--sessions", "1,3", "--out", tmp_path / "r"
    )
    assert done.returncode == 0, done.stderr
    assert "append → decision" in done.stdout
    assert "2 of 3" in done.stdout
    assert "3 sessions: 1 refused: duplex_session_busy" in done.stdout
    result = orjson.loads((tmp_path / "r.json").read_bytes())
    assert result["machine"]["hardware"] == "a desk"
    assert [run["sessions"] for run in result["runs"]] == [1, 3]
    assert [len(run["per_session"]) for run in result["runs"]] == [1, 3]
    assert result["settings"]["scenarios"] == ["listen"]
    assert "api_key" not in result["settings"]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("old", ["r.json", "r.png"])
def test_an_old_result_is_never_overwritten(tmp_path: Path, old: str) -> None:
    (tmp_path / old).write_text("old")
    refused = run(*QUICK, "--url", "ws://127.0.0.1:1", "--out", tmp_path / "r")
    assert "never overwritten" in error_line(refused)
    assert [path.name for path in tmp_path.iterdir()] == [old]
    assert (tmp_path / old).read_text() == "old"


def test_nobody_admitted_is_a_failure(tmp_path: Path) -> None:
    refused = run(
        *QUICK, "--scenario", "listen", "--sessions", "1", "--url", "ws://127.0.0.1:1", "--out", tmp_path / "r"
    )
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "Error: no caller was admitted"
    assert (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("bench",), "Missing option '--hardware'"),
        ((*QUICK, "--sessions", "0"), "whole numbers"),
        ((*QUICK, "--sessions", "1,x"), "whole numbers"),
        ((*QUICK, "--url", "gopher://x", "--out", "x"), "--url"),
        ((*QUICK, "--url", "ws://x", "--deploy", "demo.yaml"), "excludes --url"),
        ((*QUICK, "--scenario", "sing"), "sing"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    refused = run(*arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    refused = run(*QUICK, "--deploy", tmp_path / "none.yaml", "--out", tmp_path / "r")
    assert refused.returncode == 1
    assert "the server ended before it was ready" in refused.stderr.splitlines()[-1]
    assert "none.yaml" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []
