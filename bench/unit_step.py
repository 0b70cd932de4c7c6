"""How long one PersonaPlex unit step takes: encode, language model, decode and the whole frame, per batch and context.

Random weights at the published sizes on CUDA (`--tiny` for a smoke run anywhere). Every time is a wall time of a
captured graph plus the wait for it, as the model thread sees it; the byte floor uses the read rate measured in the same
run. `--peer 1,64` also times the reference package's step at those batch sizes, in a process of its own first.

    python bench/unit_step.py --batch 1,8,16,32,64,128 --context 250,1000,3000 --peer 1,64 --json unit_step.json
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from duplex_gpu.personaplex.config import PersonaPlexConfig
from duplex_gpu.personaplex.engine import Engine, EngineOptions
from duplex_gpu.personaplex.layout import lm_shapes, mimi_shapes
from duplex_gpu.personaplex.lm_weights import build_lm_weights
from duplex_gpu.personaplex.mimi_weights import build_mimi_weights
from duplex_gpu.personaplex.prompts import build_prompt, load_voice
from duplex_gpu.personaplex.random_checkpoint import TINY, random_take, random_voice
from duplex_gpu.personaplex.text import TextPieces
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.runtime.graphs import GraphBuckets, StepWait, graphs_wanted

REQUIRED_MS = {1: 7.5, 16: 10.0, 32: 12.5, 64: 17.0, 128: 27.0}
AIM_MS = {1: 5.7, 16: 8.6, 32: 11.0, 64: 15.2, 128: 25.6}
LM_RATIO_REQUIRED = 1.45
PAGE = 64
UNIT_CONTEXT = 1000
"""Live columns at which the unit's own `run` is timed."""


@attrs.frozen
class Times:
    """Milliseconds: median, 99th percentile (the largest of few samples), largest."""

    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        ordered = sorted(1e3 * s for s in seconds)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return cls(statistics.median(ordered), p99, ordered[-1])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wall(run: Callable[[], object], repeats: int, device: torch.device) -> Times:
    """Wall times of `run` and the wait for the device (as the unit waits), after five warm-ups."""
    waiter = StepWait(device)
    taken = []
    for i in range(repeats + 5):
        start = time.perf_counter()
        run()
        waiter.wait(1, start)
        if i >= 5:
            taken.append(time.perf_counter() - start)
    return Times.of(taken)


def measured_rates(device: torch.device) -> dict[str, float]:
    """Bytes per second of large reads (a sum, a matrix times a vector) and of a copy (read and write counted): the best
    of ten passes of each. `best` is what the byte floors below are taken from."""
    cuda = device.type == "cuda"
    rows = 1 << 17 if cuda else 1 << 10
    data = torch.randn(rows, 1 << 14, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    vector = torch.randn(1 << 14, device=device, dtype=data.dtype)
    other = torch.empty_like(data)
    size = data.numel() * data.element_size()

    def best(run: Callable[[], object], moved: int) -> float:
        passes = []
        for _ in range(12):
            synchronize()
            start = time.perf_counter()
            for _ in range(3):
                run()
            synchronize()
            passes.append((time.perf_counter() - start) / 3)
        return moved / min(passes)

    flat = data.view(torch.int32 if cuda else data.dtype)
    rates = {
        "sum": best(lambda: flat.sum(), size),
        "matrix_vector": best(lambda: torch.mv(data, vector), size),
        "copy": best(lambda: other.copy_(data), 2 * size),
    }
    return {**rates, "best": max(rates.values())}


def make_engine(config: PersonaPlexConfig, device: torch.device, rows: int, pages: int, eight_bit: bool) -> Engine:
    cuda = device.type == "cuda"
    lm_type, codec_type = (torch.bfloat16, torch.float16) if cuda else (torch.float32, torch.float32)
    lm = build_lm_weights(config.lm, random_take(lm_shapes(config.lm), 1, device, lm_type), lm_type)
    mimi = build_mimi_weights(config.mimi, random_take(mimi_shapes(config.mimi), 2, device, torch.float32), codec_type)
    options = EngineOptions(
        max_rows=rows,
        kv_pages=pages,
        page_columns=PAGE,
        kernels=cuda,
        kv_dtype=torch.float8_e4m3fn if eight_bit else None,
    )
    return Engine(config, lm, mimi, options)


def fill_cache(engine: Engine) -> None:
    """Random numbers in every page: zeros would flatter."""
    for cache in (engine.kv.k, engine.kv.v):
        if cache.element_size() == 1:
            raw = cache.view(torch.int64)
            for layer in raw:
                layer.random_()
                layer &= -0x0808080808080809  # no 8-bit pattern that means "not a number"
        else:
            for layer in cache:
                layer.normal_()


def stage_rows(engine: Engine, rows: int, context: int) -> None:
    """`rows` sessions with `context` live columns, the current one included, each on its own pages."""
    host = engine.inputs.host
    for slot in range(engine.options.max_rows):
        engine.kv.release(slot)
    for slot in range(rows):
        engine.kv.ensure(slot, context)
        table = engine.kv.table(slot)
        host["pages"][slot, : len(table)] = table
        host["slot"][slot] = host["decoder_slot"][slot] = slot
        host["seed"][slot] = (slot, 7)
    host["column"][:rows] = context - 1
    host["encoder_position"][:rows] = host["decoder_position"][:rows] = 600
    host["top_k"][:rows], host["temperature"][:rows] = (25, 250), (0.7, 0.8)
    host["user_frame"][:rows] = host["forced"][:rows] = -1
    host["pcm"][:rows] = np.random.default_rng(0).normal(0, 0.1, (rows, host["pcm"].shape[1]))


def measure(engine: Engine, batches: list[int], contexts: list[int], repeats: int, rate: float) -> list[dict[str, Any]]:
    """All parts at every batch and context that fits; one record each."""
    lm = engine.config.lm
    parts: dict[str, Callable[[int], None]] = {
        "tick": engine.launch,
        "encode": engine.encode,
        "lm": engine.language,
        "decode": engine.decode,
    }
    records = []
    pool = None
    kept = []  # a memory pool ends with the last graph that uses it
    for batch in batches:
        began = time.perf_counter()
        stage_rows(engine, batch, min(contexts))
        graphs = {}
        for name, launch in parts.items():
            graphs[name] = GraphBuckets(launch, (batch,), engine.device)
            pool = graphs[name].capture(pool)
            kept.append(graphs[name])
        synchronize()
        say(f"B={batch}: compiled and captured in {time.perf_counter() - began:.1f} s")
        for context in contexts:
            if batch * engine.kv.pages_for(context) > engine.kv.statistics().pages_total:
                say(f"B={batch} context {context}: no room")
                continue
            stage_rows(engine, batch, context)
            times = {name: wall(partial(graph.replay, batch), repeats, engine.device) for name, graph in graphs.items()}
            moved = lm.weight_bytes(2 if engine.device.type == "cuda" else 4) + lm.kv_bytes(
                batch * (context + 1), engine.kv.k.element_size()
            )
            floor_ms = moved / rate * 1e3
            record = {
                "batch": batch,
                "context": context,
                "kv": str(engine.kv.k.dtype).removeprefix("torch."),
                **{f"{name}_ms": attrs.asdict(value) for name, value in times.items()},
                "lm_bytes": moved,
                "lm_floor_ms": floor_ms,
                "lm_over_floor": times["lm"].median / floor_ms,
                "lm_bytes_per_s": moved / times["lm"].median * 1e3,
                "required_tick_ms": REQUIRED_MS.get(batch) if context == 1000 else None,
                "aim_tick_ms": AIM_MS.get(batch) if context == 1000 else None,
            }
            records.append(record)
            say(
                f"B={batch:4d} ctx {context:5d} tick {times['tick'].median:6.2f} / {times['tick'].p99:6.2f}  "
                f"enc {times['encode'].median:5.2f}  lm {times['lm'].median:6.2f} (x{record['lm_over_floor']:.2f})  "
                f"dec {times['decode'].median:5.2f}"
            )
    return records


def compile_only(batch: int, rows: int, eight_bit: bool) -> None:
    """Compile every kernel a batch size needs, with one layer of everything: run several of these side by side to fill
    Triton's disk cache before a measurement or a start-up."""
    full = PersonaPlexConfig()
    one = attrs.evolve(full, lm=attrs.evolve(full.lm, layers=1, dep_layers=1), mimi=attrs.evolve(full.mimi, layers=1))
    engine = make_engine(one, torch.device("cuda"), rows, 4 * rows, eight_bit)
    stage_rows(engine, batch, 200)
    engine.launch(batch)
    synchronize()


def measure_unit(engine: Engine, batches: list[int], repeats: int) -> dict[str, Any]:
    """The unit as the model thread calls it: `run` with the host's work in it, at about 1000 live columns, and the
    start of a session with a voice of 50 columns and a persona of 60 tokens (voice unknown, then cached)."""
    unit = PersonaPlexUnit(engine, TextPieces([]), buckets=tuple(batches))
    began = time.perf_counter()
    unit.warm_up()
    result: dict[str, Any] = {"warm_up_s": time.perf_counter() - began, "run": [], "session_start": []}
    lm = engine.config.lm
    live = min(UNIT_CONTEXT, lm.context)
    frame = np.random.default_rng(0).normal(0, 0.1, unit.unit_samples).astype(np.float32)
    for batch in batches:
        taken = []
        for slot in range(batch):
            unit.reset(slot, seed=slot)
            unit.run([(slot, frame)])
            unit._views["column"][slot] = live - repeats
            unit._ensure(slot, live - repeats + 1)
        rows = [(slot, frame) for slot in range(batch)]
        for i in range(repeats):
            start = time.perf_counter()
            unit.run(rows)
            if i >= 5:
                taken.append(time.perf_counter() - start)
        result["run"].append({"batch": batch, "context": live, "ms": attrs.asdict(Times.of(taken))})
        say(f"unit.run B={batch}: {Times.of(taken).median:.2f} / {Times.of(taken).p99:.2f} ms")
        for slot in range(batch):
            unit.reset(slot)
    part = lm.context // 4
    raw = random_voice(lm, columns=min(50, part))
    buffer = io.BytesIO()
    torch.save(raw, buffer)
    buffer.seek(0)
    prompt = build_prompt(lm, load_voice("bench", buffer, lm), list(range(10, 10 + min(60, part))))
    for label in ("voice unknown", "voice cached", "voice cached"):
        unit.reset(0)
        begins = time.perf_counter()
        unit.begin_prompt(0, prompt)
        synchronize()
        chunks = [time.perf_counter() - begins]
        done = False
        while not done:
            start = time.perf_counter()
            done = unit.feed_prompt(0)
            synchronize()
            chunks.append(time.perf_counter() - start)
        record = {
            "case": label,
            "columns": prompt.count,
            "total_ms": 1e3 * sum(chunks),
            "parts_ms": [1e3 * c for c in chunks],
        }
        result["session_start"].append(record)
        say(f"session start, {label}: {record['total_ms']:.1f} ms in parts {[round(1e3 * c, 1) for c in chunks]}")
    return result


def peer_in_child(batches: str, repeats: int) -> list[dict[str, Any]] | str:
    """Run `moshi_peer.py` in a process of its own, so that its memory is gone before ours is taken."""
    command = [sys.executable, str(Path(__file__).with_name("moshi_peer.py")), batches, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return f"not measured: {lines[-1]}"
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(records: list[dict[str, Any]]) -> str:
    head = "| B | ctx | KV | tick ms (p99) | required / aim | encode | LM (x floor) | decode | LM TB/s |"
    lines = [head, "| ---: | ---: | --- | --- | --- | ---: | --- | ---: | ---: |"]
    for r in records:
        target = "-" if r["required_tick_ms"] is None else f"{r['required_tick_ms']} / {r['aim_tick_ms']}"
        lines.append(
            f"| {r['batch']} | {r['context']} | {r['kv']} | {r['tick_ms']['median']:.2f} ({r['tick_ms']['p99']:.2f}) "
            f"| {target} | {r['encode_ms']['median']:.2f} | {r['lm_ms']['median']:.2f} ({r['lm_over_floor']:.2f}) "
            f"| {r['decode_ms']['median']:.2f} | {r['lm_bytes_per_s'] / 1e12:.2f} |"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",") if part})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=numbers, default=[1, 8, 16, 32, 64, 128])
    parser.add_argument("--context", type=numbers, default=[250, 1000, 3000])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--fp8", action="store_true", help="keys and values in 8 bits")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU: a smoke run, no measurement")
    parser.add_argument("--peer", default="", help="batch sizes at which to time the reference package, as 1,64")
    parser.add_argument("--compile", action="store_true", help="only compile the kernels of --batch, measure nothing")
    parser.add_argument("--rows", type=int, default=0, help="slots of the engine (default: the largest batch)")
    parser.add_argument("--no-unit", action="store_true", help="skip the host path and the session start")
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    options = parser.parse_args()
    device = torch.device("cpu" if options.tiny else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        say("no CUDA device here; use --tiny for a smoke run")
        return 2
    rows = max([options.rows, *options.batch])
    if options.compile:
        with torch.inference_mode():
            for batch in options.batch:
                compile_only(batch, rows, options.fp8)
        return 0
    peer = peer_in_child(options.peer, options.repeats) if options.peer else []
    config = TINY if options.tiny else PersonaPlexConfig()
    contexts = [min(context, config.lm.context) for context in options.context]
    with torch.inference_mode():
        rates = measured_rates(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        say("  ".join(f"{name} {rate / 1e12:.2f} TB/s" for name, rate in rates.items()))
        wanted = max(batch * -(-context // PAGE) for batch in options.batch for context in contexts)
        wanted = max(wanted, max(options.batch) * -(-min(UNIT_CONTEXT, config.lm.context) // PAGE))
        pages = wanted
        if device.type == "cuda":
            room = torch.cuda.mem_get_info()[0] - config.lm.weight_bytes() - (6 << 30)
            pages = min(wanted, room // config.lm.kv_bytes(PAGE, 1 if options.fp8 else 2))
        engine = make_engine(config, device, rows, pages, options.fp8)
        fill_cache(engine)
        unit = measure_unit(engine, options.batch, options.repeats) if not options.no_unit else None
        records = measure(engine, options.batch, contexts, options.repeats, rates["best"])
    result = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "graphs": graphs_wanted(device),
        "rates_bytes_per_s": rates,
        "command": " ".join(["python", *sys.argv]),
        "unit": unit,
        "records": records,
        "peer": peer,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(table(records))
    if peer:
        print(f"peer: {json.dumps(peer)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
