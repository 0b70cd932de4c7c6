"""Thoughts and scripts: what is said does not depend on how an answer arrives."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_gpu.clauses import split_clauses
from trio_duplex.models.demo.thinking import ANSWER_AT_MOST, EndpointThinker, Question, Script, Thought
from trio_duplex.models.demo.tool_calls import ToolCall
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry

QUESTION = Question(text="Well?")


@attrs.define
class SlowBrain:
    """One piece per second; then an end, a failure, or nothing any more."""

    pieces: list[str]
    end: str = "end"
    stopped: bool = False

    def call(self, question: Question) -> ToolCall | None:
        return None

    async def think(self, question: Question, take: object) -> None:
        try:
            for piece in self.pieces:
                await trio.sleep(1)
                await take(piece)  # type: ignore[operator]
            if self.end == "failure":
                raise GenerationFailed("chat_error", "broken")
            if self.end == "stall":
                await trio.sleep_forever()
        finally:
            self.stopped = True


async def read(thought: Thought) -> list[tuple[float, str]]:
    script = Script(thought)
    clauses = []
    while (clause := await script.next()) is not None:
        clauses.append((trio.current_time(), clause))
    clauses.append((trio.current_time(), script.unspoken))
    return clauses


async def test_clauses_come_as_their_sentences_do(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    begin_s = trio.current_time()
    thought = Thought(SlowBrain(["One. ", "- ", "Two. "]), QUESTION)
    nursery.start_soon(thought.run)
    clauses = [(at_s - begin_s, text) for at_s, text in await read(thought)]
    assert clauses == [(1, "One. "), (3, "- Two. "), (3, "")]
    assert await read(thought) == [(trio.current_time(), text) for _, text in clauses]


async def test_a_failure_comes_behind_what_was_thought(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    thought = Thought(SlowBrain(["One. "], "failure"), QUESTION)
    nursery.start_soon(thought.run)
    for _ in range(2):  # whoever reads it, and however late
        script = Script(thought)
        assert await script.next() == "One. "
        with pytest.raises(GenerationFailed) as caught:
            await script.next()
        assert (caught.value.code, caught.value.message) == ("chat_error", "broken")
    assert not thought.abandoned


async def test_an_abandoned_thought_keeps_nobody_waiting(autojump_clock: trio.testing.MockClock) -> None:
    brain = SlowBrain(["One. "], "stall")
    thought = Thought(brain, QUESTION)
    async with trio.open_nursery() as thinking:
        thinking.start_soon(thought.run)
        assert await thought.piece(0) == "One. "
        thinking.cancel_scope.cancel()
    assert thought.abandoned
    assert brain.stopped
    with pytest.raises(GenerationFailed):
        await thought.piece(1)


async def test_an_answer_without_an_end_is_none(autojump_clock: trio.testing.MockClock) -> None:
    thought = Thought(SlowBrain(["word " * 1_000] * 1_000), QUESTION)
    await thought.run()
    with pytest.raises(GenerationFailed, match="no end"):
        await read(thought)
    assert await thought.piece(ANSWER_AT_MOST // 5_000 - 1) is not None


async def test_the_endpoint_gets_text_and_history(autojump_clock: trio.testing.MockClock) -> None:
    asked: list[object] = []

    class Fake:
        async def think(self, text: str, history: object, instructions: object, take: object) -> None:
            asked.append((text, history, instructions))
            if len(asked) == 2:
                raise GenerationFailed("chat_error", "down")

    thinker = EndpointThinker(Fake())
    history = (HistoryEntry("i", "user", "Hello."),)
    question = Question(text="Well?", history=history, instructions="Be kind.", tools=({"name": "well"},))
    assert thinker.call(question) is None
    for _ in range(2):
        await Thought(thinker, question).run()
    assert asked == [("Well?", history, "Be kind.")] * 2
    assert (thinker.answers, thinker.failures, thinker.last_failure) == (2, 1, "down")


WORDS = st.lists(st.sampled_from(["a", "Hello", "twenty-one", "and", "-", "…", "3.5", "extraordinary"]), max_size=30)
SENTENCES = st.lists(st.tuples(WORDS, st.sampled_from([". ", "! ", ", well. ", "\n"])), max_size=5)


@settings(derandomize=True, database=None, deadline=None)
@given(SENTENCES)
def test_clauses_join_to_the_answer(sentences: list[tuple[list[str], str]]) -> None:
    pieces = [" ".join(words) + end for words, end in sentences]

    async def check() -> None:
        thought = Thought(SlowBrain(pieces), QUESTION)
        await thought.run()
        *clauses, (_, unspoken) = await read(thought)
        assert "".join(text for _, text in clauses) + unspoken == "".join(pieces)
        assert all(split_clauses(text) for _, text in clauses)
        assert not split_clauses(unspoken)
        assert all(len(text.strip()) <= 160 for _, text in clauses)

    trio.run(check, clock=trio.testing.MockClock(autojump_threshold=0))
