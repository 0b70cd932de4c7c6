"""The demo's conversation end to end: server, socket, client, recorded human speech in, synthetic speech out."""

from __future__ import annotations

import json
import re

import pytest

from duplex_gpu.moonshine import MoonshineRecognizer
from tests.e2e.conftest import Held
from tests.e2e.listening_again import recognise, sentences, word_errors, words
from trio_duplex.client.media import read_pcm16_wav
from trio_duplex.showcase.facts import answers, user_turns

pytestmark = [pytest.mark.speech, pytest.mark.realtime]

FIRST_WORDS = "unless to be rather cold hearted and rather selfish is to be ill disposed"
SECOND_WORDS = "go forward ten meters"


def test_every_promise_is_kept(held: Held) -> None:
    assert {v.promise.text: v.broken for v in held.verdicts if not v.kept} == {}


def test_the_user_was_understood(held: Held) -> None:
    first, second = user_turns(held.demo.log)
    assert word_errors(words(FIRST_WORDS), words(first.transcript)) <= 2
    assert word_errors(words(SECOND_WORDS), words(second.transcript)) <= 1


def test_the_answers_repeat_it(held: Held) -> None:
    first, second = answers(held.demo.log)
    turns = user_turns(held.demo.log)
    for answer, turn in zip((first, second), turns, strict=True):
        assert words(turn.transcript)[:4] == words(answer.said)[2:6]  # after "You said"


def test_the_first_answer_was_cut_and_would_have_been_long(held: Held) -> None:
    first, second = answers(held.demo.log)
    assert first.status == "cancelled"
    assert 3_500 < first.audio_ms < 7_000
    assert second.status == "completed"
    assert second.audio_ms > 8_000


def test_the_files_are_there(held: Held) -> None:
    folder = held.demo.out
    assert sorted(path.name for path in folder.iterdir()) == [
        "answer_1.wav",
        "answer_2.wav",
        "events.jsonl",
        "timeline.png",
    ]
    for number, answer in enumerate(answers(held.demo.log), 1):
        assert read_pcm16_wav(folder / f"answer_{number}.wav", sample_rate_hz=24_000) == answer.pcm
    picture = (folder / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000


def test_the_event_log_can_be_read(held: Held) -> None:
    lines = [json.loads(line) for line in (held.demo.out / "events.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == len(held.demo.log.entries)
    assert {line["from"] for line in lines} == {"client", "server", "local"}
    times = [line["t"] for line in lines if line["from"] == "server"]
    assert times == sorted(times)
    sound = [line["event"]["delta"] for line in lines if line["event"]["type"] == "response.output_audio.delta"]
    assert sound
    assert all(len(text) < 60 and "characters" in text for text in sound)


def test_what_is_printed_names_the_measures_and_the_files(held: Held) -> None:
    assert re.search(r"-?\d+ ms\s+first-audio latency", held.printed)
    assert re.search(r"-?\d+ ms\s+interruption latency", held.printed)
    for path in held.demo.out.iterdir():
        assert str(path) in held.printed


def test_the_answers_audio_says_their_transcripts(held: Held) -> None:
    """Spelled letters apart, which no recogniser gets right: word error rate of at most 25 % on every answer."""
    recognizer = MoonshineRecognizer()
    for answer in answers(held.demo.log):
        wrong = total = 0
        heard = []
        for text, audio in sentences(answer):
            if "spelled" in text:
                continue
            heard.append(recognise(recognizer, audio))
            wrong += word_errors(words(text), words(heard[-1]))
            total += len(words(text))
        assert total >= 10
        assert wrong / total <= 0.25, heard
