"""Faults of the model's thread seen through a whole server: real threads, real sockets, the real clock.

Two clients talk; the fault strikes the first one's slot, or both. The table in docs/promises.md is made of these.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pybase64
import pytest
import trio
from wsproto.events import CloseConnection, TextMessage
from wsproto.utilities import LocalProtocolError

from tests.faults.networks import FaultyNetworks, Kind, demo_plugin
from tests.faults.scripted_process import scripted_server
from tests.server.server_kit import RawClient, raw_client
from trio_duplex import serve
from trio_duplex.config import Deployment
from trio_duplex.server.listener import BoundAddress
from trio_duplex.testing import check_history, silence, speech

SOON_S = 8.0


@attrs.define
class Talker:
    """A client that says the same again and again in real time, and keeps what it hears."""

    client: RawClient
    log: list[dict[str, Any]] = attrs.field(factory=list)
    code: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    changed: trio.Event = attrs.field(factory=trio.Event)

    async def read(self) -> None:
        parts = ""
        while isinstance(event := await self.client.next_event(), TextMessage):
            parts += event.data
            if event.message_finished:
                self.log.append(json.loads(parts))
                parts = ""
                self.changed.set()
                self.changed = trio.Event()
        if isinstance(event, CloseConnection):
            self.code = event.code
        self.ended.set()
        self.changed.set()

    async def send(self, event: dict[str, Any]) -> None:
        await self.client.send_text(json.dumps(event))

    async def talk(self) -> None:
        """Until the server ends the connection."""
        try:
            while not self.ended.is_set():
                for make, ms in ((speech, 600), (silence, 1400)):
                    for _ in range(ms // 100):
                        audio = pybase64.b64encode(make(100)).decode()
                        await self.send({"type": "input_audio_buffer.append", "audio": audio})
                        await trio.sleep(0.1)
        except (trio.BrokenResourceError, trio.ClosedResourceError, LocalProtocolError):
            return

    def count(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.log)

    async def until(self, kind: str, count: int = 1) -> None:
        while self.count(kind) < count and not self.ended.is_set():
            await self.changed.wait()
        assert self.count(kind) >= count, f"no {kind} in {[event['type'] for event in self.log]}"

    @property
    def codes(self) -> list[str]:
        return [
            e["error"]["code"] if isinstance(e["error"], dict) else e["code"] for e in self.log if e["type"] == "error"
        ]

    @property
    def reason(self) -> str | None:
        return next((e["reason"] for e in self.log if e["type"] == "session.closed"), None)


@attrs.define
class Stage:
    """A server with two talkers, both in the middle of a conversation."""

    nets: FaultyNetworks
    bound: BoundAddress
    nursery: trio.Nursery
    shutdown: trio.Event
    stopped: trio.Event
    guilty: Talker
    innocent: Talker

    async def health(self) -> int:
        return await health(self.bound)


async def health(bound: BoundAddress) -> int:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{bound.url}/health")).status_code


async def join(nursery: trio.Nursery, bound: BoundAddress) -> Talker:
    """Connect and open a session."""

    async def stay(task_status: trio.TaskStatus[Talker]) -> None:
        async with raw_client(bound, "/v1/realtime?duplex=1") as client:
            talker = Talker(client)
            await talker.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
            task_status.started(talker)
            await talker.read()

    talker: Talker = await nursery.start(stay)
    return talker


@asynccontextmanager
async def stage(nets: FaultyNetworks) -> AsyncIterator[Stage]:
    """Both have had an answer when the block begins."""
    async with trio.open_nursery() as nursery:
        shutdown, stopped = trio.Event(), trio.Event()

        async def run(task_status: trio.TaskStatus[BoundAddress]) -> None:
            await serve(Deployment(model="demo"), plugin=demo_plugin(nets), shutdown=shutdown, task_status=task_status)
            stopped.set()

        try:
            bound: BoundAddress = await nursery.start(run)
            guilty = await join(nursery, bound)
            with trio.fail_after(SOON_S):
                await guilty.until("session.created")
            innocent = await join(nursery, bound)
            for each in (guilty, innocent):
                nursery.start_soon(each.talk)
            with trio.fail_after(SOON_S):
                for each in (guilty, innocent):
                    await each.until("response.done")
            yield Stage(nets, bound, nursery, shutdown, stopped, guilty, innocent)
        finally:
            nets.release.set()
            nursery.cancel_scope.cancel()


@pytest.fixture
def nets() -> FaultyNetworks:
    return FaultyNetworks()


def answers(talker: Talker) -> int:
    return talker.count("response.done")


async def one_more_answer(talker: Talker, count: int = 1) -> None:
    wanted = answers(talker) + count
    with trio.fail_after(SOON_S):
        await talker.until("response.done", wanted)


async def stops(on: Stage, limit_s: float) -> float:
    """Ask for the shutdown; the seconds until everything has ended."""
    begun = trio.current_time()
    on.shutdown.set()
    with trio.fail_after(limit_s):
        await on.stopped.wait()
    return trio.current_time() - begun


def told(name: str, **facts: object) -> None:
    """What was measured; shown by ``pytest -s``."""
    print(f"\nmeasured: {name}: {facts}")


@pytest.mark.parametrize("kind", ["raises", "out of memory"])
async def test_a_step_that_fails_for_one_row_is_told_to_that_session(nets: FaultyNetworks, kind: Kind) -> None:
    """The step fails whenever the guilty row is in it: typed errors there, and it lives; its neighbour talks on."""
    async with stage(nets) as on:
        nets.guilty, nets.fault = frozenset({0}), kind
        await one_more_answer(on.innocent)
        assert await on.health() == 200
        nets.fault = None
        await one_more_answer(on.guilty)
        assert set(on.guilty.codes) == {"server_vad_inference_failed"}
        assert on.innocent.codes == []
        took_s = await stops(on, 8)
        told(kind, errors=len(on.guilty.codes), stop_s=round(took_s, 2))
    for each in (on.guilty, on.innocent):
        assert (each.reason, each.code) == ("server_shutdown", 1001)
        assert check_history(each.log, complete=True) == ()


@pytest.mark.parametrize("kind", ["raises", "out of memory"])
async def test_a_step_that_fails_for_all_is_told_to_all(nets: FaultyNetworks, kind: Kind) -> None:
    async with stage(nets) as on:
        nets.fault = kind
        with trio.fail_after(SOON_S):
            for each in (on.guilty, on.innocent):
                await each.until("error")
        nets.fault = None
        for each in (on.guilty, on.innocent):
            await one_more_answer(each)
            assert set(each.codes) == {"server_vad_inference_failed"}
        await stops(on, 8)
    for each in (on.guilty, on.innocent):
        assert check_history(each.log, complete=True) == ()


@pytest.mark.parametrize("guilty", [frozenset({0}), None], ids=["one", "all"])
async def test_steps_ten_times_late(nets: FaultyNetworks, guilty: frozenset[int] | None) -> None:
    """A batch waits for its slowest row, so all are late; nobody is told a lie or ended, and both recover."""
    async with stage(nets) as on:
        nets.guilty, nets.fault = guilty, "late"
        await trio.sleep(2)
        assert await on.health() == 200
        nets.fault = None
        for each in (on.guilty, on.innocent):
            await one_more_answer(each)
            assert each.codes == []
        await stops(on, 8)
    for each in (on.guilty, on.innocent):
        assert check_history(each.log, complete=True) == ()


async def test_g7_a_slow_step_holds_up_no_page_no_ping_and_no_other_command(nets: FaultyNetworks) -> None:
    """G7: steps of 200 ms, one after the other, on the model's thread; the loop answers as ever."""
    async with stage(nets) as on:
        nets.late_s, nets.fault = 0.2, "late"
        with trio.fail_after(SOON_S):
            assert await trio.to_thread.run_sync(nets.entered.wait, SOON_S)
        waits: list[float] = []
        for _ in range(20):
            begun = trio.current_time()
            acks = on.innocent.count("session.heartbeat_ack")
            await on.innocent.send({"type": "session.heartbeat"})
            with trio.fail_after(SOON_S):
                await on.innocent.until("session.heartbeat_ack", acks + 1)
            waits.append(trio.current_time() - begun)
        begun = trio.current_time()
        assert await on.health() == 200
        waits.sort()
        told("200 ms steps", ack_ms_median=round(1000 * waits[10], 1), ack_ms_max=round(1000 * waits[-1], 1))
        assert waits[10] < 0.1, "the median of twenty answers waited for the step"
        nets.fault = None
        await stops(on, 8)


async def test_g4_nobody_is_let_in_before_the_step_is_warm(nets: FaultyNetworks) -> None:
    """G4: ``/health`` says 503 and ``serve`` does not report until the warm-up has run."""
    nets.warm.clear()
    port = free_port()
    async with trio.open_nursery() as nursery:
        ready = trio.Event()

        async def run() -> None:
            await nursery.start(partial(serve, Deployment(model="demo"), port=port, plugin=demo_plugin(nets)))
            ready.set()

        nursery.start_soon(run)
        bound = BoundAddress("127.0.0.1", port, f"http://127.0.0.1:{port}")
        with trio.fail_after(SOON_S):
            while True:
                with suppress(httpx.ConnectError):
                    assert await health(bound) == 503
                    break
                await trio.sleep(0.02)
            assert not ready.is_set()
            nets.warm.set()
            await ready.wait()
            assert await health(bound) == 200
        nursery.cancel_scope.cancel()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_row_that_is_not_a_number_leaves_the_neighbour_alone(nets: FaultyNetworks) -> None:
    async with stage(nets) as on:
        nets.guilty, nets.fault = frozenset({0}), "nan"
        before = answers(on.guilty)
        await one_more_answer(on.innocent, 2)
        assert on.innocent.codes == []
        assert set(on.guilty.codes) == {"server_vad_inference_failed"}
        told("nan", guilty_codes=sorted(set(on.guilty.codes)), guilty_answers=answers(on.guilty) - before)
        nets.fault = None
        await one_more_answer(on.guilty)
        await stops(on, 8)
    for each in (on.guilty, on.innocent):
        assert check_history(each.log, complete=True) == ()


@pytest.mark.parametrize("kind", ["dies", "never returns"])
async def test_a_thread_that_is_gone_ends_every_session_with_a_word(nets: FaultyNetworks, kind: Kind) -> None:
    """Typed error and ``session.closed`` for all, health 503, newcomers refused, and the stop is bounded."""
    async with stage(nets) as on:
        begun = trio.current_time()
        nets.guilty, nets.fault = frozenset({0}), kind
        with trio.fail_after(SOON_S):
            for each in (on.guilty, on.innocent):
                await each.ended.wait()
        took_s = trio.current_time() - begun
        for each in (on.guilty, on.innocent):
            assert each.codes == ["runtime_data_plane_stream_failed"]
            assert each.reason == "runtime_data_plane_stream_failed"
            assert each.code == 1000
            assert check_history(each.log, complete=True) == ()
        with trio.fail_after(SOON_S):
            while await on.health() != 503:  # noqa: ASYNC110  (a page can only be asked again)
                await trio.sleep(0.1)
        late = await join(on.nursery, on.bound)
        with trio.fail_after(SOON_S):
            await late.until("error")
        stop_s = await stops(on, 8)
        told(kind, ended_s=round(took_s, 2), newcomer=late.codes, stop_s=round(stop_s, 2))
        assert late.codes[0] in ("resource_exhausted", "runtime_open_failed")


async def test_out_of_memory_for_a_slot_at_open(nets: FaultyNetworks) -> None:
    """A slot that cannot be reset fails its own rows only."""
    async with stage(nets) as on:
        nets.bad_slots = frozenset({2})
        third = await join(on.nursery, on.bound)
        on.nursery.start_soon(third.talk)
        with trio.fail_after(SOON_S):
            await third.until("error")
        await one_more_answer(on.innocent)
        told("out of memory at open", codes=sorted(set(third.codes)), reason=third.reason)
        assert on.guilty.codes == on.innocent.codes == []
        assert set(third.codes) == {"server_vad_inference_failed"}
        await stops(on, 8)


async def test_g6_sigterm_ends_a_process_whose_step_never_returns(tmp_path: Path) -> None:
    async with scripted_server(tmp_path, "stuck") as server, trio.open_nursery() as nursery:
        bound = await server.ready()
        talker = await join(nursery, bound)
        nursery.start_soon(talker.talk)
        with trio.fail_after(SOON_S):
            await talker.ended.wait()
        assert talker.reason == "runtime_data_plane_stream_failed"
        assert await health(bound) == 503
        ended = await server.end(signal.SIGTERM, 10)
        told("SIGTERM with a stuck step", **attrs.asdict(ended))
        assert (ended.status, ended.survivors) == (0, False)
        # onnxruntime writes one file of this name when it is imported, always the same one; nothing of ours.
        assert set(ended.temp_files) <= {".ses"}
        nursery.cancel_scope.cancel()
