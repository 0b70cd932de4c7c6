"""Clients of `realtime.py`: one process with some live sessions. Prints one line of JSON when it is done.

Every session sends 80 ms of 24 kHz float audio at its own phase. Each frame that the server takes gives one frame back
(a delta of an answer, or a decision to listen), in order, so the k-th that comes back belongs to the k-th that was
sent.
The latency of a frame is from the moment before it is handed to the socket to the moment its delta was read and parsed
here, so it holds the client's own work too; both ends read the same monotonic clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time

import attrs
import numpy as np
import trio

from trio_duplex.client import DuplexClient, DuplexClientError
from trio_duplex.client.presets.personaplex import create_duplex_session_config

MODEL = "nvidia/personaplex-7b-v1"
PERIOD_S = 0.080
FRAME_SAMPLES = 1920
PERSONA = " ".join(["You enjoy a good conversation and answer in short friendly sentences."] * 6)
"""66 words."""
VOICES = ("NATF0.pt", "NATF1.pt", "NATF2.pt")
CANCEL_EVERY_S = 1.5
VISIT_EVERY_S = 4.0


async def sleep_until(at_s: float) -> None:
    """Until a moment of the monotonic clock; one that has passed is only a checkpoint. Cancellation: at once."""
    await trio.sleep(max(0.0, at_s - time.monotonic()))


@attrs.define
class Measured:
    """Times in ms, of the measured window unless the name says otherwise."""

    latency: list[float] = attrs.field(factory=list)
    start_in_ramp: list[float] = attrs.field(factory=list)
    start_beside: list[float] = attrs.field(factory=list)
    cancel: list[float] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)
    refusal_ms: list[float] = attrs.field(factory=list)
    send_late: list[float] = attrs.field(factory=list)
    frames_sent: int = 0
    frames_back: int = 0
    deltas: int = 0
    errors: list[str] = attrs.field(factory=list)
    unasked: int = 0
    """Frames that came although none was sent: the server had filled in silence."""


@attrs.define(eq=False)
class Caller:
    """One session."""

    url: str
    number: int
    opens_at_s: float
    from_s: float
    until_s: float
    cancels: bool
    frames: list[bytes]
    measured: Measured
    sent: list[float] = attrs.field(factory=list)

    async def run(self) -> None:
        await sleep_until(self.opens_at_s)
        config = create_duplex_session_config(VOICES[self.number % len(VOICES)], PERSONA)
        began = time.monotonic()
        try:
            async with DuplexClient(self.url, model=MODEL, config=config) as client:
                self.measured.start_in_ramp.append(1e3 * (time.monotonic() - began))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.read, client)
                    if self.cancels:
                        nursery.start_soon(self.cut_in, client)
                    await self.speak(client)
                    nursery.cancel_scope.cancel()
        except (DuplexClientError, OSError) as error:
            self.measured.errors.append(f"session {self.number}: {error!r}")

    async def speak(self, client: DuplexClient) -> None:
        due = time.monotonic() + random.random() * PERIOD_S
        while due < self.until_s:
            await sleep_until(due)
            now = time.monotonic()
            self.sent.append(now)
            await client.append_audio(self.frames[len(self.sent) % len(self.frames)])
            if now >= self.from_s:
                self.measured.frames_sent += 1
                self.measured.send_late.append(1e3 * (now - due))
            due += PERIOD_S

    async def read(self, client: DuplexClient) -> None:
        back = skipped = 0
        async for event in client.events():
            now = time.monotonic()
            if event.type not in ("response.output_audio.delta", "response.listen"):
                if event.type == "error":
                    self.measured.errors.append(f"session {self.number}: {event.raw.get('error')}")
                continue
            index = back - skipped
            back += 1
            if index >= len(self.sent):
                skipped += 1
                self.measured.unasked += now >= self.from_s
                continue
            if now < self.from_s:
                continue
            self.measured.frames_back += 1
            if event.type == "response.output_audio.delta":
                self.measured.deltas += 1
                if not self.cancels:
                    self.measured.latency.append(1e3 * (now - self.sent[index]))

    async def cut_in(self, client: DuplexClient) -> None:
        """Cancel whatever is said, again and again; from the command to the response's terminal event."""
        await sleep_until(self.from_s)
        while True:
            await trio.sleep(CANCEL_EVERY_S + random.random() * PERIOD_S)
            with trio.move_on_after(5) as scope:
                await client.wait_for("response.output_audio.delta", timeout_s=None)
                asked = time.monotonic()
                async with trio.open_nursery() as nursery:

                    async def done() -> None:
                        await client.wait_for("response.done", timeout_s=None)
                        self.measured.cancel.append(1e3 * (time.monotonic() - asked))  # noqa: B023

                    nursery.start_soon(done)
                    await client.cancel_response()
            if scope.cancelled_caught:
                self.measured.errors.append(f"session {self.number}: nothing to cancel, or no terminal")


async def visit(options: argparse.Namespace, measured: Measured) -> None:
    """Somebody comes and goes beside the others, again and again; with everything full: is refused."""
    await sleep_until(options.from_s)
    number = 0
    while time.monotonic() + VISIT_EVERY_S < options.until_s:
        await trio.sleep(VISIT_EVERY_S + random.random() * PERIOD_S)
        began = time.monotonic()
        number += 1
        try:
            config = create_duplex_session_config(VOICES[number % len(VOICES)], f"{PERSONA} {number}")
            async with DuplexClient(options.url, model=MODEL, config=config):
                measured.start_beside.append(1e3 * (time.monotonic() - began))
        except (DuplexClientError, OSError) as error:
            measured.refused.append(str(error))
            measured.refusal_ms.append(1e3 * (time.monotonic() - began))


async def main(options: argparse.Namespace) -> None:
    random.seed(options.first)
    noise = np.random.default_rng(options.first)
    frames = [noise.normal(0, 0.1, FRAME_SAMPLES).astype("<f4").tobytes() for _ in range(16)]
    measured = Measured()
    gc.collect()
    gc.freeze()
    async with trio.open_nursery() as nursery:
        for number in range(options.first, options.first + options.count):
            opens = options.begin_s + options.ramp * number / options.total
            cancels = number % 16 == 15 or number == options.total - 1
            caller = Caller(options.url, number, opens, options.from_s, options.until_s, cancels, frames, measured)
            nursery.start_soon(caller.run)
        if options.visits:
            nursery.start_soon(visit, options, measured)
    json.dump(attrs.asdict(measured), sys.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    for name in ("--first", "--count", "--total"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--begin-s", "--from-s", "--until-s", "--ramp"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--visits", action="store_true")
    trio.run(main, parser.parse_args())
