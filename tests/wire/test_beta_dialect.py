"""Beta clients get one clear error event and a close, never silence (contract 25, environment 8)."""

from __future__ import annotations

import pytest
import trio

from tests.wire.stack import open_stack


@pytest.mark.parametrize(
    ("headers", "offered"),
    [
        ({"openai-beta": "realtime=v1"}, ("realtime",)),
        ({"openai-beta": "assistants=v2, realtime=v1"}, ()),
        ({}, ("realtime", "openai-insecure-api-key.x", "openai-beta.realtime-v1")),
    ],
)
@pytest.mark.parametrize("query", [{"model": "scripted"}, {"duplex": "1"}, {}])
async def test_a_beta_client_is_refused_once_and_closed(
    headers: dict[str, str], offered: tuple[str, ...], query: dict[str, str], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_stack() as stack:
        stack.headers, stack.offered = headers, offered
        wire = await stack.connect(**query)
        gone = await wire.over()
        (event,) = wire.events
        assert event["type"] == "error"
        assert event["event_id"].startswith("event_")
        assert event["error"]["type"] == "invalid_request_error"
        assert event["error"]["code"] == "beta_api_shape_disabled"
        assert gone.code == 1000
        assert stack.hub.statistics().opened == 0


async def test_other_headers_and_protocols_are_no_beta(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        stack.headers = {"openai-beta": "assistants=v2"}
        stack.offered = ("realtime", "openai-insecure-api-key.x")
        wire = await stack.connect(model="scripted")
        await wire.until("session.created")
