"""Interruption: the epoch promise and the stage table (contract 8.2, 12, 24a; cases C2, C3, C8, P6, P7, V2, T5)."""

from __future__ import annotations

import pybase64
import pytest
import trio

from tests.session.talk import AUTO, Json, append, check_log, loud, quiet, talking
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.scripted_model import decode_pieces

LONG = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(50)])


def after_terminal(events: list[Json], response_id: str) -> list[Json]:
    """Events of a response after its terminal."""
    at = next(i for i, e in enumerate(events) if e["type"] == "response.done" and e["response_id"] == response_id)
    return [e for e in events[at + 1 :] if e.get("response_id") == response_id]


async def test_speech_interrupts_and_nothing_follows(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 5)
        talk.say()
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "cancelled"
        assert done["response"]["status_details"]["reason"] == "barge_in"
        assert talk.session.epoch.number == 1
        await trio.sleep(10)
        assert len(talk.reader.of("response.output_audio.delta")) == 5
        assert not after_terminal(talk.events, done["response_id"])
        order = [k for k in talk.reader.types if k in ("overlap.decision", "response.done")]
        assert order == ["overlap.decision", "response.done"], "O19: the decision precedes its effect"
        decision = talk.reader.of("overlap.decision")[0]
        assert decision["epoch"] == 0
        assert decision["action"] == "barge_in"
        check_log(talk.events)


async def test_the_interrupting_words_become_the_next_item_whole(autojump_clock: trio.testing.MockClock) -> None:
    """C2, C8: the input side survives the epoch; what was said before is still known."""
    options = ScriptedOptions(
        script=lambda r: [Piece(" | ".join(e.text for e in r.history)), *(Piece(f"w{k} ") for k in range(50))],
        transcripts=("first words", "second words"),
    )
    async with talking(options) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 3)
        talk.say(320)
        talk.hush()
        await talk.reader.until("response.created", 2)
        committed = talk.reader.of("input_audio_buffer.committed")
        assert [c["event"]["transcript"] for c in committed] == ["first words", "second words"]
        assert committed[1]["event"]["epoch"] == 1
        starts = [e["audio_start_ms"] for e in talk.reader.of("input_audio_buffer.speech_started")]
        assert starts[1] == 960, "the pre-roll starts with the first loud frame"
        history = [e.text for e in talk.model.requests[1].history if e.role == "user"]
        assert history == ["first words", "second words"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"type": "response.cancel"}, "client_cancelled"),
        ({"type": "barge_in"}, "barge_in"),
        ({"type": "input.cancel"}, "barge_in"),
        ({"type": "turn.signal", "event": "barge_in"}, "barge_in"),
        ({"type": "output_audio_buffer.clear"}, "output_audio_buffer_clear"),
    ],
)
async def test_every_cancel_has_its_reason_and_one_terminal(
    command: Json, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 3)
        talk.send(command)
        talk.send("session.heartbeat")
        await talk.reader.until("session.heartbeat_ack")
        (done,) = talk.reader.of("response.done")
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": reason}
        assert talk.session.epoch.number == 1
        assert talk.model.interrupts == [0]
        check_log(talk.events)


async def test_clear_answers_before_the_terminal(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        await talk.reader.until("response.output_audio.delta")
        talk.send("output_audio_buffer.clear")
        await talk.reader.until("response.done")
        cleared = talk.reader.of("output_audio_buffer.cleared")
        assert [c["response_id"] for c in cleared] == [created["response_id"]]
        kinds = talk.reader.types
        assert kinds.index("output_audio_buffer.cleared") < kinds.index("response.output_audio.done")


async def test_input_cancel_cancels_first_then_clears(autojump_clock: trio.testing.MockClock) -> None:
    """O20."""
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.send("input.cancel")
        await talk.reader.until("input_audio_buffer.cleared")
        kinds = talk.reader.types
        assert kinds.index("response.done") < kinds.index("input_audio_buffer.cleared")


async def test_idle_cancels(autojump_clock: trio.testing.MockClock) -> None:
    """P6 and 8.2: response.cancel is a typed error without a bump; input.cancel and barge_in always bump."""
    async with talking() as talk:
        talk.send("response.cancel", event_id="evt_1")
        error = await talk.reader.until("error")
        assert error["error"]["code"] == "response_not_active"
        assert error["error"]["event_id"] == "evt_1"
        assert talk.session.epoch.number == 0
        talk.send("input.cancel")
        await talk.reader.until("input_audio_buffer.cleared")
        assert talk.session.epoch.number == 1
        talk.send("barge_in")
        await talk.reader.until("input_audio_buffer.cleared", 2)
        assert talk.session.epoch.number == 2
        talk.send("output_audio_buffer.clear")
        await talk.reader.until("output_audio_buffer.cleared")
        assert talk.session.epoch.number == 2
        assert not talk.reader.of("response.done")


async def test_cancel_twice_and_of_a_foreign_id(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.send("response.cancel", response_id="resp_other")
        assert (await talk.reader.until("error"))["error"]["code"] == "response_not_active"
        assert not talk.reader.of("response.done")
        talk.send("response.cancel")
        talk.send("response.cancel")
        await talk.reader.until("error", 2)
        assert len(talk.reader.of("response.done")) == 1
        assert talk.session.epoch.number == 1


async def test_slow_reader_gets_no_stale_audio(autojump_clock: trio.testing.MockClock) -> None:
    """C3: the reader sleeps while 3 s of audio pile up, then the answer is cancelled: the pile is gone."""
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 2)
        talk.reader.paused = True
        await trio.sleep(3)
        taken = len(talk.reader.of("response.output_audio.delta"))
        assert talk.session.journal.statistics().pending > 10
        talk.send("response.cancel")
        await trio.testing.wait_all_tasks_blocked()
        talk.reader.resume()
        done = await talk.reader.until("response.done")
        await talk.reader.until("rate_limits.updated")
        # At most the one event the reader was about to take when it fell asleep.
        assert len(talk.reader.of("response.output_audio.delta")) <= taken + 1
        playback = done["response"]["metadata"]["playback"]
        sent = sum(len(pybase64.b64decode(e["delta"])) for e in talk.reader.of("response.output_audio.delta")) // 48
        assert playback["sent_ms"] == sent
        assert playback["generated_ms"] > sent
        check_log(talk.events)


async def test_what_arrives_is_what_was_scripted(autojump_clock: trio.testing.MockClock) -> None:
    """A4, P8: decode the tones from the wire; the tail is whole."""
    async with talking(ScriptedOptions(script=lambda _: [Piece("a", 200), Piece("b", 70), Piece("c", 33)])) as talk:
        talk.ask()
        await talk.reader.until("response.done")
        pcm = b"".join(pybase64.b64decode(e["delta"]) for e in talk.reader.of("response.output_audio.delta"))
        assert decode_pieces(pcm) == [(0, 4800), (1, 1680), (2, 792)]


async def test_onset_before_the_first_sound_ends_the_pending_answer_silently(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """V2: no response was visible, so no interruption is told; the new turn alone is answered."""
    async with talking(ScriptedOptions(script=lambda r: [Hang()] if len(r.history) == 1 else [Piece("ok")])) as talk:
        talk.ask()
        await talk.reader.until("input_audio_buffer.committed")
        talk.say()
        talk.hush()
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert len(talk.reader.of("response.created")) == 1
        assert not talk.reader.of("overlap.decision")
        assert talk.session.epoch.number == 1


async def test_speech_on_an_idle_session_interrupts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """V2."""
    async with talking() as talk:
        talk.say()
        await talk.reader.until("input_audio_buffer.speech_started")
        assert not talk.reader.of("overlap.decision")
        assert talk.session.epoch.number == 0


async def test_natural_end_wins_over_a_later_cancel(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as talk:
        talk.ask()
        done = await talk.reader.until("response.done")
        talk.send("response.cancel", response_id=done["response_id"])
        assert (await talk.reader.until("error"))["error"]["code"] == "response_not_active"
        assert len(talk.reader.of("response.done")) == 1
        assert talk.session.epoch.number == 0


async def test_cancel_at_every_moment_of_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    """P7: cancel after each wire event of a turn; brackets match every time."""
    async with talking(ScriptedOptions(script=lambda _: [Piece("one "), Piece("two "), Piece("three")])) as talk:
        talk.ask()
        await talk.reader.until("response.done")
        total = len(talk.events)
    for stop in range(3, total):
        async with talking(ScriptedOptions(script=lambda _: [Piece("one "), Piece("two "), Piece("three")])) as talk:
            talk.ask()
            await talk.reader.until_total(stop)
            talk.send("response.cancel")
            talk.send("session.close")
            await talk.reader.ended.wait()
            check_log(talk.events)
            created = {e["response_id"] for e in talk.reader.of("response.created")}
            done = {e["response_id"] for e in talk.reader.of("response.done")}
            assert created == done
            added = [e["item"]["id"] for e in talk.reader.of("conversation.item.added")]
            finished = [e["item"]["id"] for e in talk.reader.of("conversation.item.done")]
            assert sorted(added) == sorted(finished)


async def test_server_vad_names_its_reason(autojump_clock: trio.testing.MockClock) -> None:
    config = {**AUTO, "turn_detection": {"type": "server_vad"}}
    async with talking(LONG, config=config) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 2)
        talk.say()
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        decision = talk.reader.of("overlap.decision")[0]
        assert decision["reason"] == "server_vad_speech_started"
        assert decision["policy"] == "barge_in_on_speech"


async def test_barge_in_needs_the_capability(autojump_clock: trio.testing.MockClock) -> None:
    """U5: refused with a typed error, nothing happens; the model goes on over the user's speech."""
    options = ScriptedOptions(script=LONG.script, barge_in=False)
    async with talking(options) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        for event in ({"type": "barge_in"}, {"type": "turn.signal", "event": "barge_in"}):
            talk.send(event)
        await talk.reader.until("error", 2)
        assert {e["error"]["code"] for e in talk.reader.of("error")} == {"barge_in_unsupported"}
        talk.say()
        await talk.reader.until("response.output_audio.delta", 10)
        assert talk.session.epoch.number == 0
        assert not talk.reader.of("response.done")


async def test_clear_input_keeps_the_answer_and_the_epoch(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.send(append(quiet(64)))
        talk.send("input_audio_buffer.clear")
        await talk.reader.until("input_audio_buffer.cleared")
        assert talk.session.epoch.number == 0
        await talk.reader.until("response.output_audio.delta", 4)
        talk.send("input_audio_buffer.commit")
        assert (await talk.reader.until("error"))["error"]["code"] == "input_audio_buffer_empty"


async def test_force_barge_in_hint(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta")
        talk.send(append(loud(20), force_barge_in=True))
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"]["reason"] == "barge_in"
        assert talk.reader.of("overlap.decision")[0]["reason"] == "client_force_barge_in"
