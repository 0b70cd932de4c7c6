"""``GET /metrics`` over a real socket: what it counts, who may read it, and that it keeps no client's words."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pybase64
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.server.server_kit import RawClient, raw_client
from trio_duplex.config import AuthSettings, Deployment
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.metrics import LATENESS_BOUNDS_S, LoopLateness
from trio_duplex.server.serve import serve
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin, silence, speech

KEY = "tdx-0123456789abcdef"
PATH = "/v1/realtime?duplex=1"
OPTIONS = ScriptedOptions(script=lambda _: [Piece("hi", 20)], lateness_ms=(-40.0, 5.5))
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEYS", KEY)


@asynccontextmanager
async def served(
    settings: SessionSettings | None = None, *, keys: bool = False, plugin: ModelPlugin | None = None
) -> AsyncIterator[BoundAddress]:
    auth = AuthSettings(keys_env="TEST_KEYS") if keys else AuthSettings()
    deployment = Deployment("scripted", duplex_session=settings or SessionSettings(), auth=auth)
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 30
        bound = await nursery.start(partial(serve, deployment, plugin=plugin or ScriptedPlugin(OPTIONS)))
        yield bound
        nursery.cancel_scope.cancel()


async def scrape(bound: BoundAddress, key: str | None = None) -> Samples:
    """Every sample by (name, label values in the order of their names)."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient() as http:
        reply = await http.get(f"http://{bound.host}:{bound.port}/metrics", headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def send(client: RawClient, **event: Any) -> int:
    text = orjson.dumps(event).decode()
    await client.send_text(text)
    return len(text.encode())


async def until(client: RawClient, kind: str) -> tuple[dict[str, Any], int]:
    """The next event of a kind, and the bytes read up to it."""
    size = 0
    while True:
        text = await client.next_text()
        size += len(text.encode())
        event: dict[str, Any] = orjson.loads(text)
        if event["type"] == kind:
            return event, size


def append(pcm: bytes) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(pcm).decode()}


async def test_a_conversation_is_counted() -> None:
    async with served(SessionSettings(max_sessions=1)) as bound:
        before = await scrape(bound)
        assert before["trio_duplex_ready", ()] == before["trio_duplex_healthy", ()] == 1
        assert before["trio_duplex_sessions_limit", ()] == 1
        assert before["trio_duplex_sessions", ("attached",)] == before["trio_duplex_sessions_opened_total", ()] == 0
        async with raw_client(bound, PATH) as client:
            sent = await send(client, type="session.update", session={"extra_body": {"auto_response": True}})
            _, read = await until(client, "session.updated")
            sent += await send(client, **append(speech(320)))
            sent += await send(client, **append(silence(640)))
            _, more = await until(client, "rate_limits.updated")
            read += more
            sent += await send(client, type="nonsense", words="ä")
            error, more = await until(client, "error")
            read += more
            async with raw_client(bound, PATH) as other:  # one too many
                sent += await send(other, type="session.update", session={})
                refusal, more = await until(other, "error")
                read += more
                assert refusal["error"]["code"] == "duplex_session_busy"
            live = await scrape(bound)
            assert live["trio_duplex_sessions", ("attached",)] == 1
            sent += await send(client, type="session.close")
            closed, more = await until(client, "session.closed")
            read += more
        after = await scrape(bound)
        looked = after
        with trio.fail_after(5):
            while looked["trio_duplex_event_loop_lateness_seconds_count", ()] == 0:  # looked at once in a while
                looked = await scrape(bound)
    assert live["trio_duplex_sessions_opened_total", ()] == 1
    assert live["trio_duplex_responses_total", ("completed",)] == 1
    assert live["trio_duplex_errors_total", (error["error"]["code"],)] == 1
    assert live["trio_duplex_openings_refused_total", ("duplex_session_busy",)] == 1
    assert live["trio_duplex_deadline_units_total", ()] == closed["deadlines"]["units"] == 9
    assert live["trio_duplex_deadline_misses_total", ()] == closed["deadlines"]["missed"] == 4
    assert after["trio_duplex_deadline_misses_total", ()] == 4
    assert after["trio_duplex_sessions", ("attached",)] == after["trio_duplex_sessions", ("closing",)] == 0
    assert after["trio_duplex_sessions_ended_total", ("session_close",)] == 1
    assert after["trio_duplex_received_bytes_total", ()] == sent
    assert after["trio_duplex_sent_bytes_total", ()] == read
    assert after["process_resident_memory_bytes", ()] > 1e6


async def test_resume_and_overflow_are_counted() -> None:
    settings = SessionSettings(resume_replay_max_bytes_per_session=2_000)
    async with served(settings) as bound:
        async with raw_client(bound, PATH) as client:
            await send(client, type="session.update", session={})
            created, _ = await until(client, "session.created")
            await send(client, type="session.heartbeat")
            await until(client, "session.resync_required")
        names = {"session_id": created["session"]["id"], "incarnation": 0}
        for token in ("wrong", created["resume_token"]):
            async with raw_client(bound, PATH + "&resume=1") as client:
                await send(client, type="session.resume", resume_token=token, **names)
                await client.next_text()
        counted = await scrape(bound)
    assert counted["trio_duplex_journal_overflows_total", ()] == 1
    assert counted["trio_duplex_resumes_total", ("invalid_resume_token",)] == 1
    assert counted["trio_duplex_resumes_total", ("journal_gap",)] == 1
    assert counted["trio_duplex_sessions", ("detached",)] == 1


async def test_it_asks_for_a_key_where_sessions_do() -> None:
    async with served(keys=True) as bound:
        async with httpx.AsyncClient() as http:
            reply = await http.get(f"http://{bound.host}:{bound.port}/metrics")
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "missing_api_key")
        counted = await scrape(bound, KEY)
    assert counted["trio_duplex_openings_refused_total", ("missing_api_key",)] == 1


async def test_no_label_holds_what_a_client_chose() -> None:
    """A thousand names of sessions, models and events make no new time series."""
    async with served() as bound:
        async with raw_client(bound, PATH) as client:
            await send(client, type="session.update", session={"session_id": "chosen_by_me"})
            await until(client, "session.updated")
            await send(client, type="chosen_by_me_too")
            await until(client, "error")
            await send(client, type="session.close", reason="chosen_by_me_as_well")
            await until(client, "session.closed")
        async with raw_client(bound, "/v1/realtime?model=chosen_by_me") as client:
            await client.next_text()
        counted = await scrape(bound)
    assert not [key for key in counted if "chosen" in str(key)]


async def test_two_hubs_in_one_process_count_for_themselves() -> None:
    async with served() as one, served() as other, raw_client(one, PATH) as client:
        await send(client, type="session.update", session={})
        await until(client, "session.updated")
        first, second = await scrape(one), await scrape(other)
    assert first["trio_duplex_sessions_opened_total", ()] == 1
    assert second["trio_duplex_sessions_opened_total", ()] == 0


async def test_model_threads_are_shown() -> None:
    """The demo model's detector on its real thread, with stand-ins for the networks."""
    from tests.models.test_demo_threads import StandIns
    from trio_duplex.models.demo import DemoOptions, DemoPlugin
    from trio_duplex.models.demo.threads import ThreadEngine

    plugin = DemoPlugin(engine=ThreadEngine(DemoOptions(), max_sessions=2, networks=StandIns()))
    async with served(plugin=plugin) as bound, raw_client(bound, PATH) as client:
        await send(client, type="session.update", session={})
        await until(client, "session.updated")
        await send(client, **append(silence(288)))
        for _ in range(3):  # decisions, one for each unit of three frames
            await until(client, "response.listen")
        counted = await scrape(bound)
    assert counted["trio_duplex_model_thread_alive", ("vad",)] == 1
    assert 1 <= counted["trio_duplex_model_steps_total", ("vad",)] <= 9
    assert counted["trio_duplex_model_step_seconds_total", ("vad",)] > 0
    assert counted["trio_duplex_model_step_recent_seconds", ("0.99", "vad")] > 0
    assert counted["trio_duplex_model_row_lateness_recent_seconds", ("1", "vad")] > -0.02
    assert counted["trio_duplex_model_failed_rows_total", ("vad",)] == 0
    assert counted["trio_duplex_model_rows_total", ("vad",)] == 9
    assert counted["trio_duplex_deadline_units_total", ()] == 9


def test_lateness_falls_into_its_bucket() -> None:
    lateness = LoopLateness()
    for seconds in (0.0, 0.001, 0.0011, 5.0):
        lateness.add(seconds)
    values = {s.labels.get("le"): s.value for s in lateness.metric().samples if s.name.endswith("_bucket")}
    assert len(values) == len(LATENESS_BOUNDS_S) + 1
    assert (values["0.001"], values["0.0025"], values["1.0"], values["+Inf"]) == (2, 3, 3, 4)


async def test_the_page_names_every_metric_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("## Metrics")[2].partition("## Deadlines")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    async with served() as bound, httpx.AsyncClient() as http:
        reply = await http.get(f"http://{bound.host}:{bound.port}/metrics")
    typed = dict(re.findall(r"# TYPE trio_duplex_(\w+) (\w+)", reply.text))
    assert named == set(typed)
