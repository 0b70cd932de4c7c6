"""The journal's lane for a reader in this process: numbered when taken, never encoded, never kept (contract 24a)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from duplex_protocol.dialect import Projected
from duplex_protocol.values import Json
from trio_duplex.session.cursor import Cursor
from trio_duplex.session.journal import CursorAhead, Journal, JournalGap


def encode(frame: Json, seq: int | None) -> bytes:
    raise AssertionError("nothing is to be encoded")


def journal(max_bytes: int = 1_000_000) -> Journal:
    return Journal(encode, max_bytes=max_bytes, ttl_s=60)


def entry(*kinds: str, droppable: bool = False) -> Projected:
    return Projected(frames=tuple({"type": kind} for kind in kinds), droppable=droppable)


def drain(cursor: Cursor) -> list[tuple[int, str]]:
    found = []
    while True:
        try:
            found += [(seq, frame["type"]) for seq, frame in cursor.next_frames_nowait()]
        except (trio.WouldBlock, trio.EndOfChannel):
            return found


async def test_numbered_when_taken_and_dropped_without_a_gap(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    log.append(entry("created", "updated"))
    log.append(entry("delta", droppable=True), epoch=0, tag="first")
    assert log.head == 0
    assert cursor.next_frames_nowait() == [(1, {"type": "created"}), (2, {"type": "updated"})]
    log.append(entry("delta", droppable=True), epoch=0, tag="second")
    assert log.drop_epoch(0) == ["first", "second"]
    log.append(entry("done"), epoch=0)
    assert drain(cursor) == [(3, "done")]


async def test_nothing_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    log = journal(max_bytes=3_000)
    cursor = log.cursor(0)
    for _ in range(50):
        log.append(entry("delta"))
        drain(cursor)
    numbers = log.statistics()
    assert (numbers.head, numbers.kept, numbers.pending, numbers.pending_bytes) == (50, 0, 0, 0)
    assert numbers.recording
    log.trim(50)
    with pytest.raises(CursorAhead):
        log.trim(51)
    with pytest.raises(JournalGap):
        log.check(49)
    log.check(50)


async def test_waits_and_ends(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    seen: list[str] = []

    def take(seq: int, frame: Json) -> None:
        seen.append(f"{seq} {frame['type']}")

    log.append(entry("early", "too"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.hand_over_to, take)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["1 early", "2 too"]
        log.append(entry("a"))
        log.append(entry("b"), epoch=0)
        assert seen[2:] == ["3 a", "4 b"], "nobody had to wake for them"
        await log.wait_taken()
        log.append(entry("last"))
        log.close()
    assert seen[4:] == ["5 last"]
    assert cursor.position == log.head == 5


async def test_what_waits_in_a_closed_journal_is_handed_over(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    log.append(entry("a", "b"))
    log.close()
    seen: list[int] = []
    await cursor.hand_over_to(lambda seq, _: seen.append(seq))
    assert seen == [1, 2]


async def test_cancelled_wait_takes_nothing_and_stop_ends(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    log.append(entry("a"))
    seen: list[int] = []

    def take(seq: int, _: Json) -> None:
        seen.append(seq)

    with trio.CancelScope() as scope:
        scope.cancel()
        await cursor.hand_over_to(take)
    assert (seen, drain(cursor)) == ([], [(1, "a")])
    with trio.move_on_after(1):
        await cursor.hand_over_to(take)
    log.append(entry("b"))
    assert (seen, drain(cursor)) == ([], [(2, "b")]), "a reader that was cancelled is told nothing more"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.hand_over_to, take)
        await trio.testing.wait_all_tasks_blocked()
        cursor.stop()
    log.append(entry("c"))
    assert seen == []
    with pytest.raises(trio.EndOfChannel):
        cursor.next_frames_nowait()
