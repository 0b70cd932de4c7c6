"""PersonaPlex over a real socket through ``deploy/personaplex.yaml``, on the CPU, a tiny checkpoint in the real layout.

The tiny network is random: it babbles from its first frame, so an answer opens at once and ends only when it is cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import numpy as np
import pybase64
import pytest
import torch
import trio
import yaml

from duplex_gpu.personaplex.loading import LoadOptions, Report, load_unit
from duplex_gpu.personaplex.random_checkpoint import TINY, tiny_text_model, write_checkpoint
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.personaplex.unit_rows import UnitOutput
from trio_duplex.client import DuplexClient, DuplexProtocolError
from trio_duplex.client.presets.personaplex import create_duplex_session_config
from trio_duplex.config import Deployment, load_deployment, structure
from trio_duplex.models.personaplex import PersonaPlexOptions, PersonaPlexPlugin
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.serve import serve
from trio_duplex.session.settings import SessionSettings

DEPLOY = Path(__file__).parents[2] / "deploy" / "personaplex.yaml"
MODEL = "nvidia/personaplex-7b-v1"
UNIT_BYTES = 1920 * 4
WITHIN_S = 60


@attrs.define(eq=False)
class Running:
    bound: BoundAddress
    plugin: PersonaPlexPlugin


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout, tiny; a window of 16 s, so that a slow machine does not matter."""
    folder: Path = tmp_path_factory.mktemp("personaplex")
    config = attrs.evolve(TINY, lm=attrs.evolve(TINY.lm, context=200))
    text = tiny_text_model(TINY.lm.text_vocab)
    write_checkpoint(folder, config, text_model=text, voices=("NATF2", "VARM0"))
    return folder


def deployed(checkpoint: Path, **options: Any) -> Deployment:
    """The repository's deploy file with another path; ``options`` where a test needs more than that."""
    deployment = load_deployment(DEPLOY)
    return attrs.evolve(deployment, options={**deployment.options, "checkpoint": str(checkpoint), **options})


def speech(units: int, seed: int = 0) -> bytes:
    """Noise, float32 at 24 kHz."""
    return np.random.default_rng(seed).normal(0, 0.1, 1920 * units).astype("<f4").tobytes()


def talk(bound: BoundAddress, voice: str = "NATF2.pt", persona: str = "You enjoy a good talk.") -> DuplexClient:
    return DuplexClient(bound.ws_url, model=MODEL, config=create_duplex_session_config(voice, persona))


@attrs.define(eq=False)
class Log:
    """Everything that came since the session opened."""

    events: list[dict[str, Any]] = attrs.field(factory=list)
    _news: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, client: DuplexClient, task_status: trio.TaskStatus[None]) -> None:
        events = client.events()
        task_status.started()
        async for event in events:
            self.events.append(event.raw)
            self._news.set()
            self._news = trio.Event()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The event number ``count`` of that type."""
        while len(self.of(kind)) < count:
            await self._news.wait()
        return self.of(kind)[count - 1]


async def test_a_conversation_through_the_deploy_file(checkpoint: Path, nursery: trio.Nursery) -> None:
    bound = await nursery.start(partial(serve, deployed(checkpoint)))
    log = Log()
    with trio.fail_after(WITHIN_S):
        async with talk(bound, "VARM0.pt") as client:
            session = client.session_info
            assert session["voice"] == "VARM0.pt"
            assert session["instructions"] == "You enjoy a good talk."
            assert session["capabilities"]["supports_barge_in"] is False
            assert session["capabilities"]["supports_session_resume"] is False
            assert session["capabilities"]["chunk_period_ms"] == 80
            await nursery.start(log.read, client)
            await client.stream_pcm(speech(6), chunk_ms=80)
            spoke = await log.until("response.speak")
            response_id = spoke["response_id"]
            delta = await log.until("response.output_audio.delta", 3)
            assert delta["response_id"] == response_id
            words = await log.until("response.output_audio_transcript.delta")
            assert words["response_id"] == response_id
            await client.cancel_response()
            done = await log.until("response.done")
            assert done["response"]["id"] == response_id
            assert done["response"]["status"] == "cancelled"
            # It babbles on, but nobody hears it; it listens on, although nobody sends anything.
            told = len(log.of("response.listen"))
            deltas = len(log.of("response.output_audio.delta"))
            listening = await log.until("response.listen", told + 3)
            assert listening["response"]["metadata"]["reason"] == "model_listen"
            assert listening["epoch"] == 1
            assert len(log.of("response.output_audio.delta")) == deltas
        assert not log.of("error")
        for sound in log.of("response.output_audio.delta"):
            samples = np.frombuffer(pybase64.b64decode(sound["delta"]), "<i2")
            assert len(samples) == 1920
            assert np.abs(samples).max() > 100
        async with httpx.AsyncClient() as http:
            health = (await http.get(f"{bound.url}/health")).json()
    assert health["open_sessions"] == 0
    assert health["replicas"][0]["sessions"] == 0
    assert health["replicas"][0]["thread"]["rows"] >= 9


async def test_prompts_that_cannot_be(running: Running) -> None:
    cases = [
        ("NATF9.pt", "", "voice", "bundled voice"),
        ("../NATF2.pt", "", "voice", "bundled voice"),
        ("NATM1.pt", "", "voice", "NATF2, VARM0"),  # published, but not in this checkpoint
        ("NATF2.pt", "word " * 300, "instructions", "columns"),
        ("NATF2.pt", "x" * 1_000_000, "instructions", "does not fit"),
    ]
    for voice, persona, param, says in cases:
        with trio.fail_after(WITHIN_S), pytest.raises(DuplexProtocolError, match=says) as refusal:
            async with talk(running.bound, voice, persona):
                pass
        assert refusal.value.code == "invalid_duplex_runtime_config"
        assert refusal.value.raw["error"]["param"] == param
    assert running.plugin.replicas[0].sessions == 0


async def test_other_input_formats_and_later_changes_are_refused(running: Running) -> None:
    with trio.fail_after(WITHIN_S):
        async with talk(running.bound) as client:
            audio = pybase64.b64encode(bytes(2560)).decode()
            fields = {"format": "pcm16", "sample_rate_hz": 16_000}
            await client.send({"type": "input_audio_buffer.append", "audio": audio, **fields})
            assert await error_code(client) == "bad_event"
            await client.send({"type": "session.update", "session": {"instructions": "another"}})
            assert await error_code(client) == "persona_update_unsupported"
            await client.send({"type": "session.update", "session": {"voice": "VARM0.pt"}})
            assert await error_code(client) in ("voice_update_unsupported", "voice_update_after_audio_unsupported")


async def error_code(client: DuplexClient) -> str:
    event = await client.wait_for("error", timeout_s=WITHIN_S)
    return str(event.raw["error"]["code"])


# --- two sessions and more --------------------------------------------------------------------------------------------


def loader(checkpoint: Path, breaks_above: float | None = None) -> Callable[[LoadOptions, Report], PersonaPlexUnit]:
    """The real loader; a frame louder than ``breaks_above`` gives its row's context a value that is no number."""

    def load(options: LoadOptions, report: Report) -> PersonaPlexUnit:
        unit = load_unit(checkpoint, options, report)
        if breaks_above is None:
            return unit
        run = unit.run

        def poisoned(rows: Any) -> list[UnitOutput]:
            for slot, payload in rows:
                if isinstance(payload, np.ndarray) and np.abs(payload).max() > breaks_above:
                    page = int(unit.engine.kv.table(slot)[0])
                    unit.engine.kv.v[:, page] = torch.nan
            return run(rows)

        unit.run = poisoned  # type: ignore[method-assign]
        return unit

    return load


@pytest.fixture
async def running(checkpoint: Path, nursery: trio.Nursery) -> Running:
    """A server for two sessions; however slow this machine is, time is no reason to refuse one."""
    options: PersonaPlexOptions = structure(
        {**deployed(checkpoint).options, "max_step_share": 1000.0}, PersonaPlexOptions, where="options"
    )
    plugin = PersonaPlexPlugin(options, max_sessions=2, load=loader(checkpoint, breaks_above=0.9))
    deployment = Deployment(model="personaplex", duplex_session=SessionSettings(max_sessions="auto"))
    bound = await nursery.start(partial(serve, deployment, plugin=plugin))
    return Running(bound, plugin)


async def test_a_broken_row_ends_its_session_only(running: Running, nursery: trio.Nursery) -> None:
    log, well = Log(), Log()
    with trio.fail_after(WITHIN_S):
        async with talk(running.bound) as healthy, talk(running.bound) as broken:
            await nursery.start(well.read, healthy)
            await nursery.start(log.read, broken)
            await broken.append_audio(np.ones(1920, "<f4").tobytes())
            closed = await log.until("session.closed")
            assert closed["reason"] == "engine_error"
            assert [event["error"]["code"] for event in log.of("error")] == ["engine_error"]
            before = len(well.of("response.output_audio.delta"))
            await healthy.stream_pcm(speech(3), chunk_ms=80)
            await well.until("response.output_audio.delta", before + 3)
            # The place is free and clean again.
            newcomer = Log()
            async with talk(running.bound) as client:
                await nursery.start(newcomer.read, client)
                await newcomer.until("response.output_audio.delta", 3)
                assert not newcomer.of("error")
    assert not well.of("error")


async def test_a_third_session_is_refused_at_once_and_comes_in_when_one_leaves(running: Running) -> None:
    with trio.fail_after(WITHIN_S):
        async with talk(running.bound):
            async with talk(running.bound):
                with pytest.raises(DuplexProtocolError, match="places") as refusal:
                    async with talk(running.bound):
                        pass
                assert refusal.value.code == "resource_exhausted"
            async with talk(running.bound):
                assert running.plugin.replicas[0].sessions == 2


async def test_the_model_thread_dies(running: Running, nursery: trio.Nursery) -> None:
    """Everybody is told, and the server says that it is unwell."""
    log = Log()
    with trio.fail_after(WITHIN_S):
        async with talk(running.bound) as client, httpx.AsyncClient() as http:
            await nursery.start(log.read, client)
            running.plugin.replicas[0].unit.run = lambda rows: []  # type: ignore[method-assign]
            closed = await log.until("session.closed")
            assert closed["reason"] == "engine_error"
            assert "engine_error" in {event["error"]["code"] for event in log.of("error")}
            while (await http.get(f"{running.bound.url}/health")).status_code != 503:
                await trio.lowlevel.checkpoint()
            with pytest.raises(DuplexProtocolError, match="died"):
                async with talk(running.bound):
                    pass


@pytest.mark.slow
async def test_the_model_thread_gets_stuck(checkpoint: Path, nursery: trio.Nursery) -> None:
    """A step that never ends ends the sessions, and nobody else is let in."""
    log, free = Log(), threading.Event()
    plugin = PersonaPlexPlugin(
        PersonaPlexOptions(checkpoint=checkpoint, devices=("cpu",), stuck_after_s=1.5), max_sessions=2
    )
    bound = await nursery.start(partial(serve, Deployment(model="personaplex"), plugin=plugin))
    try:
        with trio.fail_after(WITHIN_S):
            async with talk(bound) as client:
                await nursery.start(log.read, client)
                plugin.replicas[0].unit.run = lambda rows: [free.wait() for _ in rows]  # type: ignore[method-assign]
                closed = await log.until("session.closed")
                assert closed["reason"] == "engine_error"
            with pytest.raises(DuplexProtocolError, match="died"):
                async with talk(bound):
                    pass
        assert "stuck" in str(plugin.health().detail)
    finally:
        free.set()


def test_the_deploy_file_shows_every_default() -> None:
    raw = yaml.safe_load(DEPLOY.read_text(encoding="utf-8"))
    assert structure(raw["options"], PersonaPlexOptions, where="options") == PersonaPlexOptions()
    assert raw["options"].keys() == {field.name for field in attrs.fields(PersonaPlexOptions)}
