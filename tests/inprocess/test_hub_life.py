"""`open_hub` and its clients: ways in, ways out, what they leave behind (contract 21.6, 22)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterable
from pathlib import Path

import pytest
import trio

import trio_duplex
from tests.inprocess.inline_kit import OPTIONS, RecordingHub, ask, converse
from trio_duplex.client import (
    DuplexClient,
    DuplexConnectionError,
    DuplexEvent,
    DuplexProtocolError,
    DuplexSessionClosedError,
    EventCollector,
    InlineDuplexClient,
    SessionConfig,
    acknowledge_collected_playback,
)
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Hang, Piece, ScriptedOptions, ScriptedPlugin
from trio_duplex.testing.scripted_model import decode_pieces

DEPLOYMENT = trio_duplex.Deployment(model="scripted")
SAID = "word0 word1 word2 word3 word4 "


async def test_the_two_lines_of_the_readme(autojump_clock: object) -> None:
    plugin = ScriptedPlugin(OPTIONS)
    async with trio_duplex.open_hub(DEPLOYMENT, plugin=plugin) as hub:
        async with hub.connect(SessionConfig(instructions="Be kind.")) as client:
            assert isinstance(client, DuplexClient)
            assert plugin.sessions[0].config.instructions == "Be kind."
            said = await converse(client)
            assert said[1] == SAID
            assert SAID.startswith(said[0])
            assert len(said[0]) < len(SAID)
        assert plugin.open_slots == OPTIONS.slots
        assert hub.statistics().sessions == 0
    assert not plugin.running


async def test_audio_arrives_sample_for_sample(autojump_clock: object) -> None:
    async with RecordingHub() as hub, hub.connect() as client:
        await ask(client)
        async for response in client.responses():
            if response.decision != "listen":
                audio = b"".join([pcm async for pcm in response.audio()])
                break
        assert decode_pieces(audio) == [(k, 4_800) for k in range(5)]
        assert response.played_ms == 1_000


async def test_a_collector_serves_both_kinds_of_client(autojump_clock: object) -> None:
    async with RecordingHub() as hub, hub.connect() as client, trio.open_nursery() as nursery:
        collector = EventCollector()
        await nursery.start(collector.consume, client)
        await ask(client)
        done = await client.wait_for("response.done", timeout_s=30)
        await acknowledge_collected_playback(client, collector)
        await client.wait_for("playback.acknowledged", timeout_s=30)
        assert collector.audio_ms(done.response_id) == 1_000
        assert collector.errors() == []
        nursery.cancel_scope.cancel()


async def test_two_hubs_live_side_by_side(autojump_clock: object) -> None:
    first = ScriptedPlugin(ScriptedOptions(name="first", script=lambda _: [Piece("one")]))
    second = ScriptedPlugin(ScriptedOptions(name="second", script=lambda _: [Piece("two")]))
    async with (
        trio_duplex.open_hub(DEPLOYMENT, plugin=first) as hub_1,
        trio_duplex.open_hub(DEPLOYMENT, plugin=second) as hub_2,
        hub_1.connect() as client_1,
        hub_2.connect() as client_2,
    ):
        for client, model, text in ((client_1, "first", "one"), (client_2, "second", "two")):
            await ask(client)
            event = await client.wait_for("response.output_audio_transcript.delta", timeout_s=30)
            assert (client.session_info["model"], event.text) == (model, text)
    assert not first.running
    assert not second.running


async def test_the_contracts_constructor(autojump_clock: object) -> None:
    async with RecordingHub() as hub, InlineDuplexClient(hub, model="scripted", config=None) as client:
        assert client.url == "inline:scripted"
        assert client.resume_token is None
        assert client.incarnation == 0


async def test_before_and_after_the_block() -> None:
    hub = trio_duplex.open_hub(DEPLOYMENT, plugin=ScriptedPlugin(OPTIONS))
    with pytest.raises(RuntimeError, match="the hub is not open"):
        async with hub.connect():
            pass
    async with hub:
        client = hub.connect()
    with pytest.raises(RuntimeError, match="entered once"):
        async with hub:
            pass
    with pytest.raises(DuplexProtocolError, match="shutting down"):
        async with client:
            pass


# --- the end of a session, of a hub, of a model


async def test_close_gives_the_slot_back_and_is_the_quiet_end(autojump_clock: object) -> None:
    async with RecordingHub() as hub, hub.connect() as client:
        events = client.events()
        await client.close()
        assert hub.statistics().sessions == 0
        assert [event.type async for event in events][-1] == "session.closed"
        with pytest.raises(DuplexSessionClosedError, match="closed"):
            await client.commit()
        await client.close()


async def test_the_hub_ends_first(autojump_clock: object) -> None:
    """A client in another task than the hub's sees the session closed, like anybody at a shutdown."""
    opened, events = trio.Event(), []

    async def talk(hub: trio_duplex.EmbeddedHub) -> None:
        async with hub.connect() as client:
            opened.set()
            events.extend([event async for event in client])

    async with trio.open_nursery() as nursery, trio_duplex.open_hub(DEPLOYMENT, plugin=ScriptedPlugin(OPTIONS)) as hub:
        nursery.start_soon(talk, hub)
        await opened.wait()
    assert events[-1].type == "session.closed"
    assert events[-1].reason == "server_shutdown"


class Dying(ScriptedPlugin):
    """Dies of ``error``: at its start, or when told to."""

    def __init__(self, *, early: bool) -> None:
        super().__init__(OPTIONS)
        self.early = early
        self.die = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if self.early:
            raise OSError("no weights")
        self.running = True
        task_status.started()
        await self.die.wait()
        self.running = False
        raise OSError("the card fell off")


async def test_a_model_that_cannot_start(autojump_clock: object) -> None:
    with pytest.raises(OSError, match="no weights"):
        async with trio_duplex.open_hub(DEPLOYMENT, plugin=Dying(early=True)):
            pytest.fail("it opened")


async def test_a_model_that_dies_ends_its_sessions_with_its_error(autojump_clock: object) -> None:
    plugin = Dying(early=False)
    async with trio_duplex.open_hub(DEPLOYMENT, plugin=plugin) as hub:
        async with hub.connect() as client:
            events = client.events()
            assert hub.health()[0]
            plugin.die.set()
            seen = [event async for event in events]
            assert [event.type for event in seen if event.type in ("error", "session.closed")] == [
                "error",
                "session.closed",
            ]
        assert plugin.open_slots == OPTIONS.slots
        assert not hub.health()[0]
        with pytest.raises(DuplexProtocolError):
            async with hub.connect():
                pytest.fail("it opened")


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
async def test_what_the_body_raises_leaves_as_itself(autojump_clock: object, error: BaseException) -> None:
    plugin = ScriptedPlugin(OPTIONS)

    async def live() -> None:
        async with trio_duplex.open_hub(DEPLOYMENT, plugin=plugin) as hub, hub.connect() as client:
            await ask(client)
            raise error

    with pytest.raises(type(error)) as caught:
        await live()
    assert caught.value is error
    assert plugin.open_slots == OPTIONS.slots


# --- time


async def test_a_silent_client_keeps_its_lease_but_not_its_idle_time(autojump_clock: object) -> None:
    settings = SessionSettings(max_sessions=2, idle_ttl_s=30)
    async with RecordingHub(settings=settings) as hub:
        async with hub.connect(SessionConfig(idle_timeout_s=2_000)) as client:
            await trio.sleep(1_900)
            await client.clear_input()
            assert client.statistics().acks_sent == 0
        async with hub.connect(SessionConfig(idle_timeout_s=10)) as client:
            assert [e.reason async for e in client if e.type == "session.closed"] == ["timeout"]
            assert trio.current_time() >= 1_910


async def test_silence_at_the_opening_times_out(autojump_clock: object) -> None:
    class Sleepy(ScriptedPlugin):
        async def open(self, config: object, context: object) -> object:
            await trio.sleep_forever()

    plugin = Sleepy(OPTIONS)
    async with trio_duplex.open_hub(DEPLOYMENT, plugin=plugin) as hub:
        with pytest.raises(TimeoutError):
            async with hub.connect(handshake_timeout_s=5):
                pytest.fail("it opened")
        assert hub.statistics().sessions == 0


# --- too much of everything


async def _into(found: list[DuplexEvent], events: AsyncIterable[DuplexEvent]) -> None:
    async for event in events:
        found.append(event)  # noqa: PERF401 - it ends by raising


async def test_a_flood_is_refused_and_then_given_up(autojump_clock: object) -> None:
    """A session that takes nothing more: its client is told, again and again, and then let go of (contract 24a)."""
    plugin = ScriptedPlugin(ScriptedOptions(script=lambda _: [Hang()], slots=1))
    async with RecordingHub(plugin, SessionSettings(max_sessions=1)) as hub, hub.connect() as client:
        session = hub.inner.session(client.session_id or "")
        assert session is not None
        session.mailbox.get = trio.sleep_forever  # type: ignore[method-assign]
        errors = client.events()
        with pytest.raises(DuplexSessionClosedError, match="too much input"):
            await client.stream_pcm(bytes(32_000 * 1_000), chunk_ms=1_000, realtime=False)
        events: list[DuplexEvent] = []
        with pytest.raises(DuplexSessionClosedError, match="too much input"):
            await _into(events, errors)
        # What ends it is the 64th refusal in a row; those told last may find nobody who reads.
        assert {event.raw["error"]["code"] for event in events} == {"input_backpressure"}
        assert 32 < len(events) <= 64
    assert hub.statistics().sessions == 0


async def test_an_event_over_the_limit_is_refused_alone(autojump_clock: object) -> None:
    async with RecordingHub() as hub, hub.connect() as client:
        events = client.events()
        event_id = await client.append_audio(bytes(12 * 1024 * 1024))
        error = await anext(events)
        assert error.raw["error"]["code"] == "event_too_large"
        assert error.raw["error"]["event_id"] == event_id
        with pytest.raises(TypeError):
            await client.send({"type": "response.create", "response": {1, 2}})
        await client.clear_input()
        assert (await client.wait_for("input_audio_buffer.cleared", timeout_s=5)).event_id


def test_not_connected() -> None:
    async def main() -> None:
        client = RecordingHub().connect()
        with pytest.raises(DuplexConnectionError):
            await client.commit()

    trio.run(main)


# --- weight


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import trio_duplex.client", ("trio_duplex.hub", "structlog", "hypercorn", "torch")),
        ("import trio_duplex; trio_duplex.open_hub", ("hypercorn", "torch", "onnxruntime")),
    ],
)
def test_imports_stay_light(code: str, forbidden: tuple[str, ...]) -> None:
    script = f"import sys; {code}; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_open_hub_reads_a_deploy_file() -> None:
    with pytest.raises(trio_duplex.DeployError, match=r"missing\.yaml"):
        trio_duplex.open_hub("missing.yaml")
    assert trio_duplex.open_hub(Path(__file__).parents[2] / "deploy" / "demo.yaml").model == "demo"
