"""Cases of other people's servers that need the scripted model or a faulty network, named after their ids."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs
import pybase64
import pytest
import structlog
import trio

from duplex_protocol.values import Json, SessionConfig
from trio_duplex.client import DuplexClientError
from trio_duplex.models.plugin import FloatAudio, ModelFailed, SessionContext
from trio_duplex.server.socket import SocketGone
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import (
    Faults,
    MemoryClientSocket,
    Piece,
    Rig,
    ScriptedOptions,
    check_history,
    open_rig,
    run_seeded,
    silence,
    speech,
)
from trio_duplex.testing.scripted_model import AMPLITUDE_STEP, ScriptedPlugin, ScriptedSession, decode_pieces

SIX = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(6)])


async def ask_and_hear(rig: Rig, answers: int = 1) -> None:
    """A client that asks and hears the whole answer; it resumes by itself."""
    async with rig.client() as client:
        for _ in range(answers):
            await client.append_audio(speech(160))
            await client.append_audio(silence(600))
            async for response in client.responses():
                if response.decision != "listen":
                    await response.wait()
                    break


def test_c1_a_thousand_drops_burn_no_slot() -> None:
    """C1: dropped at every byte of the opening, on the way in and on the way out; then the only slot is free."""
    settings = SessionSettings(max_sessions=1, disconnect_grace_s=0.5)
    faults = [Faults(drop_sent_at=n) for n in range(1, 500)] + [Faults(drop_received_at=3 * n) for n in range(1, 500)]

    async def play() -> None:
        async with open_rig(SIX, settings=settings, faults=faults) as rig:
            for _ in faults:
                try:
                    async with rig.client(reconnect=None, handshake_timeout_s=5):
                        pass
                except DuplexClientError:
                    pass
                await trio.sleep(2)
            assert rig.hub.statistics().sessions == 0
            await ask_and_hear(rig)

    run_seeded(play, 1)


@pytest.mark.parametrize("seed", range(3))
def test_r2_the_log_after_drops_is_the_undropped_one(seed: int) -> None:
    """R2: dropped at byte after byte of the answer; the merged log is what an undisturbed client would have got."""

    def words(log: list[Json]) -> list[object]:
        return [(e["type"], e.get("delta"), e.get("transcript")) for e in log if e["type"].startswith("response.")]

    async def play(at: int | None) -> list[object]:
        faults = () if at is None else (Faults(drop_received_at=at), Faults(drop_received_at=at // 2))
        async with open_rig(SIX, faults=faults, seed=seed) as rig:
            await ask_and_hear(rig)
            (session,) = rig.hub.every_session
            merged = rig.log(session)
            assert merged.violations == ()
            return words(merged.log)

    whole = run_seeded(functools.partial(play, None), seed)
    for at in range(7_000, 95_000, 4_001):
        assert run_seeded(functools.partial(play, at), seed) == whole, f"dropped at byte {at}"


def test_d1_a_death_at_every_event_leaves_the_neighbour_alone() -> None:
    """D1: a client dies at every event index of its turn; its neighbour's log is the same to the letter."""

    async def play(dies_after: int | None) -> tuple[int, list[object]]:
        async with open_rig(SIX, settings=SessionSettings(disconnect_grace_s=0.2)) as rig:
            seen = 0

            async def mortal() -> None:
                nonlocal seen
                socket = await rig.connect(duplex="1")
                await socket.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
                for pcm in (speech(160), silence(600)):
                    await socket.send({"type": "input_audio_buffer.append", "audio": pybase64.b64encode(pcm).decode()})
                with trio.move_on_after(4):
                    while dies_after is None or seen < dies_after:
                        await socket.receive()
                        seen += 1
                socket.drop()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_and_hear, rig, 2)
                nursery.start_soon(mortal)
            neighbour = max((rig.log(s).log for s in rig.hub.every_session), key=len)
            if dies_after is None:
                neighbour = next(rig.log(s).log for s in rig.hub.every_session if s.close_reason == "session_close")
            return seen, [(e["type"], e.get("delta"), e.get("server_event_seq")) for e in neighbour]

    events, undisturbed = run_seeded(functools.partial(play, None), 5)
    assert events > 25
    for index in range(events):
        assert run_seeded(functools.partial(play, index), 5)[1] == undisturbed, f"died after event {index}"


async def test_c11_rude_disconnects_log_no_error(autojump_clock: trio.testing.MockClock) -> None:
    """C11: a hundred clients vanish in mid-talk; nothing louder than a warning is logged."""
    with structlog.testing.capture_logs() as lines:
        async with open_rig(SIX, settings=SessionSettings(disconnect_grace_s=1)) as rig:
            for number in range(100):
                socket = await rig.connect(duplex="1")
                await socket.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
                pcm = pybase64.b64encode(speech(160) + silence(600)).decode()
                await socket.send({"type": "input_audio_buffer.append", "audio": pcm})
                with trio.move_on_after(number / 50):
                    while True:
                        await socket.receive()
                socket.drop()
                await trio.sleep(0.1)
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []


async def test_p8_a4_what_arrives_is_what_was_scripted(autojump_clock: trio.testing.MockClock) -> None:
    """P8, A4: speech that ends inside a unit comes whole; the samples decode back to the script, piece by piece."""
    pieces = [Piece("one ", 100), Piece("two ", 37), Piece("end", 13)]
    async with open_rig(ScriptedOptions(script=lambda _: pieces)) as rig:
        await ask_and_hear(rig)
    log = rig.log(rig.hub.every_session[0]).log
    pcm = b"".join(pybase64.b64decode(e["delta"]) for e in log if e["type"] == "response.output_audio.delta")
    assert decode_pieces(pcm) == [(k, piece.ms * 24) for k, piece in enumerate(pieces)]
    assert AMPLITUDE_STEP * len(pieces) < 32_768


async def test_l1_l2_sessions_come_and_go_and_every_slot_is_back(autojump_clock: trio.testing.MockClock) -> None:
    """L1, L2: 20 times the pool, half of them ended rudely; afterwards the pool is whole and health is good."""
    options = ScriptedOptions(script=lambda _: [Piece("yes", 40)], slots=4)
    async with open_rig(options, settings=SessionSettings(max_sessions=4, disconnect_grace_s=0.2)) as rig:
        for number in range(80):
            client = rig.client(reconnect=None)
            try:
                async with client:
                    await client.append_audio(speech(160))
                    if number % 2:
                        rig.drop()
            except (DuplexClientError, SocketGone):
                pass
            await trio.sleep(0.5)
        assert rig.plugin.open_slots == 4
        assert rig.hub.health()[0]
        await ask_and_hear(rig)


async def test_l7_l8_the_session_too_many_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_rig(SIX, settings=SessionSettings(max_sessions=1)) as rig, rig.client() as first:
        begun = trio.current_time()
        with pytest.raises(DuplexClientError, match=r"duplex_session_busy|capacity"):
            async with rig.client():
                pass
        assert trio.current_time() - begun < 0.1
        await first.send({"type": "session.heartbeat"})
        await first.wait_for("session.heartbeat_ack", timeout_s=1)


async def _read_to_the_end(socket: MemoryClientSocket) -> SocketGone:
    try:
        while True:
            await socket.receive()
    except SocketGone as gone:
        return gone


async def test_l3_a_half_open_peer_gives_its_slot_back(autojump_clock: trio.testing.MockClock) -> None:
    """L3: packets of one client stop arriving, unseen by both ends; after write timeout and grace the slot is free."""
    settings = SessionSettings(max_sessions=1, disconnect_grace_s=2, attachment_io_timeout_s=5)
    stalled = Faults(stall_received_at=20_000, buffer_bytes=20_000)
    options = ScriptedOptions(script=lambda _: [Piece(f"w{k} ") for k in range(40)])
    async with open_rig(options, settings=settings, faults=(stalled,)) as rig:
        socket = await rig.connect(duplex="1")
        await socket.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
        pcm = pybase64.b64encode(speech(160) + silence(600)).decode()
        await socket.send({"type": "input_audio_buffer.append", "audio": pcm})
        begun = trio.current_time()
        assert (await _read_to_the_end(socket)).code == 1006
        assert trio.current_time() - begun < 15
        await trio.sleep(3)
        assert rig.hub.statistics().sessions == 0
        await ask_and_hear(rig)


async def test_c3_a_slow_reader_hears_no_stale_audio(autojump_clock: trio.testing.MockClock) -> None:
    """C3: what the slow client was not given before the cancel is gone; at most what was on its way arrives."""
    slow = Faults(reads_per_s=30_000, buffer_bytes=16_000)
    options = ScriptedOptions(script=lambda _: [Piece(f"w{k} ") for k in range(30)])
    async with open_rig(options, faults=(slow,)) as rig:
        async with rig.client() as client:
            events = client.events()
            await client.append_audio(speech(160))
            await client.append_audio(silence(600))
            await client.wait_for("response.output_audio.delta", timeout_s=10)
            await trio.sleep(3)
            model = rig.plugin.sessions[0]
            await client.cancel_response()
            async for event in events:
                if event.type == "response.done":
                    break
        log = rig.log(rig.hub.every_session[0]).log
    spoken = sum(e["type"] == "response.output_audio.delta" for e in log)
    assert len(model.requests) == 1
    assert 4 <= spoken <= 10, "of 17 pieces spoken by then a third could be read"
    assert check_history(log, complete=True) == ()


@attrs.define(eq=False)
class TinySession(ScriptedSession):
    """Its context ends after three seconds of audio; then the model gives it up."""

    context_ms: float = 3_000

    def submit(self, audio: FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Hear, and notice the end of the context."""
        ScriptedSession.submit(self, audio, video_frames=video_frames)
        if self.submitted_ms > self.context_ms:
            self.hear(ModelFailed(code="resource_exhausted", message="the context is full", fatal=True))


@attrs.define(eq=False)
class TinyPlugin(ScriptedPlugin):
    """The first of its sessions is a tiny one."""

    async def open(self, config: SessionConfig, context: SessionContext) -> ScriptedSession:
        """Take a slot. Cancellation: before it is taken."""
        session = await ScriptedPlugin.open(self, config, context)
        if len(self.sessions) > 1:
            return session
        self.sessions[0] = TinySession(self, config, context)
        return self.sessions[0]


async def test_l5_a_full_context_ends_one_session_with_its_reason(autojump_clock: trio.testing.MockClock) -> None:
    """L5: one session runs past its context while another talks; the other's log is what it is alone."""

    def words(log: list[Json]) -> list[object]:
        return [(e["type"], e.get("delta"), e.get("server_event_seq")) for e in log]

    async def talk(socket: MemoryClientSocket, turns: int) -> list[Json]:
        await socket.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
        try:
            for _ in range(turns):
                for pcm in (speech(160), silence(600)):
                    audio = pybase64.b64encode(pcm).decode()
                    await socket.send({"type": "input_audio_buffer.append", "audio": audio})
                await socket.until("response.done")
            await socket.send({"type": "session.close"})
            while True:
                await socket.receive()
        except SocketGone:
            return socket.received

    async def play(guilty_turns: int) -> tuple[list[Json], list[Json]]:
        async with open_rig(plugin=TinyPlugin(SIX), seed=3) as rig, trio.open_nursery() as nursery:
            guilty, innocent = await rig.connect(duplex="1"), await rig.connect(duplex="1")
            nursery.start_soon(talk, guilty, guilty_turns)
            await trio.sleep(0.05)
            nursery.start_soon(talk, innocent, 8)
        assert rig.plugin.open_slots == SIX.slots
        return guilty.received, innocent.received

    _, undisturbed = await play(1)
    guilty, innocent = await play(8)
    assert words(innocent) == words(undisturbed)
    assert sum(e["type"] == "response.done" for e in innocent) == 8
    assert [e["error"]["code"] for e in guilty if e["type"] == "error"] == ["resource_exhausted"]
    assert (guilty[-1]["type"], guilty[-1]["reason"]) == ("session.closed", "resource_exhausted")
    assert check_history(guilty, complete=True) == ()
