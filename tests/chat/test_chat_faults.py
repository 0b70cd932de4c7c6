"""A backend that is down, slow, broken or wrong: one error, one failed terminal, and a session that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from tests.chat.chat_kit import Chat, chatting
from tests.chat.chat_server import (
    DONE,
    Cut,
    Head,
    Raw,
    Sleep,
    Stall,
    Step,
    chat_server,
    omni_answer,
    omni_audio,
    omni_text,
    openai_audio,
    pcm,
)
from tests.session.talk import check_log

pytestmark = pytest.mark.realtime

SOUND = omni_audio(pcm(0, 200))


async def failed(chat: Chat, code: str) -> dict[str, Any]:
    """Ask, and see the answer fail in the one right way; returns the error."""
    chat.ask()
    done = await chat.answer()
    assert done["response"]["status"] == "failed"
    assert done["response"]["status_details"] == {"type": "failed", "reason": code}
    (error,) = chat.of("error")
    assert (error["error"]["code"], error["error"]["type"]) == (code, "server_error")
    kinds = [e["type"] for e in chat.events]
    assert kinds.index("error") < kinds.index("response.done")
    check_log(chat.events)
    return error["error"]


async def recovers(chat: Chat, server: Any) -> None:
    """The next answer is as if nothing had been."""
    server.plan(omni_answer("Here I am.", 200))
    before = len(chat.events)
    chat.ask("Again")
    done = await chat.answer(2)
    assert done["response"]["status"] == "completed"
    check_log(chat.events)
    text = [e["delta"] for e in chat.events[before:] if e["type"] == "response.output_audio_transcript.delta"]
    assert "".join(text) == "Here I am."


BROKEN: dict[str, tuple[Sequence[Step], str]] = {
    "cut_in_the_middle": ([omni_text("Hello."), SOUND, Cut()], "broke"),
    "cut_inside_a_chunk": ([SOUND, Raw(b'data: {"choices": [{"delta'), Cut()], "broke"),
    "ends_without_an_end": ([SOUND], "cut short"),
    "no_answer_at_all": ([], "cut short"),
    "status_500": ([Head(500, b"application/json"), Raw(b'{"error": {"message": "oops"}}')], "500"),
    "status_404": ([Head(404, b"text/html"), Raw(b"<h1>Not found</h1>")], "404"),
    "redirect": ([Head(307, extra=((b"location", b"http://127.0.0.1:9/"),))], "307"),
    "html": ([Head(200, b"text/html"), Raw(b"<h1>Welcome</h1>")], "neither"),
    "compressed": ([Head(extra=((b"content-encoding", b"gzip"),)), Raw(b"\x1f\x8b")], "compressed"),
    "malformed_json": ([SOUND, Raw(b"data: {nonsense\n\n"), DONE], "not JSON"),
    "json_but_no_chunk": ([Raw(b"data: [1, 2]\n\n"), DONE], "not an object"),
    "no_choices": ([Raw(b'data: {"id": "x"}\n\n'), DONE], "no choices"),
    "content_is_no_text": ([{"choices": [{"delta": {"content": 7}}]}, DONE], "not text"),
    "not_base64": ([{"modality": "audio", "choices": [{"delta": {"content": "%%%"}}]}, DONE], "base64"),
    "error_event": ([SOUND, {"error": {"message": "user said secret", "code": 503}}, DONE], "reports an error (503)"),
    "endless_event": ([Raw(b"data: " + b"x" * 70_000), Stall()], "cannot be read"),
    "endless_line": ([Raw(b"x" * 70_000), Stall()], "cannot be read"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
async def test_a_broken_stream_is_a_chat_error(name: str) -> None:
    script, words = BROKEN[name]
    limit = 1 << 16 if name.startswith("endless") else 1 << 20
    async with chat_server(script) as server, chatting(server, max_event_bytes=limit) as chat:
        error = await failed(chat, "chat_error")
        assert words in error["message"]
        assert "secret" not in error["message"]
        await recovers(chat, server)


def with_channels(channels: int) -> dict[str, Any]:
    chunk = omni_audio(pcm(0, 200))
    chunk["choices"][0]["audio_metadata"]["channels"] = channels
    return chunk


BAD_SOUND: dict[str, tuple[Sequence[Step], str]] = {
    "rate_changes": ([SOUND, omni_audio(pcm(1, 200, 16_000), 16_000), DONE], "rate changed"),
    "no_metadata": (
        [{"modality": "audio", "choices": [{"index": 0, "delta": {"content": "AAAA"}}]}, DONE],
        "without audio_metadata",
    ),
    "no_rate": ([omni_audio(pcm(0, 200), sample_rate_hz=None), DONE], "sample_rate_hz"),
    "rate_is_text": ([omni_audio(pcm(0, 200), sample_rate_hz="24000"), DONE], "sample_rate_hz"),
    "rate_is_true": ([omni_audio(pcm(0, 200), sample_rate_hz=True), DONE], "sample_rate_hz"),
    "no_frames": ([omni_audio(pcm(0, 200), frame_count=0), DONE], "frame_count"),
    "bytes_for_frames": ([omni_audio(pcm(0, 200), frame_count=9600), DONE], "frame_count"),
    "no_channels": ([with_channels(0), DONE], "channels"),
    "wrong_format": ([omni_audio(pcm(0, 200), fmt="flac"), DONE], "format"),
    "no_wav": ([omni_audio(pcm(0, 200), fmt="wav"), DONE], "WAV"),
    "bare_rate_then_another": ([openai_audio(pcm(0, 200)), omni_audio(pcm(0, 200, 16_000), 16_000)], "rate changed"),
}


@pytest.mark.parametrize("name", sorted(BAD_SOUND))
async def test_audio_that_cannot_be_trusted_is_a_response_error(name: str) -> None:
    script, words = BAD_SOUND[name]
    async with chat_server(script) as server, chatting(server) as chat:
        error = await failed(chat, "response_error")
        assert words in error["message"]
        await recovers(chat, server)


async def test_what_was_said_before_a_failure_stays_said() -> None:
    async with chat_server([omni_text("Half an"), SOUND, Cut()]) as server, chatting(server) as chat:
        await failed(chat, "chat_error")
        assert len(chat.audio) == len(pcm(0, 180))  # but the last 20 ms, which wait for what follows
        assert chat.transcript.startswith("Half")


async def test_a_backend_that_is_down_and_comes_back() -> None:
    with trio.socket.socket() as reserved:
        await reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    async with chatting(f"http://127.0.0.1:{port}/v1") as chat:
        error = await failed(chat, "chat_error")
        assert "cannot be reached" in error["message"]
        assert str(port) not in error["message"]
        health = chat.plugin.health()
        assert health.ready
        assert health.detail["backend_failures_in_a_row"] == 1
        async with chat_server(port=port) as server:
            await recovers(chat, server)
            assert chat.plugin.health().detail["backend_failures_in_a_row"] == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([Stall()], "did not begin"),
        ([Raw(b": only a comment\n\n"), Stall()], "did not begin"),
        ([SOUND, Stall()], "stalled"),
        ([SOUND, *[step for _ in range(20) for step in (Sleep(0.1), Raw(b": keep-alive\n\n"))]], "stalled"),
    ],
    ids=["no head", "no event", "stall", "comments are no progress"],
)
async def test_a_slow_backend_fails_in_bounded_time(script: Sequence[Step], words: str) -> None:
    patience = {"first_event_timeout_s": 0.6, "stall_timeout_s": 0.6}
    async with chat_server(script) as server, chatting(server, **patience) as chat:
        begun_s = trio.current_time()
        error = await failed(chat, "chat_error")
        assert trio.current_time() - begun_s < 2.0
        assert words in error["message"]
        with trio.fail_after(2):
            await server.hung_up.wait()
        await recovers(chat, server)


async def test_an_answer_may_take_longer_than_any_gap_in_it() -> None:
    steps = [step for k in range(8) for step in (Sleep(0.15), omni_audio(pcm(k, 100)))]
    patience = {"first_event_timeout_s": 0.6, "stall_timeout_s": 0.6}
    async with chat_server([*steps, DONE]) as server, chatting(server, **patience) as chat:
        chat.ask()
        done = await chat.answer()
        assert done["response"]["status"] == "completed"
        assert len(chat.audio) == len(pcm(0, 800))


async def test_a_backend_that_restarts_between_two_answers_is_not_noticed() -> None:
    async with chat_server() as first:
        port = int(first.url.rpartition(":")[2].removesuffix("/v1"))
        async with chatting(first) as chat:
            chat.ask()
            await chat.answer()
            first.stop.set()
            with trio.fail_after(5):
                await first.stopped.wait()
            async with chat_server(port=port) as second:
                await recovers(chat, second)


async def test_the_listener_s_pace_is_no_stall() -> None:
    """An answer that is held back because it is too far ahead is not the backend's fault."""
    script = [*[omni_audio(pcm(k, 1000)) for k in range(3)], omni_text("", finish="stop"), DONE]
    async with chat_server(script) as server, chatting(server, stall_timeout_s=0.3, max_lead_ms=200) as chat:
        chat.ask()
        done = await chat.answer()
        assert done["response"]["status"] == "completed"
        assert len(chat.audio) == len(pcm(0, 3000))


async def test_a_bad_option_of_one_response_fails_that_response() -> None:
    async with chat_server() as server, chatting(server) as chat:
        chat.ask(tools=[{"type": "function"}])
        done = await chat.answer()
        assert done["response"]["status_details"]["reason"] == "response_error"
        assert server.requests == []
