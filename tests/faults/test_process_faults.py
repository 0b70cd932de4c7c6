"""Signals to the real command line, idle and loaded (cases G6, H3, D4): status, time, last words, leftovers.

The table in docs/promises.md is made of these outcomes.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pybase64
import pytest
import trio
from wsproto.events import CloseConnection, TextMessage

from tests.faults.scripted_process import scripted_server
from tests.server.server_kit import RawClient, open_tcp, raw_client
from trio_duplex.testing import silence, speech

pytestmark = pytest.mark.realtime

PATH = "/v1/realtime?duplex=1"
TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


@attrs.define
class Heard:
    """What a reading client got: the types of its events, the last event, and how the connection ended."""

    types: list[str] = attrs.field(factory=list)
    last: dict[str, Any] = attrs.field(factory=dict)
    code: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)


async def ask(client: RawClient) -> None:
    """Open a session and say something that is answered."""
    pcm = pybase64.b64encode(speech(320) + silence(640)).decode()
    await client.send_text(json.dumps({"type": "session.update", "session": {"extra_body": {"auto_response": True}}}))
    await client.send_text(json.dumps({"type": "input_audio_buffer.append", "audio": pcm}))


async def read(client: RawClient, heard: Heard, answering: trio.Event) -> None:
    """Read to the end of the connection."""
    parts = ""
    while isinstance(event := await client.next_event(), TextMessage):
        parts += event.data
        if event.message_finished:
            heard.last, parts = json.loads(parts), ""
            heard.types.append(heard.last["type"])
            if heard.types.count("response.output_audio.delta") == 3:
                answering.set()
    if isinstance(event, CloseConnection):
        heard.code = event.code
        with suppress(trio.BrokenResourceError):
            await client.answer_close(event)
    heard.ended.set()


@pytest.mark.parametrize("loaded", [False, True], ids=["idle", "loaded"])
@pytest.mark.parametrize(
    ("number", "status", "limit_s"), [(TERM, 0, 8), (INT, 0, 8), (KILL, -KILL, 2)], ids=["TERM", "INT", "KILL"]
)
async def test_g6_h3_a_signal_ends_the_process_and_leaves_nothing(
    number: signal.Signals, status: int, limit_s: float, loaded: bool, tmp_path: Path
) -> None:
    heard = Heard()
    async with scripted_server(tmp_path) as server, trio.open_nursery() as nursery:
        bound = await server.ready()
        if loaded:
            answering = trio.Event()
            deaf = await nursery.start(hold, bound, 4096)
            talker = await nursery.start(hold, bound, None)
            await ask(deaf)
            await ask(talker)
            nursery.start_soon(read, talker, heard, answering)
            with trio.fail_after(20):
                await answering.wait()
        ended = await server.end(number, limit_s)
        print(f"\n{number.name} {'loaded' if loaded else 'idle'}: {ended}, {heard.code}, {heard.last.get('reason')}")
        if loaded:
            with trio.fail_after(2):
                await heard.ended.wait()
        with pytest.raises(OSError):  # noqa: PT011  (refused: nobody listens)
            await open_tcp(bound)
        nursery.cancel_scope.cancel()
    assert (ended.status, ended.survivors, ended.temp_files) == (status, False, ())
    if loaded and number != KILL:
        assert (heard.last["type"], heard.last["reason"]) == ("session.closed", "server_shutdown")
        assert heard.code == 1001
        assert heard.types.count("response.done") == heard.types.count("response.created") == 1
    elif loaded:
        assert heard.code in (None, 1006)
        assert "session.closed" not in heard.types


async def hold(bound: Any, receive_buffer: int | None, task_status: trio.TaskStatus[RawClient]) -> None:
    """A connection that stays until cancelled."""
    async with raw_client(bound, PATH, receive_buffer=receive_buffer) as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_g6_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """With a client that never reads the first signal takes its time; the second ends the process at once."""
    async with scripted_server(tmp_path) as server, trio.open_nursery() as nursery:
        bound = await server.ready()
        deaf = await nursery.start(hold, bound, 4096)
        await ask(deaf)
        await trio.sleep(0.5)
        server.process.send_signal(TERM)
        await trio.sleep(0.2)
        if server.process.poll() is None:
            ended = await server.end(TERM, 2)
            assert ended.took_s < 1.5
        nursery.cancel_scope.cancel()
