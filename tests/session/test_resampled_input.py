"""Input at another rate than the model: the filter has a tail, which is part of turn and verdict (2.2, 9.2)."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from tests.session.talk import append, loud, quiet, talking
from trio_duplex.models.plugin import Traits
from trio_duplex.testing import ScriptedOptions

HELD = ScriptedOptions(owns_turns=False, traits=Traits(detects_speech=False, holds_manual_input=True))
CHAT = ScriptedOptions(owns_turns=False, traits=Traits(detects_speech=False, turn_based=True))
STREAM = ScriptedOptions(owns_turns=False, traits=Traits(detects_speech=False))
RATES = [8_000, 24_000, 44_100, 48_000]


def at(rate_hz: int) -> dict[str, object]:
    return {"sample_rate_hz": rate_hz}


def tone(ms: float, rate_hz: int) -> bytes:
    """A loud tone of 1 kHz, which survives every rate."""
    time_s = np.arange(round(rate_hz * ms / 1000)) / rate_hz
    return np.asarray(8_000 * np.sin(2_000 * np.pi * time_s + 1), "<i2").tobytes()


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("options", [HELD, CHAT, STREAM], ids=["held", "chat", "stream"])
async def test_an_append_shorter_than_the_filter_is_judged_by_its_own_loudness(
    options: ScriptedOptions, rate_hz: int, autojump_clock: trio.testing.MockClock
) -> None:
    """One millisecond gives no sample at the model's rate yet; empty would mean silence."""
    async with talking(options, config={}) as talk:
        talk.send(append(tone(1, rate_hz), **at(rate_hz)))
        await talk.settled()
        assert len(talk.reader.of("input_audio_buffer.speech_started")) == 1
        assert not talk.reader.of("response.listen")


@pytest.mark.parametrize("rate_hz", RATES)
async def test_a_short_quiet_append_is_still_silence(rate_hz: int, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        talk.send(append(quiet(1, rate_hz), **at(rate_hz)))
        await talk.settled()
        assert not talk.reader.of("input_audio_buffer.speech_started")
        assert len(talk.reader.of("response.listen")) == 1


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("ms", [1, 20, 200])
@pytest.mark.parametrize("options", [HELD, CHAT], ids=["held", "chat"])
async def test_a_turn_holds_all_of_its_audio(
    options: ScriptedOptions, ms: int, rate_hz: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Every turn of the same audio has the same samples: none is short of its end, none begins with another's."""
    sent = tone(ms, rate_hz)
    samples = -(-len(sent) // 2 * 16_000 // rate_hz)
    async with talking(options, config={}) as talk:
        for turn in (1, 2):
            talk.send(append(sent, **at(rate_hz)))
            talk.send("input_audio_buffer.commit", response_create=True)
            await talk.reader.until("response.done", turn)
        if options is HELD:
            audios = [request.turns[0].audio for request in talk.model.requests if request.turns]
        else:
            wavs = [entry.wav for entry in talk.session.conversation.history() if entry.wav is not None]
            audios = [np.frombuffer(wav[-2 * samples :], "<i2") for wav in wavs]
            assert [len(wav) for wav in wavs] == [44 + 2 * samples] * 2
        assert [len(audio) for audio in audios if audio is not None] == [samples] * 2
        assert audios[0] is not None
        assert audios[1] is not None
        assert np.array_equal(audios[0], audios[1])


async def test_cleared_audio_leaves_nothing_in_the_next_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(HELD, config={}) as talk:
        talk.send(append(loud(100, 24_000), **at(24_000)))
        talk.send("input_audio_buffer.clear")
        talk.send(append(tone(100, 24_000), **at(24_000)))
        talk.send("input_audio_buffer.commit", response_create=True)
        await talk.reader.until("response.done")
        audio = talk.model.requests[0].turns[0].audio
        assert audio is not None
        assert len(audio) == 1_600
