"""Capture of a batched step once per batch bucket, replayed ever after; eager where there is no CUDA or on request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch.cuda import _POOL_HANDLE as PoolHandle  # noqa: N811 - what `graph.pool()` returns, by torch's own name

EAGER_VARIABLE = "TRIO_DUPLEX_EAGER"
"""Set to 1 to run every step eagerly (to debug kernels, or to rule graphs out)."""


class StepShapeError(ValueError):
    """A step was asked for with more rows than the largest bucket, or with none."""


def graphs_wanted(device: torch.device) -> bool:
    """Whether steps on this device are captured: CUDA, and the switch is not set."""
    return device.type == "cuda" and os.environ.get(EAGER_VARIABLE, "") not in ("1", "true", "yes")


def buckets_up_to(rows: int, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)) -> tuple[int, ...]:
    """The bucket sizes for at most `rows` rows; the last one is `rows` itself."""
    return (*(size for size in sizes if size < rows), rows)


class GraphBuckets:
    """One captured graph per bucket of a step `launch(rows)` that works on static buffers only.

    All graphs share one memory pool, so their replays must not overlap (one thread, one stream). `launch` is run twice
    eagerly before capture: compiling kernels, loading modules and creating library handles cannot be captured.
    """

    def __init__(self, launch: Callable[[int], None], buckets: Sequence[int], device: torch.device) -> None:
        if not buckets or list(buckets) != sorted(set(buckets)):
            raise StepShapeError(f"buckets must be ascending and distinct, got {list(buckets)}")
        self._launch = launch
        self._device = device
        self.buckets = tuple(buckets)
        self.captured = False
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows` rows. Raises `StepShapeError`."""
        if rows < 1 or rows > self.buckets[-1]:
            raise StepShapeError(f"a step takes 1 to {self.buckets[-1]} rows, got {rows}")
        return next(size for size in self.buckets if size >= rows)

    def capture(self, pool: PoolHandle | None = None) -> PoolHandle | None:
        """Warm every bucket up and capture it where graphs are wanted; returns the memory pool for further captures."""
        wanted = graphs_wanted(self._device)
        for size in reversed(self.buckets):  # the largest first: it sizes the shared pool
            self._launch(size)
            self._launch(size)
            if not wanted:
                continue
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._launch(size)
            pool = pool or graph.pool()
            self._graphs[size] = graph
        if wanted:
            torch.cuda.synchronize(self._device)
        self.captured = wanted
        return pool

    def replay(self, bucket: int) -> None:
        """Run the step for a bucket size from `bucket()`: asynchronous on CUDA, at once on CPU."""
        graph = self._graphs.get(bucket)
        if graph is None:
            self._launch(bucket)
        else:
            graph.replay()


class StepWait:
    """Waits for a device's current stream: asleep for most of the time a step of that size took last, then spinning.

    A blocking event alone saves as much CPU but wakes up late by up to milliseconds now and then; spinning alone burns
    a core. The interpreter lock is free during both.
    """

    def __init__(self, device: torch.device, asleep: float = 0.75) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._asleep = asleep
        self._taken_s: dict[int, float] = {}

    def wait(self, size: int, started_s: float) -> None:
        """Return when all work queued so far is done. `size` names the kind of step (its bucket), `started_s` is the
        `time.perf_counter()` at which it was launched."""
        if self._event is None:
            return
        self._event.record()
        rest = started_s + self._asleep * self._taken_s.get(size, 0.0) - time.perf_counter()
        if rest > 2e-4:
            time.sleep(rest)
        self._event.synchronize()
        taken = time.perf_counter() - started_s
        # Forget a hiccup quickly: sleeping too long is worse than spinning too long.
        self._taken_s[size] = min(taken, self._taken_s.get(size, taken) * 1.02)
