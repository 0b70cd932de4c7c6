"""A chat endpoint as the demo model's brain: a real HTTP server, the virtual networks, the real clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import trio
import yaml

from tests.chat.chat_server import DONE, ChatServer, Cut, Head, Stall, Step, chat_server, omni_text
from tests.models.demo_client import open_client
from tests.models.models_kit import VirtualEngine, level
from trio_duplex.config import DeployError, Deployment, structure
from trio_duplex.models.chat import BrainOptions
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.registry import build_plugin

SAID = {0.9: "what is the weather in Paris", 0.8: "never mind"}
SPEECH, SILENCE = level(0.9, 480), level(0, 700)


def text(*parts: str) -> list[Step]:
    return [*[omni_text(part) for part in parts], omni_text("", finish="stop"), DONE]


def plugin_for(server: ChatServer | str, **brain: Any) -> DemoPlugin:
    url = server if isinstance(server, str) else server.url
    options = DemoOptions(brain=BrainOptions(url=url, model="small", first_event_timeout_s=3.0, **brain))
    return DemoPlugin(options, engine=VirtualEngine(words=SAID, recognise_s=0.01, synthesise_s=0.01))


def last_words(server: ChatServer) -> list[str]:
    return [request["messages"][-1]["content"] for request in server.requests]


async def test_typed_words_are_answered_aloud(nursery: trio.Nursery) -> None:
    async with chat_server(text("It is ", "five. Good", " night."), text("You asked for the time.")) as server:
        client = await open_client(nursery, plugin_for(server), {"instructions": "Be brief."})
        client.ask("What time is it?")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        assert client.transcript == "It is five. Good night."
        duration_ms = (
            1000 * sum(len(event["delta"]) for event in client.of("response.output_audio.delta")) * 3 / 4 / 48_000
        )
        assert duration_ms == pytest.approx(5 * 200, abs=20)  # five words of the virtual voice
        client.ask("What did I ask?")
        await client.until("response.done", 2)
        messages = server.requests[1]["messages"]
        assert messages[0]["content"].endswith("Be brief.")
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
        assert messages[2]["content"] == "It is five. Good night."
        nursery.cancel_scope.cancel()


async def test_a_spoken_turn_costs_one_request(nursery: trio.Nursery) -> None:
    """The answer that was begun in the silence before the end of the turn is the one that is said."""
    async with chat_server(text("Rain. ", "All day long.")) as server:
        client = await open_client(nursery, plugin_for(server))
        await client.speak(np.concatenate([SPEECH, SILENCE]))
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        assert client.transcript == "Rain. All day long."
        assert last_words(server) == [SAID[0.9]]
        nursery.cancel_scope.cancel()


async def test_a_barge_in_hangs_up(nursery: trio.Nursery) -> None:
    """The first sentence is heard while the second is thought; who interrupts it stops the backend too."""
    script: list[Step] = [omni_text("It will rain in Paris. "), omni_text("And "), Stall()]
    async with chat_server(script, text("Good.")) as server:
        client = await open_client(nursery, plugin_for(server))
        await client.speak(np.concatenate([SPEECH, SILENCE]))
        await client.until("response.output_audio.delta", 2)
        assert not server.hung_up.is_set()
        await client.speak(level(0.8, 480))
        done = await client.until("response.done")
        assert done["response"]["status"] == "cancelled"
        with trio.fail_after(1):
            await server.hung_up.wait()
        await client.speak(SILENCE)
        assert (await client.until("response.done", 2))["response"]["status"] == "completed"
        assert client.transcript.endswith("Good.")
        assert last_words(server) == [SAID[0.9], SAID[0.8]]
        nursery.cancel_scope.cancel()


async def test_a_client_cancel_hangs_up(nursery: trio.Nursery) -> None:
    async with chat_server([omni_text("One. "), Stall()]) as server:
        client = await open_client(nursery, plugin_for(server))
        client.ask("Count.")
        await client.until("response.output_audio.delta")
        client.send("response.cancel")
        await client.until("response.done")
        with trio.fail_after(1):
            await server.hung_up.wait()
        nursery.cancel_scope.cancel()


async def test_a_pause_that_was_no_end_hangs_up(nursery: trio.Nursery) -> None:
    """Somebody who draws breath is thought about in vain; nothing of it is said."""
    async with chat_server([omni_text("Wrong. "), Stall()], text("Right.")) as server:
        client = await open_client(nursery, plugin_for(server))
        await client.speak(np.concatenate([SPEECH, level(0, 320)]))
        with trio.fail_after(5):
            await server.until_requests(1)
        await client.speak(level(0.8, 320))
        with trio.fail_after(1):
            await server.hung_up.wait()
        await client.speak(SILENCE)
        await client.until("response.done")
        assert client.transcript == "Right."
        assert last_words(server) == [SAID[0.9], f"{SAID[0.9]} {SAID[0.8]}"]
        nursery.cancel_scope.cancel()


FAULTS = [
    pytest.param([Head(status=500), *text("no")], "", id="refused"),
    pytest.param([omni_text("So far so good. "), omni_text("But"), Cut()], "So far so good. ", id="cut"),
    pytest.param([*[omni_text("x")] * 3, Stall()], "", id="stalled"),
]


@pytest.mark.parametrize(("script", "said"), FAULTS)
async def test_a_broken_answer_is_a_chat_error_and_the_session_lives(
    nursery: trio.Nursery, script: list[Step], said: str
) -> None:
    async with chat_server(script, text("Back again.")) as server:
        plugin = plugin_for(server, stall_timeout_s=0.5)
        client = await open_client(nursery, plugin)
        client.ask("Hello?")
        done = await client.until("response.done")
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"]["reason"] == "chat_error"
        assert client.of("error")[-1]["error"]["code"] == "chat_error"
        # All but the end of a sentence's last unit, which waits for the next sentence.
        assert said.startswith(client.transcript)
        assert bool(client.transcript) is bool(said)
        assert plugin.health().alive
        assert plugin.health().detail["brain"]["failures_in_a_row"] == 1
        before = len(client.transcript)
        client.ask("Hello?")
        assert (await client.until("response.done", 2))["response"]["status"] == "completed"
        assert client.transcript[before:] == "Back again."
        assert plugin.health().detail["brain"]["failures_in_a_row"] == 0
        nursery.cancel_scope.cancel()


async def test_nobody_there(nursery: trio.Nursery) -> None:
    """A spoken turn: the attempt in the pause fails, and so does the answer; the model hears on."""
    async with chat_server() as server:
        url = server.url  # a port where nobody will listen
    client = await open_client(nursery, plugin_for(url))
    for number in (1, 2):
        await client.speak(np.concatenate([SPEECH, SILENCE]))
        assert (await client.until("error", number))["error"]["code"] == "chat_error"
        await client.until("conversation.item.input_audio_transcription.completed", number)
    assert client.session.state == "open"
    nursery.cancel_scope.cancel()


async def test_text_only_and_silence(nursery: trio.Nursery) -> None:
    async with chat_server(text("One. ", "Two."), text("...")) as server:
        client = await open_client(nursery, plugin_for(server), {"modalities": ["text"]})
        client.ask("Count.")
        await client.until("response.done")
        assert "".join(event["delta"] for event in client.of("response.output_text.delta")) == "One. Two."
        client.ask("Go on.")
        assert (await client.until("response.done", 2))["response"]["status"] == "completed"
        nursery.cancel_scope.cancel()


async def test_tools_are_not_offered_to_it(nursery: trio.Nursery) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    async with chat_server(text("I do not know.")) as server:
        client = await open_client(nursery, plugin_for(server), {"tools": [tool]})
        client.ask("What is the weather?")
        await client.until("response.done")
        assert client.transcript == "I do not know."
        assert "tools" not in server.requests[0]
        nursery.cancel_scope.cancel()


def test_it_is_deployed_by_a_block_of_its_own() -> None:
    brain = {"url": "http://127.0.0.1:8000/v1", "model": "qwen"}
    assert build_plugin(Deployment(model="demo", options={"brain": brain})).name == "demo"
    assert build_plugin(Deployment(model="demo", options={"brain": None})).name == "demo"
    with pytest.raises(DeployError, match=r"unknown key 'brain\.modell?'; known keys: .*model"):
        build_plugin(Deployment(model="demo", options={"brain": {**brain, "modell": 1}}))
    with pytest.raises(DeployError, match="brain"):
        build_plugin(Deployment(model="demo", options={"brain": {**brain, "url": "ftp://x"}}))


def test_the_deploy_file_names_every_option_of_the_brain() -> None:
    """The commented example is a block that can be used as it is."""
    lines = (Path(__file__).parents[2] / "deploy" / "demo.yaml").read_text().splitlines()
    start = lines.index("  # brain:")
    block = yaml.safe_load("\n".join(line.removeprefix("  # ") for line in lines[start:]))["brain"]
    options = structure({"brain": block}, DemoOptions, where="the example")
    assert block.keys() == {field.name for field in attrs.fields(BrainOptions)}
    changed = attrs.evolve(options.brain, url="http://h", model="m", style="")
    assert changed == BrainOptions(url="http://h", model="m", style="")
