"""How much may wait for a socket, and for how long: ``max_pending_output_bytes`` and ``_events`` (contract 16.2)."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.session.talk import talking
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions

ENDLESS = ScriptedOptions(script=lambda _: [Piece("word ")] * 60)
FEW_EVENTS = SessionSettings(max_pending_output_events=20, attachment_io_timeout_s=5.0, disconnect_grace_s=1e6)
FEW_BYTES = SessionSettings(max_pending_output_bytes=100_000, attachment_io_timeout_s=5.0, disconnect_grace_s=1e6)


@pytest.mark.parametrize(
    # An answer of 200 ms pieces: two events and 13 kB each, from the moment at which the reader pauses.
    ("settings", "over_after_s"),
    [(FEW_EVENTS, 2.0), (FEW_BYTES, 1.4)],
)
async def test_a_reader_that_does_not_catch_up_in_time_is_left_behind(
    settings: SessionSettings, over_after_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(ENDLESS, settings=settings) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 2)
        talk.reader.paused = True
        attachment = talk.reader.attachment
        began = trio.current_time()
        with trio.fail_after(30):
            await attachment.ended.wait()
        assert trio.current_time() - began == pytest.approx(over_after_s + 5.0, abs=0.45)
        assert (attachment.close_code, attachment.close_reason) == (1008, "output_backlog")
        assert talk.hub.tally.readers_left_behind == 1
        talk.session.detach(attachment)
        assert talk.session.state == "open"
        # Nothing is lost: another socket reads on where this one stopped.
        last = talk.events[-1]["server_event_seq"]
        other = talk.attach(last)
        await other.until("response.done")
        assert [e["server_event_seq"] for e in other.events] == list(range(last + 1, last + 1 + len(other.events)))


async def test_one_that_catches_up_in_time_stays(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ENDLESS, settings=FEW_EVENTS) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        for _ in range(2):
            talk.reader.paused = True
            await trio.sleep(5.0)
            talk.reader.resume()
            await trio.sleep(0.1)
        await talk.reader.until("response.done")
        assert not talk.reader.attachment.ended.is_set()


async def test_a_burst_that_is_read_at_once_is_no_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(settings=FEW_EVENTS) as talk:
        for _ in range(200):
            talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack", 200)
        await trio.sleep(30)
        assert not talk.reader.attachment.ended.is_set()


async def test_what_waited_before_a_socket_came_is_not_its_fault(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ENDLESS, settings=FEW_EVENTS) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.session.detach(talk.reader.attachment)
        last = talk.events[-1]["server_event_seq"]
        await trio.sleep(20)  # the whole answer is said to nobody
        assert talk.session.journal.pending_events > 100
        slow = talk.attach(last)
        slow.paused = True
        talk.send("session.heartbeat")
        await trio.sleep(20)
        assert not slow.attachment.ended.is_set()
        slow.resume()
        await slow.until("session.heartbeat_ack")


@pytest.mark.parametrize("name", ["max_pending_output_bytes", "max_pending_output_events"])
@pytest.mark.parametrize("value", [0, -1])
def test_bounds_are_positive(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be greater than 0"):
        attrs.evolve(SessionSettings(), **{name: value})
