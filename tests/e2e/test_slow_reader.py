"""The epoch promise with a client that reads slower than the answer is made (case C3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pybase64
import pytest
import trio

from tests.server.server_kit import RawClient, raw_client
from trio_duplex.client import build_realtime_url
from trio_duplex.config import Deployment
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.serve import serve
from trio_duplex.showcase.event_log import EventLog
from trio_duplex.showcase.facts import answers
from trio_duplex.showcase.promises import Record, numbers_are_gapless, silence_after_the_terminal, transcripts_join
from trio_duplex.showcase.recordings import FIRST, SECOND, Recording, bundled
from trio_duplex.testing import Hang, Piece, ScriptedOptions, ScriptedPlugin

SIP_BYTES = 2_048
CHUNK_MS = 32


def path_of(bound: BoundAddress, model: str) -> str:
    return build_realtime_url(bound.ws_url, model, autostart=False).removeprefix(bound.ws_url)


async def send(client: RawClient, event: dict[str, Any]) -> None:
    await client.send_text(json.dumps(event))


async def speak(client: RawClient, recording: Recording, *, silence_ms: int, realtime: bool) -> None:
    """Stream a recording and the silence behind it."""
    samples = recording.samples.tobytes() + bytes(silence_ms * recording.rate_hz * 2 // 1000)
    size = recording.rate_hz * 2 * CHUNK_MS // 1000
    begun = trio.current_time()
    for number, start in enumerate(range(0, len(samples), size), 1):
        audio = pybase64.b64encode(samples[start : start + size]).decode()
        await send(client, {"type": "input_audio_buffer.append", "audio": audio})
        if realtime:
            await trio.sleep_until(begun + number * CHUNK_MS / 1000)


class SlowReader:
    """Reads at most ``SIP_BYTES`` per ``pause_s`` from the socket, until ``pause_s`` is set to 0."""

    def __init__(self, client: RawClient, log: EventLog, pause_s: float) -> None:
        self.client, self.log, self.pause_s = client, log, pause_s

    async def run(self) -> None:
        parts: list[str] = []
        while True:
            data = await self.client.stream.receive_some(SIP_BYTES)
            if not data:
                return
            self.client.ws.receive_data(data)
            for event in self.client.ws.events():
                parts.append(getattr(event, "data", ""))
                if getattr(event, "message_finished", False):
                    self.log.add("server", json.loads("".join(parts)))
                    parts = []
            await trio.sleep(self.pause_s)


async def interrupt_a_slow_reader(bound: BoundAddress, model: str, *, realtime: bool, pause_s: float) -> EventLog:
    """Ask, read slowly, interrupt while much is still unread, then read all the rest."""
    log = EventLog()

    def is_done(entry: Any) -> bool:
        return entry.type == "response.done"

    with trio.fail_after(90):
        async with (
            raw_client(bound, path_of(bound, model), receive_buffer=4096) as client,
            trio.open_nursery() as nursery,
        ):
            assert client.status == 101
            session = {"model": model, "extra_body": {"auto_response": True}, "turn_detection": None}
            await send(client, {"type": "session.update", "session": session})
            reader = SlowReader(client, log, pause_s)
            nursery.start_soon(reader.run)
            await speak(client, bundled(FIRST), silence_ms=1_000, realtime=realtime)
            await log.expect(lambda e: e.type == "response.output_audio.delta", what="audio", within_s=60)
            await speak(client, bundled(SECOND), silence_ms=1_000, realtime=realtime)
            reader.pause_s = 0.0
            first = await log.expect(is_done, what="the first terminal", within_s=60)
            await log.expect(is_done, what="the second terminal", within_s=60, after=log.entries.index(first) + 1)
            await send(client, {"type": "session.close"})
            await log.expect(lambda e: e.type == "session.closed", what="session.closed", within_s=10)
            nursery.cancel_scope.cancel()
    return log


def check(log: EventLog) -> None:
    record = Record(log, answers(log))
    first, second = record.answers
    assert (first.status, second.status) == ("cancelled", "completed")
    for promise in (silence_after_the_terminal, numbers_are_gapless, transcripts_join):
        assert list(promise(record)) == []
    # Otherwise nothing was waiting in the server, and the test would prove nothing.
    generated_ms = first.dones[0].event["response"]["metadata"]["playback"]["generated_ms"]
    assert 0 < first.audio_ms < generated_ms


@pytest.fixture
def start(nursery: trio.Nursery) -> Callable[..., Any]:
    async def start_server(**arguments: Any) -> BoundAddress:
        return await nursery.start(partial(serve, Deployment(model="demo"), **arguments))

    return start_server


async def test_an_answer_made_all_at_once_is_cut_where_the_reader_was(start: Callable[..., Any]) -> None:
    """60 s of answer are made within a moment; the reader has had a part of it when the user interrupts."""
    pieces: list[Piece | Hang] = [*(Piece(f"word{number} ", ms=1_000) for number in range(60)), Hang()]

    def script(request: Any) -> list[Piece | Hang]:
        return pieces if request.epoch == 0 else [Piece("yes.", ms=200)]

    options = ScriptedOptions(script=script, unpaced=True, silence_ms=480, period_ms=96)
    bound = await start(plugin=ScriptedPlugin(options))
    log = await interrupt_a_slow_reader(bound, "scripted", realtime=False, pause_s=0.02)
    check(log)


@pytest.mark.speech
@pytest.mark.slow
async def test_the_demo_model_with_a_slow_reader(start: Callable[..., Any]) -> None:
    bound = await start()
    log = await interrupt_a_slow_reader(bound, "demo", realtime=True, pause_s=0.05)
    check(log)
