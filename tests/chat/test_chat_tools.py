"""Tool calls of a chat backend: streamed in pieces, told whole, answered by the client, remembered in their form."""

from __future__ import annotations

from typing import Any

import orjson

from tests.chat.chat_kit import Chat, chatting
from tests.chat.chat_server import DONE, Json, chat_server, omni_answer, omni_audio, omni_text, pcm
from tests.session.talk import check_log

WEATHER: Json = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def call(index: int, call_id: str | None = None, name: str | None = None, arguments: str = "") -> Json:
    """A piece of a streamed tool call."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    one: Json = {"index": index, "function": function} | ({"id": call_id, "type": "function"} if call_id else {})
    return {"choices": [{"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": None}]}


FINISHED: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
TWO_CALLS = [
    call(0, "call_a", "weather", '{"pla'),
    call(0, arguments='ce": "Oslo"}'),
    call(1, "call_b", "weather", '{"place": "Rome"}'),
    FINISHED,
    DONE,
]


async def done_calls(chat: Chat, count: int) -> list[dict[str, Any]]:
    await chat.until("response.function_call_arguments.done", count)
    await chat.until("response.done", count + 1)
    return chat.of("response.function_call_arguments.done")


async def test_calls_are_told_whole_and_answered() -> None:
    config = {"tools": [WEATHER], "tool_choice": "auto"}
    async with (
        chat_server(TWO_CALLS, omni_answer("Rain and sun.", 200)) as server,
        chatting(server, config=config) as chat,
    ):
        chat.ask("How is the weather in Oslo and Rome?")
        first, second = await done_calls(chat, 2)
        assert (first["call_id"], orjson.loads(first["arguments"])) == ("call_a", {"place": "Oslo"})
        assert (second["call_id"], orjson.loads(second["arguments"])) == ("call_b", {"place": "Rome"})
        assert server.requests[0]["tools"] == [
            {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}
        ]
        assert server.requests[0]["tool_choice"] == "auto"
        for call_id, output in (("call_a", "rain"), ("call_b", "sun")):
            chat.send(
                "conversation.item.create",
                item={"type": "function_call_output", "call_id": call_id, "output": output},
            )
        chat.send("response.create")
        done = await chat.answer(4)
        assert done["response"]["status"] == "completed"
        assert chat.transcript == "Rain and sun."
        check_log(chat.events)
        user, assistant, oslo, rome = server.requests[1]["messages"]
        assert user["role"] == "user"
        assert assistant["role"] == "assistant"
        assert [c["id"] for c in assistant["tool_calls"]] == ["call_a", "call_b"]
        assert assistant["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"place": "Oslo"}'}
        assert oslo == {"role": "tool", "tool_call_id": "call_a", "content": "rain"}
        assert rome == {"role": "tool", "tool_call_id": "call_b", "content": "sun"}


async def test_a_call_beside_speech() -> None:
    script = [omni_text("One moment."), omni_audio(pcm(0, 300)), call(0, "call_a", "weather", "{}"), FINISHED, DONE]
    async with chat_server(script) as server, chatting(server, config={"tools": [WEATHER]}) as chat:
        chat.ask()
        (only,) = await done_calls(chat, 1)
        assert only["call_id"] == "call_a"
        assert chat.transcript == "One moment."
        check_log(chat.events)


async def test_a_call_without_an_id_gets_one() -> None:
    script = [call(0, None, "weather", "{}"), FINISHED, DONE]
    async with chat_server(script, omni_answer()) as server, chatting(server, config={"tools": [WEATHER]}) as chat:
        chat.ask()
        (only,) = await done_calls(chat, 1)
        call_id = only["call_id"]
        assert call_id.startswith("call_")
        item = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
        chat.send("conversation.item.create", item=item)
        chat.send("response.create")
        await chat.answer(3)
        assert server.requests[1]["messages"][1]["tool_calls"][0]["id"] == call_id


async def test_an_unanswered_call_is_not_in_the_next_request() -> None:
    """Servers refuse calls without results, so only answered ones are told."""
    async with chat_server(TWO_CALLS, omni_answer()) as server, chatting(server, config={"tools": [WEATHER]}) as chat:
        chat.ask()
        await done_calls(chat, 2)
        chat.send(
            "conversation.item.create", item={"type": "function_call_output", "call_id": "call_b", "output": "sun"}
        )
        chat.send("response.create")
        await chat.answer(4)
        assistant = server.requests[1]["messages"][1]
        assert [c["id"] for c in assistant["tool_calls"]] == ["call_b"]
