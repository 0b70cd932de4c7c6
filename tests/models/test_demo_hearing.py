"""What the demo session hears and decides, on a virtual engine and clock (contract 9; design 4 and 5)."""

from __future__ import annotations

import numpy as np
import pytest
import structlog
import trio
import trio.testing

from duplex_protocol.values import TurnDetection
from tests.models.models_kit import Talk, VirtualEngine, config_of, level, open_talk
from trio_duplex.models.demo import DemoOptions
from trio_duplex.models.plugin import (
    ModelFailed,
    SessionOverloaded,
    SpeechStarted,
    SpeechStopped,
    Turn,
    TurnEnded,
    TurnTranscribed,
)

SPEECH = level(0.9, 640)
OTHER = level(0.8, 640)
WORDS = {0.9: "go forward", 0.8: "ten meters"}


def kinds(talk: Talk) -> list[type]:
    return [type(result) for result in talk.results]


async def test_a_turn_is_heard_and_ended_by_the_model(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    begin_s = trio.current_time()
    await talk.hear(level(0, 960), SPEECH, level(0, 960))
    started, stopped, ended = talk.results
    # 300 ms of prefix before the first frame of speech; 16 quiet frames are the first 500 ms or more.
    assert started == SpeechStarted(audio_start_ms=660)
    assert stopped == SpeechStopped(audio_end_ms=960 + 640 + 512)
    assert isinstance(ended, TurnEnded)
    assert ended.respond
    assert ended.turn.speech
    assert (ended.turn.audio_start_ms, ended.turn.audio_end_ms) == (660, 2112)
    assert ended.turn.transcript == "go forward ten meters"
    [onset_s], [end_s] = talk.when(SpeechStarted), talk.when(TurnEnded)
    assert onset_s - begin_s == pytest.approx(0.960 + 0.096 + talk.engine.detect_s)
    assert end_s - begin_s == pytest.approx(2.112 + talk.engine.detect_s)
    nursery.cancel_scope.cancel()


async def test_the_answer_is_prepared_in_the_silence(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    begin_s = trio.current_time()
    await talk.hear(SPEECH, level(0, 512))
    await talk.settle()
    [(asr_s, seconds, urgency)] = talk.engine.jobs_of("asr")
    assert asr_s - begin_s == pytest.approx(0.640 + 0.160 + talk.engine.detect_s)
    assert (float(seconds), urgency) == (pytest.approx(0.800), "maybe")
    [(tts_s, clause, _)] = talk.engine.jobs_of("tts")
    assert tts_s == pytest.approx(asr_s + talk.engine.recognise_s)
    assert clause == "You said: go forward ten meters. "
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("silence_ms", "early_ms"), [(500, 160), (193, 160), (192, 64), (150, 64), (96, None)])
async def test_hasty_clients_make_the_model_hurry(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, silence_ms: int, early_ms: int | None
) -> None:
    talk = await open_talk(nursery, detection=TurnDetection(silence_duration_ms=silence_ms))
    begin_s = trio.current_time()
    await talk.hear(SPEECH, level(0, 960))
    end_ms = -(-silence_ms // 32) * 32
    [(asr_s, _, urgency)] = talk.engine.jobs_of("asr")
    expected_ms = end_ms if early_ms is None else early_ms
    assert asr_s - begin_s == pytest.approx((640 + expected_ms) / 1000 + talk.engine.detect_s)
    assert urgency == ("now" if early_ms is None else "maybe")
    [end_s] = talk.when(SpeechStopped)
    assert end_s - begin_s == pytest.approx((640 + end_ms) / 1000 + talk.engine.detect_s)
    nursery.cancel_scope.cancel()


async def test_a_pause_is_no_end(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS, recognise_s=0.5))
    await talk.hear(SPEECH, level(0, 320), OTHER, level(0, 1280))
    await talk.settle()
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnEnded]
    assert talk.results[-1].turn.transcript == "go forward ten meters"  # type: ignore[union-attr]
    assert talk.engine.given_up == ["asr"]  # begun in the pause, dropped when speech went on
    first, second = talk.engine.jobs_of("asr")
    assert float(first[1]) == pytest.approx(0.640 + 0.160)
    assert float(second[1]) == pytest.approx(1.6 + 0.160)
    nursery.cancel_scope.cancel()


async def test_slow_recognition_holds_up_the_turn_but_not_the_end_of_speech(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(recognise_s=1.0))
    begin_s = trio.current_time()
    await talk.hear(SPEECH, level(0, 2000))
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnEnded]
    assert talk.when(SpeechStopped)[0] - begin_s == pytest.approx(1.152 + talk.engine.detect_s)
    assert talk.when(TurnEnded)[0] - begin_s == pytest.approx(0.800 + 1.0 + talk.engine.detect_s)
    nursery.cancel_scope.cancel()


async def test_speech_before_the_transcript_ends_the_old_turn_unanswered(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS, recognise_s=1.0))
    await talk.hear(SPEECH, level(0, 544), OTHER, level(0, 3000))
    assert kinds(talk) == [
        SpeechStarted,
        SpeechStopped,
        TurnEnded,
        SpeechStarted,
        TurnTranscribed,
        SpeechStopped,
        TurnEnded,
    ]
    first, transcribed, second = talk.results[2], talk.results[4], talk.results[6]
    assert isinstance(first, TurnEnded)
    assert not first.respond
    assert isinstance(transcribed, TurnTranscribed)
    assert transcribed.turn is first.turn
    assert first.turn.transcript == "go forward"
    assert isinstance(second, TurnEnded)
    assert second.respond
    assert second.turn.transcript == "ten meters"
    assert second.turn.audio_start_ms >= first.turn.audio_end_ms
    nursery.cancel_scope.cancel()


async def test_noise_ends_without_an_answer(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words={0.9: "..."}))
    await talk.hear(SPEECH, level(0, 960))
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    assert (ended.respond, ended.turn.speech) == (False, False)
    assert talk.engine.jobs_of("tts") == []
    nursery.cancel_scope.cancel()


async def test_a_client_may_want_turns_but_no_answers(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, detection=TurnDetection(create_response=False))
    await talk.hear(SPEECH, level(0, 960))
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    assert (ended.respond, ended.turn.speech, ended.turn.transcript) == (False, True, "go forward ten meters")
    assert talk.engine.jobs_of("tts") == []
    nursery.cancel_scope.cancel()


async def test_semantic_vad_means_the_models_own_numbers(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, detection=TurnDetection(kind="semantic_vad", silence_duration_ms=32), auto=False)
    await talk.hear(SPEECH, level(0, 480))
    assert kinds(talk) == [SpeechStarted]
    await talk.hear(level(0, 64))
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnEnded]
    nursery.cancel_scope.cancel()


async def test_by_hand_only_commits_end_turns(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS), auto=False)
    await talk.hear(SPEECH, level(0, 960), OTHER, level(0, 960))
    assert kinds(talk) == [SpeechStarted, SpeechStopped] * 2
    assert talk.engine.jobs == []
    turn = talk.session.end_turn()
    assert (turn.audio_start_ms, turn.audio_end_ms) == (0, 3200)
    assert turn.transcript is None
    await trio.sleep(0.1)
    last = talk.results[-1]
    assert last == TurnTranscribed(turn=turn)
    assert turn.transcript == "go forward ten meters"
    nursery.cancel_scope.cancel()


async def test_a_commit_takes_effect_at_its_place_in_the_audio(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A burst and its commit arrive while no frame was judged: the burst's onset must not follow the commit."""
    talk = await open_talk(nursery, VirtualEngine(words=WORDS))
    talk.session.submit(np.concatenate([level(0, 320), SPEECH, level(0, 10)]))
    turn = talk.session.end_turn()
    talk.session.submit(np.concatenate([level(0, 640), OTHER, level(0, 640)]))
    assert (turn.audio_start_ms, turn.audio_end_ms) == (0, 970)
    await trio.sleep(1)
    # The burst is judged faster than it is recognised, so the second onset comes before the first transcript.
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnTranscribed, TurnEnded]
    assert turn.transcript == "go forward"
    started, ended = talk.results[0], talk.results[3]
    assert isinstance(started, SpeechStarted)
    assert 970 <= started.audio_start_ms <= 970 + 640 - 300 + 32
    assert isinstance(ended, TurnEnded)
    assert ended.turn.transcript == "ten meters"
    nursery.cancel_scope.cancel()


async def test_several_commits_in_a_row(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS), auto=False)
    turns: list[Turn] = []
    for part in (SPEECH, OTHER, level(0, 300)):
        talk.session.submit(part)
        turns.append(talk.session.end_turn())
    await trio.sleep(1)
    assert [(turn.audio_start_ms, turn.audio_end_ms) for turn in turns] == [(0, 640), (640, 1280), (1280, 1580)]
    assert [(turn.transcript, turn.speech) for turn in turns] == [
        ("go forward", True),
        ("ten meters", True),
        ("", False),
    ]
    assert [result.turn for result in talk.results if isinstance(result, TurnTranscribed)] == turns
    assert len(talk.engine.jobs_of("asr")) == 2  # silence is not worth a run
    nursery.cancel_scope.cancel()


async def test_a_commit_of_what_is_known_to_be_silence_is_none(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS))
    await talk.hear(SPEECH, level(0, 960))
    await talk.settle()
    turn = talk.session.end_turn()
    assert (turn.speech, turn.transcript) == (False, "")
    assert (turn.audio_start_ms, turn.audio_end_ms) == (640 + 512, 1600)
    await talk.hear(level(0, 320), level(0.4, 320))  # too faint for an onset, not for a commit
    await talk.settle()
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnEnded]
    assert talk.session.end_turn().speech
    await trio.sleep(0.2)
    assert kinds(talk)[3:] == [TurnTranscribed]
    nursery.cancel_scope.cancel()


async def test_a_clients_own_transcript_stays(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS, recognise_s=5.0), auto=False)
    talk.session.submit(SPEECH)
    turn = talk.session.end_turn()
    turn.transcript = "say tea"
    begin_s = trio.current_time()
    said = await talk.answer(talk.request(turn))
    assert said[0][0] - begin_s < 1.0  # nobody waits for recognition
    assert "".join(speech.text for _, speech in said) == "Tea."
    await trio.sleep(5)
    assert talk.results[-1] == TurnTranscribed(turn=turn)
    assert (turn.transcript, turn.speech) == ("say tea", True)
    nursery.cancel_scope.cancel()


async def test_a_commit_in_the_silence_uses_what_was_prepared(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    await talk.hear(SPEECH, level(0, 320))
    turn = talk.session.end_turn()
    await talk.settle()
    assert talk.results[-1] == TurnTranscribed(turn=turn)
    assert len(talk.engine.jobs_of("asr")) == 1
    await talk.hear(level(0, 1000))
    assert kinds(talk) == [SpeechStarted, TurnTranscribed]  # nothing is left that could end
    nursery.cancel_scope.cancel()


async def test_dropped_input_is_forgotten(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(words=WORDS))
    await talk.hear(SPEECH, level(0, 256))
    talk.session.submit(OTHER)
    talk.session.drop_input()
    await talk.hear(level(0, 1000))
    assert kinds(talk) == [SpeechStarted]
    assert talk.engine.given_up == ["tts"]  # recognised already, answer under way
    await talk.hear(OTHER, level(0, 960))
    started, _, ended = talk.results[1:]
    assert isinstance(started, SpeechStarted)
    assert started.audio_start_ms >= 640 + 256 + 640
    assert isinstance(ended, TurnEnded)
    assert ended.turn.transcript == "ten meters"
    nursery.cancel_scope.cancel()


async def test_each_unit_of_input_brings_a_decision(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    await talk.hear(level(0, 960))
    await talk.settle()
    assert talk.listened == 10
    turn = talk.session.end_turn()
    async with trio.open_nursery() as answering:
        answering.start_soon(talk.answer, talk.request(None))
        await talk.hear(level(0, 480))
        await talk.settle()
        answering.cancel_scope.cancel()
    assert talk.listened == 10  # something was being said
    await talk.hear(level(0, 480))
    await talk.settle()
    assert talk.listened == 15
    assert turn.speech is False
    nursery.cancel_scope.cancel()


async def test_speech_without_end_is_cut(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, options=DemoOptions(max_utterance_ms=2_000))
    await talk.hear(level(0.9, 3_000))
    assert kinds(talk)[:3] == [SpeechStarted, SpeechStopped, TurnEnded]
    turn = talk.results[2].turn  # type: ignore[union-attr]
    assert 2_000 <= turn.audio_end_ms <= 2_032
    assert kinds(talk)[3] is SpeechStarted  # and goes on as the next one
    nursery.cancel_scope.cancel()


async def test_a_long_push_to_talk_keeps_its_end(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, options=DemoOptions(max_utterance_ms=2_000), auto=False)
    await talk.hear(level(0.9, 5_000))
    talk.session.end_turn()
    await trio.sleep(0.5)
    [(_, seconds, _)] = talk.engine.jobs_of("asr")
    assert float(seconds) == 2.0
    nursery.cancel_scope.cancel()


async def test_a_burst_is_taken_within_bounds_or_not_at_all(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, options=DemoOptions(max_backlog_ms=10_000))
    talk.session.submit(np.concatenate([level(0, 9_000), level(0.9, 900)]))
    with pytest.raises(SessionOverloaded):
        talk.session.submit(level(0, 200))
    await trio.sleep(1)
    assert talk.engine.most_under_way == 32
    await talk.hear(level(0, 600))
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    assert (
        ended.turn.audio_end_ms == 9_888 + 512
    )  # the last frame of speech is mostly silence; the refused samples left no trace
    nursery.cancel_scope.cancel()


async def test_a_session_that_does_not_read_is_slowed_down_and_loses_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery, options=DemoOptions(max_backlog_ms=9_600), listen=False)
    accepted = 0
    refused = False
    while not refused and accepted < 1_000:  # 256 results and 32 frames fill up after some 25 s
        try:
            talk.session.submit(level(0, 96))
        except SessionOverloaded:
            refused = True
        else:
            accepted += 1
            await trio.sleep(0.096)
    assert refused
    assert 256 + 100 <= accepted <= 256 + 100 + 16
    nursery.start_soon(talk.collect)
    await trio.sleep(10)
    assert talk.listened == accepted
    nursery.cancel_scope.cancel()


async def test_one_failed_frame_is_told_and_hearing_goes_on(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    talk.engine.failing = {"vad"}
    await talk.hear(level(0, 32))
    await talk.settle()
    talk.engine.failing = set()
    await talk.hear(SPEECH, level(0, 960))
    assert talk.results[0] == ModelFailed(code="server_vad_inference_failed", message="vad failed")
    assert kinds(talk)[1:] == [SpeechStarted, SpeechStopped, TurnEnded]
    nursery.cancel_scope.cancel()


def failures(talk: Talk) -> list[ModelFailed]:
    return [result for result in talk.results if isinstance(result, ModelFailed)]


async def test_an_outage_of_the_detector_is_told_once(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Not once per frame of 32 ms: a client learns nothing from the second error; the log counts the rest."""
    talk = await open_talk(nursery)
    talk.engine.failing = {"vad"}
    with structlog.testing.capture_logs() as logs:
        await talk.hear(level(0, 3_200))
        await talk.settle()
        assert len(failures(talk)) == 1
        talk.engine.failing = set()
        await talk.hear(SPEECH, level(0, 2_000))
    assert len(failures(talk)) == 1
    assert [kind for kind in kinds(talk) if kind is not ModelFailed] == [SpeechStarted, SpeechStopped, TurnEnded]
    assert [entry["failed_frames"] for entry in logs if entry["event"] == "detector_works_again"] == [100]


async def test_a_detector_that_fails_now_and_then_is_one_outage(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    for _ in range(20):
        talk.engine.failing = {"vad"}
        await talk.hear(level(0, 32))
        await talk.settle()
        talk.engine.failing = set()
        await talk.hear(level(0, 320))
    assert len(failures(talk)) == 1


async def test_the_next_outage_is_told_again(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery)
    for outages in (1, 2):
        talk.engine.failing = {"vad"}
        await talk.hear(level(0, 320))
        await talk.settle()
        talk.engine.failing = set()
        await talk.hear(level(0, 1_600))
        assert len(failures(talk)) == outages


async def test_failed_recognition_is_told_and_the_turn_ends(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    talk.engine.failing = {"asr"}
    await talk.hear(SPEECH, level(0, 960))
    assert kinds(talk) == [SpeechStarted, SpeechStopped, ModelFailed, TurnEnded]
    ended = talk.results[-1]
    assert isinstance(ended, TurnEnded)
    assert (ended.respond, ended.turn.speech) == (False, False)
    nursery.cancel_scope.cancel()


async def test_a_dead_engine_is_told_once_and_is_fatal(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    await talk.hear(SPEECH)
    talk.engine.die()
    await talk.hear(level(0, 2000))
    fatal = [result for result in talk.results if isinstance(result, ModelFailed)]
    assert len(fatal) == 1
    assert fatal[0].fatal
    assert fatal[0].code == "runtime_data_plane_stream_failed"
    assert not talk.plugin.health().alive
    nursery.cancel_scope.cancel()


async def test_new_settings_hold_for_later_audio(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery)
    talk.session.reconfigure(config_of(talk.plugin, TurnDetection(silence_duration_ms=64, threshold=0.95)))
    await talk.hear(SPEECH)
    await talk.settle()
    assert talk.results == []
    await talk.hear(level(1.0, 640), level(0, 128))
    await trio.sleep(0.2)
    assert kinds(talk) == [SpeechStarted, SpeechStopped, TurnEnded]
    nursery.cancel_scope.cancel()


async def test_closing_gives_the_slot_back(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    talk = await open_talk(nursery, VirtualEngine(recognise_s=5.0))
    await talk.hear(SPEECH, level(0, 256))
    assert talk.plugin.health().detail["open_sessions"] == 1
    for _ in range(2):
        await talk.session.aclose()
    assert talk.engine.open_ears == []
    assert talk.plugin.health().detail["open_sessions"] == 0
    talk.session.submit(SPEECH)  # a late one is ignored
    await talk.settle()
    assert talk.engine.given_up == ["asr"]
    nursery.cancel_scope.cancel()


async def test_closing_is_safe_under_cancellation(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    talk = await open_talk(nursery)
    with trio.CancelScope() as scope:
        scope.cancel()
        await talk.session.aclose()
    assert scope.cancelled_caught
    assert talk.engine.open_ears == []
    nursery.cancel_scope.cancel()
