"""An endpoint as a brain: whole sentences as early as they are whole, thoughts unsaid, the same faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.chat_server import DONE, ChatServer, Cut, Stall, chat_server, omni_text
from trio_duplex.models.chat.brain import EndpointBrain, Sentences
from trio_duplex.models.chat.options import SPOKEN_STYLE, BrainOptions
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry

HISTORY = (HistoryEntry("a", "user", "My name is Ann."), HistoryEntry("b", "assistant", "Hello Ann."))


@asynccontextmanager
async def thinking(server: ChatServer, **options: Any) -> AsyncIterator[EndpointBrain]:
    brain = EndpointBrain(BrainOptions(url=server.url, model="small", **options))
    async with trio.open_nursery() as nursery:
        await nursery.start(brain.run)
        yield brain
        nursery.cancel_scope.cancel()


def words(text: str) -> list[Any]:
    return [*[omni_text(part) for part in text.replace(" ", " |").split("|")], omni_text("", finish="stop"), DONE]


async def test_it_answers_to_the_conversation() -> None:
    async with chat_server(words("You are Ann. Nice name!")) as server, thinking(server, temperature=0.2) as brain:
        with trio.fail_after(5):
            assert await brain.reply("Who am I?", HISTORY, "Be kind.") == "You are Ann. Nice name!"
        (request,) = server.requests
        assert request["messages"] == [
            {"role": "system", "content": f"{SPOKEN_STYLE}\n\nBe kind."},
            {"role": "user", "content": "My name is Ann."},
            {"role": "assistant", "content": "Hello Ann."},
            {"role": "user", "content": "Who am I?"},
        ]
        assert (request["model"], request["stream"], request["temperature"]) == ("small", True, 0.2)
        assert request["max_tokens"] == 300
        assert "modalities" not in request


async def test_the_first_sentence_does_not_wait_for_the_last() -> None:
    script = [omni_text("First. "), omni_text("Sec"), Stall()]
    taken: list[str] = []
    got = trio.Event()

    async def take(sentence: str) -> None:
        taken.append(sentence)
        got.set()

    async with chat_server(script) as server, thinking(server) as brain, trio.open_nursery() as nursery:
        nursery.start_soon(brain.think, "Hi", (), None, take)
        with trio.fail_after(5):
            await got.wait()
        assert taken == ["First. "]
        nursery.cancel_scope.cancel()
    assert taken == ["First. "]


async def test_cancelling_a_thought_hangs_up() -> None:
    async with chat_server([omni_text("First. "), Stall()]) as server, thinking(server) as brain:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(brain.reply, "Hi", ())
                await server.stalled.wait()
                nursery.cancel_scope.cancel()
            await server.hung_up.wait()


async def test_faults_are_chat_errors() -> None:
    async with chat_server([omni_text("First. "), Cut()]) as server, thinking(server) as brain:
        with trio.fail_after(5), pytest.raises(GenerationFailed) as failure:
            await brain.reply("Hi", ())
        assert failure.value.code == "chat_error"
    with pytest.raises(GenerationFailed):
        await EndpointBrain(BrainOptions(url="http://127.0.0.1:1/v1", model="m")).reply("Hi", ())


def cut(*parts: str) -> list[str]:
    sentences = Sentences()
    said = [sentence for part in parts for sentence in sentences.add(part)]
    return [*said, sentences.finish()]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three", ["One. ", "Two! ", "Three"]),
        ("Pi is 3.14 or so. Yes.", ["Pi is 3.14 or so. ", "Yes."]),
        ('He said "no." Then left.', ['He said "no." ', "Then left."]),
        ("Wait... what? Oh", ["Wait... ", "what? ", "Oh"]),
        ("你好。再见！", ["你好。", "再见！", ""]),
        ("First line\nsecond line", ["First line\n", "second line"]),
        ("<think>Hm. Well.</think>Yes. No.", ["Yes. ", "No."]),
        ("Yes. <think>or no?", ["Yes. ", ""]),
        ("a < b. c <thin d", ["a < b. ", "c <thin d"]),
        ("...", ["..."]),
        ("", [""]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert cut(text) == sentences
    assert "".join(cut(*text)) == "".join(sentences)


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.sampled_from(["a", " ", ". ", "。", "<think>", "</think>", "<", "th", "\n", "!"]), max_size=20))
def test_the_cut_of_a_thought_does_not_matter(parts: list[str]) -> None:
    assert "".join(cut(*parts)) == "".join(cut("".join(parts)))
