"""The mailbox's bounds: what a client may leave waiting, and what a model may (contract 16.3, 22, 24a)."""

from __future__ import annotations

import math

import pytest
import trio

from duplex_protocol.commands import (
    AckPlayback,
    CancelResponse,
    Command,
    CommitInput,
    CreateResponse,
    Heartbeat,
    SignalTurn,
    UpdateSession,
)
from duplex_protocol.errors import RemoteProtocolError
from tests.session.talk import Talk, talking
from trio_duplex.models.plugin import Listened, Traits
from trio_duplex.session.mailbox import Mailbox, MailboxLimits
from trio_duplex.session.messages import HeardResult, Internal, RefusedEvent
from trio_duplex.testing import ScriptedOptions
from trio_duplex.testing.scripted_vad import ScriptedVad

LIMITS = MailboxLimits(max_pending_commands=3, max_pending_results=2)
DEAF = ScriptedOptions(owns_turns=False, traits=Traits(detects_speech=False))
VAD_ON = {"session": {"turn_detection": {"type": "server_vad"}}}


def result(number: int = 0) -> HeardResult:
    return HeardResult(Listened(reason=f"r{number}"))


async def test_only_the_clients_commands_count_against_the_clients_bound() -> None:
    mailbox: Mailbox[Internal] = Mailbox(LIMITS)
    for _ in range(50):
        mailbox.post(result())
    mailbox.post_command(CommitInput())  # data has a bound of its own
    for _ in range(3):
        mailbox.post_command(Heartbeat())
    with pytest.raises(RemoteProtocolError) as caught:
        mailbox.post_command(Heartbeat(event_id="evt_4"))
    assert (caught.value.code, caught.value.event_id) == ("input_backpressure", "evt_4")


async def test_refused_events_count_as_the_clients_too() -> None:
    mailbox: Mailbox[Internal] = Mailbox(LIMITS)
    refused = RefusedEvent(RemoteProtocolError("unknown_event", "no such event"))
    assert [mailbox.post_refused(refused) for _ in range(4)] == [True, True, True, False]
    assert len(mailbox) == 3
    with pytest.raises(RemoteProtocolError):
        mailbox.post_command(Heartbeat())


async def test_taking_makes_room_again() -> None:
    mailbox: Mailbox[Internal] = Mailbox(LIMITS)
    for round_ in range(3):
        for _ in range(3):
            mailbox.post_command(Heartbeat())
        for _ in range(3):
            assert isinstance(await mailbox.get(), Heartbeat), round_


async def test_results_wait_for_room_in_order_and_none_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    mailbox: Mailbox[Internal] = Mailbox(LIMITS)
    posted = 0

    async def model() -> None:
        nonlocal posted
        for number in range(7):
            await mailbox.post_result(result(number))
            posted = number + 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(model)
        await trio.testing.wait_all_tasks_blocked()
        assert (posted, len(mailbox)) == (2, 2)
        mailbox.post_command(Heartbeat())  # a client's command still finds room
        taken = [await mailbox.get() for _ in range(8)]
    assert [m.result.reason for m in taken if isinstance(m, HeardResult)] == [f"r{k}" for k in range(7)]  # type: ignore[union-attr]
    assert len(mailbox) == 0


async def test_a_cancelled_wait_for_room_posts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    mailbox: Mailbox[Internal] = Mailbox(LIMITS)
    await mailbox.post_result(result())
    await mailbox.post_result(result())
    with trio.move_on_after(1) as scope:
        await mailbox.post_result(result(9))
    assert scope.cancelled_caught
    assert len(mailbox) == 2


# --- through a session --------------------------------------------------------------------------------------------


async def stuck(talk: Talk) -> None:
    """The session's consumer waits: its first detector takes five seconds to load."""
    talk.send("session.update", **VAD_ON)
    await trio.testing.wait_all_tasks_blocked()
    assert talk.session.loading is not None


async def test_a_talkative_model_does_not_lock_its_client_out(autojump_clock: trio.testing.MockClock) -> None:
    """4000 results wait behind a slow update: heartbeat and cancel get through, and every result is applied."""
    async with talking(DEAF, scorer=ScriptedVad(load_s=5)) as talk:
        await stuck(talk)
        talk.model.hear(*(Listened(reason=f"r{k}") for k in range(4_000)))
        await trio.testing.wait_all_tasks_blocked()
        talk.send("session.heartbeat")
        talk.send("response.cancel", event_id="evt_c")
        await talk.reader.until("session.heartbeat_ack")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("response_not_active", "evt_c")
        await talk.reader.until("response.listen", 4_000)
        reasons = [e["response"]["metadata"]["reason"] for e in talk.reader.of("response.listen")]
        assert reasons == [f"r{k}" for k in range(4_000)]


async def test_results_in_the_mailbox_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Where nobody takes them the model's own channel fills, so that the model is told."""
    async with talking(DEAF, scorer=ScriptedVad(load_s=5)) as talk:
        await stuck(talk)
        talk.model.hear(*(Listened() for _ in range(4_000)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(talk.session.mailbox) == MailboxLimits().max_pending_results


async def test_nonsense_from_a_client_is_bounded_and_every_piece_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with talking(DEAF, scorer=ScriptedVad(load_s=5)) as talk:
        await stuck(talk)
        for k in range(3_000):
            talk.send("no.such.event", event_id=f"evt_{k}")
        assert len(talk.session.mailbox) <= MailboxLimits().max_pending_commands
        await talk.reader.until("error", 3_000)
        errors = [e["error"] for e in talk.reader.of("error")]
        assert {e["code"] for e in errors} == {"unknown_event"}
        assert {e["event_id"] for e in errors} == {f"evt_{k}" for k in range(3_000)}


# --- what commands hold in memory ---------------------------------------------------------------------------------

MIB = 1024 * 1024
BIG: list[Command] = [
    UpdateSession(session={"instructions": "x" * MIB}),
    CreateResponse(options={"input": [{"content": [{"audio": "A" * MIB}]}]}),
    SignalTurn(event="custom", payload={"deep": [["x" * MIB]]}),
    AckPlayback(item_id="x" * MIB),
]


@pytest.mark.parametrize("big", BIG, ids=lambda command: type(command).__name__)
async def test_big_commands_are_bounded_in_bytes_and_leave_room_for_small_ones(big: Command) -> None:
    """A thousand updates of 15 MiB behind a consumer that waits would be as many bytes of memory."""
    mailbox: Mailbox[Internal] = Mailbox(MailboxLimits(max_pending_command_bytes=4 * MIB))
    for _ in range(2):  # what was taken makes room again
        for _ in range(3):
            mailbox.post_command(big)
        with pytest.raises(RemoteProtocolError) as caught:
            mailbox.post_command(big)
        assert caught.value.code == "input_backpressure"
        assert len(mailbox) == 3
        mailbox.post_command(Heartbeat())
        mailbox.post_command(AckPlayback(item_id="item_1", played_ms=20))
        for _ in range(5):
            await mailbox.get()


async def test_one_big_command_always_finds_room() -> None:
    mailbox: Mailbox[Internal] = Mailbox(MailboxLimits(max_pending_command_bytes=MIB))
    mailbox.post_command(UpdateSession(session={"instructions": "x" * 2 * MIB}))
    with pytest.raises(RemoteProtocolError):
        mailbox.post_command(BIG[0])


async def test_a_cancel_that_is_refused_shortens_no_wait(autojump_clock: trio.testing.MockClock) -> None:
    """What was refused changed nothing."""
    async with talking(DEAF) as talk:
        session = talk.session
        with session.bind(math.inf) as scope:
            while True:
                try:
                    session.post(Heartbeat())
                except RemoteProtocolError:
                    break
            with pytest.raises(RemoteProtocolError):
                session.post(CancelResponse())
            assert scope.deadline == math.inf
        await talk.reader.until("session.heartbeat_ack", MailboxLimits().max_pending_commands)
