"""Thousands of sessions with random faults on a virtual clock: promises kept, memory and object counts flat.

Run: python bench/soak.py [--virtual-minutes 30] [--seed 1] [--callers 4]          virtual time, in one process
     python bench/soak.py --real-minutes 5                                          the same callers on the real clock

Each caller holds one conversation after the other and draws from the seed what happens in it: how long it speaks,
whether it interrupts, acknowledges, loses its connection, reads slowly, walks away or closes. After every ``--window``
of sessions the live objects and allocated blocks are counted; the run fails when a promise is broken, or when the last
third of the readings holds more than the middle third, beyond the tolerance.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Sequence

import attrs
import structlog
import trio

from trio_duplex.client import DuplexClient, DuplexClientError
from trio_duplex.server.socket import SocketGone
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Fail, Faults, Piece, Rig, ScriptedOptions, open_rig, run_seeded, silence, speech
from trio_duplex.testing.history import Violation

OBJECT_TOLERANCE = 0.02
BLOCK_TOLERANCE = 0.02


@attrs.frozen
class Window:
    """A reading after some sessions: live Python objects, allocated blocks of memory, live ``Session`` objects."""

    sessions: int
    virtual_s: float
    objects: int
    blocks: int
    live_sessions: int


@attrs.define
class Soak:
    """The run's state: what was done and what was found."""

    rig: Rig
    dice: random.Random
    until_s: float
    window: int
    done: int = 0
    events: int = 0
    outcomes: dict[str, int] = attrs.field(factory=dict)
    violations: list[Violation] = attrs.field(factory=list)
    windows: list[Window] = attrs.field(factory=list)

    async def caller(self) -> None:
        """One conversation after the other until the time is over."""
        while trio.current_time() < self.until_s:
            outcome = "unknown"
            try:
                outcome = await self._conversation()
            except* (DuplexClientError, SocketGone, TimeoutError, OSError) as errors:
                outcome = type(errors.exceptions[0]).__name__
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    async def _conversation(self) -> str:
        dice = self.dice
        await trio.sleep(dice.uniform(0, 0.5))
        with trio.move_on_after(dice.choice([2.0, 30.0, 120.0])):
            async with self.rig.client(heartbeat_interval_s=10.0) as client:
                for _ in range(dice.randrange(1, 4)):
                    await self._turn(client)
            return "closed"
        return "walked away"

    async def _turn(self, client: DuplexClient) -> None:
        dice = self.dice
        await client.append_audio(speech(dice.randrange(100, 400)))
        await client.append_audio(silence(600))
        heard = 0
        events = client.events()
        async for event in events:
            if event.type == "response.done":
                return
            if event.type != "response.output_audio.delta":
                continue
            heard += 1
            what = dice.random()
            if what < 0.15:
                await client.send({"type": "playback.ack", "played_ms": heard * 150, "response_id": event.response_id})
            elif what < 0.20:
                await client.append_audio(speech(200))
                await client.append_audio(silence(600))
            elif what < 0.23:
                self.rig.network.sockets[dice.randrange(len(self.rig.network.sockets))].drop()
            elif what < 0.26:
                await client.send(
                    {"type": dice.choice(["response.cancel", "output_audio_buffer.clear", "input.cancel"])}
                )
            elif what < 0.27:
                await trio.sleep(dice.uniform(0, 8))

    def sweep(self) -> None:
        """Check and forget what has ended: a soak's own records must not be what grows."""
        rig = self.rig
        ended = [s for s in rig.hub.every_session if s.ended.is_set()]
        for session in ended:
            self.events += len(rig.log(session).log)
        live = [s for s in rig.hub.every_session if not s.ended.is_set()]
        rig.hub.every_session[:] = ended
        self.violations += rig.check()
        rig.hub.every_session[:] = live
        names = {s.id for s in live}
        rig.plugin.sessions[:] = [m for m in rig.plugin.sessions if not m.closed or m.context.session_id in names]
        kept = [s for s in rig.network.sockets if s.ended is None or any(_carries(s.received, n) for n in names)]
        rig.network.forget(kept)
        rig.clients.clear()
        self.done += len(ended)

    async def watch(self) -> None:
        """Sweep and take a reading whenever another window of sessions has ended."""
        reading = self.window
        while trio.current_time() < self.until_s:
            await trio.sleep(5)
            self.sweep()
            if self.done >= reading:
                reading = self.done + self.window
                gc.collect()
                objects = gc.get_objects()
                live = sum(isinstance(o, Session) for o in objects)
                blocks = sys.getallocatedblocks()
                self.windows.append(Window(self.done, trio.current_time(), len(objects), blocks, live))
                del objects


def _carries(received: Sequence[dict[str, object]], session_id: str) -> bool:
    return any(
        session_id in (e.get("session_id"), (e.get("session") or {}).get("id"))  # type: ignore[attr-defined]
        for e in received[:2]
    )


def script(dice: random.Random) -> ScriptedOptions:
    """Answers of random length; one in fifty fails."""

    def answer(_: object) -> list[Piece | Fail]:
        pieces: list[Piece | Fail] = [
            Piece(f"word{k} ", dice.choice([40, 100, 200])) for k in range(dice.randrange(1, 12))
        ]
        return [*pieces, Fail()] if dice.random() < 0.02 else pieces

    return ScriptedOptions(script=answer, slots=64)


async def run(minutes: float, seed: int, callers: int, window: int) -> Soak:
    """The whole soak in one rig; raises what the rig finds at its end."""
    dice = random.Random(seed)
    settings = SessionSettings(max_sessions=64, disconnect_grace_s=10.0)
    faults = tuple(
        Faults(drop_received_at=dice.randrange(1_000, 400_000) if dice.random() < 0.2 else None) for _ in range(2_000)
    )
    async with open_rig(script(dice), settings=settings, seed=seed, faults=faults) as rig:
        await rig.hub.ready.wait()
        soak = Soak(rig, dice, trio.current_time() + minutes * 60, window)
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(soak.caller)
            nursery.start_soon(soak.watch)
        while rig.hub.statistics().sessions:  # noqa: ASYNC110  (grace and leases run out by themselves)
            await trio.sleep(1)
        soak.sweep()
    return soak


def flat(windows: Sequence[Window]) -> list[str]:
    """What grew: the mean of the last third of the readings against that of the middle third."""
    if len(windows) < 6:
        return ["too few readings to judge"]
    third = len(windows) // 3
    middle, last = windows[third : 2 * third], windows[-third:]
    grown = []
    for name, tolerance in (("objects", OBJECT_TOLERANCE), ("blocks", BLOCK_TOLERANCE)):
        before = sum(getattr(w, name) for w in middle) / len(middle)
        after = sum(getattr(w, name) for w in last) / len(last)
        if after > before * (1 + tolerance):
            grown.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return grown


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit status 1 when a promise broke or something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual-minutes", type=float, default=30.0)
    parser.add_argument("--real-minutes", type=float, default=None, help="use the real clock for so long instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--window", type=int, default=200, help="sessions between two readings")
    parser.add_argument("--json", help="write the readings here")
    options = parser.parse_args(arguments)
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer()], wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    begun = time.perf_counter()

    async def body() -> Soak:
        minutes = options.virtual_minutes if options.real_minutes is None else options.real_minutes
        return await run(minutes, options.seed, options.callers, options.window)

    soak = run_seeded(body, options.seed) if options.real_minutes is None else trio.run(body)
    grown = flat(soak.windows)
    facts = {
        "sessions": soak.done,
        "events": soak.events,
        "outcomes": soak.outcomes,
        "violations": [str(v) for v in soak.violations],
        "grown": grown,
        "real_s": round(time.perf_counter() - begun, 1),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "windows": [attrs.asdict(w) for w in soak.windows],
    }
    print(json.dumps({k: v for k, v in facts.items() if k != "windows"}, indent=1))
    for window in soak.windows:
        print(
            f"{window.sessions:7} sessions  {window.objects:9} objects  {window.blocks:9} blocks  "
            f"{window.live_sessions:3} live"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(facts, out, indent=1)
    return 1 if soak.violations or grown else 0


if __name__ == "__main__":
    sys.exit(main())
