"""The endpointing rules of contract section 9, one row per rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_protocol.values import TurnDetection
from trio_duplex.turn_detection import (
    FRAME_MS,
    EarlySilence,
    Endpointer,
    EndpointerSettings,
    Offset,
    Onset,
    SpeechResumed,
    TurnEvent,
)

S, M, Q = 0.9, 0.4, 0.1  # speech, between the thresholds (0.35 … 0.5), quiet


def heard(endpointer: Endpointer, *frames: float) -> list[tuple[int, TurnEvent]]:
    """Events with the number of the frame (from 1) that caused them."""
    return [(number, event) for number, p in enumerate(frames, 1) for event in endpointer.feed(p)]


@pytest.mark.parametrize(
    ("settings", "frames", "expected"),
    [
        pytest.param(
            EndpointerSettings(prefix_padding_ms=0), [Q, S, S, S], [(4, Onset(32))], id="onset after 96 ms of speech"
        ),
        pytest.param(EndpointerSettings(), [Q, S, S, Q, S, S], [], id="one frame below restarts the candidate"),
        pytest.param(
            EndpointerSettings(prefix_padding_ms=0),
            [S, S, M, S, S, S],
            [(6, Onset(96))],
            id="between the thresholds is below for a candidate",
        ),
        pytest.param(
            EndpointerSettings(prefix_padding_ms=0, threshold=0.9), [0.9] * 3, [(3, Onset(0))], id="threshold included"
        ),
        pytest.param(
            EndpointerSettings(prefix_padding_ms=0, min_speech_duration_ms=97),
            [S] * 4,
            [(4, Onset(0))],
            id="97 ms take four frames",
        ),
        pytest.param(
            EndpointerSettings(prefix_padding_ms=0, min_speech_duration_ms=0),
            [Q, S],
            [(2, Onset(32))],
            id="at least one frame",
        ),
        pytest.param(
            EndpointerSettings(prefix_padding_ms=100), [Q] * 5 + [S] * 3, [(8, Onset(60))], id="prefix subtracted"
        ),
        pytest.param(EndpointerSettings(), [Q] * 5 + [S] * 3, [(8, Onset(0))], id="never below zero"),
        pytest.param(
            EndpointerSettings(silence_duration_ms=96),
            [S] * 3 + [Q] * 3,
            [(3, Onset(0)), (6, Offset(192))],
            id="closes when the silence is long enough; the end counts the silence",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=97),
            [S] * 3 + [Q] * 4,
            [(3, Onset(0)), (7, Offset(224))],
            id="97 ms of silence take four frames",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=96),
            [S] * 3 + [Q, Q, S, Q, Q, Q],
            [(3, Onset(0)), (9, Offset(288))],
            id="speech sets the timer back",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=96),
            [S] * 3 + [Q, M, M, M, Q],
            [(3, Onset(0)), (8, Offset(256))],
            id="between: the timer runs on, but only a quiet frame closes",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=64),
            [S] * 3 + [M] * 10,
            [(3, Onset(0))],
            id="between: does not start the timer",
        ),
        pytest.param(
            EndpointerSettings(threshold=0.1, silence_duration_ms=32),
            [0.2] * 3 + [0.02, 0.011, 0.009],
            [(3, Onset(0)), (6, Offset(192))],
            id="the exit threshold is never below 0.01",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=32),
            [S] * 3 + [Q] + [S] * 3 + [Q],
            [(3, Onset(0)), (4, Offset(128)), (7, Onset(0)), (8, Offset(256))],
            id="several utterances in one go",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=160, early_silence_ms=64),
            [S] * 3 + [Q] * 5,
            [(3, Onset(0)), (5, EarlySilence()), (8, Offset(256))],
            id="early silence is told once",
        ),
        pytest.param(
            EndpointerSettings(silence_duration_ms=160, early_silence_ms=64),
            [S] * 3 + [Q, Q, M, S, Q, S],
            [(3, Onset(0)), (5, EarlySilence()), (7, SpeechResumed())],
            id="resumed only after early silence",
        ),
    ],
)
def test_rules(settings: EndpointerSettings, frames: list[float], expected: list[tuple[int, TurnEvent]]) -> None:
    assert heard(Endpointer(settings), *frames) == expected


def test_default_numbers() -> None:
    settings = EndpointerSettings()
    assert (settings.threshold, settings.prefix_padding_ms, settings.silence_duration_ms) == (0.5, 300, 500)
    assert settings.min_speech_duration_ms == 96
    assert settings.exit_threshold == pytest.approx(0.35)
    frames = heard(Endpointer(), *[S] * 3, *[Q] * 20)
    assert frames == [(3, Onset(0)), (19, Offset(19 * FRAME_MS))]  # 16 quiet frames are the first 500 ms or more


def test_a_clients_numbers_are_taken_and_semantic_vad_brings_none() -> None:
    client = TurnDetection(threshold=0.7, prefix_padding_ms=10, silence_duration_ms=200, min_speech_duration_ms=50)
    assert EndpointerSettings.of(client, early_silence_ms=64) == EndpointerSettings(
        threshold=0.7,
        prefix_padding_ms=10,
        silence_duration_ms=200,
        min_speech_duration_ms=50,
        early_silence_ms=64,
    )
    assert EndpointerSettings.of(TurnDetection()) == EndpointerSettings()
    assert EndpointerSettings.of(TurnDetection(kind="semantic_vad", silence_duration_ms=1)) == EndpointerSettings()
    assert EndpointerSettings.of(None) == EndpointerSettings()


def test_reset_keeps_the_clock_and_bounds_the_prefix() -> None:
    endpointer = Endpointer()
    heard(endpointer, *[S] * 5)
    assert endpointer.active
    endpointer.reset()
    assert not endpointer.active
    assert endpointer.clock_ms == 160
    assert heard(endpointer, Q, S, S, S) == [(4, Onset(160))]


def test_reset_drops_a_candidate() -> None:
    endpointer = Endpointer()
    heard(endpointer, S, S)
    endpointer.reset()
    assert heard(endpointer, S, S) == []
    assert heard(endpointer, S) == [(1, Onset(64))]


def test_reconfigure_keeps_an_open_utterance() -> None:
    endpointer = Endpointer(EndpointerSettings(silence_duration_ms=320))
    heard(endpointer, *[S] * 3, Q)
    endpointer.reconfigure(EndpointerSettings(silence_duration_ms=64))
    assert heard(endpointer, Q) == [(1, Offset(160))]


def test_close_ends_only_an_open_utterance() -> None:
    endpointer = Endpointer()
    assert endpointer.close() is None
    heard(endpointer, *[S] * 4)
    assert endpointer.close() == Offset(128)
    assert not endpointer.active


@settings(derandomize=True, database=None)
@given(
    st.lists(st.floats(0, 1), max_size=300),
    st.builds(
        EndpointerSettings,
        threshold=st.floats(0.01, 1),
        prefix_padding_ms=st.integers(0, 600),
        silence_duration_ms=st.integers(1, 400),
        min_speech_duration_ms=st.integers(0, 200),
        early_silence_ms=st.none() | st.integers(0, 400),
    ),
)
def test_events_alternate_and_times_grow(frames: list[float], numbers: EndpointerSettings) -> None:
    endpointer = Endpointer(numbers)
    is_open = early = False
    last_ms = 0
    for number, probability in enumerate(frames, 1):
        for event in endpointer.feed(probability):
            match event:
                case Onset(start_ms):
                    assert not is_open
                    assert 0 <= start_ms <= number * FRAME_MS
                    is_open, early = True, False
                case EarlySilence():
                    assert is_open
                    assert not early
                    early = True
                case SpeechResumed():
                    assert is_open
                    assert early
                    early = False
                case Offset(end_ms):
                    assert is_open
                    assert end_ms == number * FRAME_MS > last_ms
                    is_open, last_ms = False, end_ms
        assert endpointer.active == is_open
        assert endpointer.clock_ms == number * FRAME_MS
