"""Helpers of the GPU room's tests."""

from __future__ import annotations

import queue
import threading
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

TIMEOUT_S = 10.0

SPEECH = Path(__file__).parents[1] / "data" / "speech"

TRANSCRIPTS = {
    "goforward.raw": "go forward ten meters",
    "librivox_0880.wav": "he was not an ill disposed young man",
    "librivox_0890.wav": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "cards_001.wav": "ten of clubs",
    "cards_005.wav": "eight of spades four of clubs seven of hearts",
}


class Loop:
    """An event loop as seen by the threads: the test's own thread runs the callbacks."""

    def __init__(self) -> None:
        self.calls = 0
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def call_soon(self, fn: Callable[[], object]) -> None:
        self._callbacks.put(fn)

    def run_until(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Run callbacks as they come until ``condition()``; fail after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            try:
                fn = self._callbacks.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail("the thread did not answer in time")
            self.calls += 1
            fn()

    def run_waiting(self) -> None:
        """Run the callbacks that wait now."""
        while not self._callbacks.empty():
            self.calls += 1
            self._callbacks.get()()


class SumStep:
    """Adds each payload to its slot's sum; negative payloads are refused, -99 ends the thread."""

    def __init__(self, max_rows: int = 8) -> None:
        self.max_rows = max_rows
        self.sums = [1000] * max_rows  # so that a missing reset shows
        self.batches: list[list[int]] = []
        self.running = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def warm_up(self) -> None:
        pass

    def reset(self, slot: int) -> None:
        self.sums[slot] = 0

    def run(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        self.running.set()
        assert self.go.wait(TIMEOUT_S)
        self.batches.append([slot for slot, _ in rows])
        if any(payload == -99 for _, payload in rows):
            raise SystemExit("the device is gone")
        if any(payload < 0 for _, payload in rows):
            raise ValueError("negative")
        for slot, payload in rows:
            self.sums[slot] += payload
        return [self.sums[slot] for slot, _ in rows]


def recording(name: str) -> NDArray[np.float32]:
    """A recording as ``float32[n]`` at 16 kHz."""
    path = SPEECH / name
    if path.suffix == ".raw":
        pcm = np.fromfile(path, "<i2")
    else:
        with wave.open(str(path)) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
            pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return pcm.astype(np.float32) / 32768


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return "".join(char if char.isalnum() or char == "'" else " " for char in text.lower()).split()


def word_errors(expected: str, heard: str) -> tuple[int, int]:
    """Substitutions, insertions and deletions between two texts, and the number of expected words."""
    wanted, got = words(expected), words(heard)
    row = list(range(len(got) + 1))
    for i, one in enumerate(wanted, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(got, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
    return row[-1], len(wanted)
