"""A client without a socket sees what a client with one sees: the same events, errors and numbers (contract 21.6)."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import attrs
import orjson
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from duplex_protocol import wire
from duplex_protocol.commands import Command
from tests.inprocess.inline_kit import OPTIONS, RecordingHub, converse
from trio_duplex.client import AudioDelta, DuplexClient, DuplexEvent, DuplexProtocolError, SessionConfig, wrap_event
from trio_duplex.client.inline import event_of, wire_copy
from trio_duplex.hub import Hub
from trio_duplex.inprocess import InlineDialect, Visit
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import RealtimeHandshake
from trio_duplex.server.socket import SocketLike
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import MemoryNetwork, ScriptedOptions, ScriptedPlugin, silence, speech
from trio_duplex.testing.schedule import run_seeded
from trio_duplex.testing.scripted_model import ScriptedSession

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


async def talk_wrong_audio(client: DuplexClient) -> None:
    """Appends of the client's own making that a session refuses, among those that it takes."""
    good = speech(100)
    for pcm in (good, b"", good, good[:-1], bytearray(good), good):
        await client.append_audio(pcm)
        await trio.sleep(0.1)
    await client.append_audio(good, is_speech=True)
    await client.append_audio(good, video_frames=["@@@"])
    await trio.sleep(0.1)
    await client.ack_playback(100, response_id="resp_none")
    await client.ack_playback(100)
    await trio.sleep(1)


async def talk_text(client: DuplexClient) -> None:
    """Items, updates and a text answer."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
    await client.send({"type": "session.update", "session": {"instructions": "Be short."}})
    await client.send({"type": "conversation.item.create", "item": item})
    await client.send({"type": "response.create", "response": {"modalities": ["text"]}})
    await client.wait_for("response.done", timeout_s=30)
    await client.send({"type": "response.cancel"})
    await trio.sleep(1)


@pytest.mark.parametrize("talk", [converse, talk_and_err, talk_wrong_audio, talk_text])
def test_the_same_events_in_the_same_order(talk: Talk) -> None:
    expected, found = over_socket(talk, OPTIONS, None), in_process(talk, OPTIONS, None)
    assert normal(found) == normal(expected)
    assert [e["server_event_seq"] for e in found] == list(range(1, len(found) + 1))
    assert len({e["event_id"] for e in found}) == len(found)
    assert "resume_token" not in found[0]


def test_a_model_that_tells_at_once_says_the_same() -> None:
    through_channel, at_once = (
        in_process(converse, attrs.evolve(OPTIONS, tells_at_once=tells), None) for tells in (False, True)
    )
    assert normal(at_once) == normal(through_channel)


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


FIELDS = [name for name, value in vars(DuplexEvent).items() if isinstance(value, property) and name != "raw"]
FIELDS += ["format", "audio_duration_ms"]


def fields(event: DuplexEvent) -> dict[str, object]:
    return {name: getattr(event, name, None) for name in FIELDS}


async def test_events_read_the_same_before_and_after_their_raw_is_asked_for(autojump_clock: object) -> None:
    read: list[tuple[dict[str, object], DuplexEvent]] = []
    async with RecordingHub() as hub, hub.connect() as client:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                async for event in client.events():
                    before = fields(event)
                    read.append((before, event))

            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            await client.append_audio(silence(400))
            await converse(client)
            nursery.cancel_scope.cancel()
        log = hub.logs[0][-len(read) :]
    assert {"response.output_audio.delta", "playback.acknowledged", "response.listen"} <= {e.type for _, e in read}
    for (before, event), said in zip(read, log, strict=True):
        wire_event = wrap_event(orjson.loads(orjson.dumps(said)))
        assert before == fields(wire_event)
        assert event.raw == said
        assert fields(event) == before
        assert event.raw is event.raw


async def test_an_answer_cannot_come_before_whoever_sent_waits_for_it(autojump_clock: object) -> None:
    async with RecordingHub() as hub, hub.connect() as client:
        for _ in range(20):
            await client.send({"type": "input_audio_buffer.clear"})
            await client.wait_for("input_audio_buffer.cleared", timeout_s=5)


async def test_a_chunk_is_taken_as_it_is_when_it_is_sent(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may fill its buffer anew, although nothing is encoded on the way."""
    chunk = bytearray(speech(100))
    heard: list[float] = []
    monkeypatch.setattr(ScriptedSession, "submit", lambda _, audio, **__: heard.append(float(abs(audio).max())))
    async with RecordingHub() as hub, hub.connect() as client:
        await client.append_audio(chunk)
        chunk[:] = bytes(len(chunk))
        await trio.testing.wait_all_tasks_blocked()
    assert len(heard) == 1
    assert heard[0] > 0.1


APPENDS = st.fixed_dictionaries(
    {
        "type": st.just("input_audio_buffer.append"),
        "audio": st.binary(min_size=1, max_size=64),
        "format": st.just("pcm16"),
        "sample_rate_hz": st.just(16_000),
        "duration_ms": st.integers(0, 10_000),
        "audio_end_ms": st.integers(0, 2**40),
        "event_id": st.text(min_size=1, max_size=9),
    },
    optional={"is_speech": st.booleans()},
)
ACKS = st.fixed_dictionaries(
    {
        "type": st.just("playback.ack"),
        "played_ms": st.integers(0, 2**40),
        "committed_ms": st.integers(0, 2**40),
        "event_id": st.text(min_size=1, max_size=9),
    },
    optional={"response_id": st.text(), "item_id": st.text()},
)


@given(st.lists(APPENDS | ACKS, min_size=1, max_size=4))
def test_what_the_client_built_is_the_command_of_its_json(events: list[Json]) -> None:
    posted: list[Command] = []
    session: Any = SimpleNamespace(dialect=InlineDialect(view="duplex"), post=posted.append)
    visit = Visit(cast(Any, None), session, cast(Any, None))
    for event in events:
        assert visit.post(event)
    expected = []
    for event in events:
        text = wire.encode(event, event_id=event["event_id"], server_event_seq=None)
        expected += InlineDialect(view="duplex").decode(wire.parse(text))
    assert posted == expected
