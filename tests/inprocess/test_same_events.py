"""A client without a socket sees what a client with one sees: the same events, errors and numbers (contract 21.6)."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from duplex_protocol import wire
from tests.inprocess.inline_kit import OPTIONS, RecordingHub, converse
from trio_duplex.client import AudioDelta, DuplexClient, DuplexProtocolError, SessionConfig
from trio_duplex.client.inline import event_of, wire_copy
from trio_duplex.hub import Hub
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import RealtimeHandshake
from trio_duplex.server.socket import SocketLike
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import MemoryNetwork, ScriptedOptions, ScriptedPlugin
from trio_duplex.testing.schedule import run_seeded

Json = dict[str, Any]
Talk = Callable[[DuplexClient], Awaitable[Any]]


def normal(log: list[Json]) -> list[Json]:
    """Ids in order of appearance instead of at random; what only a connection that can be lost has is left out."""
    text = json.dumps([{k: v for k, v in event.items() if k not in ("event_id", "resume_token")} for event in log])
    names: dict[str, str] = {}
    return json.loads(
        re.sub(r"[0-9a-f]{20,}|(?<=evt_)[0-9a-f]{8}", lambda found: names.setdefault(found[0], f"#{len(names)}"), text)
    )


def over_socket(talk: Talk, options: ScriptedOptions, config: SessionConfig | None) -> list[Json]:
    async def main() -> list[Json]:
        hub = Hub(ScriptedPlugin(options), SessionSettings(), id_seed=0)

        async def endpoint(socket: SocketLike) -> None:
            await Connection(socket, hub, RealtimeHandshake).run()

        async with trio.open_nursery() as nursery:
            await nursery.start(hub.run)
            network = MemoryNetwork(endpoint, nursery)
            async with DuplexClient(
                "ws://memory", model="scripted", config=config, connect=network.transport, heartbeat_interval_s=None
            ) as client:
                await talk(client)
            nursery.cancel_scope.cancel()
        return network.sockets[0].received

    return run_seeded(main, 1)


def in_process(talk: Talk, options: ScriptedOptions, config: SessionConfig | None) -> list[Json]:
    async def main() -> list[Json]:
        async with RecordingHub(ScriptedPlugin(options)) as hub:
            async with hub.connect(config) as client:
                await talk(client)
            return hub.logs[0]

    return run_seeded(main, 1)


async def talk_and_err(client: DuplexClient) -> None:
    """Everything that a session refuses, and what only a stranger's dictionary can hold."""
    for event in (
        {"type": "no.such.event"},
        {"no": "type"},
        {"type": "input_audio_buffer.append", "audio": "@@@"},
        {"type": "input_audio_buffer.append"},
        {"type": "response.create", "response": {"temperature": float("nan")}},
        {"type": "playback.ack", "played_ms": "far"},
        {"type": "conversation.item.retrieve", "item_id": "item_none", "event_id": "mine"},
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": ()}},
        {"type": "response.cancel", "deep": json.loads("[" * 70 + "]" * 70)},
        {"type": "input_audio_buffer.commit", "event_id": "x" * 600},
    ):
        await client.send(event)
        await trio.sleep(0.1)


async def talk_text(client: DuplexClient) -> None:
    """Items, updates and a text answer."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
    await client.send({"type": "session.update", "session": {"instructions": "Be short."}})
    await client.send({"type": "conversation.item.create", "item": item})
    await client.send({"type": "response.create", "response": {"modalities": ["text"]}})
    await client.wait_for("response.done", timeout_s=30)
    await client.send({"type": "response.cancel"})
    await trio.sleep(1)


@pytest.mark.parametrize("talk", [converse, talk_and_err, talk_text])
def test_the_same_events_in_the_same_order(talk: Talk) -> None:
    expected, found = over_socket(talk, OPTIONS, None), in_process(talk, OPTIONS, None)
    assert normal(found) == normal(expected)
    assert [e["server_event_seq"] for e in found] == list(range(1, len(found) + 1))
    assert len({e["event_id"] for e in found}) == len(found)
    assert "resume_token" not in found[0]


REFUSED = {
    "another model": (OPTIONS, {"model": "another"}, "model_not_found"),
    "server vad": (
        ScriptedOptions(barge_in=False),
        {"config": SessionConfig(turn_detection={"type": "server_vad"})},
        "unsupported_turn_detection",
    ),
    "no slot in the model": (ScriptedOptions(slots=0), {}, "resource_exhausted"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_opening_raises_as_over_a_socket(autojump_clock: object, case: str) -> None:
    options, arguments, code = REFUSED[case]
    async with RecordingHub(ScriptedPlugin(options)) as hub:
        client = hub.connect(**arguments)
        with pytest.raises(DuplexProtocolError) as caught:
            async with client:
                pytest.fail("it opened")
        assert caught.value.code == code
        assert caught.value.event_id is not None
        assert caught.value.raw["type"] == "error"
        assert hub.statistics().sessions == 0


async def test_beyond_the_slots(autojump_clock: object) -> None:
    async with RecordingHub(settings=SessionSettings(max_sessions=1)) as hub:
        async with hub.connect():
            with pytest.raises(DuplexProtocolError) as caught:
                async with hub.connect():
                    pytest.fail("it opened")
            assert caught.value.code == "duplex_session_busy"
        async with hub.connect() as client:
            assert client.session_info["id"] == client.session_id


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_a_handed_over_frame_is_what_the_wire_says(frame: Json) -> None:
    frame = {**frame, "type": "some.event"}
    event_id, seq = "evt_1", 7
    expected = orjson.loads(wire.encode(frame, event_id=event_id, server_event_seq=seq))
    assert wire_copy({"type": frame["type"], "event_id": event_id, **frame, "server_event_seq": seq}) == expected


def test_audio_is_not_decoded_again_and_the_frame_stays_the_sessions() -> None:
    audio, marks = bytes(range(256)), [{"text_chars": 1}]
    frame = {"type": "response.output_audio.delta", "delta": audio, "metadata": {"audio_text_marks": marks}}
    event = event_of(frame)
    assert isinstance(event, AudioDelta)
    assert event.audio is audio
    assert event_of(event.raw).audio == audio
    event.raw["metadata"]["audio_text_marks"].append("mine")
    assert marks == [{"text_chars": 1}]
