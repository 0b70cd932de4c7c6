"""The token limit of an answer: the demo model counts words (contract 2.1, 12.4, 25)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from tests.models.demo_client import open_client
from tests.models.models_kit import NOON, VirtualEngine, open_talk
from tests.models.test_demo_answers import ANSWER, ended_turn
from trio_duplex.models.demo import DemoPlugin
from trio_duplex.models.demo.thinking import Question, RuleBrain, Script, TakeText, Thought
from trio_duplex.models.plugin import Speech

WORDS = ANSWER.split()


def said_text(said: list[tuple[float, Speech]]) -> str:
    return "".join(speech.text for _, speech in said)


@pytest.mark.parametrize("text_only", [False, True])
@pytest.mark.parametrize("limit", [1, 3, len(WORDS) - 1])
async def test_an_answer_stops_at_the_sessions_limit(
    limit: int, text_only: bool, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, max_tokens=limit)
    said = await talk.answer(talk.request(await ended_turn(talk), text_only=text_only))
    assert said_text(said).split() == WORDS[:limit]
    assert ANSWER.startswith(said_text(said))
    last = said[-1][1]
    assert (last.end_of_turn, last.finish_reason) == (True, "length")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("limit", [None, len(WORDS), 4096])
async def test_an_answer_within_the_limit_is_whole(
    limit: int | None, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, max_tokens=limit)
    said = await talk.answer(talk.request(await ended_turn(talk)))
    assert said_text(said) == ANSWER
    assert said[-1][1].finish_reason != "length"
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_output_tokens": 2}, 2),
        ({"max_response_output_tokens": 2}, 2),
        ({"max_tokens": 2}, 2),
        ({"max_output_tokens": "inf"}, len(WORDS)),
        ({"max_output_tokens": 0}, len(WORDS)),
        ({"temperature": 1}, 4),
    ],
)
async def test_a_responses_own_limit_wins(
    options: dict[str, Any], words: int, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, max_tokens=4)
    said = await talk.answer(talk.request(await ended_turn(talk), options=options))
    assert len(said_text(said).split()) == words
    nursery.cancel_scope.cancel()


async def test_a_thinker_that_goes_on_is_stopped_at_the_limit(autojump_clock: trio.testing.MockClock) -> None:
    """An endpoint that is still writing is hung up on; what was counted is said."""
    hung_up = False

    class Endless(RuleBrain):
        async def think(self, question: Question, take: TakeText) -> None:
            nonlocal hung_up
            try:
                while True:
                    await take("One two three. ")
                    await trio.sleep(1)
            finally:
                hung_up = True

    thought = Thought(Endless(lambda: NOON), Question(text="x", max_words=7))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thought.run)
        script = Script(thought)
        clauses = []
        while (clause := await script.next()) is not None:
            clauses.append(clause)
    assert "".join(clauses).split() == ["One", "two", "three.", "One", "two", "three.", "One"]
    assert hung_up
    assert thought.cut
    assert not thought.abandoned
    assert trio.current_time() < 4


@pytest.mark.parametrize("view", ["plain", "duplex"])
async def test_on_the_wire(view: str, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """The plain view says incomplete with OpenAI's reason; the duplex view's status word stays the seed's."""
    plugin = DemoPlugin(engine=VirtualEngine(), clock=lambda: NOON)
    client = await open_client(nursery, plugin, {"max_output_tokens": 3}, view=view)
    client.ask("What can you do?")
    response = (await client.until("response.done"))["response"]
    assert len(client.transcript.split()) == 3
    if view == "plain":
        assert response["status"] == "incomplete"
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
        (done,) = client.of("response.output_item.done")
        assert done["item"]["status"] == "incomplete"
    else:
        assert (response["status"], response["status_details"]) == ("completed", None)
        assert response["metadata"]["finish_reason"] == "length"
    client.send("session.update", session={"type": "realtime", "max_output_tokens": "inf"})
    client.ask("What can you do?")
    response = (await client.until("response.done", 2))["response"]
    assert response["status"] == "completed"
    nursery.cancel_scope.cancel()
