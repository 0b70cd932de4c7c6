"""What a live PersonaPlex session costs the event loop, without a network: CPU of the loop's thread and where it goes.

    python bench/loop_cost.py --sessions 16 --seconds 20 [--profile out.pstats]

The server is `trio_duplex.serve` with the PersonaPlex plugin on a stand-in for its unit step: a step sleeps
`--step-ms` (as a thread does that waits for a GPU) and gives every row a frame of sound, words in every third one, a
pause of one second in ten. The clients are those of `realtime.py`, in processes of their own, over real sockets. CPU is
that of the server's main thread, which runs the event loop and nothing else, from the scheduler's own count.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import numpy as np
import trio

from duplex_gpu.personaplex.config import PersonaPlexConfig
from duplex_gpu.personaplex.prompts import Prompt
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.personaplex.unit_rows import FeedPrompt, Payload, Start, UnitOutput
from duplex_gpu.runtime.kv_pages import KVStatistics
from trio_duplex.cli import configure_logging, settle_process
from trio_duplex.config import Deployment
from trio_duplex.models.personaplex import PersonaPlexOptions, PersonaPlexPlugin
from trio_duplex.server.guards import quicken_thread_switches
from trio_duplex.server.serve import serve
from trio_duplex.session.settings import SessionSettings

HERE = Path(__file__).parent
SAMPLES = 1920
CYCLE, PAUSE = 125, 12
WORD = 100
QUIET_ID = 3
RAMP_S = 3.0
SETTLE_S = 3.0


@attrs.frozen
class Voices:
    """A shelf whose voices nobody reads."""

    names: tuple[str, ...] = ("NATF0", "NATF1", "NATF2")

    def voice(self, name: str) -> None:
        """Nothing."""


class StandIn:
    """Speaks without a network; see the module's text."""

    voices = Voices()

    def __init__(self, rows: int, step_s: float) -> None:
        self._step_s = step_s
        self._frames = [0] * rows
        noise = np.random.default_rng(1)
        self._loud = noise.normal(0, 0.1, (16, SAMPLES)).astype(np.float32)
        self._levels = (self._loud * 32768).clip(-32768, 32767).astype(np.int16)
        self._still = np.zeros(SAMPLES, np.float32)
        self._still_levels = np.zeros(SAMPLES, np.int16)
        config = PersonaPlexConfig()
        sized = SimpleNamespace(element_size=lambda: 2)
        self.engine = SimpleNamespace(
            config=config,
            kv=SimpleNamespace(k=sized),
            weights=SimpleNamespace(text_head=sized),
            options=SimpleNamespace(prefill_columns=64),
        )
        self._columns = rows * config.lm.context

    def warm_up(self) -> None:
        """Nothing to warm."""

    def reset(self, slot: int) -> None:
        """A new session, somewhere in its cycle."""
        self._frames[slot] = 17 * slot

    def prompt(self, voice: str | None, persona: str | None) -> Prompt:
        """Any prompt will do."""
        return cast("Prompt", SimpleNamespace(voice=voice, persona=persona))

    def kv_statistics(self) -> KVStatistics:
        """Room for all."""
        return cast("KVStatistics", Statistics(pages_total=self._columns // 16, page_columns=16))

    def run(self, rows: Sequence[tuple[int, Payload]]) -> list[UnitOutput]:
        """One step."""
        time.sleep(self._step_s)
        return [self._row(slot, payload) for slot, payload in rows]

    def _row(self, slot: int, payload: Payload) -> UnitOutput:
        if isinstance(payload, Start | FeedPrompt):
            return UnitOutput(0, "", None, 0.0)
        frame = self._frames[slot] = self._frames[slot] + 1
        if frame % CYCLE < PAUSE:
            return UnitOutput(QUIET_ID, "", self._still, 0.0, levels=self._still_levels)
        token, text = (WORD, " word") if frame % 3 == 0 else (QUIET_ID, "")
        return UnitOutput(token, text, self._loud[frame % 16], 0.1, levels=self._levels[frame % 16])


@attrs.frozen
class Statistics:
    """What the replica reads of the memory."""

    pages_total: int
    page_columns: int


# --- the server's process ---------------------------------------------------------------------------------------------


async def served(rows: int, step_s: float, profile: str | None) -> None:
    """Serve until standard input ends; its lines ``begin`` and ``end`` hold the profile."""
    unit = StandIn(rows, step_s)
    options = PersonaPlexOptions(rows=rows, max_step_share=0.99, devices=("cpu",), cancel_mute_ms=400)
    plugin = PersonaPlexPlugin(options, load=lambda _options, _report: cast("PersonaPlexUnit", unit))
    deployment = Deployment(model="personaplex", duplex_session=SessionSettings(max_sessions=rows))
    profiler = cProfile.Profile()
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, deployment, plugin=plugin, host="127.0.0.1", port=0))
        settle_process()
        print(f"ready {bound.ws_url}", flush=True)
        while (line := await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            if profile is None:
                continue
            if line.strip() == "begin":
                profiler.enable()
            else:
                profiler.disable()
                profiler.dump_stats(profile)
        nursery.cancel_scope.cancel()


# --- the measuring process --------------------------------------------------------------------------------------------


def loop_s(pid: int) -> float:
    """CPU seconds of a process's main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def split(pid: int) -> Counter[str]:
    """CPU clock ticks of the main thread in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return Counter({"own": int(fields[11]), "kernel": int(fields[12])})


def switches(pid: int) -> Counter[str]:
    """Voluntary and other context switches of the main thread."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return Counter({k: int(v) for k, _, v in (line.partition(":") for line in lines) if "ctxt_switches" in k})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start both sides, measure a window in which every session is live."""
    command = [sys.executable, __file__, "--serve", "--sessions", str(options.sessions)]
    command += ["--step-ms", str(options.step_ms), *(["--profile", options.profile] if options.profile else [])]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    url = next(line.split()[1] for line in server.stdout if line.startswith("ready "))
    begin_s = time.monotonic() + 4.0
    from_s = begin_s + RAMP_S + SETTLE_S
    until_s = from_s + options.seconds
    share = -(-options.sessions // options.clients)
    callers = []
    for first in range(0, options.sessions, share):
        count = min(share, options.sessions - first)
        arguments = ["--url", url, "--first", str(first), "--count", str(count), "--total", str(options.sessions)]
        arguments += ["--begin-s", str(begin_s), "--from-s", str(from_s), "--until-s", str(until_s + 1)]
        arguments += ["--ramp", str(RAMP_S)]
        callers.append(
            subprocess.Popen([sys.executable, str(HERE / "realtime_clients.py"), *arguments], stdout=subprocess.PIPE)
        )
    time.sleep(max(0.0, from_s - time.monotonic()))
    server.stdin.write("begin\n")
    server.stdin.flush()
    before_s, before, parts = loop_s(server.pid), switches(server.pid), split(server.pid)
    time.sleep(options.seconds)
    used_s, switched = loop_s(server.pid) - before_s, switches(server.pid) - before
    parts = split(server.pid) - parts
    server.stdin.write("end\n")
    server.stdin.flush()
    said = [json.loads(caller.communicate(timeout=60)[0]) for caller in callers]
    server.stdin.write("\n")
    server.stdin.close()
    server.wait(20)
    latency = sorted(ms for each in said for ms in each["latency"])
    return {
        "sessions": options.sessions,
        "loop_ms_per_session_second": 1e3 * used_s / options.sessions / options.seconds,
        "loop_cores": used_s / options.seconds,
        "own_code_share": parts["own"] / max(1, parts.total()),
        "frames_back": sum(each["frames_back"] for each in said),
        "frames_sent": sum(each["frames_sent"] for each in said),
        "latency_ms_p50": latency[len(latency) // 2] if latency else None,
        "latency_ms_p99": latency[len(latency) * 99 // 100] if latency else None,
        "switches_per_s": {k: round(v / options.seconds) for k, v in switched.items()},
        "errors": [error for each in said for error in each["errors"]][:5],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=8.0)
    parser.add_argument("--profile")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        configure_logging("console", "warning")
        quicken_thread_switches()
        trio.run(served, options.sessions, options.step_ms / 1e3, options.profile)
    else:
        print(json.dumps(measure(options), indent=2))


if __name__ == "__main__":
    main()
