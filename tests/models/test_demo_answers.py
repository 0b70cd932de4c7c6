"""What the demo session says, when, and what a cancellation leaves (design 4; contract 14.3; case P8)."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing

from duplex_gpu.clauses import split_clauses
from tests.models.models_kit import NOON, UNIT_SAMPLES, Talk, VirtualEngine, level, open_talk, virtual_pieces
from trio_duplex.models.demo import DemoOptions, brain
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry, Listened, Speech, Turn, TurnEnded

HEARD = "go forward ten meters"
ANSWER = brain.reply(HEARD, (), NOON)


async def ended_turn(talk: Talk) -> Turn:
    """Have the user say his words, and take the turn."""
    await talk.hear(level(0.9, 640), level(0, 544))
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    return ended.turn


def check_whole(said: list[Speech], answer: str) -> None:
    """Texts join to the answer, units are whole, marks ascend to the end of text and sound, one end of turn."""
    assert "".join(speech.text for speech in said) == answer
    assert [speech.end_of_turn for speech in said] == [False] * (len(said) - 1) + [True]
    assert all(len(speech.audio) == UNIT_SAMPLES for speech in said[:-1])
    assert all(speech.audio.dtype == np.int16 for speech in said)
    assert len(said[-1].audio) <= UNIT_SAMPLES
    marks = [(mark.text_chars, mark.audio_end_ms) for speech in said for mark in speech.marks]
    assert marks == sorted(marks)
    total_ms = sum(len(speech.audio) for speech in said) / 24
    assert marks[-1][0] == len(answer)
    assert marks[-1][1] == pytest.approx(total_ms, abs=1.0)
    samples = sum(len(piece.audio) for clause in split_clauses(answer) for piece in virtual_pieces(clause.text))
    assert sum(len(speech.audio) for speech in said) == -(-samples * 160 // 147)


async def test_an_answer_is_whole_and_in_real_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    begin_s = trio.current_time()
    said = await talk.answer(talk.request(turn))
    check_whole([speech for _, speech in said], ANSWER)
    # The first sound was ready; one unit goes ahead, then one per 96 ms.
    expected_s = [max(0, number - 1) * 0.096 for number in range(len(said))]
    assert [at_s - begin_s for at_s, _ in said] == pytest.approx(expected_s)
    nursery.cancel_scope.cancel()


async def test_words_go_out_with_the_unit_in_which_they_begin(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    said = [speech for _, speech in await talk.answer(talk.request(await ended_turn(talk)))]
    words = ANSWER.split()  # each lasts 200 ms in the virtual voice
    place = 0
    for number, word in enumerate(words):
        place = ANSWER.index(word, place)
        shown, unit = 0, -1
        while shown <= place:
            unit += 1
            shown += len(said[unit].text)
        assert unit == 200 * number // 96, word
        place += len(word)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lead", [0, 3])
async def test_the_lead_is_configurable(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, lead: int
) -> None:
    talk = await open_talk(nursery, options=DemoOptions(lead_units=lead))
    turn = await ended_turn(talk)
    begin_s = trio.current_time()
    said = await talk.answer(talk.request(turn))
    expected_s = [max(0, number - lead) * 0.096 for number in range(len(said))]
    # A lead of three needs the second piece of sound, which takes its 80 ms.
    assert [at_s - begin_s for at_s, _ in said][5:] == pytest.approx(expected_s[5:])
    assert said[0][0] == pytest.approx(begin_s)
    nursery.cancel_scope.cancel()


async def test_synthesis_stays_a_little_ahead_and_no_more(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    async with trio.open_nursery() as answering:
        answering.start_soon(talk.answer, talk.request(turn))
        await trio.sleep(1.0)
        made = len(talk.engine.jobs_of("tts"))
        assert 4 <= made <= 6  # 600 ms each: the one that plays, those that wait, the one that is being made
        answering.cancel_scope.cancel()
    assert [urgency for _, _, urgency in talk.engine.jobs_of("tts")][:3] == ["maybe", "now", "later"]
    nursery.cancel_scope.cancel()


async def test_a_slow_voice_is_not_made_up_for_by_a_burst(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(synthesise_s=2.0))
    said = await talk.answer(talk.request(await ended_turn(talk)))
    check_whole([speech for _, speech in said], ANSWER)
    times_s = [at_s for at_s, _ in said]
    assert min(times_s[number + 3] - times_s[number] for number in range(len(times_s) - 3)) >= 0.19
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.5, 1.234, 5.0])
async def test_after_cancellation_nothing_is_said_and_nothing_runs(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, after_s: float
) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    said: list[Speech] = []
    with trio.move_on_after(after_s) as scope:
        await talk.session.respond(talk.request(turn), said.append)
    assert scope.cancelled_caught
    jobs, pieces = len(talk.engine.jobs), len(said)
    await trio.sleep(5)
    assert len(said) == pieces
    assert len(talk.engine.jobs) == jobs
    assert not any(speech.end_of_turn for speech in said)
    # The session is as good as new.
    check_whole([speech for _, speech in await talk.answer(talk.request(turn))], ANSWER)
    nursery.cancel_scope.cancel()


async def test_it_waits_for_the_transcript_of_a_commit(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    talk.session.submit(level(0.9, 640))
    turn = talk.session.end_turn()
    said = await talk.answer(talk.request(turn))
    assert turn.transcript == HEARD
    check_whole([speech for _, speech in said], ANSWER)
    nursery.cancel_scope.cancel()


async def test_several_commits_are_one_question(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words={0.9: "say", 0.8: "good morning"}), auto=False)
    turns = []
    for part in (level(0.9, 640), level(0, 320), level(0.8, 640)):
        talk.session.submit(part)
        turns.append(talk.session.end_turn())
    said = await talk.answer(talk.request(turns[-1], turns=tuple(turns)))
    check_whole([speech for _, speech in said], "Good morning.")
    nursery.cancel_scope.cancel()


async def test_it_listens_while_it_speaks(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    listened = talk.listened
    async with trio.open_nursery() as answering:
        answering.start_soon(talk.answer, talk.request(turn))
        onset_s = trio.current_time() + 0.320
        await talk.hear(level(0, 320), level(0.9, 320))
        answering.cancel_scope.cancel()
    detected_s, result = talk.heard[-1]
    assert type(result).__name__ == "SpeechStarted"
    assert detected_s - onset_s == pytest.approx(0.096 + talk.engine.detect_s)
    assert talk.listened == listened
    nursery.cancel_scope.cancel()


async def test_an_answer_prepared_under_another_truth_is_made_anew(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(words={0.9: "say that again"}))
    talk.history.append(HistoryEntry("i1", "assistant", "Blue."))
    turn = await ended_turn(talk)
    talk.history[:] = [HistoryEntry("i1", "assistant", "Green.")]
    said = await talk.answer(talk.request(turn))
    check_whole([speech for _, speech in said], "I said: Green.")
    assert [what for _, what, _ in talk.engine.jobs_of("tts")] == ["I said: Blue.", "I said: Green."]
    nursery.cancel_scope.cancel()


async def test_the_turns_own_entry_is_not_what_was_said_before(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(words={0.9: "say that again"}))
    turn = await ended_turn(talk)
    turn.item_id = "i3"
    talk.history += [HistoryEntry("i2", "assistant", "One, two."), HistoryEntry("i3", "user", "say that again")]
    said = await talk.answer(talk.request(turn))
    assert "".join(speech.text for _, speech in said) == "I said: One, two."
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("history", "instructions", "expected"),
    [
        ([HistoryEntry("a", "user", "say tea"), HistoryEntry("b", "assistant", "Tea.")], None, "Tea."),
        ([], None, "Hello. I am listening."),
        ([], "Say good evening to the guest.", "Good evening to the guest."),
    ],
)
async def test_a_response_without_a_turn_answers_the_history(
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    history: list[HistoryEntry],
    instructions: str | None,
    expected: str,
) -> None:
    talk = await open_talk(nursery)
    talk.history += history
    said = await talk.answer(talk.request(None, instructions=instructions))
    check_whole([speech for _, speech in said], expected)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("auto", "expected"), [(True, ""), (False, "I did not catch that. Please say it again.")])
async def test_a_commit_of_silence(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, auto: bool, expected: str
) -> None:
    """A model that answers by itself decides to listen; one that is asked says that it heard nothing."""
    talk = await open_talk(nursery, auto=auto)
    talk.session.submit(level(0, 640))
    said = await talk.answer(talk.request(talk.session.end_turn()))
    assert "".join(speech.text for _, speech in said) == expected
    nursery.cancel_scope.cancel()


async def test_text_only(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, modalities=("text",))
    turn = await ended_turn(talk)
    said = [speech for _, speech in await talk.answer(talk.request(turn, text_only=True))]
    assert "".join(speech.text for speech in said) == ANSWER
    assert all(len(speech.audio) == 0 and speech.marks == () for speech in said)
    assert [speech.end_of_turn for speech in said] == [False] * (len(said) - 1) + [True]
    assert len(said) > 3
    assert talk.engine.jobs_of("tts") == []
    nursery.cancel_scope.cancel()


async def test_a_failing_voice_fails_the_answer_only(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    said: list[Speech] = []

    async def fail_later() -> None:
        await trio.sleep(0.3)
        talk.engine.failing = {"tts"}

    nursery.start_soon(fail_later)
    with pytest.raises(GenerationFailed) as caught:
        await talk.session.respond(talk.request(turn), said.append)
    assert caught.value.code == "engine_error"
    assert said
    talk.engine.failing = set()
    check_whole([speech for _, speech in await talk.answer(talk.request(turn))], ANSWER)
    nursery.cancel_scope.cancel()


async def test_a_dead_engine_fails_the_answer(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    talk.engine.die()
    with pytest.raises(GenerationFailed) as caught:
        await talk.answer(talk.request(turn))
    assert caught.value.code == "runtime_data_plane_stream_failed"
    nursery.cancel_scope.cancel()


async def test_no_decision_to_listen_while_speaking_but_afterwards(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    turn = await ended_turn(talk)
    nursery.start_soon(talk.answer, talk.request(turn))
    before = talk.listened
    await talk.hear(level(0, 1_920))
    assert talk.listened == before
    await trio.sleep(60)
    await talk.hear(level(0, 960))
    await talk.settle()
    assert talk.listened == before + 10
    assert isinstance(talk.heard[-1][1], Listened)
    nursery.cancel_scope.cancel()
