"""The opening of a connection on both routes, through the real connection code over sockets (contract 1, 6.1, 15.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import orjson
import pytest
import trio

from tests.server.server_kit import RawClient, raw_client
from trio_duplex.config import Deployment
from trio_duplex.server.serve import serve
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedPlugin

Json = dict[str, Any]


class Peer:
    """A WebSocket client that speaks JSON and leaves without a word."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    async def send(self, event: Json | str) -> None:
        await self.client.send_text(event if isinstance(event, str) else orjson.dumps(event).decode())

    async def next(self) -> Json:
        event: Json = orjson.loads(await self.client.next_text())
        return event

    async def until(self, kind: str) -> Json:
        while True:
            event = await self.next()
            if event["type"] == kind:
                return event

    async def closed(self) -> tuple[int, str]:
        """Read to the Close frame and answer it; its code and reason."""
        close = await self.client.until_close()
        assert close is not None
        await self.client.answer_close(close)
        return int(close.code), close.reason or ""


Dial = Callable[[str], AbstractAsyncContextManager[Peer]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """A server with the scripted model and two slots; ``dial(path)`` opens a socket to it."""
    deployment = Deployment(model="scripted", duplex_session=SessionSettings(max_sessions=2))
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 30

        async def run(*, task_status: trio.TaskStatus[Any]) -> None:
            await serve(deployment, plugin=ScriptedPlugin(), task_status=task_status)

        bound = await nursery.start(run)

        @asynccontextmanager
        async def dial(path: str) -> AsyncIterator[Peer]:
            async with raw_client(bound, path) as client:
                assert client.status == 101
                yield Peer(client)

        yield dial
        nursery.cancel_scope.cancel()


async def test_a_stock_client_hears_created_without_saying_anything(dial: Dial) -> None:
    async with dial("/v1/realtime?model=gpt-realtime") as peer:
        event = await peer.next()
        assert event["type"] == "session.created"
        assert event["session"]["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}


async def test_an_opening_update_is_answered_by_created_and_updated(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send({"type": "session.update", "session": {"instructions": "be brief"}})
        assert [(await peer.next())["type"] for _ in range(2)] == ["session.created", "session.updated"]


async def test_fields_may_stand_flat(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send({"type": "session.update", "instructions": "be brief", "session_id": "mine"})
        assert (await peer.next())["session"]["id"] == "mine"


async def test_any_other_first_message_opens_and_is_then_applied(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1") as peer:
        await peer.send({"type": "session.heartbeat"})
        assert (await peer.next())["type"] == "session.created"
        assert (await peer.until("session.heartbeat_ack"))["session_id"]


@pytest.mark.parametrize("query", ["autostart=0", "resume=1"])
async def test_resume_only_refuses_other_messages(dial: Dial, query: str) -> None:
    async with dial(f"/v1/realtime?duplex=1&{query}") as peer:
        await peer.send({"type": "session.heartbeat"})
        event = await peer.next()
        assert (event["type"], event["code"]) == ("error", "bad_event")
        assert isinstance(event["error"], str), "the flat form"
        assert await peer.closed() == (1000, "")


@pytest.mark.parametrize(
    ("text", "code"), [("{not json", "invalid_json"), ("[1]", "bad_event"), ('{"session": {}}', "bad_event")]
)
async def test_a_broken_first_message_ends_flat(dial: Dial, text: str, code: str) -> None:
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send(text)
        assert (await peer.next())["code"] == code
        assert (await peer.closed())[0] == 1000


async def test_a_correctable_refusal_keeps_the_socket(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send({"type": "session.update", "event_id": "evt_1", "session": {"input_audio_format": "mp3"}})
        error = (await peer.next())["error"]
        assert (error["code"], error["event_id"]) == ("unsupported_audio_format", "evt_1")
        await peer.send({"type": "session.update", "session": {"input_audio_format": "pcm16"}})
        assert (await peer.next())["type"] == "session.created"


async def test_another_model_is_refused_in_the_duplex_view(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send({"type": "session.update", "event_id": "evt_1", "session": {"model": "other"}})
        error = (await peer.next())["error"]
        assert (error["code"], error["param"], error["event_id"]) == ("model_not_found", "session.model", "evt_1")
        assert (await peer.closed())[0] == 1000


async def test_busy_is_told_in_the_envelope(dial: Dial) -> None:
    async with (
        dial("/v1/realtime?duplex=1&model=scripted") as one,
        dial("/v1/realtime?duplex=1&model=scripted") as two,
        dial("/v1/realtime?duplex=1&model=scripted") as three,
    ):
        assert (await one.next())["type"] == "session.created"
        assert (await two.next())["type"] == "session.created"
        error = (await three.next())["error"]
        assert (error["type"], error["code"], error["retryable"]) == ("rate_limit_error", "duplex_session_busy", True)
        assert (await three.closed())[0] == 1000


async def test_the_legacy_handler_does_not_exist(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=0") as peer:
        assert (await peer.next())["code"] == "unsupported"
        assert (await peer.closed())[0] == 1000


async def test_close_and_its_code(dial: Dial) -> None:
    """P12: session.close → session.closed → close 1000."""
    async with dial("/v1/realtime?duplex=1&model=scripted") as peer:
        await peer.next()
        await peer.send({"type": "session.close"})
        assert (await peer.until("session.closed"))["reason"] == "session_close"
        assert await peer.closed() == (1000, "session_close")


async def test_resume_by_message(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&model=scripted") as peer:
        created = await peer.next()
    fields = {
        "type": "session.resume",
        "session_id": created["session"]["id"],
        "incarnation": created["incarnation"],
        "resume_token": created["resume_token"],
        "last_received_server_event_seq": created["server_event_seq"],
    }
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send(fields)
        resumed = await peer.next()
        assert (resumed["type"], resumed["attachment_generation"]) == ("session.resumed", 2)
        assert "server_event_seq" not in resumed
        await peer.send({"type": "session.heartbeat"})
        assert (await peer.until("session.heartbeat_ack"))["server_event_seq"] == 2
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send(fields)
        refused = await peer.next()
        assert refused["code"] == "invalid_resume_token"
        assert (await peer.closed())[0] == 1000


@pytest.mark.parametrize(
    "change", [{"session_id": 3}, {"resume_token": ""}, {"incarnation": True}, {"last_received_server_event_seq": -1}]
)
async def test_malformed_resume(dial: Dial, change: Json) -> None:
    fields = {"type": "session.resume", "session_id": "s", "incarnation": 0, "resume_token": "rt", **change}
    async with dial("/v1/realtime?duplex=1&autostart=0") as peer:
        await peer.send(fields)
        assert (await peer.next())["code"] == "invalid_session_resume"


async def test_a_stock_client_resumes_by_url(dial: Dial) -> None:
    """Beyond the seed: a client that can only set a URL comes back to its session, and hears session.created."""
    async with dial("/v1/realtime?model=gpt-realtime") as peer:
        session = (await peer.next())["session"]
    query = (
        f"session_id={session['id']}&resume_token={session['resume_token']}&incarnation={session['incarnation']}"
        "&last_received_server_event_seq=1"
    )
    async with dial(f"/v1/realtime?{query}") as peer:
        again = await peer.next()
        assert again["type"] == "session.created"
        assert again["session"]["id"] == session["id"]
        assert again["session"]["resume_token"] != session["resume_token"]


async def test_native_dialect_opens_and_speaks_flat(dial: Dial) -> None:
    async with dial("/v1/duplex") as peer:
        await peer.send({"type": "session.create", "session_id": "raw", "session": {}})
        created = await peer.next()
        assert (created["type"], created["session"]["id"]) == ("session.created", "raw")
        await peer.send({"type": "response.cancel"})
        error = await peer.until("error")
        assert error["code"] == "response_not_active"
        assert isinstance(error["error"], str)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "session.update", "session": {}}, "bad_event"),
        ({"type": "session.resume"}, "unsupported_session_resume"),
    ],
)
async def test_native_dialect_refuses_other_openings(dial: Dial, first: Json, code: str) -> None:
    async with dial("/v1/duplex") as peer:
        await peer.send(first)
        assert (await peer.next())["code"] == code
        assert (await peer.closed())[0] == 1000


async def test_bad_events_hurt_nothing(dial: Dial) -> None:
    """Each wrong event gets its typed error with its own event_id, in order; the session lives (A6, H8)."""
    bad = [
        ({"type": "input_audio_buffer.append", "audio": "@@@"}, "bad_audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "bad_audio"),
        ({"type": "input_audio_buffer.append"}, "bad_event"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "bad_event"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA", "format": "mp3"}, "unsupported_audio_format"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA", "sample_rate_hz": 5}, "bad_event"),
        ({"type": "no.such.event"}, "unknown_event"),
        ({"type": "playback.ack", "played_ms": "x"}, "bad_event"),
        ({"type": "session.event_ack", "server_event_seq": -4}, "invalid_event_ack"),
    ]
    async with dial("/v1/realtime?duplex=1&model=scripted") as peer:
        await peer.next()
        for number, (event, _) in enumerate(bad):
            await peer.send({**event, "event_id": f"evt_{number}"})
        await peer.send("no json at all")
        await peer.send('{"type": "session.update", "event_id": "evt_x", "session": {"temperature": 1e999}}')
        await peer.send({"type": "session.heartbeat"})
        errors = []
        while (event := await peer.next())["type"] != "session.heartbeat_ack":
            if event["type"] == "error":
                errors.append((event["error"]["code"], event["error"].get("event_id")))
        assert errors[:-2] == [(code, f"evt_{number}") for number, (_, code) in enumerate(bad)]
        assert errors[-2][0] == "invalid_json"
        assert errors[-1] == ("bad_event", "evt_x")


async def test_an_oversized_event_is_refused_and_the_socket_stays(dial: Dial) -> None:
    async with dial("/v1/realtime?duplex=1&model=scripted") as peer:
        await peer.next()
        await peer.send('{"type": "session.heartbeat", "pad": "' + "x" * (15 * 1024 * 1024) + '"}')
        assert (await peer.until("error"))["error"]["code"] == "event_too_large"
        await peer.send({"type": "session.heartbeat"})
        await peer.until("session.heartbeat_ack")
