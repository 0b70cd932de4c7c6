"""What no client and no model may do to the server: stall its loop, fill its memory, keep its slots."""

from __future__ import annotations

import io
import wave

import numpy as np
import pybase64
import pytest
import trio

from duplex_protocol.dialect import Projected
from duplex_protocol.errors import LocalProtocolError, RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import ContentPart, Item, SessionConfig
from tests.session.talk import AUTO, Reader, append, check_log, loud, talking
from trio_duplex.hub import Hub
from trio_duplex.models.plugin import SessionContext, Traits
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import Entrance
from trio_duplex.session import conversation
from trio_duplex.session.audio_io import STEP_SAMPLES
from trio_duplex.session.core import CLEANUP_TIMEOUT_S, OPEN_TIMEOUT_S, Session
from trio_duplex.session.input_buffer import InputBuffer
from trio_duplex.session.journal import Journal
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin, ScriptedSession

HELD = ScriptedOptions(owns_turns=False, traits=Traits(detects_speech=False, holds_manual_input=True))
CHAT = ScriptedOptions(owns_turns=False, traits=Traits(turn_based=True))
UNITS = ScriptedOptions(owns_turns=False, slots=2, traits=Traits(detects_speech=False, whole_units=True))


# --- the model's slot ---------------------------------------------------------------------------------------------


async def open_one(hub: Hub, config: dict[str, object] | None = None) -> Session:
    dialect = RealtimeDialect(view="duplex")
    return await hub.open_session(dialect, dialect.parse_open(config or {}, hub.plugin.defaults))


class StuckPlugin(ScriptedPlugin):
    """Opening never returns."""

    async def open(self, config: SessionConfig, context: SessionContext) -> ScriptedSession:
        """Cancellation: before a slot is taken."""
        await trio.sleep_forever()
        raise AssertionError


async def test_a_model_that_never_opens_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    hub = Hub(StuckPlugin(ScriptedOptions()), SessionSettings(max_sessions=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        for k in (1, 2):  # the second finds the slot free
            with pytest.raises(RemoteProtocolError) as caught:
                await open_one(hub)
            assert caught.value.code == "runtime_open_failed"
            assert trio.current_time() == pytest.approx(k * OPEN_TIMEOUT_S)
        assert hub.statistics().sessions == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("count", ["abc", [1], {"a": 1}, 1.5, -1, True, 2**63])
async def test_a_wrong_listen_count_takes_no_slot(count: object, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(UNITS, config={}) as talk:
        plugin = talk.hub.plugin
        assert isinstance(plugin, ScriptedPlugin)
        for _ in range(3):
            with pytest.raises(RemoteProtocolError) as caught:
                await open_one(talk.hub, {"extra_body": {"force_listen_count": count}})
            assert caught.value.code == "invalid_duplex_runtime_config"
            assert caught.value.param == "extra_body.force_listen_count"
        assert plugin.open_slots == 1


async def test_a_close_that_fails_once_hurts_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """It is tried again, and that is that; what never works is in test_reaper."""
    failures = 1

    async def aclose(self: ScriptedSession) -> None:
        nonlocal failures
        if self is broken and failures:
            failures -= 1
            raise RuntimeError("cannot let go")
        await plain_aclose(self)

    plain_aclose = ScriptedSession.aclose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSession, "aclose", aclose)
        async with talking() as talk:
            broken = talk.model
            dialect = RealtimeDialect(view="duplex")
            other = await talk.hub.open_session(dialect, dialect.parse_open(AUTO, talk.hub.plugin.defaults))
            reader = Reader(other.attach(0))
            talk.nursery.start_soon(reader.run)
            began = trio.current_time()
            talk.send("session.close")
            await talk.reader.until("session.closed")
            assert trio.current_time() - began <= CLEANUP_TIMEOUT_S + 0.01
            assert [e["error"]["code"] for e in talk.reader.of("error")] == []
            assert talk.reader.types[-1] == "session.closed"
            for command in other.dialect.decode({"type": "session.heartbeat"}):
                other.post(command)
            await reader.until("session.heartbeat_ack")
            assert talk.hub.session(talk.session.id) is None


async def test_a_handshake_cancelled_at_its_very_end_leaves_a_detached_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with talking() as talk:
        session = talk.session

        class Sudden:
            """Enters, and is cancelled in the same moment."""

            async def run(self) -> Entrance:
                """Cancellation: after the session was attached."""
                entrance = Entrance(session, session.attach(0))
                scope.cancel()
                return entrance

        class Nobody:
            going_away = trio.Event()

        with trio.CancelScope() as scope:
            await Connection(Nobody(), talk.hub, lambda *_: Sudden()).run()  # type: ignore[arg-type,return-value]
        assert scope.cancelled_caught
        assert session.attachment is None


async def test_newcomers_at_once_displace_one_detached_session_each(autojump_clock: trio.testing.MockClock) -> None:
    """Contract 25: none is refused while a detached plain-view session holds a slot."""
    hub = Hub(ScriptedPlugin(ScriptedOptions()), SessionSettings(max_sessions=2))

    async def visit() -> None:
        dialect = RealtimeDialect(view="plain")
        opened.append(await hub.open_session(dialect, dialect.parse_open({}, hub.plugin.defaults), strict=False))

    opened: list[Session] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        for _ in range(2):
            async with trio.open_nursery() as visits:
                visits.start_soon(visit)
                visits.start_soon(visit)
        assert [session.close_reason for session in opened[:2]] == ["disconnect_grace_expired"] * 2
        assert [session.state for session in opened[2:]] == ["open", "open"]
        nursery.cancel_scope.cancel()


# --- the event loop -----------------------------------------------------------------------------------------------


async def test_a_very_long_append_lets_others_run(autojump_clock: trio.testing.MockClock) -> None:
    """Half a minute at 192 kHz, and all of it is heard."""
    seconds = 30
    async with talking(config=AUTO) as talk:
        turns_of_others = 0

        async def other() -> None:
            nonlocal turns_of_others
            while True:
                await trio.lowlevel.checkpoint()
                turns_of_others += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            talk.send(append(loud(seconds * 1000, 192_000), sample_rate_hz=192_000))
            await talk.settled()
            nursery.cancel_scope.cancel()
        assert turns_of_others >= seconds * 192_000 // STEP_SAMPLES
        assert talk.model.submitted_ms == pytest.approx(seconds * 1000, abs=5)


async def test_a_command_does_not_wait_for_a_very_long_append() -> None:
    """It wins (contract 22): the append is given up after a quarter of a second, with one error; the session lives."""
    settings = SessionSettings(max_pending_input_bytes_per_session=1 << 28)
    async with talking(config=AUTO, settings=settings) as talk:
        talk.send({**append(b"\xff" * 11_000_000), "format": "g711_ulaw", "event_id": "evt_long"})
        talk.send("input.cancel")
        await talk.reader.until("input_audio_buffer.cleared")
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("runtime_append_failed", "evt_long")
        assert talk.model.submitted_ms == 0
        await talk.settled()
        check_log(talk.events)


async def test_a_float_that_is_no_number_refuses_a_long_append_whole(autojump_clock: trio.testing.MockClock) -> None:
    samples = np.full(3 * STEP_SAMPLES, 0.25, "<f4")
    samples[-1] = np.nan
    async with talking(config=AUTO) as talk:
        talk.send(append(samples.tobytes(), format="pcm_f32le", sample_rate_hz=24_000))
        assert (await talk.error())["code"] == "bad_audio"
        talk.send(append(loud(100)))
        await talk.settled()
        assert talk.model.submitted_ms == 100


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
async def test_a_wav_append_is_heard_at_its_own_rate(rate_hz: int, autojump_clock: trio.testing.MockClock) -> None:
    """The two old append names mean WAV (contract 2): its header tells the rate, and is no sound."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate_hz)
        out.writeframes(loud(1000, rate_hz))
    async with talking(config=AUTO) as talk:
        talk.send({"type": "push_chunk", "audio": pybase64.b64encode(file.getvalue()).decode()})
        await talk.settled()
        assert talk.model.submitted_ms == pytest.approx(1000, abs=5)
        assert talk.session.clock_ms == pytest.approx(1000)


# --- memory -------------------------------------------------------------------------------------------------------


def test_tiny_appends_are_held_in_few_blocks() -> None:
    buffer = InputBuffer()
    sent = np.arange(30_000, dtype=np.float32)
    for sample in sent:
        buffer.hold(np.array([sample], np.float32), ())
    assert len(buffer.held) < 20
    assert buffer.held_samples == len(sent)
    assert np.array_equal(buffer.take_audio(), sent)


async def test_typed_text_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    settings = SessionSettings(max_pending_input_bytes_per_session=10_000)
    async with talking(CHAT, config={}, settings=settings) as talk:
        for k in range(3):
            talk.send("input.text.append", text="x" * 4_000, event_id=f"evt_{k}")
            await talk.settled()
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("input_backpressure", "evt_2")
        talk.send("input_audio_buffer.commit")
        committed = await talk.reader.until("input_audio_buffer.committed")
        assert len(committed["event"]["message"]["content"][0]["text"]) == 8_000
        talk.send("input.text.append", text="x" * 4_000)
        await talk.settled()
        assert len(talk.reader.of("error")) == 1


async def test_transcript_hints_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    settings = SessionSettings(max_pending_input_bytes_per_session=10_000)
    async with talking(HELD, config={}, settings=settings) as talk:
        for k in range(3):
            talk.send(append(loud(10), transcript=f"{k}" * 4_000, event_id=f"evt_{k}"))
            await talk.settled()
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("input_backpressure", "evt_2")


async def test_stored_items_are_bounded(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(conversation, "KEPT_ITEM_BYTES", 10_000)
    async with talking(config={}) as talk:
        for k in range(3):
            part = {"type": "input_text", "text": "x" * 4_000}
            item = {"id": f"item_{k}", "role": "user", "content": [part]}
            talk.send("conversation.item.create", item=item, event_id=f"evt_{k}")
            await talk.settled()
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("input_backpressure", "evt_2")
        talk.send("conversation.item.delete", item_id="item_0")
        talk.send("conversation.item.create", item=item)
        await talk.reader.until("conversation.item.done", 3)


def test_the_oldest_sounds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "KEPT_SOUND_BYTES", 100)
    talk = conversation.Conversation()
    for k in range(4):
        item = Item(id=f"item_{k}", role="user", content=(ContentPart("input_audio", transcript=f"w{k}"),))
        talk.keep_sound(talk.add(item, history_text=f"w{k}"), b"x" * 40)
    assert [(e.text, e.wav is not None) for e in talk.history()] == [
        ("w0", False),
        ("w1", False),
        ("w2", True),
        ("w3", True),
    ]
    talk.delete("item_3")
    talk.keep_sound(talk.add(Item(id="item_4", role="user"), history_text="w4"), b"x" * 40)
    assert [e.wav is not None for e in talk.history()] == [False, False, True, True]


async def test_only_chosen_session_ids_are_remembered(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        for _ in range(3):
            session = await open_one(talk.hub)
            session.request_end("session_close")
            await session.ended.wait()
        assert not talk.hub._incarnations
        for incarnation in range(3):
            session = await open_one(talk.hub, {"session_id": "mine"})
            assert session.incarnation == incarnation
            session.request_end("session_close")
            await session.ended.wait()


async def test_a_reader_that_is_too_slow_is_left_behind(autojump_clock: trio.testing.MockClock) -> None:
    """It reads, but never catches up: one resync_required, then its visit ends; the session goes on without it."""
    limit = 100_000
    settings = SessionSettings(resume_replay_max_bytes_per_session=limit, disconnect_grace_s=1e6)
    endless = ScriptedOptions(script=lambda _: [Piece("word ")] * 60)
    async with talking(endless, settings=settings) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.reader.paused = True
        await trio.sleep(60)
        attachment = talk.reader.attachment
        assert attachment.ended.is_set()
        assert attachment.close_code == 1008
        talk.session.detach(attachment)
        assert talk.session.journal.backlog_bytes < 5 * limit
        assert talk.session.state == "open"


async def test_what_cannot_be_encoded_leaves_no_gap() -> None:
    def encode(frame: dict[str, object], seq: int | None) -> bytes:
        if frame["type"] == "bad":
            raise LocalProtocolError("no JSON")
        return f"{seq}".encode()

    journal = Journal(encode, max_bytes=100_000, ttl_s=60)
    for kinds in (["a"], ["b", "bad"], ["c"]):
        journal.append(Projected(tuple({"type": kind} for kind in kinds)))
    cursor = journal.cursor(0)
    assert cursor.next_nowait() == b"1"
    with pytest.raises(LocalProtocolError):
        cursor.next_nowait()
    assert cursor.next_nowait() == b"2"
    assert journal.head == 2
