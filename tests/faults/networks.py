"""Networks of the demo model that fail on command, on the model's own threads, for one slot or for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs
import numpy as np

from duplex_gpu.piper_voice import Speech, TextMark
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.demo.engine import FloatAudio
from trio_duplex.models.demo.networks import Networks
from trio_duplex.models.demo.threads import ThreadEngine

Kind = Literal["raises", "out of memory", "late", "never returns", "dies", "nan"]

HELD_S = 60.0
"""How long a step that never returns takes at most, so that a broken test does not hold its process for ever."""


class DeviceOutOfMemory(RuntimeError):
    """What a device library raises when it has no memory left."""


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@attrs.define(eq=False, kw_only=True)
class FaultyNetworks(Networks):
    """A detector that takes loud frames for speech, a recogniser and a voice of constants, and one fault.

    ``fault``: what a step of the detector does from now on when one of the slots ``guilty`` (None = any) is in it.
    ``bad_slots``: slots that cannot be reset when they are opened. ``late_s``: how long a late step takes. Unless
    ``warm`` is set, warming up waits for it.
    """

    fault: Kind | None = None
    guilty: frozenset[int] | None = None
    bad_slots: frozenset[int] = frozenset()
    late_s: float = 0.32
    max_rows: int = 4
    sample_rate_hz: int = 24_000
    warm: threading.Event = attrs.field(factory=_set)
    release: threading.Event = attrs.field(factory=threading.Event)
    entered: threading.Event = attrs.field(factory=threading.Event)

    def detector(self, slots: int) -> FaultyNetworks:
        self.max_rows = slots
        return self

    def recognizer(self) -> FaultyNetworks:
        return self

    def voice(self) -> FaultyNetworks:
        return self

    def warm_up(self) -> None:
        assert self.warm.wait(HELD_S)

    # --- the detector ---

    def reset(self, slot: int) -> None:
        if slot in self.bad_slots:
            raise DeviceOutOfMemory("no memory for a slot")

    def run(self, rows: Sequence[tuple[int, FloatAudio]]) -> list[float]:
        values = [float(np.clip(np.abs(frame).mean() * 20, 0.0, 1.0)) for _, frame in rows]
        concerned = [self.guilty is None or slot in self.guilty for slot, _ in rows]
        if self.fault is not None and any(concerned):
            self.entered.set()
            if self.fault == "raises":
                raise ValueError("a bad frame")
            if self.fault == "out of memory":
                raise DeviceOutOfMemory("device out of memory")
            if self.fault == "dies":
                raise SystemExit("the device is gone")
            if self.fault == "late":
                time.sleep(self.late_s)
            if self.fault == "never returns":
                self.release.wait(HELD_S)
            if self.fault == "nan":
                return [float("nan") if bad else value for value, bad in zip(values, concerned, strict=True)]
        return values

    # --- the recogniser and the voice ---

    def transcribe(self, audio: FloatAudio, should_stop: Callable[[], bool]) -> str | None:
        return None if should_stop() else "hello there"

    def stream(self, text: str) -> Iterator[Speech]:
        for number, word in enumerate(text.split(), start=1):
            end = sum(len(each) + 1 for each in text.split()[:number])
            yield Speech(np.full(2_400, len(word), np.int16), 24_000, (TextMark(min(end, len(text)), 100.0),))


def demo_plugin(networks: FaultyNetworks, *, stuck_after_s: float = 1.0) -> DemoPlugin:
    """The demo model on its real threads, with these networks."""
    options = DemoOptions(stuck_after_s=stuck_after_s)
    return DemoPlugin(options, max_sessions=4, engine=ThreadEngine(options, max_sessions=4, networks=networks))
