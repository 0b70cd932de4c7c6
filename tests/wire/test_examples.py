"""Every worked example of the wire reference is sent, or received, for real (cases U6, P2; issue 3, done when 1)."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.catalogue import SERVER_EVENTS
from duplex_protocol.client_events import CLIENT_EVENTS
from duplex_protocol.examples import CLIENT_EXAMPLES
from duplex_protocol.examples_server import SERVER_EXAMPLES
from tests.protocol.wire_kit import matches
from tests.wire.conversations import demo, reach, record
from tests.wire.stack import Json


def test_every_event_has_one_example() -> None:
    assert list(CLIENT_EXAMPLES) == list(CLIENT_EVENTS)
    assert list(SERVER_EXAMPLES) == list(SERVER_EVENTS)
    assert (len(CLIENT_EXAMPLES), len(SERVER_EXAMPLES)) == (21, 42)
    for name, example in CLIENT_EXAMPLES.items():
        assert example.event["type"] == name
        assert example.reply is None or example.reply in SERVER_EVENTS
    for name, shown in SERVER_EXAMPLES.items():
        assert shown["type"] == name


@pytest.mark.parametrize("name", list(CLIENT_EXAMPLES))
async def test_client_example(name: str, autojump_clock: trio.testing.MockClock) -> None:
    """Sent through socket, handshake, session and dialect: its documented answer comes, and no error."""
    example = CLIENT_EXAMPLES[name]
    async with demo() as (stack, wire):
        wire = await reach(example.state, stack, wire)
        before = len(wire.of(example.reply)) if example.reply else 0
        await wire.send(example.event)
        if example.reply is not None:
            await wire.until(example.reply, before + 1)
        else:
            await wire.settled()
        assert not wire.of("error")


RECORDED: dict[str, list[Json]] = {}


@pytest.mark.parametrize("name", list(SERVER_EXAMPLES))
async def test_server_example(name: str, autojump_clock: trio.testing.MockClock) -> None:
    """What was received in the scripted conversations is the example: same members, same order, same values."""
    if not RECORDED:
        RECORDED.update(await record())
    faults: list[AssertionError] = []
    for received in RECORDED[name]:
        try:
            matches(SERVER_EXAMPLES[name], received)
        except AssertionError as fault:
            faults.append(fault)
        else:
            return
    raise faults[0]


async def test_events_without_an_example_of_their_own_do_not_exist(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing is sent that the catalogue does not name."""
    assert set(await record()) == set(SERVER_EVENTS)


async def test_every_server_event_carries_id_and_number(autojump_clock: trio.testing.MockClock) -> None:
    """3.2: event_id always; a number on all but the few that contract 15.1 names."""
    async with demo() as (stack, wire):
        wire = await reach("answered", stack, wire)
        assert all(e["event_id"].startswith("event_") for e in wire.events)
        assert [e["server_event_seq"] for e in wire.events] == list(range(1, len(wire.events) + 1))
