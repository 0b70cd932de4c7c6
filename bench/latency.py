"""How long a person waits: speech → first audio, interruption → silence, cancel → terminal, over a real socket.

Run: python bench/latency.py [--cycles 20] [--cancels 100] [--machine "my laptop"]

The server is ``trio-duplex serve`` in a process of its own, the client streams recorded human speech in real time. In
each cycle somebody asks, hears the beginning of the answer, interrupts it, hears the beginning of the second answer,
and the client cancels that one. Where speech begins and ends in a recording is measured by its level, not by the
server's detector.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import attrs
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

from trio_duplex.client import AudioFormat, SessionConfig
from trio_duplex.showcase.conversation import Conversation, converse
from trio_duplex.showcase.event_log import Entry, EventLog
from trio_duplex.showcase.microphone import Utterance
from trio_duplex.showcase.recordings import FIRST, SECOND, Recording, bundled, load_recording

SILENCES_MS = (500, 200)
TARGETS = {
    "first audio, silence 500 ms": ("median", 620),
    "first audio, silence 200 ms": ("median", 450),
    "interruption → last audio": ("median", 220),
    "cancel → terminal": ("p99", 20),
}
"""What the project aims at: which number, and its limit in ms."""

WAIT_S = 20.0
HEAR_S = 1.0
PHASE_S = 0.017
"""Added per cycle, so that the interruptions meet every phase of a unit."""
CALM_S = 0.8


@attrs.define
class Samples:
    """All in ms."""

    first_audio: dict[int, list[float]] = attrs.field(factory=dict)
    interruption: list[float] = attrs.field(factory=list)
    cancel: list[float] = attrs.field(factory=list)
    microphone_late: list[float] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    others_cores: float = 0.0
    """Cores that other processes kept busy meanwhile."""


def recordings() -> list[Recording]:
    """The five recordings of the repository, or the two that come with the package."""
    folder = ROOT / "tests" / "data" / "speech"
    if not folder.is_dir():
        return [bundled(FIRST), bundled(SECOND)]
    files = sorted(path for path in folder.iterdir() if path.suffix in (".wav", ".raw"))
    return [load_recording(path, raw_rate_hz=16_000 if path.suffix == ".raw" else None) for path in files]


def config(silence_ms: int) -> SessionConfig:
    """Server VAD with that much silence; the model answers by itself."""
    return SessionConfig(
        input_audio=AudioFormat("pcm16", 16_000),
        turn_detection={"type": "server_vad", "silence_duration_ms": silence_ms},
        playback_commit_policy="ack_only",
    )


async def cycles(talk: Conversation, count: int, silence_ms: int, samples: Samples) -> None:
    """``count`` times: ask, interrupt, cancel."""
    spoken = recordings()
    first_audio = samples.first_audio.setdefault(silence_ms, [])
    for number in range(count):
        asked = talk.microphone.say(spoken[number % len(spoken)])
        opening = await answered(talk, first_audio, asked)
        await trio.sleep(HEAR_S + number * PHASE_S)
        mark = talk.log.position
        again = talk.microphone.say(spoken[(number + 1) % len(spoken)])
        first_id = str(opening.event["response_id"])
        ended = await talk.done(first_id, within_s=WAIT_S)
        if ended.event["response"]["status"] == "cancelled":
            samples.interruption.append((last_audio_s(talk.log, first_id) - again.speech_started_s) * 1000)
        else:
            samples.failures.append(f"{first_id} ended {ended.event['response']['status']} before the interruption")
        second = await answered(talk, first_audio, again, after=mark)
        await trio.sleep(HEAR_S)
        await cancel(talk, str(second.event["response_id"]), samples)
        await trio.sleep(CALM_S)
    samples.microphone_late += talk.microphone.late_ms


async def answered(
    talk: Conversation, first_audio: list[float], utterance: Utterance, *, after: int | None = None
) -> Entry:
    """The first audio of the answer to an utterance; its latency is noted."""
    mark = talk.log.position if after is None else after
    await utterance.finished.wait()
    known = {e.event["response_id"] for e in talk.log.entries[:mark] if e.type == "response.created"}
    opening = await talk.log.expect(
        lambda e: e.type == "response.output_audio.delta" and e.event["response_id"] not in known,
        what="the first audio",
        within_s=WAIT_S,
        after=mark,
    )
    first_audio.append((opening.at_s - utterance.speech_ended_s) * 1000)
    return opening


def last_audio_s(log: EventLog, response_id: str) -> float:
    """When the last audio of a response came."""
    deltas = (
        e for e in log.entries if e.type == "response.output_audio.delta" and e.event["response_id"] == response_id
    )
    return max(entry.at_s for entry in deltas)


async def cancel(talk: Conversation, response_id: str, samples: Samples) -> None:
    """Cancel an answer; from the moment the command is handed to the socket to its terminal event."""
    asked_s = trio.current_time()
    await talk.client.cancel_response(response_id)
    ended = await talk.done(response_id, within_s=WAIT_S)
    samples.cancel.append((ended.at_s - asked_s) * 1000)


async def cancels(talk: Conversation, count: int, samples: Samples) -> None:
    """Ask by text and cancel at the first audio, ``count`` times."""
    for number in range(count):
        text = {"type": "input_text", "text": f"Count from {number} to sixty."}
        item = {"type": "message", "role": "user", "content": [text]}
        await talk.client.send({"type": "conversation.item.create", "item": item})
        mark = talk.log.position
        await talk.client.send({"type": "response.create"})
        opening = await talk.first_audio(within_s=WAIT_S, after=mark)
        await trio.sleep(number * PHASE_S % 0.1)
        await cancel(talk, str(opening.event["response_id"]), samples)


async def measure(server: ServerProcess, arguments: argparse.Namespace, samples: Samples) -> None:
    """Everything, one session per setting."""
    strangers = Strangers.watch(server)
    for silence_ms in SILENCES_MS:
        story = partial(cycles, count=arguments.cycles, silence_ms=silence_ms, samples=samples)
        await converse(server.ws_url, EventLog(), story, model="demo", config=config(silence_ms))
    story = partial(cancels, count=arguments.cancels, samples=samples)
    await converse(server.ws_url, EventLog(), story, model="demo", config=config(500))
    samples.others_cores = strangers.cores()


def rows(samples: Samples) -> dict[str, list[float]]:
    """The measures by name."""
    return {
        "first audio, silence 500 ms": samples.first_audio.get(500, []),
        "first audio, silence 200 ms": samples.first_audio.get(200, []),
        "interruption → last audio": samples.interruption,
        "cancel → terminal": samples.cancel,
    }


def draw(path: Path, measures: dict[str, list[float]]) -> Path:
    """Every sample as a dot, the median and the target as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (name, values) in enumerate(reversed(measures.items())):
        jitter = [place + 0.25 * ((7 * n) % 11 / 11 - 0.5) for n in range(len(values))]
        axes.plot(values, jitter, ".", color="#2f6db3", alpha=0.6, markersize=6)
        which, limit = TARGETS[name]
        axes.plot([spread(values).get(which, 0.0)] * 2, [place - 0.3, place + 0.3], color="#22303c", linewidth=2)
        axes.plot([limit] * 2, [place - 0.38, place + 0.38], color="#c0392b", linewidth=1.5, linestyle="--")
    axes.set_yticks(range(len(measures)), [f"{name} ({TARGETS[name][0]})" for name in reversed(measures)])
    axes.set_xlabel("ms (dots: samples; dark: measured; dashed: target)")
    axes.set_xlim(left=min(0, *(min(v, default=0) for v in measures.values())))
    axes.grid(axis="x", alpha=0.3)
    file = path.with_name(path.name + ".png")
    figure.savefig(file)
    return file


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20, help="per setting; each gives two first audios")
    parser.add_argument("--cancels", type=int, default=100)
    parser.add_argument("--machine", help="your word for the machine")
    arguments = parser.parse_args()
    console = wide_console()
    facts = machine(arguments.machine)
    samples = Samples()
    trio.run(with_server_process, lambda server: measure(server, arguments, samples))
    measures = rows(samples)
    print_machine(console, facts)
    table: list[list[object]] = []
    results: Json = {}
    for name, values in measures.items():
        numbers = spread(values)
        which, limit = TARGETS[name]
        met = "yes" if numbers["count"] and numbers[which] <= limit else "NO"
        results[name] = {**numbers, "target": {which: limit}, "samples": [round(value, 2) for value in values]}
        table.append(
            [name, *(numbers.get(k) for k in ("count", "median", "p90", "p99", "max")), f"{which} ≤ {limit}", met]
        )
    print_table(console, "Latency in ms", ("measure", "n", "median", "p90", "p99", "max", "target", "met"), table)
    late = spread(samples.microphone_late)
    console.print(f"the microphone itself was late by: {late}")
    console.print(f"other processes kept {samples.others_cores} cores busy meanwhile")
    for failure in samples.failures:
        console.print(f"[red]{failure}[/red]")
    path = result_path("latency", facts)
    facts["others_cores"] = samples.others_cores
    data = {"machine": facts, "results": results, "microphone_late_ms": late, "failures": samples.failures}
    for file in (write_json(path, data), draw(path, measures)):
        console.print(f"wrote {file.relative_to(ROOT)}", highlight=False)


if __name__ == "__main__":
    main()
