"""The peer's deploy keys of contract 16.2 that concern input, admission and the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from duplex_protocol.errors import RemoteProtocolError
from tests.session.talk import append, quiet, talking
from tests.wire.stack import Stack, Wire, open_stack
from tests.wire.stack import append as wire_append
from trio_duplex.config import DeployError, Deployment, load_deployment
from trio_duplex.hub import Hub
from trio_duplex.models.plugin import OpenRefused, Traits
from trio_duplex.models.registry import build_scorer
from trio_duplex.server.serve import build_hub
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import ScriptedOptions, ScriptedPlugin
from trio_duplex.warmup import FRAME_TIMEOUT_S

NEW = {
    "reaper_interval_s": 2.5,
    "max_pending_appends_per_session": 4,
    "max_pending_output_bytes": 1_000_000,
    "max_pending_output_events": 100,
    "completed_append_cache_size": 16,
    "server_vad_model_path": "vad.jit",
    "warmup_frames": 2,
}


def deploy(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- the file ---------------------------------------------------------------------------------------------------------


def test_every_key_is_read(tmp_path: Path) -> None:
    lines = "".join(f"  {name}: {value}\n" for name, value in NEW.items())
    read = load_deployment(
        deploy(tmp_path, f"model: demo\nsession_mode: duplex\nactive_stream_window: 3\nduplex_session:\n{lines}")
    )
    assert read.active_stream_window == 3
    for name, value in NEW.items():
        found = getattr(read.duplex_session, name)
        assert found == (Path("vad.jit") if name == "server_vad_model_path" else value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("reaper_interval_s: 0", "must be greater than 0"),
        ("max_pending_appends_per_session: 0", "must be greater than 0"),
        ("max_pending_output_bytes: 0", "must be greater than 0"),
        ("max_pending_output_events: -1", "must be greater than 0"),
        ("completed_append_cache_size: 0", "must be greater than 0"),
        ("completed_append_cache_size: 1.5", "whole number"),
        ("warmup_frames: 1.5", "whole number"),
        ("warmup_frames: null", "whole number"),
        ("server_vad_model_path: 5", "expected text"),
    ],
)
def test_wrong_values_are_one_line_that_names_the_key(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError) as caught:
        load_deployment(deploy(tmp_path, f"model: demo\nduplex_session:\n  {line}\n"))
    assert says in str(caught.value)
    assert line.partition(":")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["-1", "0.5", "many"])
def test_a_wrong_window_too(value: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="active_stream_window"):
        load_deployment(deploy(tmp_path, f"model: demo\nactive_stream_window: {value}\n"))


# --- appends that wait ------------------------------------------------------------------------------------------------


async def test_appends_over_the_bound_are_refused_whole(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(settings=SessionSettings(max_pending_appends_per_session=2)) as talk:
        for k in range(4):
            talk.send(append(quiet(100), event_id=f"evt_{k}"))
        talk.send("input_audio_buffer.commit")
        await talk.settled()
        refused = [(e["error"]["code"], e["error"]["event_id"]) for e in talk.reader.of("error")][:2]
        assert refused == [("input_backpressure", "evt_2"), ("input_backpressure", "evt_3")]
        assert talk.model.submitted_ms == 200
        # Room comes back, also after refused appends and dropped ones.
        for _ in range(10):
            talk.send(append(quiet(100)))
            await talk.settled()
        assert talk.model.submitted_ms == 1_200


async def test_without_the_key_only_bytes_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        for _ in range(500):
            talk.send(append(quiet(20)))
        await talk.settled()
        assert talk.model.submitted_ms == 10_000
        assert not talk.reader.of("error")


# --- appends that come again ------------------------------------------------------------------------------------------


async def resumed(stack: Stack, wire: Wire) -> Wire:
    """Lose the socket and come back."""
    (created,) = wire.of("session.created")
    token = ([e["resume_token"] for e in wire.of("session.resumed")] or [created["resume_token"]])[-1]
    wire.socket.drop()
    again = await stack.connect(resume=1)
    await again.send(
        {
            "type": "session.resume",
            "session_id": created["session"]["id"],
            "resume_token": token,
            "incarnation": 0,
            "last_received_server_event_seq": wire.events[-1]["server_event_seq"],
        }
    )
    await again.until("session.resumed")
    return again


async def test_an_append_sent_again_after_a_resume_counts_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack() as stack:
        wire = await stack.duplex()
        await wire.send(wire_append(100, event_id="evt_a"))
        await wire.settled()
        again = await resumed(stack, wire)
        await again.send(wire_append(100, event_id="evt_a"))
        await again.settled()
        assert stack.model.submitted_ms == 100
        # Once: a third one is meant, and so is other audio under the same id, and an append without an id.
        await again.send(wire_append(100, event_id="evt_a"))
        await again.send(wire_append(60, event_id="evt_a"))
        await again.send(wire_append(100))
        await again.settled()
        assert stack.model.submitted_ms == 360
        assert not again.of("error")


async def test_within_one_visit_everything_is_meant(autojump_clock: trio.testing.MockClock) -> None:
    """A client that gives all its events one id loses nothing."""
    async with open_stack() as stack:
        wire = await stack.duplex()
        for _ in range(5):
            await wire.send(wire_append(100, event_id="same"))
        await wire.settled()
        assert stack.model.submitted_ms == 500


async def test_only_so_many_are_remembered(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(settings=SessionSettings(completed_append_cache_size=2)) as stack:
        wire = await stack.duplex()
        for k in range(3):
            await wire.send(wire_append(100, event_id=f"evt_{k}"))
        await wire.settled()
        again = await resumed(stack, wire)
        for k in (1, 2, 0):
            await again.send(wire_append(100, event_id=f"evt_{k}"))
        await again.settled()
        assert stack.model.submitted_ms == 400  # the first was forgotten, and is heard again


# --- how many the engine serves ---------------------------------------------------------------------------------------


def hub_with(window: int, most: int) -> Hub:
    deployment = Deployment("scripted", active_stream_window=window, duplex_session=SessionSettings(max_sessions=most))
    return build_hub(deployment, ScriptedPlugin())


@pytest.mark.parametrize(
    ("window", "most", "admitted", "code"),
    [
        (2, 3, 2, "resource_exhausted"),
        (3, 2, 2, "duplex_session_busy"),
        (2, 2, 2, "duplex_session_busy"),
        (0, 3, 3, "duplex_session_busy"),
    ],
)
async def test_the_window_bounds_live_sessions(
    window: int, most: int, admitted: int, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    from duplex_protocol.realtime import RealtimeDialect

    hub = hub_with(window, most)

    async def one() -> Any:
        dialect = RealtimeDialect(view="duplex")
        return await hub.open_session(dialect, dialect.parse_open({}, hub.plugin.defaults))

    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        sessions = [await one() for _ in range(admitted)]
        assert hub.health()[1]["admits"] is False
        with pytest.raises(RemoteProtocolError) as caught:
            await one()
        assert caught.value.code == code
        sessions[0].request_end("session_close")
        await sessions[0].ended.wait()
        assert hub.health()[1]["admits"] is True
        await one()
        nursery.cancel_scope.cancel()


# --- warm-up ----------------------------------------------------------------------------------------------------------


async def started(options: ScriptedOptions, frames: int) -> tuple[ScriptedPlugin, float]:
    """The plugin once its hub is ready, and how long that took."""
    plugin = ScriptedPlugin(options)
    hub = Hub(plugin, SessionSettings(warmup_frames=frames))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        took = trio.current_time() - began
        assert hub.statistics().opened == hub.statistics().sessions == 0
        nursery.cancel_scope.cancel()
    return plugin, took


async def test_silence_is_heard_by_a_session_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    plugin, took = await started(ScriptedOptions(slots=1), 3)
    (session,) = plugin.sessions
    assert session.submitted_ms == 300
    assert session.closed
    assert plugin.open_slots == 1
    assert took < FRAME_TIMEOUT_S


async def test_models_that_are_fed_units_hear_units(autojump_clock: trio.testing.MockClock) -> None:
    from trio_duplex.models.plugin import Listened

    options = ScriptedOptions(
        traits=Traits(detects_speech=False, whole_units=True), owns_turns=False, unit_script=lambda *_: [Listened()]
    )
    plugin, _ = await started(options, 2)
    (session,) = plugin.sessions
    assert [(len(unit.audio), unit.force_listen, bool(unit.audio.any())) for unit in session.units] == [
        (1_600, True, False)
    ] * 2


@pytest.mark.parametrize("frames", [0, -1])
async def test_without_frames_there_is_no_session(frames: int, autojump_clock: trio.testing.MockClock) -> None:
    plugin, took = await started(ScriptedOptions(), frames)
    assert not plugin.sessions
    assert took == 0


async def test_a_turn_based_model_is_left_alone(autojump_clock: trio.testing.MockClock) -> None:
    plugin, _ = await started(ScriptedOptions(traits=Traits(turn_based=True, detects_speech=False)), 2)
    assert not plugin.sessions


async def test_a_model_that_says_nothing_is_waited_for_a_bounded_time(autojump_clock: trio.testing.MockClock) -> None:
    plugin, took = await started(ScriptedOptions(owns_turns=False), 2)
    assert took == pytest.approx(2 * FRAME_TIMEOUT_S)
    assert plugin.sessions[0].closed


async def test_a_model_that_has_no_room_does_not_start(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await started(ScriptedOptions(slots=0), 1)
    assert caught.value.subgroup(OpenRefused) is not None


# --- the detector's file ----------------------------------------------------------------------------------------------


def scorer_of(path: Path) -> Any:
    return build_scorer(Deployment("demo", duplex_session=SessionSettings(server_vad_model_path=path)))


def test_a_detector_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"duplex_session.server_vad_model_path: no such file: .*nothing.jit"):
        scorer_of(tmp_path / "nothing.jit")


async def test_a_file_that_is_none_refuses_server_vad(tmp_path: Path) -> None:
    from trio_duplex.vad_scorer import VadUnavailable

    path = tmp_path / "bad.jit"
    path.write_bytes(b"not a network")
    scorer = scorer_of(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scorer.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30), pytest.raises(VadUnavailable, match=r"bad.jit is no TorchScript file"):
            await scorer.open()
        nursery.cancel_scope.cancel()


async def test_another_file_of_the_network_is_used(tmp_path: Path) -> None:
    import shutil

    import numpy as np

    from duplex_gpu.weights import SILERO_VAD_JIT, weight_path

    path = tmp_path / "mine.jit"
    shutil.copy(weight_path(SILERO_VAD_JIT), path)
    scorer = scorer_of(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scorer.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30):
            stream = await scorer.open()
            (score,) = await stream.score([np.zeros(512, np.float32)])
        assert 0 <= score < 0.5
        stream.close()
        nursery.cancel_scope.cancel()
