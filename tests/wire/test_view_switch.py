"""The first update of an autostarted session may show a duplex-aware client: the view changes in its turn (25, O1)."""

from __future__ import annotations

import trio

from tests.session.talk import append, loud
from tests.wire.stack import open_stack
from trio_duplex.models.plugin import Framing, Traits
from trio_duplex.testing import ScriptedOptions

CANCEL = {"type": "response.cancel"}
DUPLEX_UPDATE = {"type": "session.update", "session": {"playback_commit_policy": "ack_only"}}
PLAIN_UPDATE = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}}
ONE_FORM = ScriptedOptions(traits=Traits(framing=Framing("pcm_f32le", 16_000)))
"""A model that takes a duplex-aware client's audio in one form only; a stock client's is converted."""


async def test_commands_before_the_switch_are_answered_in_the_old_view(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.plain()
        # All of it lies with the reader before the session looks at any of it.
        session = stack.session
        for event in (CANCEL, DUPLEX_UPDATE, CANCEL):
            for command in session.dialect.decode(event):
                session.post(command)
        await wire.until("error", 2)
        first, second = (e["error"]["code"] for e in wire.of("error"))
        assert (first, second) == ("response_cancel_not_active", "response_not_active")
        assert wire.types.index("session.updated") == wire.types.index("error") + 1


async def test_audio_before_the_switch_is_heard_as_a_stock_clients(autojump_clock: trio.testing.MockClock) -> None:
    """A model that takes one form only converts a stock client's audio; a duplex-aware client's is refused."""
    async with open_stack(ONE_FORM) as stack:
        wire = await stack.plain()
        # Decoding the first takes so many steps that the reader has read the update before the second is looked at.
        long, short = append(loud(20_000, 24_000)), append(loud(100, 24_000))
        for event in (long, short, DUPLEX_UPDATE, {**short, "event_id": "evt_2"}):
            await wire.send(event)
        error = await wire.error()
        assert (error["code"], error["event_id"]) == ("bad_event", "evt_2")
        await wire.settled()
        assert len(wire.of("error")) == 1
        assert stack.model.submitted_ms > 20_050


async def test_the_first_update_decides_for_good(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.plain()
        for event in (PLAIN_UPDATE, DUPLEX_UPDATE, CANCEL):
            await wire.send(event)
        assert (await wire.error())["code"] == "response_cancel_not_active"


async def test_an_explicit_view_is_never_overruled(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.plain(view="openai")
        for event in (DUPLEX_UPDATE, CANCEL):
            await wire.send(event)
        assert (await wire.error())["code"] == "response_cancel_not_active"


async def test_a_resumed_session_keeps_what_its_opening_left_open(autojump_clock: trio.testing.MockClock) -> None:
    """Fixed at open and kept across resume: the new socket's query does not take part."""
    async with open_stack() as stack:
        wire = await stack.plain(view="openai")
        shown = wire.of("session.created")[0]["session"]
        again = await stack.connect(
            session_id=shown["id"], resume_token=shown["resume_token"], incarnation=shown["incarnation"]
        )
        for event in (DUPLEX_UPDATE, CANCEL):
            await again.send(event)
        assert (await again.error())["code"] == "response_cancel_not_active"
