"""Tool calls of the demo model as a session and as a client see them (contract 19, 25)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from duplex_protocol.realtime import RealtimeDialect
from tests.models.models_kit import Talk, VirtualEngine, level, open_talk
from tests.session.talk import Reader, check_log
from trio_duplex.hub import Hub
from trio_duplex.models.demo import DemoPlugin
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry, Speech, ToolCalled, TurnEnded
from trio_duplex.session.settings import SessionSettings

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED = "what is the weather in Paris"


async def asked(nursery: trio.Nursery, **changes: Any) -> tuple[Talk, TurnEnded]:
    talk = await open_talk(nursery, VirtualEngine(words={0.9: ASKED}), **{"tools": (WEATHER,), **changes})
    await talk.hear(level(0.9, 640), level(0, 544))
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    return talk, ended


def words(said: list[tuple[float, Speech]]) -> str:
    return "".join(speech.text for _, speech in said)


async def test_a_call_instead_of_speech(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk, ended = await asked(nursery)
    assert await talk.answer(talk.request(ended.turn, response_id="resp_7")) == []
    assert talk.engine.jobs_of("tts") == []
    await talk.settle()
    assert talk.results[-1] == ToolCalled(call_id="call_7", name="get_weather", arguments='{"city": "Paris"}')
    talk.history += [
        HistoryEntry("i1", "user", ASKED),
        HistoryEntry("i3", "tool", '{"sky": "clear", "degrees": 21}', "call_7"),
    ]
    assert words(await talk.answer(talk.request())) == "The tool get weather says: sky clear, degrees 21."
    # What was said about it is history, and the result is not said again.
    talk.history.append(HistoryEntry("i4", "assistant", "The tool get weather says: sky clear, degrees 21."))
    talk.history.append(HistoryEntry("i5", "user", "say that again"))
    assert words(await talk.answer(talk.request())).startswith("I said: The tool")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("session", "options", "called"),
    [
        ({"tools": ()}, {}, False),
        ({"tool_choice": "none"}, {}, False),
        ({"tools": (), "extra_body": {"realtime_tools": [WEATHER]}}, {}, True),
        ({}, {"tools": []}, False),
        ({}, {"tool_choice": "none"}, False),
        ({"tools": ()}, {"tools": [WEATHER]}, True),
    ],
)
async def test_whose_tools(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, session: Any, options: Any, called: bool
) -> None:
    talk, ended = await asked(nursery, **session)
    said = await talk.answer(talk.request(ended.turn, options=options))
    await talk.settle()
    assert isinstance(talk.results[-1], ToolCalled) is called
    assert bool(said) is not called
    nursery.cancel_scope.cancel()


async def test_a_required_call_is_answered_in_words_once_its_result_is_there(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk, _ = await asked(nursery, tool_choice="required")
    talk.history += [HistoryEntry("i1", "user", ASKED), HistoryEntry("i3", "tool", "Rain.", "call_of_another_life")]
    assert words(await talk.answer(talk.request())) == "The tool says: Rain."
    nursery.cancel_scope.cancel()


async def test_a_flood_of_calls_fails_the_answer(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """Nobody takes results: nothing waits for ever, nothing grows."""
    talk = await open_talk(nursery, tools=(WEATHER,), listen=False)
    talk.history.append(HistoryEntry("i1", "user", ASKED))

    async def flood() -> None:
        for number in range(1_000):
            await talk.answer(talk.request(response_id=f"resp_{number}"))

    with pytest.raises(GenerationFailed):
        await flood()
    nursery.cancel_scope.cancel()


class Client:
    """A client of a hub, behind a dialect."""

    def __init__(self, nursery: trio.Nursery, view: str) -> None:
        self.nursery = nursery
        self.view = view

    async def open(self, config: dict[str, Any]) -> None:
        plugin = DemoPlugin(engine=VirtualEngine(words={0.9: ASKED}))
        hub = Hub(plugin, SessionSettings(), id_seed=7)
        await self.nursery.start(hub.run)
        await hub.ready.wait()
        dialect = RealtimeDialect(view=self.view)  # type: ignore[arg-type]
        self.session = await hub.open_session(
            dialect, dialect.parse_open(config, plugin.defaults), strict=self.view != "openai"
        )
        self.reader = Reader(self.session.attach(0))
        self.nursery.start_soon(self.reader.run)

    def send(self, kind: str, **fields: Any) -> None:
        for command in self.session.dialect.decode({"type": kind, **fields}):
            self.session.post(command)

    def say(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.send("response.create")


@pytest.mark.parametrize("view", ["duplex", "openai"])
async def test_a_client_hears_the_result(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, view: str
) -> None:
    client = Client(nursery, view)
    await client.open({"tools": [WEATHER], "tool_choice": "auto"})
    client.say("What is the weather in Oslo?")
    called = await client.reader.until("response.function_call_arguments.done")
    assert json.loads(called["arguments"]) == {"city": "Oslo"}
    await client.reader.until("response.done", 2)
    (call,) = [
        event["item"]
        for event in client.reader.of("response.output_item.done")
        if event["item"]["type"] == "function_call"
    ]
    assert call["name"] == "get_weather"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Snow."}
    client.send("conversation.item.create", item=output)
    client.send("response.create")
    done = await client.reader.until("response.done", 3)
    assert done["response"]["status"] == "completed"
    spoken = "".join(event["delta"] for event in client.reader.of("response.output_audio_transcript.delta"))
    assert spoken == "The tool get weather says: Snow."
    if view == "duplex":
        check_log(client.reader.events)
    nursery.cancel_scope.cancel()
