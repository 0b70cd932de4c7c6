# ruff: noqa: N802 - tests of a case carry its id
"""Server VAD as a service of the session, on both lanes (contract 9, 9.1); a scripted scorer that goes by loudness."""

from __future__ import annotations

import io
import wave
from typing import Any

import attrs
import pybase64
import pytest
import trio

from duplex_protocol.errors import RemoteProtocolError
from tests.session.talk import AUTO, Json, Talk, append, check_log, loud, quiet, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.scripted_vad import ScriptedVad

LONG = [Piece(f"word{k} ") for k in range(40)]
SHORT = [Piece("One "), Piece("two.")]
VAD: Json = {"turn_detection": {"type": "server_vad"}}
STREAMS = Traits(detects_speech=False)
HELD = Traits(detects_speech=False, holds_manual_input=True)
TURNS = Traits(detects_speech=False, turn_based=True)


def options(traits: Traits, script: Any = None, **fields: Any) -> ScriptedOptions:
    return ScriptedOptions(traits=traits, owns_turns=False, script=script or (lambda _: SHORT), **fields)


def vad(**fields: Any) -> Json:
    return {"turn_detection": {"type": "server_vad", **fields}}


def speech(talk: Talk) -> list[tuple[str, int, str]]:
    return [
        (e["type"].rsplit("_", 1)[1], e.get("audio_start_ms", e.get("audio_end_ms")), e["item_id"])
        for e in talk.events
        if e["type"].startswith("input_audio_buffer.speech")
    ]


def utterance(talk: Talk, speech_ms: int = 640, silence_ms: int = 640) -> None:
    talk.send(append(loud(speech_ms)))
    talk.send(append(quiet(silence_ms)))


# --- native lane --------------------------------------------------------------------------------------------------


async def test_onset_and_end_on_the_sessions_clock(autojump_clock: trio.testing.MockClock) -> None:
    """Onset after 96 ms in consecutive frames, less the prefix; the end includes the trailing silence."""
    async with talking(options(STREAMS), config={**AUTO, **vad(prefix_padding_ms=64)}, scorer=ScriptedVad()) as talk:
        talk.send(append(quiet(320)))
        utterance(talk)
        await talk.settled()
        (began, ended) = speech(talk)
        assert (began[0], began[1]) == ("started", 320 - 64)
        # 500 ms are sixteen frames of 32 ms.
        assert (ended[0], ended[1]) == ("stopped", 320 + 640 + 512)
        assert began[2] == ended[2]
        assert not talk.reader.of("input_audio_buffer.committed"), "auto_response on: VAD does not commit"
        assert talk.model.submitted_ms == 1600, "the model hears everything"


async def test_short_bursts_are_no_onset(autojump_clock: trio.testing.MockClock) -> None:
    """V4: 64 ms of noise, again and again."""
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=ScriptedVad()) as talk:
        for _ in range(20):
            talk.send(append(loud(64) + quiet(96)))
        await talk.settled()
        assert speech(talk) == []


async def test_C2_onset_interrupts_with_its_reason(autojump_clock: trio.testing.MockClock) -> None:
    config = {**AUTO, **VAD}
    async with talking(options(STREAMS, lambda _: LONG), config=config, scorer=ScriptedVad()) as talk:
        talk.send(append(loud(320)))
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("response.output_audio.delta", 3)
        talk.send(append(quiet(96)))
        await talk.settled()
        assert not talk.reader.of("response.done")
        talk.send(append(loud(320)))
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        decisions = talk.reader.of("overlap.decision")
        assert decisions[0]["reason"] == "auto_response_continuous"
        assert decisions[-1]["reason"] == "server_vad_speech_started"
        assert decisions[-1]["policy"] == "barge_in_on_speech"
        kinds = talk.reader.types
        assert kinds.index("overlap.decision") < kinds.index("response.done"), "O19"
        await talk.settled()
        assert talk.session.epoch.number == 1
        check_log(talk.events)


async def test_one_append_with_several_utterances(autojump_clock: trio.testing.MockClock) -> None:
    """Every onset and end is sent, in order, each onset with a new item id (29)."""
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=ScriptedVad()) as talk:
        talk.send(append(loud(320) + quiet(640) + loud(320) + quiet(640) + loud(320)))
        await talk.settled()
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped", "started", "stopped", "started"]
        assert len({item for kind, _, item in speech(talk) if kind == "started"}) == 3
        talk.send("input_audio_buffer.commit")
        event = await talk.reader.until("input_audio_buffer.committed")
        assert event["item_id"] == speech(talk)[-1][2]
        assert [kind for kind, _, _ in speech(talk)][-1] == "stopped"


@pytest.mark.parametrize("traits", [HELD, STREAMS], ids=["held", "streams"])
async def test_manual_lane_commits_at_the_end_point(traits: Traits, autojump_clock: trio.testing.MockClock) -> None:
    """auto_response off: the server commits and asks for the answer (30)."""
    async with talking(options(traits), config=VAD, scorer=ScriptedVad()) as talk:
        utterance(talk)
        await talk.reader.until("response.done")
        kinds = [k for k in talk.reader.types if k in ORDER]
        assert kinds == ORDER
        if traits is HELD:
            audio = talk.model.requests[0].turn.audio  # type: ignore[union-attr]
            assert len(audio) == 16 * (640 + 512)  # type: ignore[arg-type]
        check_log(talk.events)


ORDER = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "response.created",
    "response.done",
]


async def test_manual_lane_does_not_commit_while_speech_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """ "Only when speech is no longer active after that append"; what was said before is not lost."""
    async with talking(options(HELD), config=VAD, scorer=ScriptedVad()) as talk:
        talk.send(append(loud(320) + quiet(640) + loud(320)))
        await talk.settled()
        assert not talk.reader.of("input_audio_buffer.committed")
        talk.send(append(quiet(640)))
        await talk.reader.until("response.done")
        assert len(talk.reader.of("input_audio_buffer.committed")) == 1
        audio = talk.model.requests[0].turn.audio  # type: ignore[union-attr]
        assert len(audio) >= 16 * (320 + 512 + 320 + 512)  # type: ignore[arg-type]


async def test_client_commit_in_the_middle_of_an_utterance(autojump_clock: trio.testing.MockClock) -> None:
    """Allowed on the native lane; the detector starts over, its clock goes on."""
    async with talking(options(HELD), config=vad(prefix_padding_ms=0), scorer=ScriptedVad()) as talk:
        talk.send(append(loud(640)))
        talk.send("input_audio_buffer.commit")
        await talk.reader.until("input_audio_buffer.committed")
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert len(talk.model.requests[0].turn.audio) == 16 * 640  # type: ignore[union-attr,arg-type]
        talk.send(append(loud(320)))
        await talk.settled()
        assert [(kind, at) for kind, at, _ in speech(talk)][-1] == ("started", 640)
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped", "started"]


async def test_clear_resets_the_detector_and_keeps_the_clock(autojump_clock: trio.testing.MockClock) -> None:
    scorer = ScriptedVad()
    async with talking(options(STREAMS), config={**AUTO, **vad(prefix_padding_ms=0)}, scorer=scorer) as talk:
        talk.send(append(loud(330)))  # ten frames and ten milliseconds of an eleventh
        talk.send("input_audio_buffer.clear")
        talk.send(append(loud(320)))
        await talk.settled()
        assert scorer.resets == 1
        assert [(kind, at) for kind, at, _ in speech(talk)] == [("started", 0), ("stopped", 0), ("started", 330)]


async def test_needs_a_model_that_can_be_interrupted(autojump_clock: trio.testing.MockClock) -> None:
    """U5, at the opening and by update; a refused update leaves everything as it was."""
    unable = attrs.evolve(options(STREAMS), barge_in=False)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with talking(unable, config={**AUTO, **VAD}, scorer=ScriptedVad()):
            pass
    refusal = caught.value.split(RemoteProtocolError)[0]
    assert refusal is not None
    async with talking(unable, config=AUTO, scorer=ScriptedVad()) as talk:
        talk.send("session.update", session=VAD, event_id="evt_v")
        error = await talk.error()
        assert error["code"] == "unsupported_turn_detection"
        assert error["param"] == "turn_detection"
        assert talk.session.config.turn_detection is None
        assert talk.session.detector is None


async def test_detector_that_cannot_load(autojump_clock: trio.testing.MockClock) -> None:
    """At the opening the session does not open; on an update the old detector stays."""
    scorer = ScriptedVad(unavailable=True)
    with pytest.raises(BaseExceptionGroup):
        async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=scorer):
            pass
    scorer.unavailable = False
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=scorer) as talk:
        before = talk.session.detector
        scorer.unavailable = True
        talk.send("session.update", session=vad(silence_duration_ms=900))
        error = await talk.error()
        assert error["code"] == "server_vad_initialization_failed"
        assert error["type"] == "server_error"
        assert talk.session.detector is before
        assert talk.session.config.turn_detection.silence_duration_ms == 500  # type: ignore[union-attr]
        assert scorer.open_streams == 1


async def test_updates_take_effect_for_what_follows(autojump_clock: trio.testing.MockClock) -> None:
    """Two-phase: events behind the update meet the new detector; a rejected one leaves its open utterance alone."""
    scorer = ScriptedVad(delay_s=0.01)
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=scorer) as talk:
        talk.send(append(loud(320)))
        talk.send("session.update", session={**vad(silence_duration_ms=900), "voice": 7})
        talk.send(append(quiet(640)))
        await talk.settled()
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped"]
        talk.send("session.update", session=vad(silence_duration_ms=96))
        talk.send(append(loud(320)))
        talk.send(append(quiet(160)))
        await talk.settled()
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped"] * 2
        updated = talk.reader.of("session.updated")[-1]["session"]
        assert updated["turn_detection"]["silence_duration_ms"] == 96
        assert updated["turn_detection"]["interrupt_response"] is True
        assert scorer.open_streams == 1
        talk.send("session.update", session={"turn_detection": None})
        await talk.settled()
        assert scorer.open_streams == 0
        assert talk.session.config.overlap_policy == "listen_only"


async def test_place_in_the_scorer_is_given_back(autojump_clock: trio.testing.MockClock) -> None:
    scorer = ScriptedVad()
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=scorer) as talk:
        assert scorer.open_streams == 1
        talk.send("session.close")
        await talk.reader.ended.wait()
        assert scorer.open_streams == 0


async def test_scoring_failure_drops_the_input(autojump_clock: trio.testing.MockClock) -> None:
    """The error with the append's id, then cleared; the session and the detector go on."""
    scorer = ScriptedVad()
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=scorer) as talk:
        talk.send(append(loud(320)))
        await talk.settled()
        scorer.fails = True
        talk.send(append(loud(320), event_id="evt_s"))
        error = await talk.error()
        assert error["code"] == "server_vad_inference_failed"
        assert error["type"] == "server_error"
        assert error["event_id"] == "evt_s"
        await talk.reader.until("input_audio_buffer.cleared")
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped"]
        scorer.fails = False
        talk.send("input_audio_buffer.commit")
        assert (await talk.error(2))["code"] == "input_audio_buffer_empty"
        utterance(talk)
        await talk.settled()
        assert [kind for kind, _, _ in speech(talk)] == ["started", "stopped"] * 2


@pytest.mark.parametrize("command", ["response.cancel", "session.close"])
async def test_commands_win_over_a_hanging_append(command: str, autojump_clock: trio.testing.MockClock) -> None:
    """22: the append is abandoned 0.25 s after a cancel or close arrived."""
    scorer = ScriptedVad()
    async with talking(options(STREAMS, lambda _: [Hang()]), config={**AUTO, **VAD}, scorer=scorer) as talk:
        talk.send(append(loud(320)))
        talk.send("input_audio_buffer.commit")
        await talk.settled()
        scorer.delay_s = 1000
        talk.send(append(loud(320)))
        await trio.sleep(1)
        begun = trio.current_time()
        talk.send(command)
        if command == "session.close":
            await talk.reader.until("session.closed")
        else:
            await talk.settled()
            assert talk.session.epoch.number == 1
        assert trio.current_time() - begun == pytest.approx(0.25, abs=0.02)


async def test_rate_may_not_change_within_a_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(STREAMS), config={**AUTO, **VAD}, scorer=ScriptedVad()) as talk:
        talk.send(append(loud(320)))
        talk.send(append(loud(320, 24_000), sample_rate_hz=24_000))
        error = await talk.error()
        assert (error["code"], error["param"]) == ("bad_audio", "audio")
        assert talk.model.submitted_ms == 320


# --- turn-based lane ----------------------------------------------------------------------------------------------


TURN_VAD: Json = {**VAD, "sample_rate_hz": 16_000}


def wav_ms(url: str) -> tuple[int, int]:
    with wave.open(io.BytesIO(pybase64.b64decode(url.partition(",")[2]))) as file:
        return file.getframerate(), file.getnframes() * 1000 // file.getframerate()


async def test_turn_based_utterance_is_committed_whole(autojump_clock: trio.testing.MockClock) -> None:
    """Prefix, speech and trailing silence as one 16 kHz WAV; then the answer."""
    async with talking(options(TURNS), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        talk.send(append(quiet(960)))
        utterance(talk)
        await talk.reader.until("response.done")
        assert [k for k in talk.reader.types if k in ORDER] == ORDER
        event = talk.reader.of("input_audio_buffer.committed")[0]["event"]
        assert event["native_audio"] is False
        (part,) = event["message"]["content"]
        rate_hz, ms = wav_ms(part["audio_url"]["url"])
        assert rate_hz == 16_000
        assert ms == pytest.approx(300 + 640 + 512, abs=32)
        assert talk.reader.of("input_audio_buffer.speech_started")[0]["audio_start_ms"] == 660
        assert talk.model.submitted_ms == 0
        assert talk.model.requests[0].history[0].wav is not None
        check_log(talk.events)


async def test_turn_based_defaults(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        session = (await talk.reader.until("session.updated"))["session"]
        assert session["turn_detection"]["interrupt_response"] is False
        assert session["turn_detection"]["create_response"] is True
        assert session["overlap_policy"] == "listen_only"


async def test_create_response_false_stores_only(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS), config={**TURN_VAD, **vad(create_response=False)}, scorer=ScriptedVad()) as talk:
        utterance(talk)
        await talk.reader.until("input_audio_buffer.committed")
        await trio.sleep(5)
        assert not talk.reader.of("response.created")
        talk.send("response.create")
        await talk.reader.until("response.done")
        assert len(talk.model.requests[0].history) == 1


async def test_manual_commit_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        talk.send(append(loud(320)))
        talk.send("input_audio_buffer.commit", event_id="evt_m")
        error = await talk.error()
        assert error["code"] == "server_vad_manual_commit_unsupported"
        assert error["event_id"] == "evt_m"
        talk.send(append(quiet(640)))
        await talk.reader.until("input_audio_buffer.committed")


async def test_one_utterance_waits_a_second_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    """No interruption: the fan-out at once, message and response after the running answer; then one more answer."""
    async with talking(
        options(TURNS, lambda r: LONG if len(r.history) == 1 else SHORT), config=TURN_VAD, scorer=ScriptedVad()
    ) as talk:
        utterance(talk)
        await talk.reader.until("response.output_audio.delta", 2)
        utterance(talk)
        second = await talk.reader.until("input_audio_buffer.committed", 2)
        assert second["event"]["history_len"] == 1, "not yet part of the history"
        utterance(talk)
        error = await talk.error()
        assert error["code"] == "input_backpressure"
        assert len(talk.reader.of("input_audio_buffer.committed")) == 2
        await talk.reader.until("response.done", 2)
        assert [e["response"]["status"] for e in talk.reader.of("response.done")] == ["completed", "completed"]
        assert [e.role for e in talk.model.requests[1].history] == ["user", "assistant", "user"]
        check_log(talk.events)


@pytest.mark.parametrize("command", ["response.cancel", "output_audio_buffer.clear"])
async def test_a_cancel_releases_the_waiting_utterance(command: str, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS, lambda _: LONG), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        utterance(talk)
        await talk.reader.until("response.output_audio.delta", 2)
        utterance(talk)
        await talk.reader.until("input_audio_buffer.committed", 2)
        talk.send(command)
        await talk.reader.until("response.created", 2)
        assert len(talk.reader.of("response.done")) == 1
        assert talk.session.epoch.number == 1
        check_log(talk.events)


async def test_deleting_the_waiting_utterance(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS, lambda _: LONG[:10]), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        utterance(talk)
        await talk.reader.until("response.output_audio.delta", 2)
        utterance(talk)
        second = await talk.reader.until("input_audio_buffer.committed", 2)
        talk.send("conversation.item.delete", item_id=second["item_id"])
        await talk.reader.until("conversation.item.deleted")
        await talk.reader.until("response.done")
        await trio.sleep(10)
        assert len(talk.reader.of("response.created")) == 1


async def test_turn_based_detection_is_fixed_after_audio(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        talk.send("session.update", session=vad(silence_duration_ms=400))
        await talk.reader.until("session.updated", 2)
        talk.send(append(quiet(320)))
        talk.send("session.update", session=vad(silence_duration_ms=900))
        assert (await talk.error())["code"] == "unsupported_turn_detection"
        talk.send("session.update", session={"input_audio_format": "pcm16", "sample_rate_hz": 24_000})
        error = await talk.error(2)
        assert (error["code"], error["param"]) == ("unsupported_audio_format", "audio.input.format")
        talk.send("session.update", session={"temperature": 0.5, **vad(silence_duration_ms=400)})
        await talk.reader.until("session.updated", 3)


async def test_turn_based_append_in_another_format(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(options(TURNS), config=TURN_VAD, scorer=ScriptedVad()) as talk:
        talk.send(append(b"\xff" * 800, format="g711_ulaw", event_id="evt_f"))
        error = await talk.error()
        assert (error["code"], error["param"]) == ("unsupported_audio_format", "audio.input.format")
        assert talk.session.input.empty


async def test_real_detector_hears_speech_and_not_noise() -> None:
    """The service around the network, on the real clock: recorded speech opens an utterance, noise does not."""
    pytest.importorskip("torch")
    pytest.importorskip("silero_vad")
    import numpy as np

    from trio_duplex.models.vad_service import VadService

    service = VadService(2)
    rng = np.random.default_rng(3)
    noise = (rng.standard_normal(16_000) * 0.01).astype(np.float32)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            await trio.testing.wait_all_tasks_blocked()
            stream = await service.open()
            frames = [noise[at : at + 512] for at in range(0, 15_872, 512)]
            first = await stream.score(frames)
            assert len(first) == 31
            assert max(first) < 0.5
            stream.reset()
            assert await stream.score(frames) == pytest.approx(first, abs=1e-5), "a reset forgets everything"
            stream.close()
            stream.close()
            others = [await service.open(), await service.open()]
            with pytest.raises(Exception, match="places"):
                await service.open()
            for other in others:
                other.close()
            nursery.cancel_scope.cancel()
