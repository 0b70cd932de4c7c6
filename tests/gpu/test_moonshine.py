"""Recognition of recorded speech, its limits, and stopping."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from duplex_gpu.moonshine import MAX_REPEATS, MoonshineRecognizer, MoonshineTokenizer, repeated_tail
from duplex_gpu.weights import MOONSHINE_TOKENIZER, WeightsCorrupt, weight_path
from tests.gpu.gpu_kit import TRANSCRIPTS, word_errors, words

pytestmark = pytest.mark.speech

Recordings = dict[str, NDArray[np.float32]]


def never() -> bool:
    return False


def test_word_errors_on_recorded_speech(recognizer: MoonshineRecognizer, recordings: Recordings) -> None:
    errors = total = 0
    for name, transcript in TRANSCRIPTS.items():
        heard = recognizer.transcribe(recordings[name], never)
        assert heard is not None
        wrong, of = word_errors(transcript, heard)
        errors += wrong
        total += of
    assert total == 38
    assert errors <= 4  # 3 when this was written: "ill-sposed", "cloves"


def test_the_same_sound_gives_the_same_words(recognizer: MoonshineRecognizer, recordings: Recordings) -> None:
    audio = recordings["goforward.raw"]
    assert recognizer.transcribe(audio, never) == recognizer.transcribe(audio.copy(), never)


@pytest.mark.parametrize("samples", [0, 1, 100, 894, 895, 1600, 4000])
def test_very_short_audio(recognizer: MoonshineRecognizer, recordings: Recordings, samples: int) -> None:
    heard = recognizer.transcribe(recordings["goforward.raw"][8000 : 8000 + samples].copy(), never)
    assert heard is not None
    assert len(words(heard)) <= 3


def test_silence_has_no_words(recognizer: MoonshineRecognizer) -> None:
    assert recognizer.transcribe(np.zeros(16_000, np.float32), never) == ""
    assert recognizer.transcribe(np.zeros(0, np.float32), never) == ""


def test_long_audio_is_heard_to_its_end(recognizer: MoonshineRecognizer, recordings: Recordings) -> None:
    """Over 9 s the decoder's mask of the audio matters (it is thinned out by 384), below it does not."""
    names = ["librivox_0890.wav"] * 4 + ["cards_005.wav", "goforward.raw"]
    heard = recognizer.transcribe(np.concatenate([recordings[name] for name in names]), never)
    assert heard is not None
    wrong, of = word_errors(" ".join(TRANSCRIPTS[name] for name in names), heard)
    assert wrong <= 0.15 * of


def test_stops_between_tokens(recognizer: MoonshineRecognizer, recordings: Recordings) -> None:
    audio = recordings["librivox_0890.wav"]
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    assert recognizer.transcribe(audio, count)
    all_questions = asked
    assert all_questions > 10
    for stop_at in (1, 2, 5, all_questions):
        asked = 0

        def stop(stop_at: int = stop_at) -> bool:
            nonlocal asked
            asked += 1
            return asked == stop_at

        assert recognizer.transcribe(audio, stop) is None
        assert asked == stop_at


def test_noise_does_not_run_away(recognizer: MoonshineRecognizer) -> None:
    dice = np.random.default_rng(0)
    for level in (0.01, 0.1, 0.5):
        heard = recognizer.transcribe((level * dice.standard_normal(80_000)).astype(np.float32), never)
        assert heard is not None
        assert len(heard) < 200


def test_repetition_is_seen() -> None:
    assert repeated_tail([1, 2, 3, 4]) is None
    assert repeated_tail([9] + [5] * MAX_REPEATS) == 1
    assert repeated_tail([9] + [5] * (MAX_REPEATS - 1)) is None
    assert repeated_tail([7, 5, 6, 8] * MAX_REPEATS) == 4
    assert repeated_tail([5, 6, 8] * MAX_REPEATS + [5]) == 3


@pytest.mark.parametrize(
    "audio",
    [np.zeros(16_000, np.float64), np.zeros((1, 16_000), np.float32), np.zeros(16_000 * 61, np.float32)],
    ids=["float64", "two axes", "61 s"],
)
def test_other_shapes_are_refused(recognizer: MoonshineRecognizer, audio: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="audio is"):
        recognizer.transcribe(audio, never)


def test_tokenizer() -> None:
    tokenizer = MoonshineTokenizer(weight_path(MOONSHINE_TOKENIZER))
    assert len(tokenizer.vocabulary) == 32_768
    ids = {piece: token for token, piece in enumerate(tokenizer.vocabulary)}
    assert tokenizer.text([1, ids["▁Hello".encode()], ids["▁world".encode()], 2]) == "Hello world"
    assert tokenizer.text([3 + byte for byte in "é".encode()]) == "é"
    assert tokenizer.text([3 + "é".encode()[0]]) == "\ufffd"


def test_a_truncated_tokenizer_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    whole = weight_path(MOONSHINE_TOKENIZER).read_bytes()
    (tmp_path / "tokenizer.bin").write_bytes(whole[:-1])
    with pytest.raises(WeightsCorrupt, match="ends inside token"):
        MoonshineTokenizer(tmp_path / "tokenizer.bin")
