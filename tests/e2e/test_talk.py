"""``trio-duplex talk``, the real command, against ``trio-duplex serve`` and against a server that is not so nice."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.command import run
from tests.e2e.served import Server
from trio_duplex.client.media import read_pcm16_wav
from trio_duplex.config import AuthSettings, Deployment
from trio_duplex.server.serve import serve
from trio_duplex.testing import Hang, Piece, ScriptedOptions, ScriptedPlugin

SPEECH = Path(__file__).parents[1] / "data" / "speech"
ASK = ("--wav", SPEECH / "cards_001.wav")


async def talk(url: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return await trio.to_thread.run_sync(partial(run, "talk", "--url", url, *ASK, *arguments, limit_s=120))


@pytest.mark.speech
@pytest.mark.slow
async def test_a_recording_is_understood_and_answered(server: Server, tmp_path: Path) -> None:
    bound = await server.ready()
    finished = await talk(bound.ws_url, "--out", tmp_path / "out")
    assert finished.returncode == 0, finished.stderr
    printed = finished.stdout
    assert "it understood: “Ten of clubs" in printed
    assert "it decides to speak" in printed
    assert "it said: “You said: Ten of clubs" in printed
    assert "the answer is completed" in printed
    audio = read_pcm16_wav(tmp_path / "out" / "answer_1.wav", sample_rate_hz=24_000)
    assert len(audio) > 8 * 48_000
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["event"]["type"] == "session.closed"
    # Everything was played and acknowledged before it left.
    heard = [line["event"]["event"]["playback"] for line in lines if line["event"]["type"] == "playback.acknowledged"]
    assert heard[-1]["committed_ms"] == heard[-1]["sent_ms"] > 8_000
    await server.stops(signal.SIGTERM)


async def test_a_server_with_another_model_says_so(nursery: trio.Nursery) -> None:
    bound = await nursery.start(partial(serve, Deployment(model="demo"), plugin=ScriptedPlugin()))
    finished = await talk(bound.ws_url, "--model", "parrot")
    assert finished.returncode == 1
    assert finished.stderr == "Error: model_not_found: this server runs 'scripted', not 'parrot'\n"


async def test_a_server_that_goes_away_in_the_middle_of_an_answer_ends_it(nursery: trio.Nursery) -> None:
    shutdown = trio.Event()

    def script(_: Any) -> Sequence[Piece | Hang]:
        shutdown.set()
        return [Piece("well ", ms=1_000), Hang()]

    plugin = ScriptedPlugin(ScriptedOptions(script=script))
    bound = await nursery.start(partial(serve, Deployment(model="demo"), plugin=plugin, shutdown=shutdown))
    finished = await talk(bound.ws_url, "--model", "scripted")
    assert finished.returncode == 1
    assert finished.stderr == "Error: duplex session closed: server_shutdown\n"


async def test_a_server_that_asks_for_a_key(nursery: trio.Nursery, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n", encoding="utf-8")
    # An answer of one word, so that the conversation is soon over.
    plugin = ScriptedPlugin(ScriptedOptions(script=lambda _: [Piece("yes.", ms=200)]))
    deployment = Deployment(model="demo", auth=AuthSettings(keys_file=keys))
    bound = await nursery.start(partial(serve, deployment, plugin=plugin))
    refused = await talk(bound.ws_url, "--model", "scripted")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: the server refused the WebSocket handshake with HTTP 401")
    assert refused.stderr.count("\n") == 1
    welcome = await talk(bound.ws_url, "--model", "scripted", "--api-key", "open-sesame")
    assert welcome.returncode == 0, welcome.stderr
    assert "it said: “yes.”" in welcome.stdout
