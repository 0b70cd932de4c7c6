"""The journal: numbering at the take, dropping without gaps, replay, bounds (contract 15.1, 24a)."""

from __future__ import annotations

import orjson
import pytest
import trio

from duplex_protocol.dialect import Projected
from duplex_protocol.values import Json
from trio_duplex.session.journal import CursorAhead, Journal, JournalGap

encoded: list[int] = []


def encode(frame: Json, seq: int | None) -> bytes:
    encoded.append(seq or 0)
    return orjson.dumps({**frame, "seq": seq})


def journal(max_bytes: int = 1_000_000, ttl_s: float = 60) -> Journal:
    encoded.clear()
    return Journal(encode, max_bytes=max_bytes, ttl_s=ttl_s)


def one(kind: str, *, droppable: bool = False) -> Projected:
    return Projected(frames=({"type": kind},), droppable=droppable)


def drain(cursor: object) -> list[tuple[str, int]]:
    out = []
    while True:
        try:
            frame = orjson.loads(cursor.next_nowait())  # type: ignore[attr-defined]
        except (trio.WouldBlock, trio.EndOfChannel):
            return out
        out.append((frame["type"], frame["seq"]))


async def test_numbers_are_given_when_taken(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    for kind in "abc":
        log.append(one(kind))
    assert log.head == 0
    cursor = log.cursor(0)
    assert orjson.loads(cursor.next_nowait())["seq"] == 1
    assert log.head == 1
    assert drain(cursor) == [("b", 2), ("c", 3)]


async def test_dropping_an_epoch_leaves_no_gap(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    log.append(one("created"), epoch=0)
    for k in range(3):
        log.append(one(f"delta{k}", droppable=True), epoch=0, tag=k)
    cursor = log.cursor(0)
    cursor.next_nowait()
    cursor.next_nowait()
    assert log.drop_epoch(0) == [1, 2]
    log.append(one("done"), epoch=0)
    assert drain(cursor) == [("done", 3)]


async def test_frames_of_one_entry_are_numbered_together(autojump_clock: trio.testing.MockClock) -> None:
    """O6: an audio delta that was taken keeps its transcript delta, even if the epoch ends in between."""
    log = journal()
    log.append(Projected(frames=({"type": "audio"}, {"type": "transcript"}), droppable=True), epoch=0)
    cursor = log.cursor(0)
    assert orjson.loads(cursor.next_nowait())["type"] == "audio"
    assert log.drop_epoch(0) == []
    assert drain(cursor) == [("transcript", 2)]


async def test_each_event_is_encoded_once(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    for kind in "abc":
        log.append(one(kind))
    first, second = log.cursor(0), log.cursor(0)
    assert drain(first) == drain(second) == [("a", 1), ("b", 2), ("c", 3)]
    assert drain(log.cursor(1)) == [("b", 2), ("c", 3)]
    assert encoded == [1, 2, 3]


async def test_trim_and_gap(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    for kind in "abcd":
        log.append(one(kind))
    cursor = log.cursor(0)
    drain(cursor)
    log.trim(2)
    log.trim(1)
    assert drain(log.cursor(2)) == [("c", 3), ("d", 4)]
    with pytest.raises(JournalGap):
        log.cursor(1)
    with pytest.raises(CursorAhead):
        log.cursor(5)
    with pytest.raises(CursorAhead):
        log.trim(5)


async def test_an_early_ack_cannot_strand_a_cursor(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    log.append(Projected(frames=({"type": "a"}, {"type": "b"})))
    cursor = log.cursor(0)
    cursor.next_nowait()
    log.trim(2)
    assert drain(cursor) == [("b", 2)]


async def test_age_bound(autojump_clock: trio.testing.MockClock) -> None:
    log = journal(ttl_s=60)
    log.append(one("old"))
    drain(log.cursor(0))
    await trio.sleep(61)
    log.append(one("new"))
    for cursor in list(log._cursors):
        cursor.stop()
    with pytest.raises(JournalGap):
        log.cursor(0)
    assert drain(log.cursor(1)) == [("new", 2)]


async def test_overflow_stops_recording_but_not_delivery(autojump_clock: trio.testing.MockClock) -> None:
    log = journal(max_bytes=1_500)
    cursor = log.cursor(0)
    for _ in range(100):
        log.append(one("x"))
        drain(cursor)
    assert log.overflowed
    assert log.head == 100
    assert log.statistics().kept_bytes < 1_500
    cursor.stop()
    log.append(one("later"))
    assert log.head == 101, "detached after an overflow: numbered and forgotten"
    assert log.statistics().pending == 0
    with pytest.raises(JournalGap):
        log.cursor(50)


async def test_cursor_waits_and_ends(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    seen: list[str] = []

    async def read() -> None:
        while True:
            try:
                seen.append(orjson.loads(await cursor.next())["type"])
            except trio.EndOfChannel:
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(1)
        log.append(one("a"))
        await trio.sleep(1)
        log.append(one("b"))
        log.close()
    assert seen == ["a", "b"]


async def test_cancelled_wait_takes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    with trio.move_on_after(1):
        await cursor.next()
    log.append(one("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await cursor.next()
    assert drain(cursor) == [("a", 1)]


def kinds(batch: list[bytes]) -> list[str]:
    return [orjson.loads(data)["type"] for data in batch]


async def test_a_batch_is_what_is_ready_up_to_the_next_droppable_entry(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    log.append(Projected(frames=({"type": "created"}, {"type": "added"})))
    log.append(one("speak"))
    for number in range(2):
        pair = ({"type": f"audio{number}"}, {"type": f"words{number}"})
        log.append(Projected(frames=pair, droppable=True), epoch=0, tag=number)
    log.append(one("listen"))
    assert kinds(cursor.next_batch_nowait()) == ["created", "added", "speak"]
    assert log.head == 3, "no delta has a number before it stands first"
    assert kinds(cursor.next_batch_nowait()) == ["audio0", "words0"]
    assert log.drop_epoch(0) == [1]
    log.append(one("done"))
    assert kinds(cursor.next_batch_nowait()) == ["listen", "done"]
    assert log.head == 7
    with pytest.raises(trio.WouldBlock):
        cursor.next_batch_nowait()
    assert kinds(log.cursor(2).next_batch_nowait())[:3] == ["speak", "audio0", "words0"], "a replay is one batch"


async def test_a_batch_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    cursor = log.cursor(0)
    for _ in range(5):
        log.append(Projected(frames=({"type": "big", "value": "x" * 7_500},)))
    assert [len(cursor.next_batch_nowait()) for _ in range(2)] == [3, 2]


async def test_waiting_for_a_batch_ends_with_the_journal_and_takes_nothing_when_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = journal()
    cursor = log.cursor(0)
    with trio.move_on_after(1):
        await cursor.next_batch()
    log.append(one("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await cursor.next_batch()
    assert log.head == 0
    assert kinds(await cursor.next_batch()) == ["a"]
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.sleep(1)
            log.close()

        nursery.start_soon(end)
        with pytest.raises(trio.EndOfChannel):
            await cursor.next_batch()


async def test_what_is_kept_for_replay_goes_with_the_last_reader_of_an_ended_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = journal()
    for kind in "abc":
        log.append(one(kind))
    cursor = log.cursor(0)
    cursor.next_nowait()
    log.release()
    assert drain(cursor) == [("b", 2), ("c", 3)]
    assert log.statistics().kept == 3  # the socket is still there
    log.append(one("closed"))
    log.close()
    assert drain(cursor) == [("closed", 4)]
    cursor.stop()
    numbers = log.statistics()
    assert (numbers.kept, numbers.kept_bytes, numbers.pending_bytes, numbers.head) == (0, 0, 0, 4)


async def test_an_ended_session_without_a_reader_keeps_nothing(autojump_clock: trio.testing.MockClock) -> None:
    log = journal()
    log.append(one("a"))
    log.release()
    assert log.statistics().pending_bytes == 0
    with pytest.raises(JournalGap):
        log.cursor(0)
