"""The real command ends in bounded time whatever its clients do (cases H3, G6; contract 1.1)."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from typing import Any

import pytest
import trio
from wsproto.events import CloseConnection, TextMessage
from wsproto.utilities import LocalProtocolError

from tests.e2e.served import START_S, Server
from tests.e2e.test_slow_reader import path_of, send, speak
from tests.server.server_kit import RawClient, raw_client
from trio_duplex.showcase.recordings import FIRST, bundled

pytestmark = pytest.mark.speech


async def open_session(client: RawClient) -> None:
    session = {"model": "demo", "extra_body": {"auto_response": True}, "turn_detection": None}
    await send(client, {"type": "session.update", "session": session})


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_a_signal_ends_it_with_a_talking_and_a_never_reading_client(
    server: Server, number: signal.Signals
) -> None:
    bound = await server.ready()
    path = path_of(bound, "demo")
    async with (
        raw_client(bound, path, receive_buffer=4096) as deaf,
        raw_client(bound, path) as talker,
        trio.open_nursery() as nursery,
    ):

        async def talk(client: RawClient) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, LocalProtocolError):
                while True:
                    await speak(client, bundled(FIRST), silence_ms=20_000, realtime=True)

        for client in (deaf, talker):
            await open_session(client)
            nursery.start_soon(talk, client)
        # In the middle of an answer, so that there is something to interrupt, and unread audio for the deaf one.
        with trio.fail_after(60):
            while json.loads(await talker.next_text())["type"] != "response.output_audio.delta":
                pass
            last: dict[str, Any] = {}
            took: list[float] = []

            async def stop() -> None:
                took.append(await server.stops(number))

            nursery.start_soon(stop)
            types = []
            while isinstance(event := await talker.next_event(), TextMessage):
                last = json.loads(event.data)
                types.append(last["type"])
            assert isinstance(event, CloseConnection)
            assert event.code == 1001
            assert (last["type"], last["reason"]) == ("session.closed", "server_shutdown")
            assert types.count("response.done") == 1
            await server.process.wait()
            nursery.cancel_scope.cancel()
    assert server.printed.count("\n") == 1
    assert "trio-duplex talk --url" in server.printed


async def test_a_signal_while_it_loads_ends_it_too(server: Server) -> None:
    # No output tells that loading has begun; whatever the moment, the end must be orderly or the default one.
    assert server.process.poll() is None
    with trio.fail_after(START_S):
        await wait_for_handlers(server.process.pid)
    await server.stops(signal.SIGTERM)
    assert server.printed == ""


async def wait_for_handlers(pid: int) -> None:
    """Until the process catches SIGTERM (Linux tells that)."""
    status = trio.Path(f"/proc/{pid}/status")
    if not await status.exists():
        pytest.skip("needs /proc")
    while True:
        caught = next(line for line in (await status.read_text()).splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        await trio.sleep(0.02)
