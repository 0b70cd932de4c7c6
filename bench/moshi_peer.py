"""Times of the reference package moshi (0.2.13) at given batch sizes: run by `unit_step.py --peer` in its own process.

python bench/moshi_peer.py 1,64 60
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from moshi.models import LMGen, loaders


def times(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: median, 99th percentile, largest."""
    ordered = sorted(1e3 * s for s in seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median": statistics.median(ordered), "p99": p99, "most": ordered[-1]}


def peer_times(batches: list[int], repeats: int, warm: int = 12) -> list[dict[str, Any]]:
    """The package's own step (8 depformer steps, CUDA graphs on), random weights, one engine per batch size."""
    device = torch.device("cuda")
    records = []
    for batch in batches:
        torch._dynamo.reset()
        lm = loaders.get_moshi_lm(None, device=device, dtype=torch.bfloat16)
        mimi = loaders.get_mimi(None, device=device, num_codebooks=8)
        generator = LMGen(lm)
        pcm = torch.randn(batch, 1, 1920, device=device) * 0.1
        frames: list[float] = []
        steps: list[float] = []
        with torch.no_grad(), mimi.streaming(batch), generator.streaming(batch):
            for _ in range(warm + repeats):
                torch.cuda.synchronize()
                t0 = time.perf_counter()
                codes = mimi.encode(pcm)
                torch.cuda.synchronize()
                t1 = time.perf_counter()
                tokens = generator.step(codes)
                torch.cuda.synchronize()
                t2 = time.perf_counter()
                if tokens is not None:
                    mimi.decode(tokens[:, 1:]).cpu()
                    tokens[:, 0].cpu()
                frames.append(time.perf_counter() - t0)
                steps.append(t2 - t1)
        record = {
            "batch": batch,
            "lm_ms": times(steps[warm:]),
            "frame_ms": times(frames[warm:]),
            "live_columns": warm + repeats,
        }
        records.append(record)
        print(
            f"peer B={batch}: lm {record['lm_ms']['median']:.2f} ms, frame {record['frame_ms']['median']:.2f} ms",
            file=sys.stderr,
        )
        del lm, mimi, generator
        torch.cuda.empty_cache()
    return records


if __name__ == "__main__":
    print(json.dumps(peer_times([int(part) for part in sys.argv[1].split(",")], int(sys.argv[2]))))
