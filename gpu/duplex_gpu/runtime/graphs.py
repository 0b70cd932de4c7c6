"""Capture of a batched step once per batch bucket, replayed ever after; eager where there is no CUDA or on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

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

    def capture(self, pool: tuple[int, int] | None = None) -> tuple[int, int] | None:
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
