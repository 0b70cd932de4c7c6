# ruff: noqa: N802 - tests of a case carry its id
"""The manual lane: what a commit does with auto_response off (contract 10.1), and what commands take away (12.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from tests.session.talk import AUTO, Json, Talk, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import ModelFailed, Traits
from trio_duplex.testing import Fail, Hang, Piece, ScriptedOptions

LONG = [Piece(f"word{k} ") for k in range(50)]
HELD = Traits(detects_speech=False, holds_manual_input=True)
"""A model that hears nothing before its turn is answered."""


def held(script: Any = None, **fields: Any) -> ScriptedOptions:
    return ScriptedOptions(
        traits=HELD, owns_turns=False, script=script or (lambda _: [Piece("One "), Piece("two.")]), **fields
    )


LONG_HELD = held(lambda _: LONG)
MANUAL: Json = {}


def commit(talk: Talk, **fields: Any) -> None:
    talk.send("input_audio_buffer.commit", **fields)


async def committed(talk: Talk, count: int = 1) -> Json:
    event: Json = (await talk.reader.until("input_audio_buffer.committed", count))["event"]
    return event


async def speaking(talk: Talk) -> str:
    """An answer in the middle of its audio; its id."""
    talk.say(1000)
    commit(talk, response_create=True)
    created = await talk.reader.until("response.created")
    await talk.reader.until("response.output_audio.delta", 3)
    return str(created["response_id"])


BOTH_MODELS = pytest.mark.parametrize("options", [ScriptedOptions(), held()], ids=["hears", "held"])


@BOTH_MODELS
async def test_a_commit_waits_for_response_create(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    """Case a."""
    async with talking(options, config=MANUAL) as talk:
        talk.say()
        commit(talk)
        event = await committed(talk)
        assert event["turn_id"] == 1
        assert "overlap_deferred" not in event
        await trio.sleep(5)
        assert not talk.reader.of("response.created")
        talk.send("response.create")
        done = await talk.reader.until("response.done")
        assert done["response"]["status"] == "completed"
        assert len(talk.model.requests) == 1
        check_log(talk.events)


@BOTH_MODELS
async def test_a_commit_that_wants_a_response_precreates_it(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    """Case a: created follows committed immediately, before any output."""
    async with talking(options, config=MANUAL) as talk:
        talk.say(1000)
        commit(talk, response_create=True)
        await talk.reader.until("response.done")
        kinds = [k for k in talk.reader.types if k != "response.listen"]
        at = kinds.index("input_audio_buffer.committed")
        assert kinds[at + 1] == "conversation.item.done" or kinds[at + 2] == "conversation.item.done"
        assert kinds[kinds.index("conversation.item.done") + 1] == "response.created"
        check_log(talk.events)


async def test_held_audio_reaches_the_model_only_with_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(held(), config=MANUAL) as talk:
        talk.say(320)
        commit(talk)
        await committed(talk)
        assert talk.model.submitted_ms == 0
        talk.say(640)
        commit(talk)
        await committed(talk, 2)
        talk.send("response.create")
        await talk.reader.until("response.done")
        (request,) = talk.model.requests
        assert [turn.item_id for turn in request.turns] == [
            e["item_id"] for e in talk.reader.of("input_audio_buffer.committed")
        ], "several commits without an answer are answered as one payload"
        assert request.turn is request.turns[-1]
        lengths = [len(turn.audio) for turn in request.turns if turn.audio is not None]
        assert lengths == [5120, 10240]
        assert np.abs(request.turns[0].audio).max() > 0.2  # type: ignore[arg-type]


async def test_auto_response_answers_a_commit(autojump_clock: trio.testing.MockClock) -> None:
    """Case b: committed precedes any output; a silent turn ends as a bare listen (O10, O11)."""
    async with talking(held(lambda _: []), config=AUTO) as talk:
        talk.say()
        commit(talk)
        listen = await talk.reader.until("response.listen")
        assert "response_id" not in listen
        assert listen["response"]["metadata"]["reason"] == "model_turn_completed_without_output"
        assert not talk.reader.of("response.created")
        kinds = talk.reader.types
        assert kinds.index("input_audio_buffer.committed") < kinds.index("response.listen")


@BOTH_MODELS
async def test_C6_a_short_overlap_is_acknowledged(
    options: ScriptedOptions, autojump_clock: trio.testing.MockClock
) -> None:
    """Case c: 300 ms over the answer under listen_only: no item of speech, nothing deferred, the answer goes on."""
    import attrs

    async with talking(attrs.evolve(options, script=lambda _: LONG[:20]), config=MANUAL) as talk:
        response_id = await speaking(talk)
        talk.send(append(loud(300)))
        commit(talk, response_create=True)
        event = await committed(talk, 2)
        assert event["empty"] is True
        assert event["is_speech"] is False
        assert event["overlap_ack"] is True
        assert event["no_response"] is True
        decision = talk.reader.of("overlap.decision")[0]
        assert decision["action"] == "listen"
        assert decision["reason"] == "short_ack"
        assert decision["overlap_ms"] == 300
        done = await talk.reader.until("response.done")
        assert done["response_id"] == response_id
        assert done["response"]["status"] == "completed"
        await trio.sleep(10)
        assert len(talk.reader.of("response.created")) == 1, "nothing answers an mm-hmm"
        check_log(talk.events)


async def test_C6_a_short_overlap_under_barge_in_on_speech(autojump_clock: trio.testing.MockClock) -> None:
    """The other policy: the same burst interrupts at once, and the decision says so before the cancel (O19)."""
    async with talking(LONG_HELD, config={"overlap_policy": "barge_in_on_speech"}, view="native") as talk:
        talk.send(append(loud(1000)))
        talk.send("input.commit")
        await talk.reader.until("response.output_audio.delta", 3)
        talk.send(append(loud(300)))
        await talk.reader.until("overlap.decision")
        await talk.reader.until("audio.cancelled")
        decision = talk.reader.of("overlap.decision")[0]
        assert decision["action"] == "barge_in"
        assert decision["reason"] == "policy_barge_in_on_speech"
        assert decision["epoch"] == 0
        assert talk.session.epoch.number == 1


async def test_C6_words_that_only_acknowledge(autojump_clock: trio.testing.MockClock) -> None:
    """A transcript hint: the open item is stopped and forgotten, a later commit does not reuse it."""
    async with talking(LONG_HELD, config=MANUAL) as talk:
        await speaking(talk)
        talk.send(append(loud(200)))
        started = await talk.reader.until("input_audio_buffer.speech_started", 2)
        talk.send(append(loud(200), transcript="Yeah, "))
        stopped = await talk.reader.until("input_audio_buffer.speech_stopped", 2)
        assert stopped["item_id"] == started["item_id"]
        assert talk.reader.of("overlap.decision")[-1]["reason"] == "short_ack_transcript"
        commit(talk, event_id="evt_1")
        assert (await talk.error())["code"] == "input_audio_buffer_empty"


@pytest.mark.parametrize("wanted", [True, False])
@BOTH_MODELS
async def test_meaningful_overlap_is_deferred(
    options: ScriptedOptions, wanted: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Case d: one payload; promoted after the active answer completed, or left to ``response.create``."""
    import attrs

    async with talking(attrs.evolve(options, script=lambda _: LONG[:20]), config=MANUAL) as talk:
        first = await speaking(talk)
        for _ in range(2):
            talk.say(800)
            commit(talk, response_create=wanted)
        events = [await committed(talk, 2), await committed(talk, 3)]
        assert [e["overlap_deferred"] for e in events] == [True, True]
        assert [e["response_create_deferred"] for e in events] == [wanted, wanted]
        assert [d["reason"] for d in talk.reader.of("overlap.decision")][:1] == ["accumulating_overlap_speech"]
        done = await talk.reader.until("response.done")
        assert done["response_id"] == first
        assert done["response"]["status"] == "completed"
        if not wanted:
            await trio.sleep(10)
            assert len(talk.reader.of("response.created")) == 1
            talk.send("response.create")
        await talk.reader.until("response.done", 2)
        await trio.sleep(10)
        assert len(talk.reader.of("response.created")) == 2, "several deferrals merge into one response"
        assert [t.item_id for t in talk.model.requests[1].turns] == [
            e["item_id"] for e in talk.reader.of("input_audio_buffer.committed")[1:]
        ]
        check_log(talk.events)


async def test_silence_declaration(autojump_clock: trio.testing.MockClock) -> None:
    """Case e: no engine append, nothing in history, then a bare listen."""
    async with talking(held(), config=MANUAL) as talk:
        talk.say(640)
        commit(talk, is_speech=False)
        event = await committed(talk)
        assert event["empty"] is True
        assert event["no_response"] is True
        assert event["is_speech"] is False
        assert event["history_len"] == 0
        listen = await talk.reader.until("response.listen")
        assert "response_id" not in listen
        assert listen["response"]["metadata"]["reason"] == "silence_or_noise"
        talk.send("response.create")
        assert (await talk.error())["code"] == "response_create_without_input"


async def test_only_silence_was_buffered(autojump_clock: trio.testing.MockClock) -> None:
    """Case e, by the verdict: each silent append on an idle manual session is told and not kept."""
    async with talking(held(), config=MANUAL) as talk:
        talk.send(append(quiet(200)))
        talk.send(append(quiet(200)))
        await talk.reader.until("response.listen", 2)
        assert talk.session.input.held_samples == 0
        commit(talk)
        event = await committed(talk)
        assert event["empty"] is True
        assert event["is_speech"] is False


async def test_nothing_buffered(autojump_clock: trio.testing.MockClock) -> None:
    """Case f, O18: no item, no committed."""
    async with talking(held(), config=MANUAL) as talk:
        commit(talk, event_id="evt_7")
        error = await talk.error()
        assert error["code"] == "input_audio_buffer_empty"
        assert error["event_id"] == "evt_7"
        assert not talk.reader.of("conversation.item.added")


async def test_after_a_cancel_it_is_like_idle(autojump_clock: trio.testing.MockClock) -> None:
    """Case g."""
    async with talking(LONG_HELD, config=MANUAL) as talk:
        await speaking(talk)
        talk.send("response.cancel")
        await talk.reader.until("response.done")
        talk.say(1000)
        commit(talk, response_create=True)
        event = await committed(talk, 2)
        assert "overlap_deferred" not in event
        await talk.reader.until("response.created", 2)
        check_log(talk.events)


async def test_pauses_inside_an_utterance_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(held(), config=MANUAL) as talk:
        for pcm in (quiet(200), loud(200), quiet(300), loud(200)):
            talk.send(append(pcm))
        commit(talk, response_create=True)
        await talk.reader.until("response.done")
        audio = talk.model.requests[0].turn.audio  # type: ignore[union-attr]
        assert len(audio) == 16 * 700  # type: ignore[arg-type]


async def test_a_lost_append_refuses_the_commit(autojump_clock: trio.testing.MockClock) -> None:
    """One typed error, that input dropped, the dependent commit refused, the session goes on (22, O18)."""
    async with talking(ScriptedOptions(), config=MANUAL) as talk:
        talk.say()
        await talk.settled()
        talk.model.hear(ModelFailed(code="runtime_append_failed", message="lost", loses_input=True))
        assert (await talk.error())["code"] == "runtime_append_failed"
        commit(talk, event_id="evt_2")
        error = await talk.error(2)
        assert error["code"] == "commit_aborted"
        assert error["type"] == "server_error"
        assert error["event_id"] == "evt_2"
        assert not talk.reader.of("input_audio_buffer.committed")
        talk.say()
        commit(talk)
        await committed(talk)


async def test_precreated_response_fails_with_its_append(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(held(lambda _: [Fail("runtime_append_failed")]), config=MANUAL) as talk:
        talk.say(1000)
        commit(talk, response_create=True)
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"] == {"type": "failed", "reason": "runtime_append_failed"}
        check_log(talk.events)


async def test_deferred_work_stays_after_a_failure(autojump_clock: trio.testing.MockClock) -> None:
    """Waits for ``response.create`` or the next commit (29)."""
    scripts = iter([[Piece("a "), Piece("b ", 2000), Fail("engine_error")], [Piece("late")]])
    async with talking(held(lambda _: next(scripts)), config=MANUAL) as talk:
        talk.say(1000)
        commit(talk, response_create=True)
        await talk.reader.until("response.output_audio.delta", 2)
        talk.say(900)
        commit(talk, response_create=True)
        await talk.reader.until("response.done")
        await trio.sleep(5)
        assert len(talk.reader.of("response.created")) == 1
        talk.send("response.create")
        done = await talk.reader.until("response.done", 2)
        assert done["response"]["status"] == "completed"
        assert len(talk.model.requests[1].turns) == 1


# --- 12.2: what each command removes ------------------------------------------------------------------------------


async def waiting_work(talk: Talk, *, deferred: bool) -> None:
    """An answer in progress with a deferred payload behind it, or one committed and unanswered turn."""
    if deferred:
        await speaking(talk)
        talk.say(900)
        commit(talk, response_create=True)
        await committed(talk, 2)
    else:
        talk.say(900)
        commit(talk)
        await committed(talk)


REMOVES = [
    # (command, deferred payload goes, unanswered commit goes)
    ("response.cancel", True, None),
    ("output_audio_buffer.clear", False, False),
    ("input.cancel", True, True),
    ("barge_in", True, True),
    ("input_audio_buffer.clear", None, False),
]


@pytest.mark.parametrize(("command", "goes", "_"), REMOVES)
async def test_what_happens_to_deferred_work(
    command: str, goes: bool | None, _: object, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(LONG_HELD, config=MANUAL) as talk:
        await waiting_work(talk, deferred=True)
        talk.send(command)
        await talk.settled()
        if goes is None:
            assert talk.session.deferred is not None
            return
        await talk.reader.until("response.done")
        await trio.sleep(3)
        assert len(talk.reader.of("response.created")) == 1, "a cancelled answer promotes nothing"
        talk.send("response.create")
        if goes:
            assert (await talk.error())["code"] == "response_create_without_input"
        else:
            await talk.reader.until("response.created", 2)


@pytest.mark.parametrize(("command", "_", "goes"), REMOVES)
async def test_what_happens_to_an_unanswered_commit(
    command: str, _: object, goes: bool | None, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(LONG_HELD, config=MANUAL) as talk:
        await waiting_work(talk, deferred=False)
        talk.send(command)
        await talk.settled()
        if goes is None:
            assert (await talk.error())["code"] == "response_not_active", "and leaves it (12.3)"
        talk.send("response.create")
        if goes:
            assert (await talk.error())["code"] == "response_create_without_input"
        else:
            await talk.reader.until("response.created")


async def test_overlap_barge_in_keeps_committed_work_for_the_next_commit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """12.2, last row: merged into the next commit; the interrupting chunk is the start of the new input."""
    async with talking(LONG_HELD, config=MANUAL) as talk:
        await waiting_work(talk, deferred=True)
        talk.send(append(loud(200), force_barge_in=True))
        await talk.reader.until("response.done")
        talk.say(1000)
        commit(talk, response_create=True)
        await talk.reader.until("response.created", 2)
        await talk.settled()
        turns = talk.model.requests[1].turns
        assert len(turns) == 2
        assert len(turns[1].audio) == 16 * 1200  # type: ignore[arg-type]


async def test_overlap_that_was_not_committed_becomes_ordinary_input(autojump_clock: trio.testing.MockClock) -> None:
    """An item that is open when the answer ends stays open (11)."""
    async with talking(held(lambda _: LONG[:6]), config=MANUAL) as talk:
        await speaking(talk)
        talk.send(append(loud(400)))
        await talk.reader.until("response.done")
        commit(talk, response_create=True)
        event = await committed(talk, 2)
        assert "empty" not in event
        await talk.reader.until("response.done", 2)


async def test_accumulator_resets_at_the_terminal(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(held(lambda _: LONG[:15]), config=MANUAL) as talk:
        await speaking(talk)
        talk.send(append(loud(1000)))
        await talk.reader.until("response.done")
        commit(talk, response_create=True)
        await talk.reader.until("response.output_audio.delta", 18)
        talk.send(append(loud(100)))
        await talk.settled()
        assert [d["overlap_ms"] for d in talk.reader.of("overlap.decision")] == [1000, 100]


# --- playback counts as an active answer --------------------------------------------------------------------------


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_commit_over_running_playback_waits_for_it(
    acknowledged: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """10.1: ack_only playback that is not finished; a client that never acknowledges is not left without an answer."""
    options = held(lambda _: [Piece("a", 5000)], unpaced=True)
    async with talking(options, config={"playback_commit_policy": "ack_only"}) as talk:
        talk.say(1000)
        commit(talk, response_create=True)
        done = await talk.reader.until("response.done")
        talk.send("playback.ack", response_id=done["response_id"], played_ms=100)
        talk.say(900)
        commit(talk, response_create=True)
        assert (await committed(talk, 2))["response_create_deferred"] is True
        begun = trio.current_time()
        if acknowledged:
            await trio.sleep(2)
            talk.send("playback.ack", response_id=done["response_id"], played_ms=5000)
        await talk.reader.until("response.created", 2)
        assert trio.current_time() - begun == pytest.approx(2 if acknowledged else 6, abs=0.1)


async def test_response_create_is_refused_while_active(autojump_clock: trio.testing.MockClock) -> None:
    """P5: two in a row: one answer, one typed error with the event's id, the answer untouched."""
    async with talking(held(lambda _: [Piece("a "), Hang()]), config=MANUAL) as talk:
        talk.say()
        commit(talk)
        talk.send("response.create", event_id="evt_a")
        talk.send("response.create", event_id="evt_b")
        error = await talk.error()
        assert error["code"] == "response_already_active"
        assert error["event_id"] == "evt_b"
        await talk.settled()
        assert len(talk.reader.of("response.created")) == 1
        assert not talk.reader.of("response.done")


async def test_P5_response_create_at_the_instant_of_the_models_own_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Work in flight without a visible response: absorbed, the coming response is the answer."""
    async with talking(ScriptedOptions(), config=AUTO) as talk:
        talk.ask()
        await talk.reader.until("input_audio_buffer.committed")
        talk.send("response.create", response={"metadata": {"a": "b"}})
        await talk.reader.until("response.done")
        await talk.settled()
        assert len(talk.reader.of("response.created")) == 1


async def test_listen_decision_in_a_precreated_response_names_it(autojump_clock: trio.testing.MockClock) -> None:
    """P4, O10: listen with the id, then the done of that id with ``committed: false``."""
    async with talking(held(lambda _: []), config=MANUAL) as talk:
        talk.say(1000)
        commit(talk, response_create=True)
        done = await talk.reader.until("response.done")
        listen = talk.reader.of("response.listen")[-1]
        assert listen["response_id"] == done["response_id"] == talk.reader.of("response.created")[0]["response_id"]
        assert listen["response"]["metadata"]["reason"] == "data_plane_finished_without_output"
        assert listen["response"]["metadata"]["model_listen"] is False
        assert done["response"]["metadata"]["committed"] is False
        check_log(talk.events)


@pytest.mark.parametrize("hint", [{"force_barge_in": True}, {"overlap_action": "interrupt"}])
@pytest.mark.parametrize("auto", [True, False])
async def test_U5_a_barge_in_hint_on_a_model_without_it(
    hint: Json, auto: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """One typed error; the hint is put aside, the append itself goes on, the answer too (11, 30)."""
    options = held(lambda _: LONG[:20], barge_in=False)
    async with talking(options, config=AUTO if auto else MANUAL) as talk:
        await speaking(talk)
        before = talk.model.submitted_ms
        talk.send(append(loud(900), event_id="evt_h", **hint))
        error = await talk.error()
        assert (error["code"], error["event_id"]) == ("barge_in_unsupported", "evt_h")
        await talk.settled()
        assert talk.session.epoch.number == 0
        assert not talk.reader.of("response.done")
        if auto:
            assert talk.model.submitted_ms == before + 900
        else:
            assert [d["reason"] for d in talk.reader.of("overlap.decision")] == ["barge_in_unsupported"]
            assert talk.session.input.held_samples == 16 * 900
