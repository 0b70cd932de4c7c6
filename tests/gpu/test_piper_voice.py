"""Synthesis: understood by the recogniser, the same every time, marked, streamed, and picky about voices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import resample_poly

from duplex_gpu.moonshine import MoonshineRecognizer
from duplex_gpu.piper_voice import PiperVoice, Speech, VoiceConfig, VoiceUnsuitable
from duplex_gpu.voice_graph import SplitVoice, WholeVoice
from duplex_gpu.weights import JOE_VOICE_CONFIG, JOE_VOICE_MODEL, weight_path
from tests.gpu.gpu_kit import word_errors

pytestmark = pytest.mark.speech

SENTENCES = """
Hello there, how are you doing today?
You said: turn on the kitchen lights.
It is seven minutes past three in the afternoon.
I cannot tell you how many birds are in the garden.
I repeat what I heard, and then I talk about it for a while.
The weather in the mountains can change very quickly.
Please interrupt me whenever you want to say something.
There are nine words in that sentence, and the longest one is sentence.
My daughter likes yellow, but blue is nice too.
Before that, you asked me about the train to the city.
""".strip().splitlines()

LONG = "There are nine words in that sentence, and the longest one is sentence. What else? It costs $3.50 at 3:07 pm."


def say(voice: PiperVoice, text: str) -> Speech:
    speech = voice.synthesize(text)
    assert speech is not None
    return speech


def at_16_khz(speech: Speech) -> NDArray[np.float32]:
    assert speech.sample_rate_hz == 22_050
    sound = resample_poly(speech.pcm.astype(np.float32) / 32768, 320, 441)
    return np.clip(sound, -1, 1).astype(np.float32)


def test_it_is_understood(voice: PiperVoice, recognizer: MoonshineRecognizer) -> None:
    errors = total = 0
    for sentence in SENTENCES:
        heard = recognizer.transcribe(at_16_khz(say(voice, sentence)), lambda: False)
        assert heard is not None
        wrong, of = word_errors(sentence, heard)
        errors += wrong
        total += of
    assert total > 90
    assert errors / total <= 0.066  # none when this was written; 6.6 % is the bound that was measured for such a voice


def test_the_same_text_gives_the_same_samples(voice: PiperVoice) -> None:
    first = say(voice, LONG)
    say(voice, SENTENCES[0])
    second = say(voice, LONG)
    assert np.array_equal(first.pcm, second.pcm)
    assert first.marks == second.marks
    assert first.pcm.dtype == np.int16
    assert 3000 < np.abs(first.pcm.astype(np.int32)).max() <= 32767


def test_marks_ascend_and_end_with_the_sound(voice: PiperVoice) -> None:
    speech = say(voice, LONG)
    chars = [mark.text_chars for mark in speech.marks]
    times = [mark.audio_end_ms for mark in speech.marks]
    assert chars == sorted(set(chars))
    assert times == sorted(set(times))
    assert (chars[-1], times[-1]) == (len(LONG), pytest.approx(speech.duration_ms))
    assert LONG[: chars[1]] == "There are"
    assert LONG[: chars[-2]].endswith("at")


def test_marks_stand_where_the_words_end(voice: PiperVoice, recognizer: MoonshineRecognizer) -> None:
    """Cutting the sound at a mark leaves just the words before it (as the recogniser hears them)."""
    text = "The yellow train is waiting. Nobody wants to travel to the mountains today."
    speech = say(voice, text)
    [mark] = [mark for mark in speech.marks if text[: mark.text_chars].endswith("waiting")]
    cut = round(mark.audio_end_ms * speech.sample_rate_hz / 1000)
    before = Speech(speech.pcm[:cut], speech.sample_rate_hz, ())
    after = Speech(speech.pcm[cut:], speech.sample_rate_hz, ())
    heard = [recognizer.transcribe(at_16_khz(part), lambda: False) for part in (before, after)]
    assert heard == ["The yellow train is waiting.", "Nobody wants to travel to the mountains today."]


def test_the_stream_is_the_same_sound_in_pieces(voice: PiperVoice) -> None:
    whole = say(voice, LONG)
    pieces = list(voice.stream(LONG))
    assert np.array_equal(np.concatenate([piece.pcm for piece in pieces]), whole.pcm)
    assert tuple(mark for piece in pieces for mark in piece.marks) == whole.marks
    for piece, following in itertools.pairwise(pieces):
        assert following.start_ms == pytest.approx(piece.start_ms + piece.duration_ms)
        assert all(mark.audio_end_ms <= following.start_ms + 1e-6 for mark in piece.marks)
    assert pieces[0].duration_ms < 250
    assert all(200 < piece.duration_ms < 1600 for piece in pieces[1:])


def test_the_cut_network_sounds_as_the_whole_one(voice: PiperVoice) -> None:
    """The decoder, run piece by piece, against the published network in one run."""
    assert isinstance(voice._graph, SplitVoice)
    config = VoiceConfig.load(weight_path(JOE_VOICE_CONFIG))
    whole = PiperVoice(WholeVoice(weight_path(JOE_VOICE_MODEL)), config)
    for text in SENTENCES[:3]:
        expected, got = say(whole, text), say(voice, text)
        difference = expected.pcm.astype(np.int32) - got.pcm.astype(np.int32)
        assert np.abs(difference).max() <= 1
        # Without an alignment the marks are an estimate, but they obey the same rules.
        assert [mark.text_chars for mark in expected.marks] == [mark.text_chars for mark in got.marks]
        times = [mark.audio_end_ms for mark in expected.marks]
        assert times == sorted(set(times))
        assert times[-1] == pytest.approx(expected.duration_ms)


def test_nothing_to_say(voice: PiperVoice) -> None:
    for text in ("", " ", "?!", "日本"):
        assert list(voice.stream(text)) == []
        speech = say(voice, text)
        assert (len(speech.pcm), speech.marks, speech.duration_ms) == (0, (), 0.0)


def test_a_text_without_punctuation_and_a_very_long_one(voice: PiperVoice) -> None:
    assert say(voice, "well then").marks[-1].text_chars == 9
    text = "I know that you know that I know " * 16
    pieces = list(voice.stream(text))
    times = [mark.audio_end_ms for piece in pieces for mark in piece.marks]
    assert times == sorted(set(times))
    assert pieces[-1].marks[-1].text_chars == len(text)
    assert times[-1] == pytest.approx(sum(piece.duration_ms for piece in pieces))


def test_it_stops_between_runs(voice: PiperVoice) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    assert voice.synthesize(LONG, should_stop=stop) is None
    assert asked == 3
    assert voice.synthesize(LONG, should_stop=lambda: True) is None


def test_speed() -> None:
    slow, quick = PiperVoice.load(speed=0.8), PiperVoice.load(speed=1.25)
    ratio = say(slow, SENTENCES[5]).duration_ms / say(quick, SENTENCES[5]).duration_ms
    assert 1.25 < ratio < 1.9


Change = Callable[[dict[str, object]], object]


@pytest.fixture
def changed_config(tmp_path: Path) -> Callable[[Change], Path]:
    """A copy of the default voice's configuration, changed."""

    def write(change: Change) -> Path:
        config = json.loads(weight_path(JOE_VOICE_CONFIG).read_text("utf-8"))
        change(config)
        path = tmp_path / "voice.onnx.json"
        path.write_text(json.dumps(config), "utf-8")
        return path

    return write


def test_a_voice_that_lacks_symbols_is_refused_by_name(changed_config: Callable[[Change], Path]) -> None:
    def drop(config: dict[str, object]) -> None:
        ids = config["phoneme_id_map"]
        assert isinstance(ids, dict)
        for symbol in ("ɚ", "θ"):
            del ids[symbol]
        ids["ɾ"] = []

    path = changed_config(drop)
    with pytest.raises(VoiceUnsuitable) as caught:
        PiperVoice.load(weight_path(JOE_VOICE_MODEL), path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert set(message.rpartition(": ")[2].split()) == {repr(symbol) for symbol in "ɚθɾ"}


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("audio"),
        lambda config: config.update(phoneme_id_map=[1, 2]),
        lambda config: config.update(phoneme_id_map={"a": "x"}),
        lambda config: config["audio"].update(sample_rate="fast"),
    ],
)
def test_a_malformed_configuration_is_refused(changed_config: Callable[[Change], Path], change: Change) -> None:
    with pytest.raises(VoiceUnsuitable, match="not in Piper's format"):
        PiperVoice.load(weight_path(JOE_VOICE_MODEL), changed_config(change))


def test_broken_files_are_refused_in_one_line(tmp_path: Path) -> None:
    config = weight_path(JOE_VOICE_CONFIG)
    broken = tmp_path / "voice.onnx"
    broken.write_bytes(weight_path(JOE_VOICE_MODEL).read_bytes()[:100_000])
    for model, configuration, reason in (
        (broken, config, "cannot be loaded"),
        (tmp_path / "absent.onnx", config, "is not there"),
        (broken, None, "cannot be read"),
    ):
        with pytest.raises(VoiceUnsuitable, match=reason) as caught:
            PiperVoice.load(model, configuration)
        assert "\n" not in str(caught.value)


def test_a_speaker_that_is_not_there_is_refused() -> None:
    with pytest.raises(VoiceUnsuitable, match="no number 3"):
        PiperVoice.load(speaker=3)
