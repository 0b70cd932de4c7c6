"""Callers over real sockets, against the scripted model on loopback: short, on the real clock."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import orjson
import pytest
import trio
from rich.console import Console

from trio_duplex.benchmark.caller import Target
from trio_duplex.benchmark.load import Load, Run, run_load
from trio_duplex.benchmark.picture import draw
from trio_duplex.benchmark.plan import RATE_HZ, Plan, Say
from trio_duplex.benchmark.report import ResultExists, as_json, claim, print_runs, write_json
from trio_duplex.config import Deployment
from trio_duplex.server.listener import BoundAddress
from trio_duplex.session.settings import SessionSettings
from trio_duplex.showcase.local_server import with_server
from trio_duplex.showcase.recordings import Recording
from trio_duplex.testing import Hang, Piece, ScriptedOptions, ScriptedPlugin

PATIENCE_S = 30.0


def loud(ms: int) -> Recording:
    samples = np.where(np.arange(RATE_HZ * ms // 1000) % 2, 8_000, -8_000).astype(np.int16)
    return Recording.of("loud", samples, RATE_HZ)


# 0.3 s of speech, half a second later 0.3 s more, and again half a second later a cancel; two seconds in all.
PLAN = Plan(cycle_chunks=62, says=(Say(0, loud(320)), Say(26, loud(320), interrupts=True)), cancels=(52,))
TALKER = ScriptedOptions(silence_ms=96, script=lambda _: [*[Piece("la ", 60)] * 50, Hang()])


async def measured(
    load: Load, options: ScriptedOptions = TALKER, *, max_sessions: int = 8, target: dict[str, Any] | None = None
) -> Run:
    async def work(bound: BoundAddress) -> Run:
        return await run_load(load, Target(**{"url": bound.ws_url, "model": "scripted", **(target or {})}))

    settings = SessionSettings(max_sessions=max_sessions)
    deployment = Deployment(model="scripted", duplex_session=settings)
    with trio.fail_after(PATIENCE_S):
        return await with_server(deployment, work, plugin=ScriptedPlugin(options))


async def test_listening() -> None:
    run = await measured(Load(scenario="listen", sessions=2, seconds=1.5, ramp_s=0.2, settle_s=0.2))
    assert (len(run.admitted), run.refused, run.lost) == (2, [], [])
    samples, counts = run.samples(), run.counts()
    assert 2 * 12 <= len(samples["decision"]) <= 2 * 16  # one per 100 ms
    assert 0 <= min(samples["decision"]) <= 100
    assert 2 * 44 <= len(samples["sender_late"]) <= 2 * 48
    assert (counts.asked, counts.errors) == (0, 0)


async def test_a_conversation(tmp_path: Path) -> None:
    run = await measured(Load(scenario="barge-in", sessions=2, seconds=7.5, ramp_s=0.1, settle_s=0.1, plan=PLAN))
    assert (len(run.admitted), run.lost) == (2, [])
    samples, counts = run.samples(), run.counts()
    assert counts.errors == 0
    # A busy machine may spoil one of each; an answer has half a second before the next words.
    assert counts.asked >= 2 * 2
    assert counts.answered >= counts.asked - 1
    assert counts.interruptions >= counts.interruptions_due - 1 >= 1
    assert counts.cancelled >= counts.cancels - 1 >= 1
    # The scripted model ends a turn after 96 ms of silence and hears an onset after 96 ms; a chunk more on each.
    assert min(samples["first_audio"]) >= 90
    assert median(samples["first_audio"]) <= 400
    assert -10 <= median(samples["interruption"]) <= 400
    assert 0 <= median(samples["cancel"]) <= 200
    assert 50 <= median(samples["packet_interval"]) <= 75
    check_result(run, tmp_path)


def check_result(run: Run, folder: Path) -> None:
    """The same numbers on every way out."""
    files = claim(folder / "new" / "result")
    write_json(files[".json"], as_json({"hardware": "a desk"}, {}, [run]))
    draw(files[".png"], "a desk", [run])
    read = orjson.loads(files[".json"].read_bytes())["runs"][0]
    assert read["counts"] == attrs.asdict(run.counts())
    assert read["latency_ms"]["cancel"]["count"] == run.counts().cancels
    assert sum(one["counts"]["asked"] for one in read["per_session"]) == read["counts"]["asked"]
    assert files[".png"].read_bytes().startswith(b"\x89PNG")
    console = Console(width=120, record=True, file=io.StringIO())
    print_runs(console, "barge-in", [run])
    text = console.export_text()
    assert f"{run.counts().answered} of {run.counts().asked}" in text
    for stem in ("result", "result2"):
        (folder / "new" / "result2.png").touch()
        with pytest.raises(ResultExists, match=stem):
            claim(folder / "new" / stem)
    with pytest.raises(FileExistsError):
        write_json(files[".json"], {})
    with pytest.raises(FileExistsError):
        draw(files[".png"], "", [run])


async def test_g5_refused_callers_stay_in_the_denominator() -> None:
    load = Load(scenario="barge-in", sessions=3, seconds=6.0, ramp_s=0.3, settle_s=0.1, plan=PLAN)
    run = await measured(load, max_sessions=1)
    assert (len(run.admitted), run.refused) == (1, ["duplex_session_busy"] * 2)
    (admitted,) = run.admitted
    assert run.counts().asked > run.counts_of(admitted).asked > 0
    assert run.counts().answered == run.counts_of(admitted).answered


async def test_g5_the_load_does_not_wait_for_answers() -> None:
    """A model that never answers hears as much as one that does, and nothing counts as answered."""
    load = Load(scenario="question", sessions=1, seconds=6.0, ramp_s=0.0, settle_s=0.1, plan=PLAN)
    run = await measured(load, attrs.evolve(TALKER, script=lambda _: [Hang()]))
    counts = run.counts()
    assert counts.asked >= 2
    assert counts.answered == 0
    assert run.samples()["first_audio"] == []
    assert len(run.samples()["sender_late"]) >= 150


async def test_nobody_there() -> None:
    load = Load(scenario="listen", sessions=2, seconds=0.3, ramp_s=0.0, settle_s=0.0)
    with trio.fail_after(PATIENCE_S):
        run = await run_load(load, Target("ws://127.0.0.1:1"))
    assert len(run.refused) == 2
    assert all("cannot connect" in reason for reason in run.refused)


async def test_a_server_that_goes_away() -> None:
    load = Load(scenario="listen", sessions=1, seconds=3.0, ramp_s=0.0, settle_s=0.0)
    runs: list[Run] = []

    async def calling(url: str) -> None:
        runs.append(await run_load(load, Target(url, "scripted")))

    async with trio.open_nursery() as nursery:

        async def work(bound: BoundAddress) -> None:
            nursery.start_soon(calling, bound.ws_url)
            await trio.sleep(1.0)

        with trio.fail_after(PATIENCE_S):
            await with_server(Deployment(model="scripted"), work, plugin=ScriptedPlugin())
    (run,) = runs
    assert run.lost == ["session.closed: server_shutdown"]
    assert run.samples()["decision"]


async def rude(stream: trio.SocketStream, answer: bytes) -> None:
    await stream.receive_some(4096)
    if answer:
        await stream.send_all(answer)
    await stream.aclose()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", "HTTP 401"),
        (b"", "cannot connect"),
        (b"nonsense\r\n\r\n", "cannot connect"),
    ],
)
async def test_no_handshake(nursery: trio.Nursery, answer: bytes, reason: str) -> None:
    listeners = await nursery.start(partial(trio.serve_tcp, partial(rude, answer=answer), 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    load = Load(scenario="listen", sessions=1, seconds=0.3, ramp_s=0.0, settle_s=0.0)
    with trio.fail_after(PATIENCE_S):
        run = await run_load(load, Target(f"ws://127.0.0.1:{port}"))
    (refused,) = run.refused
    assert reason in refused
    nursery.cancel_scope.cancel()
