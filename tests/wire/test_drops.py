# ruff: noqa: N802 - tests of a case carry its id
"""Connections that break at random bytes during answers: the merged logs equal the log of an unbroken one (case R2)."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from tests.wire.stack import AUTO, Json, ReadableIds, Stack, Wire, append, open_stack
from trio_duplex.testing import Faults, Piece, ScriptedOptions, check_history, merge_logs

ANSWER = [Piece(f"word{k} ", 200) for k in range(10)]
VOLATILE = ("event_id",)
FIRST_BYTE = 5_000
"""After the opening events: a socket that loses its session.created never learns a token."""


async def converse(drops: list[int]) -> tuple[list[Json], int]:
    """Two turns over sockets of which each breaks at its byte; the merged log and how many sockets there were."""
    faults = tuple(Faults(drop_received_at=at) for at in drops)
    async with open_stack(ScriptedOptions(script=lambda _: ANSWER), faults=faults, ids=ReadableIds()) as stack:
        wires = [await stack.duplex({**AUTO, "session_id": "sess_1"})]
        for turn in range(2):
            # What the client says is not lost: only what it hears. The model hears by itself when it has the audio.
            await said(stack, wires)
            await heard(stack, wires, turn + 1)
        await trio.testing.wait_all_tasks_blocked()
        merged = merge_logs([wire.events for wire in wires])
        assert not merged.violations, merged.violations
        return merged.log, len(wires)


async def said(stack: Stack, wires: list[Wire]) -> None:
    for ms, amplitude in ((400, 8_000), (640, 0)):
        if wires[-1].ended.is_set():
            wires.append(await resumed(stack, wires))
        await wires[-1].send(append(ms, amplitude))


async def heard(stack: Stack, wires: list[Wire], answers: int) -> None:
    """Read until that many answers have ended, coming back after every loss."""
    while True:
        log = merge_logs([wire.events for wire in wires]).log
        if sum(e["type"] == "rate_limits.updated" for e in log) >= answers:
            return
        wire = wires[-1]
        if wire.ended.is_set():
            await trio.sleep(0.05)
            wires.append(await resumed(stack, wires))
            continue
        count = len(wire.events)
        with trio.move_on_after(60) as patience:
            while len(wire.events) == count and not wire.ended.is_set():
                await wire._changed.wait()
        assert not patience.cancelled_caught, wire.types


async def resumed(stack: Stack, wires: list[Wire]) -> Wire:
    """A new socket from the last event that was received; the token is the newest one seen."""
    while True:
        everything = [e for wire in wires for e in wire.events]
        last = max(e.get("server_event_seq", 0) for e in everything)
        tokens = [e["resume_token"] for e in everything if e["type"] in ("session.created", "session.resumed")]
        wire = await stack.connect(duplex=1, autostart=0)
        await wire.send(
            "session.resume",
            session_id="sess_1",
            incarnation=0,
            resume_token=tokens[-1],
            last_received_server_event_seq=last,
        )
        with trio.move_on_after(5):
            while not wire.events and not wire.ended.is_set():
                await wire._changed.wait()
        if wire.events:
            assert wire.types[0] == "session.resumed", wire.events[0]
            return wire


def comparable(log: list[Json]) -> list[Json]:
    return [{k: v for k, v in e.items() if k not in VOLATILE} for e in log]


def check_drops(rounds: int, seed: int) -> None:
    clock = trio.testing.MockClock
    whole, sockets = trio.run(converse, [], clock=clock(autojump_threshold=0))
    assert sockets == 1
    assert not check_history(whole)
    size = 180_000
    rng = random.Random(seed)
    broken = 0
    for _ in range(rounds):
        drops = [rng.randrange(FIRST_BYTE, size) for _ in range(rng.randint(1, 4))]
        log, sockets = trio.run(converse, drops, clock=clock(autojump_threshold=0))
        broken += sockets - 1
        assert comparable(log) == comparable(whole), drops
    assert broken >= rounds, "the drops must really happen"


def test_R2_a_few_drops_leave_no_trace() -> None:
    check_drops(5, seed=1)


@pytest.mark.slow
def test_R2_two_hundred_drops_leave_no_trace() -> None:
    check_drops(200, seed=2)


async def test_a_superseded_socket_that_is_stuck_says_nothing_any_more(autojump_clock: trio.testing.MockClock) -> None:
    """Never two live sockets (contract 22): what the old one still delivers changes nothing and ends nothing."""
    stuck = Faults(stall_received_at=FIRST_BYTE, buffer_bytes=1_000)
    async with open_stack(ScriptedOptions(script=lambda _: ANSWER), faults=(stuck,), ids=ReadableIds()) as stack:
        old = await stack.duplex({**AUTO, "session_id": "sess_1"})
        for ms, amplitude in ((400, 8_000), (640, 0)):
            await old.send(append(ms, amplitude))
        await trio.sleep(2)  # its writer waits for a reader by now
        new = await resumed(stack, [old])
        heard_ms = stack.session.clock_ms
        await old.send(append(100, 0, event_id="late"))
        await old.send("session.update", session={"instructions": "from the past"})
        await old.send("no.such.event")
        await old.send("session.close")
        await new.until("rate_limits.updated")
        await new.settled()
        assert stack.session.clock_ms == heard_ms
        assert stack.session.config.instructions != "from the past"
        assert new.of("error") == []
        await new.send("session.close")
        await new.until("session.closed")


async def test_a_superseded_socket_confirms_no_token(autojump_clock: trio.testing.MockClock) -> None:
    """The new token's answer was lost: the old token works once more, though the old socket still talks (15.3)."""
    stuck = Faults(stall_received_at=FIRST_BYTE, buffer_bytes=1_000)
    async with open_stack(ScriptedOptions(script=lambda _: ANSWER), faults=(stuck,), ids=ReadableIds()) as stack:
        old = await stack.duplex({**AUTO, "session_id": "sess_1"})
        for ms, amplitude in ((400, 8_000), (640, 0)):
            await old.send(append(ms, amplitude))
        await trio.sleep(2)
        lost = await resumed(stack, [old])
        await old.send("session.heartbeat")
        lost.socket.drop()
        await trio.sleep(0.1)
        new = await resumed(stack, [old])  # knows the first token only
        await new.settled()


async def test_a_slow_link_takes_a_whole_replay_in_one_visit(autojump_clock: trio.testing.MockClock) -> None:
    """Five seconds are for one write (1.2): a batch must not be so big that a link which takes every event fails."""
    slow = Faults(reads_per_s=6_000, buffer_bytes=4_000)
    async with open_stack(
        ScriptedOptions(script=lambda _: ANSWER), faults=(Faults(), slow), ids=ReadableIds()
    ) as stack:
        first = await stack.duplex({**AUTO, "session_id": "sess_1"})
        for ms, amplitude in ((400, 8_000), (640, 0)):
            await first.send(append(ms, amplitude))
        await first.until("rate_limits.updated")
        first.socket.drop()
        del first.events[5:]  # as if nothing behind had arrived
        with trio.fail_after(120):
            again = await resumed(stack, [first])
            await again.until("rate_limits.updated")
        assert not again.ended.is_set()
        assert sum(len(str(e)) for e in again.events) > 100_000
