"""CPU of sessions inside the caller's program against the same sessions over loopback sockets.

Run: python bench/inprocess.py [--sessions 100] [--seconds 6] [--rounds 3] [--out bench/results/inprocess.json]

Each session streams a microphone in 100 ms appends for the whole time, asks once, and hears an answer of the scripted
model in 100 ms pieces, acknowledging each as played (the model tells its results at once, as PersonaPlex does). Both
lanes run hub and clients in one process, one after the other, at real-time pace; a number is that process's CPU time,
kernel included, while the conversations last (opening and closing apart). The rounds alternate; of each lane the least
disturbed one counts. A process that cannot keep pace sends in batches, which makes the sockets look cheaper than they
are at pace.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from os import cpu_count
from pathlib import Path
from typing import Any

import structlog
import trio

import trio_duplex
from trio_duplex.client import DuplexClient
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin, silence, speech

CHUNK_MS = 100
ASK_MS = 1_000
PIECE_MS = 100
WANTED_RATIO = 3.0


class Crowd:
    """``count`` clients that begin together; counts what they sent and heard."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self.opened = 0
        self.finished = 0
        self.all_open = trio.Event()
        self.all_finished = trio.Event()
        self.leave = trio.Event()
        self.heard_bytes = 0

    async def converse(self, make: Callable[[], DuplexClient]) -> None:
        """One session's life."""
        async with make() as client:
            self.opened += 1
            if self.opened == self.count:
                self.all_open.set()
            await self.all_open.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, client)
                microphone = speech(ASK_MS) + silence(round(self.seconds * 1000) - ASK_MS)
                await client.stream_pcm(microphone, chunk_ms=CHUNK_MS)
                nursery.cancel_scope.cancel()
            self.finished += 1
            if self.finished == self.count:
                self.all_finished.set()
            await self.leave.wait()

    async def _listen(self, client: DuplexClient) -> None:
        async for response in client.responses():
            async for pcm in response.audio():
                self.heard_bytes += len(pcm)
                await client.ack_playback(response.played_ms, response_id=response.response_id)

    async def run(self, make: Callable[[], DuplexClient]) -> dict[str, Any]:
        """CPU seconds and audio heard between the last opening and the last end."""
        async with trio.open_nursery() as nursery:
            for _ in range(self.count):
                nursery.start_soon(self.converse, make)
            await self.all_open.wait()
            gc.collect()
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            await self.all_finished.wait()
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            self.leave.set()
        audio_s = self.heard_bytes / 2 / 24_000
        return {"cpu_s": cpu_s, "wall_s": wall_s, "answer_audio_s": audio_s}


def plugin(count: int, seconds: float) -> ScriptedPlugin:
    pieces = int((seconds - 2.5) * 1000 / PIECE_MS)
    script = [Piece("word ", PIECE_MS) for _ in range(pieces)]
    return ScriptedPlugin(ScriptedOptions(script=lambda _: script, slots=count, tells_at_once=True))


def deployment(count: int) -> trio_duplex.Deployment:
    return trio_duplex.Deployment(model="scripted", duplex_session=SessionSettings(max_sessions=count))


async def in_process(count: int, seconds: float) -> dict[str, Any]:
    async with trio_duplex.open_hub(deployment(count), plugin=plugin(count, seconds)) as hub:
        return await Crowd(count, seconds).run(hub.connect)


async def over_sockets(count: int, seconds: float) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            await trio_duplex.serve(deployment(count), plugin=plugin(count, seconds), task_status=task_status)

        bound = await nursery.start(serve)
        found = await Crowd(count, seconds).run(lambda: DuplexClient(bound.ws_url, model="scripted"))
        nursery.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rounds = [
        {
            "in process": trio.run(in_process, arguments.sessions, arguments.seconds),
            "over sockets": trio.run(over_sockets, arguments.sessions, arguments.seconds),
        }
        for _ in range(arguments.rounds)
    ]
    # Of each lane the round that other work on the machine disturbed least.
    lanes = {lane: min((one[lane] for one in rounds), key=lambda found: found["cpu_s"]) for lane in rounds[0]}
    ratios = [round(one["over sockets"]["cpu_s"] / one["in process"]["cpu_s"], 2) for one in rounds]
    ratio = lanes["over sockets"]["cpu_s"] / lanes["in process"]["cpu_s"]
    machine = f"{platform.machine()}, {cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; {arguments.sessions} sessions, {arguments.seconds:g} s, {CHUNK_MS} ms appends and pieces")
    print(f"{'':16}{'CPU, s':>10}{'wall, s':>10}{'answers, s of audio':>22}{'CPU ms per session':>22}")
    for name, lane in lanes.items():
        each = lane["cpu_s"] * 1000 / arguments.sessions
        print(f"{name:16}{lane['cpu_s']:10.2f}{lane['wall_s']:10.2f}{lane['answer_audio_s']:22.1f}{each:22.1f}")
    print(f"ratio: {ratio:.2f} (wanted: {WANTED_RATIO:g} or more); round by round: {', '.join(map(str, ratios))}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        versions = {name: version(name) for name in ("trio", "hypercorn", "trio-websocket", "orjson")}
        results = {"machine": machine, "sessions": arguments.sessions, "lanes": lanes, "ratio": ratio, "ratios": ratios}
        arguments.out.write_text(json.dumps(results | {"versions": versions}, indent=2) + "\n")


if __name__ == "__main__":
    main()
