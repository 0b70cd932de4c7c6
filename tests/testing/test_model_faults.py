"""Model faults, one session guilty and one innocent: typed errors, slots back, and the neighbour's log unchanged.

The table in docs/promises.md is made of these outcomes (cases D2, L1, L5, A4, P8 and the fault list of section 22).
"""

from __future__ import annotations

import pybase64
import pytest
import structlog
import trio

from duplex_protocol.values import Json
from trio_duplex.models.plugin import GenerationFailed, ModelFailed, OpenRefused
from trio_duplex.testing import Piece, Rig, ScriptedOptions, check_history, open_rig, silence, speech
from trio_duplex.testing.faulty_model import Fault, FaultyPlugin
from trio_duplex.testing.sockets import MemoryClientSocket, SocketGone

OPTIONS = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(6)])
OPEN: Json = {"type": "session.update", "session": {"extra_body": {"auto_response": True}}}


def append(pcm: bytes) -> Json:
    return {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(pcm).decode()}


async def converse(socket: MemoryClientSocket, session_id: str, *, interrupt: bool = False) -> None:
    """Ask twice, hear both answers, close; reads to the connection's end."""
    try:
        await socket.send({**OPEN, "session": {**OPEN["session"], "session_id": session_id}})
        await socket.until("session.created", "error")
        for _ in range(2):
            await socket.send(append(speech(320)))
            await socket.send(append(silence(640)))
            if interrupt:
                with trio.move_on_after(0.5):
                    await socket.until("nothing")
                await socket.send({"type": "barge_in"})
            else:
                with trio.move_on_after(60):
                    await socket.until("response.done")
        await socket.send({"type": "session.close"})
        with trio.move_on_after(60):
            while True:
                await socket.receive()
    except SocketGone:
        pass


def shape(log: list[Json]) -> list[Json]:
    """A log without what differs between any two runs: ids, tokens, and the answers' own names."""
    names: dict[str, str] = {}

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("event_id", "resume_token")}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, str) and value.startswith(("resp_", "item_")):
            return names.setdefault(value.removeprefix("item_"), f"name{len(names)}") + value[:5]
        return value

    return [plain(event) for event in log]  # type: ignore[misc]


async def two_sessions(
    fault: Fault | None, *, interrupt: bool = False
) -> tuple[Rig, list[Json], list[Json], list[str]]:
    """The guilty session's log, the innocent one's, and the alarming log lines."""
    plugin = FaultyPlugin(OPTIONS, fault=fault)
    with structlog.testing.capture_logs() as lines:
        async with open_rig(plugin=plugin, seed=4) as rig, trio.open_nursery() as nursery:
            guilty, innocent = await rig.connect(duplex="1"), await rig.connect(duplex="1")
            nursery.start_soon(lambda: converse(guilty, "guilty", interrupt=interrupt))
            await trio.sleep(0.05)
            nursery.start_soon(converse, innocent, "innocent")
    alarms = [line["event"] for line in lines if line["log_level"] in ("warning", "error")]
    return rig, guilty.received, innocent.received, alarms


def codes(log: list[Json]) -> list[str]:
    return [e["error"]["code"] if isinstance(e["error"], dict) else e["code"] for e in log if e["type"] == "error"]


def reason(log: list[Json]) -> str | None:
    return next((e["reason"] for e in log if e["type"] == "session.closed"), None)


def statuses(log: list[Json]) -> list[str]:
    return [e["response"]["status"] for e in log if e["type"] == "response.done"]


FAULTS = {
    # fault: (what, codes of the guilty session's errors, its close reason, statuses of its answers)
    "step raises": (Fault(where="submit"), ["internal_error"], "internal_error", []),
    "step raises in mid-talk": (Fault(where="submit", after=3), ["internal_error"], "internal_error", ["completed"]),
    "answer raises": (Fault(where="respond"), ["internal_error"], "internal_error", []),
    "answer fails": (
        Fault(where="respond", error=lambda: GenerationFailed("engine_error", "no")),
        ["engine_error", "engine_error"],
        "session_close",
        [],
    ),
    "out of memory at open": (Fault(where="open"), ["runtime_open_failed"], None, []),
    "no room at open": (Fault(where="open", error=lambda: OpenRefused("full")), ["resource_exhausted"], None, []),
    "start raises": (Fault(where="start"), ["runtime_open_failed"], None, []),
    "10 times late": (Fault(where="late"), [], "session_close", ["completed", "completed"]),
    "never returns": (Fault(where="hang"), [], "session_close", []),
    "results end": (
        Fault(where="results", after=2),
        ["runtime_data_plane_stream_failed"],
        "runtime_data_plane_stream_failed",
        [],
    ),
    "close takes 3 s": (Fault(where="close", slower=3), [], "session_close", ["completed", "completed"]),
    "close never returns": (
        Fault(where="close", slower=1e6),
        ["runtime_close_failed"],
        None,
        ["completed", "completed"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_only_the_guilty_session_suffers(name: str, autojump_clock: trio.testing.MockClock) -> None:
    fault, expected_codes, expected_reason, expected_statuses = FAULTS[name]
    _, _, undisturbed, _ = await two_sessions(None)
    _, guilty, innocent, _ = await two_sessions(fault)
    assert shape(innocent) == shape(undisturbed), "a fault of one session changed another session's log"
    assert codes(guilty) == expected_codes
    assert reason(guilty) == expected_reason
    assert statuses(guilty) == expected_statuses
    assert check_history(guilty, complete=expected_reason is not None) == ()


async def test_an_answer_that_refuses_to_be_cancelled_is_abandoned(autojump_clock: trio.testing.MockClock) -> None:
    """The epoch waits 0.25 s for it; what it says later is heard by nobody."""
    _, guilty, _, alarms = await two_sessions(Fault(where="shield", slower=3), interrupt=True)
    assert "epoch_join_timeout" in alarms
    assert "response.output_audio.delta" not in [e["type"] for e in guilty]
    assert reason(guilty) == "session_close"
    assert check_history(guilty, complete=True) == ()


async def test_a_model_that_fails_for_all(autojump_clock: trio.testing.MockClock) -> None:
    """The model's thread dies: typed error and one terminal for every session, health bad, nobody new, stop works."""
    plugin = FaultyPlugin(OPTIONS)
    async with open_rig(plugin=plugin) as rig:
        sockets = [await rig.connect(duplex="1"), await rig.connect(duplex="1")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse, sockets[0], "one")
            nursery.start_soon(converse, sockets[1], "two")
            await trio.sleep(1.5)
            assert rig.hub.health()[0]
            begun = trio.current_time()
            plugin.die(RuntimeError("the thread died"))
        assert trio.current_time() - begun < 5
        assert rig.hub.health()[0] is False
        for socket in sockets:
            assert codes(socket.received) == ["engine_error"]
            assert reason(socket.received) == "engine_error"
            assert check_history(socket.received, complete=True) == ()
        late = await rig.connect(duplex="1")
        await converse(late, "late")
        assert codes(late.received) == ["runtime_open_failed"]


async def test_d2_a_decision_without_its_data_ends_one_session(autojump_clock: trio.testing.MockClock) -> None:
    """D2: a fatal result of the model on unit k ends that session with the code; its neighbour talks on."""
    async with open_rig(OPTIONS) as rig, trio.open_nursery() as nursery:
        guilty, innocent = await rig.connect(duplex="1"), await rig.connect(duplex="1")
        nursery.start_soon(converse, guilty, "guilty")
        await trio.sleep(0.05)
        nursery.start_soon(converse, innocent, "innocent")
        await trio.sleep(0.5)
        rig.plugin.sessions[0].hear(
            ModelFailed(code="native_kv_replica_lost", message="unit 7 has no data", fatal=True)
        )
    assert codes(guilty.received) == ["native_kv_replica_lost"]
    assert reason(guilty.received) == "native_kv_replica_lost"
    assert statuses(guilty.received) == ["failed"]
    assert statuses(innocent.received) == ["completed", "completed"]
