"""Clients that send much at once, over real sockets: nothing good is refused, the end is told (contract 16.3, 24a)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pybase64
import pytest
import trio
from wsproto.events import CloseConnection

from tests.server.server_kit import RawClient, masked_frame, raw_client
from trio_duplex.client import build_realtime_url
from trio_duplex.config import Deployment, LimitSettings
from trio_duplex.server.connection import MAX_REFUSALS_IN_A_ROW
from trio_duplex.server.serve import serve
from trio_duplex.testing import ScriptedOptions, ScriptedPlugin

CHUNK_MS = 20
MORE_THAN_MAY_WAIT = {"input_audio_buffer.append": 6_000, "session.heartbeat": 1_500, "session.event_ack": 1_500}
"""The mailbox holds 4096 events with data and 1024 others; an input budget of 300 s would let all of it pass."""

Json = dict[str, Any]


def event_of(kind: str) -> bytes:
    fields: Json = {}
    if kind == "input_audio_buffer.append":
        fields["audio"] = pybase64.b64encode(bytes(CHUNK_MS * 32)).decode()
    elif kind == "session.event_ack":
        fields["server_event_seq"] = 1
    return masked_frame(json.dumps({"type": kind, **fields}).encode())


@asynccontextmanager
async def conversation(nursery: trio.Nursery, limits: LimitSettings | None = None) -> AsyncIterator[RawClient]:
    deployment = Deployment(model="demo", limits=limits or LimitSettings())
    bound = await nursery.start(partial(serve, deployment, plugin=ScriptedPlugin(ScriptedOptions())))
    path = build_realtime_url(bound.ws_url, "scripted", autostart=False).removeprefix(bound.ws_url)
    async with raw_client(bound, path) as client:
        session = {"model": "scripted", "turn_detection": None, "extra_body": {"auto_response": True}}
        await client.send_text(json.dumps({"type": "session.update", "session": session}))
        assert json.loads(await client.next_text())["type"] == "session.created"
        yield client


async def read_all(client: RawClient, events: list[Json]) -> CloseConnection | None:
    """Read to the Close frame (returned) or to the end of TCP without one (None)."""
    parts: list[str] = []
    while True:
        event = await client.next_event()
        if event is None or isinstance(event, CloseConnection):
            return event
        parts.append(event.data)  # type: ignore[attr-defined]
        if event.message_finished:  # type: ignore[attr-defined]
            events.append(json.loads("".join(parts)))
            parts.clear()


@pytest.mark.parametrize("kind", MORE_THAN_MAY_WAIT)
async def test_a_burst_that_the_session_can_follow_is_not_refused(nursery: trio.Nursery, kind: str) -> None:
    """The socket is not read faster than the session takes what comes."""
    events: list[Json] = []
    with trio.fail_after(30):
        async with conversation(nursery) as client, trio.open_nursery() as reading:
            reading.start_soon(read_all, client, events)
            await client.stream.send_all(event_of(kind) * MORE_THAN_MAY_WAIT[kind])
            await client.stream.send_all(event_of("session.heartbeat"))
            await client.stream.send_all(event_of("session.close"))
    assert Counter(e["error"]["code"] for e in events if e["type"] == "error") == {}
    assert events[-1]["type"] == "session.closed"
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("again", range(3))
async def test_a_client_that_is_refused_too_often_is_told_so_by_a_close_frame(
    nursery: trio.Nursery, again: int
) -> None:
    events: list[Json] = []
    limits = LimitSettings(max_input_speed=0.001, input_burst_s=CHUNK_MS / 1000)
    with trio.fail_after(10):
        async with conversation(nursery, limits) as client:
            await client.stream.send_all(event_of("input_audio_buffer.append") * (MAX_REFUSALS_IN_A_ROW + 50))
            close = await read_all(client, events)
    assert close is not None
    assert (close.code, close.reason) == (1008, "input_backpressure")
    nursery.cancel_scope.cancel()
