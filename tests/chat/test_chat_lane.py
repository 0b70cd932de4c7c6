"""Answers of the chat lane through the whole stack, in both shapes (seed, "Turn-based Chat audio metadata")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pybase64
import pytest
import trio

from tests.chat.chat_kit import chatting
from tests.chat.chat_server import (
    DONE,
    Head,
    Raw,
    chat_server,
    omni_answer,
    omni_audio,
    omni_text,
    openai_answer,
    openai_audio,
    pcm,
)
from tests.session.talk import append, check_log, loud, quiet
from trio_duplex.samples import decode_wav
from trio_duplex.testing.scripted_model import decode_pieces

BOTH = pytest.mark.parametrize("answer", [omni_answer, openai_answer], ids=["vllm-omni", "openai"])


@BOTH
async def test_an_answer_arrives_whole_in_order_and_with_its_text(answer: Callable[..., list[Any]]) -> None:
    async with chat_server(answer("Hello there.", 400)) as server, chatting(server) as chat:
        chat.ask("Good morning")
        done = await chat.answer()
        assert done["response"]["status"] == "completed"
        assert decode_pieces(chat.audio) == [(0, 4800), (1, 4800)]
        assert chat.transcript == "Hello there."
        assert chat.of("response.output_audio_transcript.done")[0]["transcript"] == "Hello there."
        check_log(chat.events)
        deltas = chat.of("response.output_audio.delta")
        assert [d["metadata"]["audio_duration_ms"] for d in deltas][-1] == 400
        assert {(d["format"], d["sample_rate_hz"]) for d in deltas} == {("pcm16", 24_000)}
        assert [d["metadata"]["end_of_turn"] for d in deltas] == [False] * (len(deltas) - 1) + [True]


async def test_frames_are_summed_before_they_become_milliseconds() -> None:
    """Ten chunks of 35 frames are 350 frames: 14 ms, and not ten times one."""
    script = [*[omni_audio(pcm(0, 1000)[:70])] * 10, {"usage": {"completion_tokens": 3}}, DONE]
    async with chat_server(script) as server, chatting(server) as chat:
        chat.ask()
        done = await chat.answer()
        assert chat.of("response.output_audio.delta")[-1]["metadata"]["audio_duration_ms"] == 14
        assert len(chat.audio) == 700
        playback = done["response"]["metadata"]["playback"]
        assert (playback["generated_ms"], playback["sent_ms"], playback["played_ms"]) == (14, 14, 0)


async def test_a_sample_cut_between_two_raw_chunks_is_whole() -> None:
    data = pcm(0, 100) + pcm(1, 100)
    script = [openai_audio(data[k : k + 333]) for k in range(0, len(data), 333)]
    async with chat_server([*script, DONE]) as server, chatting(server) as chat:
        chat.ask()
        await chat.answer()
        assert decode_pieces(chat.audio) == [(0, 2400), (1, 2400)]


async def test_the_request_says_what_is_wanted() -> None:
    config = {"instructions": "Be brief.", "temperature": 0.5, "max_output_tokens": 99, "voice": "Ethan"}
    async with chat_server() as server, chatting(server, config=config, extra_body={"top_k": 50}) as chat:
        chat.ask("Good morning")
        await chat.answer()
        assert server.requests == [
            {
                "model": "backend-model",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Good morning"},
                ],
                "stream": True,
                "modalities": ["text", "audio"],
                "audio": {"format": "pcm16", "voice": "Ethan"},
                "temperature": 0.5,
                "max_tokens": 99,
                "top_k": 50,
            }
        ]


@pytest.mark.parametrize("kind", ["input_audio", "audio_url"])
async def test_committed_audio_goes_to_the_backend_as_a_wav(kind: str) -> None:
    spoken = loud(320)
    async with chat_server() as server, chatting(server, audio_input=kind) as chat:
        chat.send(append(spoken, sample_rate_hz=16_000))
        chat.send("input_audio_buffer.commit", response_create=True)
        done = await chat.answer()
        assert done["response"]["status"] == "completed"
        check_log(chat.events)
        committed = [i for i, e in enumerate(chat.events) if e["type"] == "input_audio_buffer.committed"]
        created = [i for i, e in enumerate(chat.events) if e["type"] == "response.created"]
        assert committed[0] < created[0]
        (message,) = server.requests[0]["messages"]
        (part,) = message["content"]
        if kind == "input_audio":
            assert part["type"] == "input_audio"
            assert part["input_audio"]["format"] == "wav"
            data = part["input_audio"]["data"]
        else:
            assert part["type"] == "audio_url"
            head, data = part["audio_url"]["url"].split(",")
            assert head == "data:audio/wav;base64"
        samples, rate_hz = decode_wav(pybase64.b64decode(data))
        assert rate_hz == 16_000
        assert (samples * 32768).astype("<i2").tobytes() == spoken


async def test_typed_and_spoken_input_are_one_message() -> None:
    async with chat_server() as server, chatting(server) as chat:
        chat.send("input.text.append", text="What is ")
        chat.send("input.text.append", text="this? ")
        chat.send(append(loud(320), sample_rate_hz=16_000))
        chat.send("input_audio_buffer.commit", response_create=True)
        await chat.answer()
        (message,) = server.requests[0]["messages"]
        assert [part["type"] for part in message["content"]] == ["text", "input_audio"]
        assert message["content"][0]["text"] == "What is this?"


@attrs.define
class LoudnessScorer:
    """A speech detector for tests: a loud frame is speech."""

    async def run(self) -> None:
        await trio.sleep_forever()

    async def open(self) -> LoudnessScorer:
        return self

    async def score(self, frames: Any) -> list[float]:
        await trio.lowlevel.checkpoint()
        return [float(abs(frame).max() > 0.1) for frame in frames]

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


async def test_server_vad_commits_and_answers() -> None:
    config = {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300}, "sample_rate_hz": 16_000}
    async with chat_server() as server, chatting(server, config=config, scorer=LoudnessScorer()) as chat:
        created = await chat.until("session.created")
        assert created["session"]["turn_detection"]["interrupt_response"] is False
        chat.send(append(quiet(640)))
        chat.send(append(loud(480)))
        chat.send(append(quiet(640)))
        await chat.answer()
        check_log(chat.events)
        (message,) = server.requests[0]["messages"]
        samples, rate_hz = decode_wav(pybase64.b64decode(message["content"][0]["input_audio"]["data"]))
        assert rate_hz == 16_000
        # 300 ms before the onset, the speech, 300 ms of silence; in whole frames of 32 ms.
        assert 1000 <= len(samples) / 16 <= 1160
        kinds = [e["type"] for e in chat.events]
        assert kinds.index("input_audio_buffer.speech_stopped") < kinds.index("input_audio_buffer.committed")
        assert kinds.index("input_audio_buffer.committed") < kinds.index("response.created")
        chat.send("input_audio_buffer.commit")
        assert (await chat.until("error"))["error"]["code"] == "server_vad_manual_commit_unsupported"


async def test_a_response_can_be_text_only() -> None:
    answer = [omni_text("One. "), omni_text("Two.", finish="stop"), DONE]
    async with chat_server(answer) as server, chatting(server) as chat:
        chat.ask(modalities=["text"])
        done = await chat.answer()
        assert server.requests[0]["modalities"] == ["text"]
        assert "audio" not in server.requests[0]
        assert [e["delta"] for e in chat.of("response.output_text.delta")] == ["One. ", "Two."]
        assert done["response"]["output"][0]["content"][0]["text"] == "One. Two."
        assert chat.of("response.output_audio.delta") == []


async def test_a_backend_that_only_writes_makes_text_sessions() -> None:
    answer = [omni_text("Just words.", finish="stop"), DONE]
    async with chat_server(answer) as server, chatting(server, output="text", audio_input="none") as chat:
        created = await chat.until("session.created")
        assert created["session"]["modalities"] == ["text"]
        chat.ask()
        await chat.answer()
        assert "modalities" not in server.requests[0]
        assert [e["delta"] for e in chat.of("response.output_text.delta")] == ["Just words."]


async def test_options_hold_for_one_response() -> None:
    config = {"instructions": "Be brief.", "temperature": 0.5}
    async with chat_server() as server, chatting(server, config=config) as chat:
        chat.ask("One", instructions="Sing.", temperature=0.9, voice="Chelsie", max_output_tokens=5)
        await chat.answer(1)
        chat.ask("Two")
        await chat.answer(2)
        first, second = server.requests
        assert (first["messages"][0]["content"], first["temperature"]) == ("Sing.", 0.9)
        assert (first["audio"]["voice"], first["max_tokens"]) == ("Chelsie", 5)
        assert (second["messages"][0]["content"], second["temperature"]) == ("Be brief.", 0.5)
        assert "voice" not in second["audio"]
        assert "max_tokens" not in second


async def test_the_output_format_of_a_client_is_its_own_matter() -> None:
    """The backend speaks 48 kHz stereo, the client wants G.711: two conversions, one duration."""
    stereo = pcm(0, 200, 96_000)  # 200 ms at 48 kHz, two channels alternating +a, -a: their mean is silence
    answer = [omni_audio(stereo, 48_000, channels=2, finish="stop"), DONE]
    config = {"output_audio_format": "g711_ulaw"}
    async with chat_server(answer) as server, chatting(server, config=config) as chat:
        chat.ask()
        await chat.answer()
        assert server.requests[0]["audio"]["format"] == "pcm16"
        deltas = chat.of("response.output_audio.delta")
        assert {(d["format"], d["sample_rate_hz"]) for d in deltas} == {("g711_ulaw", 8_000)}
        assert len(chat.audio) == 1600
        assert set(chat.audio) <= {0xFF, 0x7F}  # the two codes of zero


async def test_wav_chunks_are_read_each_with_its_own_header() -> None:
    from duplex_protocol.audio_formats import AudioFormat
    from trio_duplex.samples import encode_samples
    from trio_duplex.testing.scripted_model import square_wave

    def wav(index: int) -> dict[str, Any]:
        data = encode_samples(square_wave(index, 100, 24_000), AudioFormat("wav", 24_000))
        return omni_audio(data, fmt="wav", frame_count=2400)

    script = [wav(0), wav(1), omni_text("", finish="stop"), DONE]
    async with chat_server(script) as server, chatting(server, audio_format="wav") as chat:
        chat.ask()
        await chat.answer()
        assert server.requests[0]["audio"]["format"] == "wav"
        assert decode_pieces(chat.audio) == [(0, 2400), (1, 2400)]


async def test_a_backend_that_does_not_stream_is_understood() -> None:
    import orjson

    data = pcm(0, 300)
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "All at once.",
            "audio": {"id": "audio-1", "data": pybase64.b64encode(data).decode(), "transcript": ""},
        },
        "audio_metadata": {"format": "pcm", "sample_rate_hz": 24_000, "frame_count": 7200, "channels": 1},
        "finish_reason": "stop",
    }
    whole = Raw(orjson.dumps({"choices": [choice]}))
    async with chat_server([Head(content_type=b"application/json"), whole]) as server, chatting(server) as chat:
        chat.ask()
        await chat.answer()
        assert decode_pieces(chat.audio) == [(0, 7200)]
        assert chat.transcript == "All at once."


@pytest.mark.parametrize("modalities", [["audio"], ["text"]], ids=["spoken", "written"])
@pytest.mark.parametrize("view", ["plain", "duplex"])
async def test_an_answer_that_the_token_limit_ended_says_so(view: str, modalities: list[str]) -> None:
    """Contract 25: incomplete with OpenAI's reason in the plain view; the seed's status words have none for it."""
    script = [omni_text("Once upon"), omni_audio(pcm(0, 200)), omni_text("", finish="length"), DONE]
    config = {"output_modalities": modalities, "max_output_tokens": 2}
    async with chat_server(script) as server, chatting(server, view=view, config=config) as chat:
        chat.ask()
        response = (await chat.answer())["response"]
        assert server.requests[0]["max_tokens"] == 2
        if view == "plain":
            assert (response["status"], response["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
            assert response["output"][0]["status"] == "incomplete"
        else:
            assert (response["status"], response["metadata"]["finish_reason"]) == ("completed", "length")


async def test_the_key_is_sent_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TEST_KEY", "sk-very-secret")
    async with chat_server() as server, chatting(server, api_key_env="CHAT_TEST_KEY") as chat:
        chat.ask()
        await chat.answer()
        assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
        assert "sk-very-secret" not in repr(chat.plugin._options) + repr(chat.plugin.health())


async def test_one_connection_serves_answers_that_follow_each_other() -> None:
    async with chat_server() as server, chatting(server) as chat:
        for number in range(1, 4):
            chat.ask()
            await chat.answer(number)
        assert server.finished == 3
        assert len(set(server.clients)) == 1
        assert not server.hung_up.is_set()
        health = chat.plugin.health()
        assert (health.ready, health.detail["backend_answers"], health.detail["backend_failures_in_a_row"]) == (
            True,
            3,
            0,
        )


async def test_the_plain_view_works_without_a_word_about_chat() -> None:
    async with chat_server(omni_answer("Hi.", 200)) as server, chatting(server, view="plain") as chat:
        chat.ask("Hello")
        with trio.fail_after(5):
            done = await chat.answer()
        assert done["response"]["status"] == "completed"
        assert chat.transcript == "Hi."


async def test_the_native_dialect_has_text_and_sound_in_one_event() -> None:
    async with chat_server(omni_answer("Hi there.", 200)) as server, chatting(server, view="native") as chat:
        chat.send("push_text", text="Hello")
        chat.send("input.commit")
        with trio.fail_after(5):
            done = await chat.reader.until("response.done")
        assert done.get("status", "completed") == "completed"
        deltas = chat.of("response.output_audio.delta")
        assert "".join(d["text"] for d in deltas) == "Hi there."
        assert deltas[-1]["audio_duration_ms"] == 200
        assert server.requests[0]["messages"] == [{"role": "user", "content": "Hello"}]
