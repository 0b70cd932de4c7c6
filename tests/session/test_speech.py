"""Whether an append holds speech, and what is told about it, without server VAD (contract 9.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from duplex_protocol.commands import AppendHints
from tests.session.talk import AUTO, Json, append, loud, quiet, square, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.session.speech_verdict import holds_speech
from trio_duplex.testing import ScriptedOptions

LOUD = np.full(160, 0.2, np.float32)
QUIET = np.zeros(160, np.float32)
HELD = ScriptedOptions(traits=Traits(detects_speech=False, holds_manual_input=True), owns_turns=False)


@pytest.mark.parametrize(
    ("hints", "samples", "verdict"),
    [
        ({}, LOUD, True),
        ({}, QUIET, False),
        ({}, QUIET[:0], False),
        ({"is_speech": False}, LOUD, False),
        ({"is_speech": True}, QUIET, True),
        ({"is_speech": False, "speech_probability": 0.9}, LOUD, False),
        ({"speech_probability": 0.5}, QUIET, True),
        ({"speech_probability": 0.49}, LOUD, False),
        ({"silence_rms": 0.5}, LOUD, False),
        ({"silence_rms": 0.0}, QUIET, True),
    ],
)
def test_verdict(hints: dict[str, Any], samples: np.ndarray, verdict: bool) -> None:
    assert holds_speech(AppendHints(**hints), samples, 0.003) is verdict


def test_threshold_is_inclusive() -> None:
    assert holds_speech(AppendHints(), np.full(100, 0.25, np.float32), 0.25)
    assert not holds_speech(AppendHints(), np.full(100, 0.25, np.float32), 0.2501)


async def test_started_once_stopped_at_the_commit(autojump_clock: trio.testing.MockClock) -> None:
    """O12: one item id for started, stopped and committed; the hints' times."""
    async with talking(HELD, config={}) as talk:
        talk.send(append(quiet(100)))
        talk.send(append(loud(100), audio_start_ms=1040, audio_end_ms=1140))
        talk.send(append(loud(100), audio_end_ms=1240))
        talk.send("input_audio_buffer.commit")
        committed = await talk.reader.until("input_audio_buffer.committed")
        (started,) = talk.reader.of("input_audio_buffer.speech_started")
        (stopped,) = talk.reader.of("input_audio_buffer.speech_stopped")
        assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (1040, 1240)
        assert started["item_id"] == stopped["item_id"] == committed["item_id"]
        kinds = talk.reader.types
        assert kinds.index("input_audio_buffer.speech_stopped") < kinds.index("input_audio_buffer.committed")


async def test_commits_own_end_and_no_hints_at_all(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        talk.send(append(loud(100), audio_end_ms=700))
        talk.send("input_audio_buffer.commit", audio_end_ms=900)
        await talk.reader.until("input_audio_buffer.committed")
        assert talk.reader.of("input_audio_buffer.speech_stopped")[0]["audio_end_ms"] == 900
        talk.send(append(loud(100)))
        talk.send("input_audio_buffer.clear")
        await talk.reader.until("input_audio_buffer.cleared")
        assert talk.reader.of("input_audio_buffer.speech_started")[1]["audio_start_ms"] == 0
        assert talk.reader.of("input_audio_buffer.speech_stopped")[1]["audio_end_ms"] == 0


async def test_discarded_item_is_not_reused(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        talk.send(append(loud(100)))
        talk.send("input_audio_buffer.clear")
        talk.send(append(loud(100)))
        talk.send("input_audio_buffer.commit")
        committed = await talk.reader.until("input_audio_buffer.committed")
        first, second = (e["item_id"] for e in talk.reader.of("input_audio_buffer.speech_started"))
        assert first != second == committed["item_id"]


@pytest.mark.parametrize("rms", [0.05, 0.15])
async def test_sessions_threshold(rms: float, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={"overlap_silence_rms": 0.1}) as talk:
        talk.send(append(square(100, int(rms * 32_768), 16_000)))
        await talk.settled()
        assert bool(talk.reader.of("input_audio_buffer.speech_started")) is (rms > 0.1)


async def test_transcript_hints_become_the_items_transcript(autojump_clock: trio.testing.MockClock) -> None:
    """Joined; a consecutive repeat is ignored; hints on silence do not count."""
    async with talking(HELD, config={}) as talk:
        hints: list[tuple[bytes, Json]] = [
            (loud(100), {"transcript": "what is"}),
            (loud(100), {"text": "what is"}),
            (loud(100), {"hints": {"transcript": "the weather "}}),
            (quiet(100), {"transcript": "noise"}),
        ]
        for pcm, fields in hints:
            talk.send(append(pcm, **fields))
        talk.send("input_audio_buffer.commit")
        event = await talk.reader.until("input_audio_buffer.committed")
        assert event["event"]["transcript"] == "what is the weather"
        completed = await talk.reader.until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == "what is the weather"
        assert talk.session.conversation.history()[0].text == "what is the weather"


async def test_auto_session_hears_silence_too(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config=AUTO) as talk:
        talk.send(append(quiet(100)))
        talk.send(append(loud(100)))
        await talk.settled()
        assert talk.model.submitted_ms == 200
        assert len(talk.reader.of("input_audio_buffer.speech_started")) == 1
