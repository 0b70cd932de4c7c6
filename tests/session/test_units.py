# ruff: noqa: N802 - tests of a case carry its id
"""Models that are fed whole units and speak in results: the turn, silence after it, stale results (contract 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

from tests.session.talk import AUTO, Json, Talk, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import InputUnit, Listened, ModelResult, Speech, Spoke, Traits
from trio_duplex.testing import ScriptedOptions, ScriptedSession
from trio_duplex.testing.scripted_model import square_wave

PERIOD_MS = 1000
UNITS = Traits(detects_speech=False, holds_manual_input=True, whole_units=True, silence_units=(8, 64), video="used")
CLOCKED = Traits(detects_speech=False, whole_units=True)
"""Always-clocked: the client's own stream is the clock, no silence is needed."""

JPEG = "/9j/AAAA"


def units(
    script: Callable[[ScriptedSession, InputUnit], Sequence[ModelResult]], traits: Traits = UNITS, **fields: Any
) -> ScriptedOptions:
    return ScriptedOptions(traits=traits, owns_turns=False, unit_script=script, period_ms=PERIOD_MS, **fields)


def says(epoch: int, text: str, *, last: bool = False, **fields: Any) -> Spoke:
    speech = Speech(audio=square_wave(0, PERIOD_MS, 24_000), text=text, end_of_turn=last)
    return Spoke(epoch=epoch, speech=speech, **fields)


def listens(session: ScriptedSession, unit: InputUnit) -> Sequence[ModelResult]:
    return [Listened(epoch=unit.epoch)]


def answers_in_silence(words: int) -> Callable[[ScriptedSession, InputUnit], Sequence[ModelResult]]:
    """Listens while it is spoken to and to the first silence, then says one word a unit."""

    def script(session: ScriptedSession, unit: InputUnit) -> Sequence[ModelResult]:
        silent = len([u for u in session.units if u.silence])
        if not unit.silence or silent <= 1 or unit.force_listen or silent > words + 1:
            return [Listened(epoch=unit.epoch)]
        return [says(unit.epoch, f"w{silent - 1} ", last=silent == words + 1)]

    return script


def lengths(talk: Talk) -> list[int]:
    return [len(unit.audio) for unit in talk.model.units]


async def ask(talk: Talk, ms: int = 1500, **fields: Any) -> None:
    talk.send(append(loud(ms)))
    talk.send("input_audio_buffer.commit", **fields)
    await talk.reader.until("input_audio_buffer.committed")


async def test_a_turn_is_padded_to_whole_units(autojump_clock: trio.testing.MockClock) -> None:
    """10.1: the tail is padded with silence; exactly on a boundary no extra unit is made."""
    async with talking(units(listens), config=AUTO) as talk:
        talk.send(append(loud(700)))
        await talk.settled()
        assert lengths(talk) == []
        talk.send(append(loud(800)))
        await talk.settled()
        assert lengths(talk) == [16_000]
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed")
        assert lengths(talk) == [16_000, 16_000]
        assert np.all(talk.model.units[1].audio[8000:] == 0)
        assert np.any(talk.model.units[1].audio[:8000] != 0)
    async with talking(units(listens), config=AUTO) as talk:
        await ask(talk, 2000)
        assert lengths(talk) == [16_000, 16_000]


async def test_silence_units_let_the_model_speak(autojump_clock: trio.testing.MockClock) -> None:
    """10.4: paced by the unit's period; the answer begins with the first visible output and ends at end of turn."""
    async with talking(units(answers_in_silence(3)), config=AUTO) as talk:
        await ask(talk)
        begun = trio.current_time()
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert done["response"]["output"][0]["content"][0]["transcript"] == "w1 w2 w3 "
        assert trio.current_time() - begun == pytest.approx(4.0, abs=0.01)
        silence = [unit for unit in talk.model.units if unit.silence]
        assert len(silence) == 4
        assert not any(np.any(unit.audio) for unit in silence)
        await trio.sleep(100)
        assert len([unit for unit in talk.model.units if unit.silence]) == 4, "a finished turn is fed no more"
        listens_told = [e["response"]["metadata"]["reason"] for e in talk.reader.of("response.listen")]
        assert listens_told.count("model_listen") == 3, "one per unit decision while nothing is being said"
        check_log(talk.events)


@pytest.mark.parametrize(("auto", "limit"), [(True, 64), (False, 8)])
async def test_continuation_limit(auto: bool, limit: int, autojump_clock: trio.testing.MockClock) -> None:
    """At most 64 units, 8 after a turn that was to be answered; the last one is forced to listen."""
    async with talking(units(listens), config=AUTO if auto else {}) as talk:
        await ask(talk, response_create=True)
        await until_reason(talk, "continuation_limit")
        silence = [unit for unit in talk.model.units if unit.silence]
        assert len(silence) == limit
        assert [unit.force_listen for unit in silence] == [False] * (limit - 1) + [True]
        (ended,) = [e for e in talk.reader.of("response.listen") if _reason(e) == "continuation_limit"]
        if auto:
            assert "response_id" not in ended
            assert not talk.reader.of("response.created")
        else:
            done = await talk.reader.until("response.done")
            assert ended["response_id"] == done["response_id"]
        await trio.sleep(200)
        assert len([unit for unit in talk.model.units if unit.silence]) == limit
        check_log(talk.events)


async def until_reason(talk: Talk, reason: str) -> None:
    count = 1
    while _reason(await talk.reader.until("response.listen", count)) != reason:
        count += 1


def _reason(listen: Json) -> str:
    return str(listen["response"]["metadata"]["reason"])


async def test_an_answer_that_never_ends_is_closed_at_the_limit(autojump_clock: trio.testing.MockClock) -> None:
    def talks(session: ScriptedSession, unit: InputUnit) -> Sequence[ModelResult]:
        return [says(unit.epoch, "and ")] if unit.silence and not unit.force_listen else [Listened(epoch=unit.epoch)]

    async with talking(units(talks), config={}) as talk:
        await ask(talk, response_create=True)
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert len(talk.reader.of("response.output_audio.delta")) == 7
        check_log(talk.events)


async def test_real_input_takes_precedence_over_silence(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(units(listens), config=AUTO) as talk:
        await ask(talk)
        for _ in range(50):
            await trio.sleep(0.1)
            talk.send(append(quiet(100)))
        await talk.settled()
        assert not [unit for unit in talk.model.units if unit.silence]
        await trio.sleep(1.5)
        assert [unit.silence for unit in talk.model.units][-1]


async def test_C4_no_silence_of_an_old_answer_reaches_the_next(autojump_clock: trio.testing.MockClock) -> None:
    """Barge-in between two units: continuations live in their epoch's scope."""
    async with talking(units(answers_in_silence(20)), config=AUTO) as talk:
        await ask(talk)
        await talk.reader.until("response.output_audio.delta", 2)
        await trio.sleep(0.5)
        talk.send("barge_in")
        await talk.reader.until("response.done")
        fed = len(talk.model.units)
        await trio.sleep(30)
        assert len(talk.model.units) == fed
        talk.send(append(loud(1000)))
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed", 2)
        await trio.sleep(2.5)
        assert {unit.epoch for unit in talk.model.units[fed:]} == {1}
        assert talk.model.interrupts == [0]


async def test_stale_results_are_dropped(autojump_clock: trio.testing.MockClock) -> None:
    """7.3: results computed under an ended epoch give nothing, not even a response."""
    async with talking(units(listens, CLOCKED), config=AUTO) as talk:
        talk.model.hear(says(0, "hello "))
        await talk.reader.until("response.output_audio.delta")
        talk.send("response.cancel")
        talk.model.hear(says(0, "stale "), says(0, "stale", last=True), Listened(epoch=0, turn_done=True))
        await talk.reader.until("response.done")
        await trio.sleep(3)
        assert len(talk.reader.of("response.output_audio.delta")) == 1
        assert not talk.reader.of("response.listen")
        talk.model.hear(says(1, "fresh", last=True))
        done = await talk.reader.until("response.done", 2)
        assert done["response"]["metadata"]["epoch"] == 1
        assert done["response"]["output"][0]["content"][0]["transcript"] == "fresh"
        check_log(talk.events)


async def test_an_always_clocked_model_speaks_unasked(autojump_clock: trio.testing.MockClock) -> None:
    """Begins at the first visible output, ends at end of turn; listen units while it is open are not sent (10.5)."""
    silence = Speech(audio=np.zeros(0, np.int16))
    async with talking(units(listens, CLOCKED), config=AUTO) as talk:
        talk.model.hear(Spoke(epoch=0, speech=silence))
        await talk.settled()
        assert not talk.reader.of("response.created")
        talk.model.hear(Listened(epoch=0), says(0, "Hi "), Listened(epoch=0), says(0, "there.", last=True))
        await talk.reader.until("response.done")
        talk.model.hear(Listened(epoch=0))
        await talk.reader.until("response.listen", 2)
        kinds = talk.reader.types
        between = kinds[kinds.index("response.created") : kinds.index("response.done")]
        assert "response.listen" not in between
        assert len(talk.reader.of("response.speak")) == 1
        assert not [unit for unit in talk.model.units if unit.silence]
        check_log(talk.events)


async def test_a_later_model_turn_completes_the_open_answer(autojump_clock: trio.testing.MockClock) -> None:
    """8.3; and audio of an earlier turn than the current one opens nothing."""
    async with talking(units(listens, CLOCKED), config=AUTO) as talk:
        talk.model.hear(says(0, "one ", model_turn=1), says(0, "two ", model_turn=2))
        await talk.reader.until("response.created", 2)
        first, second = (e["response_id"] for e in talk.reader.of("response.created"))
        assert [e["response_id"] for e in talk.reader.of("response.done")] == [first]
        talk.model.hear(says(0, "late", model_turn=1), says(0, "end", last=True, model_turn=2))
        done = await talk.reader.until("response.done", 2)
        assert done["response_id"] == second
        assert done["response"]["output"][0]["content"][0]["transcript"] == "two end"
        check_log(talk.events)


async def test_model_says_that_it_will_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    def done_at_once(session: ScriptedSession, unit: InputUnit) -> Sequence[ModelResult]:
        return [Listened(epoch=unit.epoch, turn_done=unit.silence)]

    async with talking(units(done_at_once), config=AUTO) as talk:
        await ask(talk)
        await until_reason(talk, "model_turn_completed_without_output")
        assert len([unit for unit in talk.model.units if unit.silence]) == 1
        assert not talk.reader.of("response.created")


async def test_buffering_is_told(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(units(listens, CLOCKED), config=AUTO) as talk:
        talk.model.hear(Listened(reason="buffering", buffering=True))
        listen = await talk.reader.until("response.listen")
        assert listen["response"]["metadata"]["buffering"] is True


async def test_force_listen_count_and_hint(autojump_clock: trio.testing.MockClock) -> None:
    config = {"extra_body": {"auto_response": True, "force_listen_count": 2}}
    async with talking(units(listens), config=config) as talk:
        talk.send(append(loud(3000)))
        talk.send(append(loud(1000), force_listen=True))
        talk.send(append(loud(1000)))
        await talk.settled()
        assert [unit.force_listen for unit in talk.model.units] == [True, True, False, True, False]


async def test_short_explicit_commit_forces_listening(autojump_clock: trio.testing.MockClock) -> None:
    """10.1: total up to short_ack with response_create: the model listens on that unit."""
    async with talking(units(listens), config={}) as talk:
        await ask(talk, 600, response_create=True)
        await trio.sleep(0.5)
        assert [unit.force_listen for unit in talk.model.units] == [True]
    async with talking(units(listens), config={}) as talk:
        await ask(talk, 800, response_create=True)
        await trio.sleep(0.5)
        assert [unit.force_listen for unit in talk.model.units] == [False]


async def test_one_frame_group_per_unit_in_order(autojump_clock: trio.testing.MockClock) -> None:
    """18: first in, first out; a pair stays together."""
    frames = [[JPEG + "AAAA"], [JPEG + "BBBB", JPEG + "CCCC"], [JPEG + "DDDD"]]
    async with talking(units(listens), config=AUTO) as talk:
        for group in frames:
            talk.send(append(loud(300), video_frames=group))
        await talk.settled()
        talk.send(append(loud(2100)))
        await talk.settled()
        assert [list(unit.video_frames) for unit in talk.model.units] == frames


async def test_held_frames_go_with_their_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(units(listens), config={}) as talk:
        talk.send(append(loud(1000), video_frames=[JPEG + "AAAA"]))
        talk.send(append(loud(1000), video_frames=[JPEG + "BBBB"]))
        talk.send("input_audio_buffer.commit", response_create=True)
        await talk.reader.until("response.created")
        await trio.sleep(0.1)
        assert [unit.video_frames for unit in talk.model.units] == [(JPEG + "AAAA",), (JPEG + "BBBB",)]


async def test_an_overloaded_model_refuses_the_append(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(units(listens, CLOCKED, overloaded=True), config=AUTO) as talk:
        for _ in range(9):
            talk.send(append(loud(1000)))
        talk.send(append(loud(1000), event_id="evt_x"))
        error = await talk.error()
        assert error["code"] == "input_backpressure"
        assert error["type"] == "rate_limit_error"
