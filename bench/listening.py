"""What listening costs: N sessions stream a quiet room and half-loud noise, and nobody ever speaks.

Run: python bench/listening.py [--sessions 1 8 24] [--seconds 30] [--machine "my laptop"]

Open loop: every session sends a chunk of 32 ms when it is due, whatever came back before. The model decides once per
unit of 96 ms (three chunks); how late a unit is, is measured twice: by the server's own model thread (a frame's result
against its deadline, which is 20 ms after its samples came in), and here at the client, from the moment the unit's last
chunk was due until its decision came. The server runs in a process of its own, whose CPU time is read from the system.
A session that is refused stays in the denominator.
"""

from __future__ import annotations

import argparse
import urllib.request
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import orjson
import pybase64
import trio
from bench_kit import (
    ROOT,
    Json,
    ServerProcess,
    Strangers,
    machine,
    print_machine,
    print_table,
    result_path,
    spread,
    wide_console,
    with_server_process,
    write_json,
)
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from trio_duplex.client import build_realtime_url

RATE_HZ: Final = 16_000
CHUNK_MS: Final = 32
UNIT_CHUNKS: Final = 3
LOOP_S: Final = 6.144
"""The sound repeats after so many seconds, a whole number of units."""
TARGET_P99_MS: Final = 20.0
SETTLE_S: Final = 2.0
"""The first seconds of each run are not counted."""


@attrs.define
class Run:
    """One number of sessions. Times in ms unless named otherwise."""

    sessions: int
    seconds: float
    admitted: int = 0
    refused: list[str] = attrs.field(factory=list)
    unit_late: list[float] = attrs.field(factory=list)
    send_late: list[float] = attrs.field(factory=list)
    thread_late: list[Json] = attrs.field(factory=list)
    cpu_s: float = 0.0
    measured_s: float = 0.0
    others_cores: float = 0.0
    """Cores that other processes kept busy meanwhile."""
    units_due: int = 0
    speech_starts: int = 0
    errors: int = 0
    counting: bool = False


def sound() -> list[str]:
    """The chunks as finished messages: half a quiet room, half noise shaped like speech, 20 dB below conversation."""
    random = np.random.default_rng(7)
    samples = int(RATE_HZ * LOOP_S)
    white = np.fft.rfft(random.normal(size=samples))
    frequency = np.fft.rfftfreq(samples, 1 / RATE_HZ)
    # The long-term spectrum of speech: flat to 500 Hz, then falling by 9 dB per octave.
    shaped = np.fft.irfft(white / (1 + (frequency / 500) ** 1.5), samples)
    shaped *= 300 / shaped.std()
    room = random.normal(0, 12, samples)
    noisy = (np.arange(samples) // (RATE_HZ // 2)) % 2 == 1
    pcm = np.where(noisy, shaped, room).round().astype("<i2")
    size = RATE_HZ * CHUNK_MS // 1000
    return [message(pcm[start : start + size].tobytes()) for start in range(0, samples, size)]


def message(pcm: bytes) -> str:
    """One append."""
    audio = pybase64.b64encode(pcm).decode()
    return orjson.dumps({"type": "input_audio_buffer.append", "audio": audio, "sample_rate_hz": RATE_HZ}).decode()


async def listen(url: str, chunks: list[str], phase: float, run: Run, over: trio.Event) -> None:
    """One session; ``phase`` in [0, 1) shifts it within a unit. Cancellation: just leaves."""
    due_s: list[float] = []
    async with open_websocket_url(url, max_message_size=2**22, receive_buffer_size=65_536) as socket:
        session = {"model": "demo", "turn_detection": None, "extra_body": {"auto_response": True}}
        await socket.send_message(orjson.dumps({"type": "session.update", "session": session}).decode())
        if not await admitted(socket, run):
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_chunks, socket, chunks, phase, run, due_s)
            nursery.start_soon(read_decisions, socket, run, due_s)
            await over.wait()
            nursery.cancel_scope.cancel()
        await socket.send_message('{"type":"session.close"}')
        with trio.move_on_after(5):
            while orjson.loads(await socket.get_message())["type"] != "session.closed":
                pass


async def admitted(socket: WebSocketConnection, run: Run) -> bool:
    """Whether the session opened; a refusal is kept."""
    event = orjson.loads(await socket.get_message())
    if event["type"] == "session.created":
        run.admitted += 1
        return True
    error: Any = event.get("error")
    run.refused.append(str(error.get("code") if isinstance(error, dict) else event.get("code") or error))
    return False


async def send_chunks(
    socket: WebSocketConnection, chunks: list[str], phase: float, run: Run, due_s: list[float]
) -> None:
    """Send each chunk when it is due; ``due_s`` keeps when each unit's last one was."""
    begun = trio.current_time() + phase * UNIT_CHUNKS * CHUNK_MS / 1000
    number = 0
    while True:
        due = begun + (number + 1) * CHUNK_MS / 1000
        await trio.sleep_until(due)
        if run.counting:
            run.send_late.append((trio.current_time() - due) * 1000)
        number += 1
        if number % UNIT_CHUNKS == 0:
            due_s.append(due)
            run.units_due += run.counting
        await socket.send_message(chunks[number % len(chunks)])


async def read_decisions(socket: WebSocketConnection, run: Run, due_s: list[float]) -> None:
    """Match the k-th decision with the k-th unit."""
    heard = 0
    while True:
        event = orjson.loads(await socket.get_message())
        now = trio.current_time()
        if event["type"] == "response.listen":
            if run.counting and heard < len(due_s):
                run.unit_late.append((now - due_s[heard]) * 1000)
            heard += 1
        elif event["type"] == "input_audio_buffer.speech_started":
            run.speech_starts += 1
        elif event["type"] == "error":
            run.errors += 1


def health(server: ServerProcess) -> Json:
    """The server's own statistics."""
    with urllib.request.urlopen(f"{server.http_url}/health", timeout=5) as answer:
        page: Json = orjson.loads(answer.read())
    return page


async def watch(server: ServerProcess, run: Run) -> None:
    """Read the model thread's lateness (over its last 1024 rows) once a second. Cancellation: stops."""
    while True:
        await trio.sleep(1)
        page = await trio.to_thread.run_sync(health, server)
        if run.counting:
            vad = page["vad"]
            kept = ("lateness_ms_p50", "lateness_ms_p99", "lateness_ms_max", "step_ms_p50", "step_ms_p99")
            run.thread_late.append({name: vad[name] for name in kept} | {"occupancy": vad["occupancy_mean"]})


async def measure_one(server: ServerProcess, chunks: list[str], sessions: int, seconds: float) -> Run:
    """``sessions`` at once for ``seconds`` after they have settled."""
    run = Run(sessions, seconds)
    url = build_realtime_url(server.ws_url, "demo", autostart=False)
    over = trio.Event()

    async def one(number: int) -> None:
        try:
            await listen(url, chunks, number * 0.618 % 1, run, over)
        except ConnectionClosed as closed:
            run.refused.append(f"connection closed: {closed.reason}")

    async with trio.open_nursery() as outer:
        outer.start_soon(watch, server, run)
        async with trio.open_nursery() as nursery:
            for number in range(sessions):
                nursery.start_soon(one, number)
            await trio.sleep(SETTLE_S)
            cpu_s, began_s, strangers = server.cpu_s(), trio.current_time(), Strangers.watch(server)
            run.counting = True
            await trio.sleep(seconds)
            run.counting = False
            run.cpu_s, run.measured_s = server.cpu_s() - cpu_s, trio.current_time() - began_s
            run.others_cores = strangers.cores()
            over.set()
        outer.cancel_scope.cancel()
    return run


def worst(samples: list[Json], name: str) -> float | None:
    """The largest reading of a server statistic."""
    return round(max(sample[name] for sample in samples), 1) if samples else None


def as_row(run: Run) -> list[object]:
    """A line of the table."""
    late = spread(run.unit_late)
    sends = spread(run.send_late)
    per_second = run.cpu_s / (run.measured_s * run.sessions)
    return [
        f"{run.sessions}",
        len(run.refused),
        *(late.get(name) for name in ("median", "p99", "max")),
        worst(run.thread_late, "lateness_ms_p99"),
        f"{1000 * per_second:.1f}",
        f"{100 * run.cpu_s / run.measured_s:.0f} %",
        sends.get("p99"),
        sends.get("max"),
        run.others_cores,
    ]


COLUMNS: Final = (
    "sessions",
    "refused",
    "unit p50",
    "p99",
    "max",
    "frame p99",
    "CPU ms",
    "core",
    "sender p99",
    "max",
    "others",
)
LEGEND: Final = (
    "unit: how late its decision is at the client; frame p99: the worst reading of the server's own lateness against "
    "its deadline (negative: early); CPU ms: of the server per session and second; core: the server's share of one "
    "core; sender: how late the load generator itself was; others: cores that other processes kept busy meanwhile."
)


def as_json(run: Run) -> Json:
    """Everything of a run but the raw samples."""
    return {
        "sessions": run.sessions,
        "seconds": run.seconds,
        "admitted": run.admitted,
        "refused": run.refused,
        "unit_late_ms": spread(run.unit_late),
        "units_due": run.units_due,
        "units_decided": len(run.unit_late),
        "target": {"unit_late_p99_ms": TARGET_P99_MS},
        "server_thread": run.thread_late,
        "server_cpu_s": round(run.cpu_s, 3),
        "server_cpu_s_per_session_second": round(run.cpu_s / (run.measured_s * run.sessions), 5),
        "others_cores": run.others_cores,
        "send_late_ms": spread(run.send_late),
        "speech_starts": run.speech_starts,
        "errors": run.errors,
    }


def draw(path: Path, runs: list[Run]) -> Path:
    """How the lateness of units is spread, one curve per number of sessions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for run in runs:
        if run.unit_late:
            values = np.sort(run.unit_late)
            beyond = 1 - np.arange(len(values)) / len(values)
            axes.step(values, beyond, where="post", label=f"{run.sessions} session{'s' * (run.sessions > 1)}")
    axes.axvline(TARGET_P99_MS, color="#c0392b", linestyle="--", linewidth=1)
    axes.axhline(0.01, color="#c0392b", linestyle="--", linewidth=1)
    axes.annotate("target: 1 % at most beyond 20 ms", (TARGET_P99_MS, 0.01), (4, 4), textcoords="offset points")
    axes.set_yscale("log")
    axes.set_xlabel("lateness of a unit's decision at the client, ms")
    axes.set_ylabel("part of the units that are later")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    file = path.with_name(path.name + ".png")
    figure.savefig(file)
    return file


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 24])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--machine", help="your word for the machine")
    arguments = parser.parse_args()
    console = wide_console()
    facts = machine(arguments.machine)
    chunks = sound()

    async def measure(server: ServerProcess) -> list[Run]:
        return [await measure_one(server, chunks, n, arguments.seconds) for n in arguments.sessions]

    runs = trio.run(with_server_process, measure)
    print_machine(console, facts)
    print_table(console, "Listening sessions, times in ms", COLUMNS, [as_row(run) for run in runs])
    console.print(LEGEND)
    for run in runs:
        lost = run.units_due - len(run.unit_late)
        if run.refused or run.errors or run.speech_starts or lost > run.sessions * 2:
            console.print(
                f"[red]{run.sessions} sessions: refused {run.refused}, errors {run.errors}, taken for speech "
                f"{run.speech_starts} times, units without a decision {lost}[/red]"
            )
    path = result_path("listening", facts)
    for file in (write_json(path, {"machine": facts, "runs": [as_json(run) for run in runs]}), draw(path, runs)):
        console.print(f"wrote {file.relative_to(ROOT)}", highlight=False)


if __name__ == "__main__":
    main()
