"""One PersonaPlex session on virtual time: a slot whose results the test writes itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import numpy as np
import pytest
import trio
import trio.testing

from duplex_gpu.personaplex.unit_rows import FeedPrompt, Start, UnitOutput
from duplex_gpu.steps import RowResult, SlotOverloaded, StepFailed, ThreadDied
from trio_duplex.models.personaplex.options import PersonaPlexOptions
from trio_duplex.models.personaplex.session import GIVES_UP_FRAMES, UNDER_WAY, PersonaPlexSession
from trio_duplex.models.plugin import (
    InputUnit,
    Listened,
    ModelFailed,
    ModelResult,
    OpenRefused,
    SessionOverloaded,
    Spoke,
)

WORD, PAD = 17, 3
LOUD, QUIET = 0.1, 0.0
PCM = np.full(1920, 0.25, np.float32)


@attrs.define(eq=False)
class FakeSlot:
    """Keeps what was handed in; ``error`` is raised instead."""

    deliver: Any
    rows: list[Any] = attrs.field(factory=list)
    at_s: list[float] = attrs.field(factory=list)
    answered: int = 0
    closed: bool = False
    error: Exception | None = None
    answers: bool = True

    def submit(self, payload: Any, *, due_s: float | None = None) -> None:
        if self.error is not None:
            raise self.error
        assert not self.closed
        self.rows.append(payload)
        self.at_s.append(trio.current_time())
        if isinstance(payload, Start | FeedPrompt) and self.answers:
            ready = len([row for row in self.rows if isinstance(row, FeedPrompt)]) >= 2
            trio.lowlevel.current_trio_token().run_sync_soon(self.say, UnitOutput(0, "", None, 0.0, ready=ready))

    def say(self, output: UnitOutput | None, error: Any = None, late_s: float = -0.05) -> None:
        """The model thread's result of the oldest row."""
        self.answered += 1
        if not self.closed:
            self.deliver(RowResult(output, error, 0.0, 1.0, due_s=1.0 - late_s))

    def speak(self, text: str = " hm", *, token: int = WORD, energy: float = LOUD) -> None:
        self.say(UnitOutput(token, text, PCM, energy))

    def hush(self) -> None:
        self.speak("", token=PAD, energy=QUIET)


@attrs.define(eq=False)
class FakeReplica:
    slot: FakeSlot | None = None
    given_back: int = 0

    def take(self, deliver: Any) -> FakeSlot:
        self.slot = FakeSlot(deliver)
        return self.slot

    def give_back(self, slot: FakeSlot) -> None:
        self.given_back += not slot.closed
        slot.closed = True


@attrs.define(eq=False)
class Rig:
    session: PersonaPlexSession
    slot: FakeSlot
    replica: FakeReplica

    def send(self, value: float = 0.5, **fields: Any) -> None:
        audio = np.full(1920, value, np.float32)
        self.session.submit_unit(InputUnit(**{"epoch": 0, "audio": audio, **fields}))

    def results(self) -> list[ModelResult]:
        found = []
        while True:
            try:
                found.append(self.session.results.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return found

    @property
    def fed(self) -> list[str]:
        """``sound`` or ``silence`` for every row so far."""
        return ["silence" if row is None else "sound" for row in self.slot.rows]


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Rig]:
    replica = FakeReplica()
    session = PersonaPlexSession(cast(Any, replica), PersonaPlexOptions(**options), "s")
    assert replica.slot is not None
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        yield Rig(session, replica.slot, replica)
        nursery.cancel_scope.cancel()
    await session.aclose()
    await session.aclose()
    assert replica.given_back == 1


# --- the beat ---------------------------------------------------------------------------------------------------------


async def test_without_a_client_silence_keeps_the_beat(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        for _ in range(10):
            await trio.sleep(0.08)
            if rig.slot.answered < len(rig.slot.rows):
                rig.slot.hush()
    gaps = np.diff(rig.slot.at_s)
    assert len(gaps) >= 6
    assert gaps == pytest.approx(0.08)
    assert set(rig.fed) == {"silence"}
    assert rig.session.silence_units == len(rig.slot.rows)


async def test_a_client_on_the_beat_is_fed_at_once_and_gets_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        sent = []
        for number in range(20):
            await trio.sleep(0.08 if number % 3 else 0.11)
            sent.append(trio.current_time())
            rig.send()
            rig.slot.hush()
    assert rig.fed == ["sound"] * 20
    assert rig.slot.at_s == sent


async def test_silence_fills_a_pause_and_the_client_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        rig.send()
        await trio.sleep(1.0)
        for _ in list(rig.slot.rows):
            rig.slot.hush()
        filled = len(rig.slot.rows)
        rig.send()
        assert rig.fed[-1] == "sound"
    assert rig.fed[0] == "sound"
    # No more than the network takes at a time: nobody answered during the pause.
    assert set(rig.fed[1:filled]) == {"silence"}
    assert filled == UNDER_WAY


async def test_a_burst_is_fed_at_the_pace_of_time_and_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with running(max_backlog_ms=800) as rig:
        for number in range(10):
            rig.send(number / 100)
        for _ in range(12):
            await trio.sleep(0.08)
            while rig.slot.answered < len(rig.slot.rows):
                rig.slot.hush()
    values = [round(float(row[0]) * 100) for row in rig.slot.rows if row is not None]
    assert values == list(range(10))
    assert rig.slot.at_s[9] - rig.slot.at_s[1] == pytest.approx(8 * 0.08, abs=0.03)


async def test_too_much_of_it_is_refused_and_not_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with running(max_backlog_ms=160) as rig:
        # Two ahead of the clock, two that wait.
        for _ in range(4):
            rig.send()
        with pytest.raises(SessionOverloaded):
            rig.send()
        for _ in range(20):
            await trio.sleep(0.08)
            while rig.slot.answered < len(rig.slot.rows):
                rig.slot.hush()
    assert rig.fed.count("sound") == 4


async def test_cleared_input_that_waited_is_not_fed(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        for _ in range(6):
            rig.send()
        at_once = len(rig.slot.rows)
        rig.session.drop_input()
        await trio.sleep(0.5)
    assert rig.fed.count("sound") == at_once < 6


# --- decisions --------------------------------------------------------------------------------------------------------


async def test_an_answer_from_its_first_word_to_its_end(autojump_clock: trio.testing.MockClock) -> None:
    async with running(quiet_ms=240) as rig:
        for number, frame in enumerate(["hush", "speak", "speak", "hush", "hush", "hush", "hush"]):
            await trio.sleep(0.08)
            rig.send(epoch=0, is_speech=number == 0)
            getattr(rig.slot, frame)()
        results = rig.results()
    assert [type(result) for result in results] == [Listened, Spoke, Spoke, Spoke, Spoke, Spoke, Listened]
    spoken = [result.speech for result in results if isinstance(result, Spoke)]
    assert [speech.end_of_turn for speech in spoken] == [False, False, False, False, True]
    assert [speech.text for speech in spoken] == [" hm", " hm", "", "", ""]
    assert all(speech.audio.dtype == np.int16 and np.all(speech.audio == 8192) for speech in spoken)


async def test_after_an_interruption_results_belong_to_the_next_epoch(autojump_clock: trio.testing.MockClock) -> None:
    async with running(cancel_mute_ms=160) as rig:
        rig.send(epoch=0)
        rig.slot.speak()
        rig.send(epoch=0)
        rig.session.interrupt(0)
        rig.slot.speak()  # computed under the old epoch
        for _ in range(3):
            await trio.sleep(0.08)
            rig.send(epoch=1)
            rig.slot.speak()
        results = rig.results()
    assert isinstance(results[0], Spoke)
    assert isinstance(results[1], Listened)
    assert results[1].epoch == 0
    # Muted for two frames, the stale one among them.
    assert [(type(result), result.epoch) for result in results[2:]] == [(Listened, 1), (Spoke, 1), (Spoke, 1)]


async def test_silence_after_an_interruption_is_of_the_new_epoch(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        rig.session.interrupt(4)
        await trio.sleep(0.2)
        rig.slot.hush()
        assert rig.results() == [Listened(epoch=5)]


async def test_a_unit_on_which_it_must_listen_is_not_heard(autojump_clock: trio.testing.MockClock) -> None:
    async with running(quiet_ms=80) as rig:
        rig.send(force_listen=True)
        rig.slot.speak()
        rig.send(force_listen=True)
        rig.slot.hush()
        results = rig.results()
    assert isinstance(results[0], Listened)
    # An answer that was open is closed all the same, without sound.
    assert isinstance(results[1], Spoke)
    assert results[1].speech.end_of_turn
    assert not len(results[1].speech.audio)


async def test_an_answer_that_does_not_come_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        for _ in range(GIVES_UP_FRAMES):
            await trio.sleep(0.08)
            rig.send()
            rig.slot.hush()
        done = [result.turn_done for result in rig.results() if isinstance(result, Listened)]
    assert done == [False] * (GIVES_UP_FRAMES - 1) + [True]


async def test_deadlines_are_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        for late_s in (-0.04, 0.012, -0.01):
            await trio.sleep(0.08)
            rig.send()
            rig.slot.say(UnitOutput(PAD, "", PCM, 0.0), late_s=late_s)
    account = rig.session.deadlines()
    assert (account.units, account.missed) == (3, 1)
    assert account.lateness_ms_max == pytest.approx(12.0)


# --- what breaks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "error", "code"),
    [
        (UnitOutput(0, "", None, 0.0, "not_finite"), None, "engine_error"),
        (UnitOutput(0, "", None, 0.0, "kv_exhausted"), None, "resource_exhausted"),
        (None, StepFailed("no"), "engine_error"),
        (None, ThreadDied("gone"), "engine_error"),
    ],
)
async def test_a_broken_row_ends_the_session_once(
    output: UnitOutput | None, error: Any, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with running() as rig:
        rig.send()
        rig.slot.say(output, error)
        await trio.sleep(1)
        rig.send()
        results = rig.results()
        assert rig.slot.closed
    assert [(type(result), result.code, result.fatal) for result in results if isinstance(result, ModelFailed)] == [
        (ModelFailed, code, True)
    ]
    assert len(results) == 1
    assert len(rig.slot.rows) == 1


@pytest.mark.parametrize("error", [ThreadDied("gone"), SlotOverloaded("full")])
async def test_a_slot_that_takes_nothing_ends_the_session(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    async with running() as rig:
        rig.slot.error = error
        rig.send()
        (failed,) = rig.results()
    assert isinstance(failed, ModelFailed)
    assert failed.fatal


async def test_a_session_that_takes_no_results_ends_instead_of_growing(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        for _ in range(300):
            await trio.sleep(0.08)
            if not rig.slot.closed:
                rig.send()
            if rig.slot.answered < len(rig.slot.rows):
                rig.slot.hush()
        assert len(rig.results()) == 256
        with pytest.raises(trio.EndOfChannel):
            rig.session.results.receive_nowait()


# --- the beginning ----------------------------------------------------------------------------------------------------


async def test_prompts_are_fed_chunk_by_chunk_until_ready(autojump_clock: trio.testing.MockClock) -> None:
    replica = FakeReplica()
    session = PersonaPlexSession(cast(Any, replica), PersonaPlexOptions(), "s")
    assert replica.slot is not None
    prompt: Any = object()
    await session.start(prompt, seed=7)
    first, *others = replica.slot.rows
    assert (first.prompt, first.seed) == (prompt, 7)
    assert [type(row) for row in others] == [FeedPrompt, FeedPrompt]
    await session.aclose()


@pytest.mark.parametrize("failure", ["kv_exhausted", None])
async def test_prompts_that_cannot_be_fed_refuse_the_session(
    failure: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    replica = FakeReplica()
    session = PersonaPlexSession(cast(Any, replica), PersonaPlexOptions(), "s")
    slot = replica.slot
    assert slot is not None
    slot.answers = False
    output = None if failure is None else UnitOutput(0, "", None, 0.0, failure)
    error = ThreadDied("gone") if failure is None else None
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await trio.testing.wait_all_tasks_blocked()
            slot.say(output, error)

        nursery.start_soon(answer)
        with pytest.raises(OpenRefused):
            await session.start(cast(Any, None), seed=0)
    session.discard()
    assert replica.given_back == 1


async def test_results_are_told_at_once_until_they_are_not_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        taken: list[ModelResult] = []

        def take(result: ModelResult) -> bool:
            if len(taken) == 2:
                return False
            taken.append(result)
            return True

        rig.session.tell_to(take)
        for word in (" one", " two", " three", " four"):
            rig.send()
            rig.slot.speak(word)
            await trio.sleep(0.08)
        assert [result.speech.text for result in taken if isinstance(result, Spoke)] == [" one", " two"]
        later = [result.speech.text for result in rig.results() if isinstance(result, Spoke)]
        assert later == [" three", " four"], "once refused, everything goes through the channel, in order"


async def test_what_waits_in_the_channel_is_not_overtaken(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as rig:
        taken: list[ModelResult] = []
        rig.send()
        rig.slot.speak(" one")
        rig.session.tell_to(lambda result: taken.append(result) is None)
        rig.send()
        rig.slot.speak(" two")
        assert not taken
        assert [result.speech.text for result in rig.results() if isinstance(result, Spoke)] == [" one", " two"]
