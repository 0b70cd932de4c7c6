# ruff: noqa: N802 - tests of a case carry its id
"""Cases of audio, voice activity, playback and usability, through the whole stack; each test names its case."""

from __future__ import annotations

import numpy as np
import orjson
import pybase64
import pytest
import trio

from tests.wire.stack import AUTO, append, b64, open_stack, wave
from tests.wire.test_cases import LONG, TALKS, USER_TEXT, ask
from trio_duplex.models.plugin import Traits
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Hang, Piece, ScriptedOptions
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.scripted_model import decode_pieces
from trio_duplex.testing.scripted_vad import ScriptedVad

# --- 4. audio ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000])
async def test_A1_every_delta_is_whole_samples(rate: int, autojump_clock: trio.testing.MockClock) -> None:
    pieces = [Piece(f"w{k} ", 37) for k in range(20)]
    async with open_stack(ScriptedOptions(script=lambda _: pieces)) as stack:
        wire = await stack.duplex({**AUTO, "output_audio_format": {"type": "audio/pcm", "rate": rate}})
        await ask(wire)
        await wire.until("response.done")
        sizes = [len(pybase64.b64decode(e["delta"])) for e in wire.of("response.output_audio.delta")]
        assert all(size and size % 2 == 0 for size in sizes)
        assert sum(sizes) // 2 == pytest.approx(20 * 37 * rate / 1000, abs=20)


async def test_A1_an_odd_append_is_refused_whole(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        odd = b64(wave(151)[:4801])
        for _ in range(2):
            await wire.send("input_audio_buffer.append", audio=odd, event_id="evt_odd")
        error = await wire.error(2)
        assert (error["code"], error["event_id"]) == ("bad_audio", "evt_odd")
        await wire.settled()
        assert stack.model.submitted_ms == 0


async def test_A4_audio_decodes_back_to_what_was_said(autojump_clock: trio.testing.MockClock) -> None:
    """Each piece is a wave whose amplitude names it: order and length on the wire are those of the script."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        await ask(wire)
        await wire.until("response.done")
        pcm = b"".join(pybase64.b64decode(e["delta"]) for e in wire.of("response.output_audio.delta"))
        assert decode_pieces(pcm) == [(k, 4800) for k in range(25)]
        words = "".join(e["delta"] for e in wire.of("response.output_audio_transcript.delta"))
        assert words == "".join(piece.text for piece in LONG)


@pytest.mark.parametrize(
    "raw",
    [
        '{"type":"input_audio_buffer.append","audio":"@@@"}',
        '{"type":"input_audio_buffer.append"}',
        '{"type":"input_audio_buffer.append","audio":""}',
        '{"type":"input_audio_buffer.append","audio":"' + "A" * (16 * 1024 * 1024) + '"}',
    ],
    ids=["no base64", "missing", "empty", "16 MiB"],
)
async def test_A6_bad_audio_is_an_error_event(raw: str, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        await wire.send_raw(raw)
        assert (await wire.error())["code"] in ("bad_audio", "bad_event", "event_too_large")
        await ask(wire)
        await wire.until("response.done")


# --- 5. voice activity ------------------------------------------------------------------------------------------------


async def test_V2_speech_on_an_idle_session_interrupts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions(owns_turns=False), scorer=ScriptedVad()) as stack:
        wire = await stack.duplex({**AUTO, "turn_detection": {"type": "server_vad"}})
        await ask(wire)
        await wire.until("input_audio_buffer.speech_stopped")
        await wire.settled()
        assert not {"overlap.decision", "response.done", "conversation.item.truncated"} & set(wire.types)
        assert stack.session.epoch.number == 0


def line_noise(seconds: int) -> list[bytes]:
    """Pink noise at -40 dBFS, PCM16 at 16 kHz, in pieces of 100 ms."""
    rng = np.random.default_rng(1)
    spectrum = np.fft.rfft(rng.standard_normal(16_000 * seconds))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    noise = np.fft.irfft(spectrum)
    pcm = (noise * 327.67 / np.sqrt(np.mean(noise**2))).astype("<i2").tobytes()
    return [pcm[start : start + 3200] for start in range(0, len(pcm), 3200)]


async def test_V4_line_noise_interrupts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """The default policy listens: no noise ends an answer, whatever the loudness judge thinks of it."""
    async with open_stack(ProfilePlugin("minicpmo_4_5", LONG)) as stack:
        native = {"auto_response": True, "native_duplex": True}
        wire = await stack.duplex({"ref_audio": "data:audio/wav;base64,AAAA", "extra_body": native})
        await ask(wire)
        await wire.send("input_audio_buffer.commit")
        await wire.until("response.output_audio.delta", 2)
        for piece in line_noise(4):
            await wire.send("input_audio_buffer.append", audio=b64(piece))
            await trio.sleep(0.1)
        await wire.settled()
        assert stack.session.epoch.number == 0
        assert not wire.of("overlap.decision")


async def test_V4_line_noise_and_the_real_detector() -> None:
    """Server VAD at its defaults interrupts at an onset; noise is none. Real clock, real network."""
    pytest.importorskip("torch")
    pytest.importorskip("silero_vad")
    from trio_duplex.models.vad_service import VadService

    options = ScriptedOptions(
        traits=Traits(detects_speech=False), owns_turns=False, script=lambda _: [Piece("Well, "), Hang()]
    )
    with trio.fail_after(120):
        async with open_stack(options, scorer=VadService(2)) as stack:
            wire = await stack.duplex({**AUTO, "turn_detection": {"type": "server_vad"}})
            await wire.send("conversation.item.create", item=USER_TEXT)
            await wire.send("response.create")
            await wire.until("response.output_audio_transcript.delta")
            for piece in line_noise(4):
                await wire.send("input_audio_buffer.append", audio=b64(piece))
            await wire.settled()
            assert stack.session.epoch.number == 0
            assert stack.session.active_response is not None
            assert not wire.of("input_audio_buffer.speech_started")


# --- 6. playback ------------------------------------------------------------------------------------------------------


async def test_T1_truncates_that_do_not_fit_are_harmless(autojump_clock: trio.testing.MockClock) -> None:
    """+85 ms, ten times the audio, negative, twice: a typed error at most, and the session goes on talking."""
    async with open_stack(TALKS) as stack:
        for view in ("duplex", "plain"):
            wire = await (stack.duplex() if view == "duplex" else stack.plain({}))
            if view == "duplex":
                await ask(wire)
            else:
                await wire.send("conversation.item.create", item=USER_TEXT)
                await wire.send("response.create")
            done = await wire.until("response.done")
            item_id = done["response"]["output"][0]["id"]
            for ms, fits in ((5_085, False), (50_000, False), (-1, False), (2_000, True), (2_000, True)):
                errors, cuts = len(wire.of("error")), len(wire.of("conversation.item.truncated"))
                await wire.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=ms)
                await wire.settled()
                taken = fits or (view == "plain" and ms > 0)
                assert len(wire.of("conversation.item.truncated")) == cuts + taken, (view, ms)
                assert len(wire.of("error")) == errors + (not taken), (view, ms)
            await wire.send("conversation.item.create", item=USER_TEXT)
            await wire.send("response.create")
            again = await wire.until("response.done", 2)
            assert again["response"]["status"] == "completed"
            await wire.send("session.close")
            await wire.over()


async def test_T4_history_keeps_only_what_was_heard(autojump_clock: trio.testing.MockClock) -> None:
    """One of five seconds acknowledged, then a barge-in: the item's text is one second's worth."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex({**AUTO, "playback_commit_policy": "ack_only"})
        await ask(wire)
        await wire.until("response.output_audio.delta", 10)
        await wire.send("playback.ack", played_ms=1000)
        await wire.send(append(400))
        done = await wire.until("response.done")
        item_id = done["response"]["output"][0]["id"]
        await wire.send("conversation.item.retrieve", item_id=item_id)
        item = (await wire.until("conversation.item.retrieved"))["item"]
        assert item["content"][0]["transcript"] == "word0 word1 word2 word3 word4"
        assert [e.text for e in stack.model.context.history() if e.role == "assistant"] == [
            "word0 word1 word2 word3 word4"
        ]


async def test_T5_a_partial_transcript_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """The done transcript is the join of the deltas, on cancel too; done does not mean played."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex({**AUTO, "playback_commit_policy": "ack_only"})
        await ask(wire)
        await wire.until("response.output_audio_transcript.delta", 7)
        await wire.send("response.cancel")
        await wire.until("response.done")
        deltas = "".join(e["delta"] for e in wire.of("response.output_audio_transcript.delta"))
        assert wire.of("response.output_audio_transcript.done")[0]["transcript"] == deltas
        await ask(wire)
        done = await wire.until("response.done", 2)
        playback = done["response"]["metadata"]["playback"]
        assert (playback["sent_ms"], playback["played_ms"]) == (5000, 0)
        assert done["response"]["metadata"]["committed"] is False


# --- 10. usability ----------------------------------------------------------------------------------------------------


async def test_U5_what_cannot_be_served_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """The capability is in session.created; asking all the same gives a typed error, never a silent fallback."""
    async with open_stack(ProfilePlugin("personaplex")) as stack:
        wire = await stack.duplex()
        assert wire.of("session.created")[0]["session"]["capabilities"]["supports_barge_in"] is False
        await wire.send("barge_in", event_id="evt_b")
        error = await wire.error()
        assert (error["code"], error["event_id"]) == ("barge_in_unsupported", "evt_b")


async def test_U8_instructions_voice_tools_and_history_reach_the_model(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions()) as stack:
        tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
        wire = await stack.plain(
            {"instructions": "Be brief.", "audio": {"output": {"voice": "marin"}}, "tools": [tool]}
        )
        await wire.send("conversation.item.create", item=USER_TEXT)
        await wire.send("response.create")
        await wire.until("response.done")
        await wire.send("conversation.item.create", item=USER_TEXT)
        await wire.send("response.create")
        await wire.until("response.done", 2)
        request = stack.model.requests[-1]
        assert request.instructions == "Be brief."
        assert request.config.voice == "marin"
        assert request.config.tools == (tool,)
        assert [e.role for e in request.history] == ["user", "assistant", "user"]


async def test_L7_the_one_too_many_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS, settings=SessionSettings(max_sessions=2)) as stack:
        talkers = [await stack.duplex() for _ in range(2)]
        begun = trio.current_time()
        wire = await stack.connect(duplex=1, model="scripted")
        error = await wire.error()
        assert error["code"] == "duplex_session_busy"
        assert error["retryable"] is True
        assert trio.current_time() == begun
        for talker in talkers:
            await talker.settled()


async def test_H8_no_event_of_ours_holds_a_number_that_json_cannot_say(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        for raw in ('"temperature": 1e999', '"temperature": -1e999', '"speed": NaN', '"max_tokens": Infinity'):
            await wire.send_raw('{"type":"session.update","event_id":"evt_h","session":{' + raw + "}}")
        error = await wire.error(4)
        assert (error["code"], error["event_id"]) == ("bad_event", "evt_h")
        assert {e["error"]["param"] for e in wire.of("error")} == {"temperature", "speed", "max_tokens"}
        for event in wire.events:
            assert orjson.loads(orjson.dumps(event)) == event
