"""Live PersonaPlex sessions over real WebSockets, all on this machine: does every one of them keep its beat?

    python bench/realtime.py --sessions 64,128 --seconds 120 --out results/

The server runs in a process of its own with random weights at the published sizes (`realtime_server.py`), the clients
in several others (`realtime_clients.py`), with sessions at random phases. For each number of sessions: they come in one
after the other (`--ramp`), then everything is measured for `--seconds`. `--tiny`: tiny networks on a CPU, a smoke run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
from bench_kit import Json, machine, print_machine, print_table, spread, wide_console

HERE = Path(__file__).parent
BEFORE_S = 4.0
"""For the client processes to start."""
AFTER_S = 3.0
POLL_S = 2.0
UNIT_MS = 80


# --- processes --------------------------------------------------------------------------------------------------------


def start_server(options: argparse.Namespace) -> tuple[subprocess.Popen[str], str, float]:
    """The process, its WebSocket URL, the seconds it took."""
    command = [sys.executable, str(HERE / "realtime_server.py"), "--rows", str(options.rows), "--kv", options.kv]
    command += ["--step-share", str(options.step_share), *(["--tiny"] if options.tiny else [])]
    command += ["--columns", str(options.columns)] if options.columns else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            _, url, took = line.split()
            return process, url, float(took)
    raise SystemExit("the server did not start")


@attrs.frozen
class Cpu:
    """CPU seconds of a process: of its main thread, which runs the event loop, and of all threads."""

    loop_s: float
    all_s: float

    @classmethod
    def of(cls, pid: int) -> Cpu:
        tick = os.sysconf("SC_CLK_TCK")
        threads = {int(path.name): _ticks(path / "stat") / tick for path in Path(f"/proc/{pid}/task").iterdir()}
        return cls(threads[pid], sum(threads.values()))


def _ticks(path: Path) -> int:
    fields = path.read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def health(url: str) -> Json:
    """The server's own numbers."""
    with urllib.request.urlopen("http" + url.removeprefix("ws") + "/health", timeout=10) as answer:
        found: Json = json.load(answer)
    return found


# --- one phase --------------------------------------------------------------------------------------------------------


def phase(sessions: int, url: str, server: int, options: argparse.Namespace) -> Json:
    """All numbers of so many sessions."""
    begin = time.monotonic() + BEFORE_S
    ramp = min(options.ramp, 0.1 * sessions)
    measured_from = begin + ramp + 2.0
    until = measured_from + options.seconds
    clients = min(options.clients, sessions)
    processes = []
    first = 0
    for index in range(clients):
        count = sessions // clients + (index < sessions % clients)
        command = [sys.executable, str(HERE / "realtime_clients.py"), "--url", url, "--first", str(first)]
        command += ["--count", str(count), "--total", str(sessions), "--begin-s", str(begin), "--ramp", str(ramp)]
        command += ["--from-s", str(measured_from), "--until-s", str(until)]
        command += ["--visits"] if index == 0 else []
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        first += count
    time.sleep(max(0.0, begin - 0.2 - time.monotonic()))
    at_begin = health(url)
    time.sleep(max(0.0, measured_from - time.monotonic()))
    at_from, cpu_from, wall_from = health(url), Cpu.of(server), time.monotonic()
    polls = []
    while time.monotonic() + POLL_S < until - 0.5:
        time.sleep(POLL_S)
        polls.append(health(url))
    time.sleep(max(0.0, until - 0.3 - time.monotonic()))
    at_end, cpu_end, wall_s = health(url), Cpu.of(server), time.monotonic() - wall_from
    gathered = gather([json.loads(process.communicate(timeout=60)[0] or "{}") for process in processes])
    time.sleep(AFTER_S)
    return {
        "sessions": sessions,
        "seconds": options.seconds,
        "live_at_end": at_end["open_sessions"],
        "ramp_s": ramp,
        "client_processes": clients,
        "append_to_delta_ms": spread(gathered["latency"]),
        "frames_later_than_a_unit": sum(ms > UNIT_MS for ms in gathered["latency"]),
        "cancel_to_terminal_ms": spread(gathered["cancel"]),
        "session_start_in_ramp_ms": spread(gathered["start_in_ramp"]),
        "session_start_beside_all_ms": spread(gathered["start_beside"]),
        "refused": len(gathered["refused"]),
        "refusals": sorted(set(gathered["refused"]))[:3],
        "refusal_ms": spread(gathered["refusal_ms"]),
        "frames_sent": gathered["frames_sent"],
        "frames_back": gathered["frames_back"],
        "audio_deltas": gathered["deltas"],
        "frames_nobody_sent": gathered["unasked"],
        "client_send_late_ms": spread(gathered["send_late"]),
        "errors": gathered["errors"][:10],
        "error_count": len(gathered["errors"]),
        **of_server(at_begin, at_from, at_end, polls),
        "server_loop_cores": round((cpu_end.loop_s - cpu_from.loop_s) / wall_s, 3),
        "server_all_cores": round((cpu_end.all_s - cpu_from.all_s) / wall_s, 3),
        "health_at_end": at_end,
    }


def gather(parts: list[Json]) -> dict[str, Any]:
    """The sums and lists of all client processes."""
    names = [name for part in parts for name in part]
    found: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        values = [part[name] for part in parts if name in part]
        found[name] = list(chain(*values)) if isinstance(values[0], list) else sum(values)
    return found


def of_server(at_begin: Json, at_from: Json, at_end: Json, polls: list[Json]) -> Json:
    """What the model thread says: it counts all rows, and keeps the last 1024 for its percentiles."""
    begin, since, end = (each["replicas"][0]["thread"] for each in (at_begin, at_from, at_end))
    seen = [poll["replicas"][0]["thread"] for poll in polls] or [end]
    steps = end["steps"] - since["steps"]
    return {
        "deadline_misses": end["deadline_misses"] - since["deadline_misses"],
        "deadline_misses_in_ramp": since["deadline_misses"] - begin["deadline_misses"],
        "rows_run": end["rows"] - since["rows"],
        "rows_per_step": round((end["rows"] - since["rows"]) / steps, 2) if steps else 0.0,
        "step_ms_p50_last": _worst([end], "step_ms_p50"),
        "step_ms_p99_worst": _worst(seen, "step_ms_p99"),
        "fed_to_result_ms_p50_last": _worst([end], "lateness_ms_p50", UNIT_MS),
        "fed_to_result_ms_p99_worst": _worst(seen, "lateness_ms_p99", UNIT_MS),
        "fed_to_result_ms_max": _worst(seen, "lateness_ms_max", UNIT_MS),
    }


def _worst(seen: list[Json], name: str, more: float = 0.0) -> float:
    """The largest of a number that may be missing; -1 when it always is."""
    return round(max((each[name] + more for each in seen if each[name] is not None), default=-1.0), 2)


# --- report -----------------------------------------------------------------------------------------------------------


def rows(result: Json) -> list[tuple[object, ...]]:
    """Measure, wanted, measured, kept."""
    latency, cancel = result["append_to_delta_ms"], result["cancel_to_terminal_ms"]
    limit = result["step_ms_p99_worst"] + 5
    cut_p99 = cancel.get("p99", 1e9)
    missing = result["sessions"] - result["live_at_end"]
    start = result["session_start_beside_all_ms"]
    start = start if start["count"] else result["session_start_in_ramp_ms"]

    def row(what: str, wanted: str, value: object, kept: bool | None) -> tuple[object, ...]:
        return what, wanted, value, None if kept is None else "yes" if kept else "NO"

    return [
        row("sessions live at the end", str(result["sessions"]), result["live_at_end"], missing <= 0),
        row("deadline misses", "0", result["deadline_misses"], result["deadline_misses"] == 0),
        row("deadline misses while they came in", "0", result["deadline_misses_in_ramp"], None),
        row("append to delta, median, ms", "-", latency.get("median"), None),
        row("append to delta, p99, ms", "60", latency.get("p99"), latency.get("p99", 1e9) <= 60),
        row("append to delta, largest, ms", "-", latency.get("max"), None),
        row("cancel to terminal, p99, ms", f"a tick + 5 = {limit:.1f}", cancel.get("p99"), cut_p99 <= limit),
        row("server CPU: event loop, cores", "-", result["server_loop_cores"], None),
        row("server CPU: all threads, cores", "1", result["server_all_cores"], result["server_all_cores"] <= 1),
        row("session start beside them, median, ms", "150", start.get("median"), start.get("median", 1e9) <= 150),
        row("session start beside them, p99, ms", "-", start.get("p99"), None),
        row("sessions refused", "-", result["refused"], None),
        row("rows per step", "-", result["rows_per_step"], None),
        row("step, median / worst p99, ms", "-", f"{result['step_ms_p50_last']} / {result['step_ms_p99_worst']}", None),
        row("errors", "0", result["error_count"], result["error_count"] == 0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sessions", type=lambda text: text.split(","), default=["64", "128"], help="64,128:30: 128 for 30 s only"
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--ramp", type=float, default=8.0, help="seconds in which the sessions come in")
    parser.add_argument("--clients", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 3)))
    parser.add_argument("--rows", type=int, default=0, help="places of the server (default: the most sessions)")
    parser.add_argument("--columns", type=int, default=0, help="columns per session for admission (default: all)")
    parser.add_argument("--step-share", type=float, default=0.75)
    parser.add_argument("--kv", choices=["native", "fp8"], default="native")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--machine", help="a word for it")
    parser.add_argument("--out", type=Path, help="folder for the JSON (rewritten after each number of sessions)")
    options = parser.parse_args()
    plan = [
        (int(count), float(seconds or options.seconds))
        for count, _, seconds in (s.partition(":") for s in options.sessions)
    ]
    options.rows = options.rows or max(count for count, _ in plan)
    console = wide_console()
    facts = machine(options.machine)
    print_machine(console, facts)
    server, url, took = start_server(options)
    console.print(f"server ready after {took:.1f} s")
    found: Json = {"machine": facts, "server_start_s": took, "admission": health(url)["replicas"][0], "phases": []}
    try:
        for sessions, options.seconds in plan:
            result = phase(sessions, url, server.pid, options)
            found["phases"].append(result)
            columns = ("measure", "wanted", "measured", "kept")
            print_table(console, f"{sessions} sessions, {options.seconds:.0f} s", columns, rows(result))
            for error in result["errors"][:3]:
                console.print(error, markup=False)
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                file = options.out / "realtime.json"
                file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


if __name__ == "__main__":
    main()
