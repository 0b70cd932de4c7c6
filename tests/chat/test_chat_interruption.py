"""Interruption: the HTTP stream closes at once, unsent audio is dropped, and history holds what was heard."""

from __future__ import annotations

import pytest
import trio

from tests.chat.chat_kit import Chat, chatting
from tests.chat.chat_server import DONE, Stall, chat_server, omni_answer, omni_audio, omni_text, pcm
from tests.session.talk import append, check_log, loud

pytestmark = pytest.mark.realtime

LONG_TEXT = "Once upon a time there was a little server that never stopped talking about its many clients. " * 4
TALE = [omni_text(LONG_TEXT), *[omni_audio(pcm(0, 2000))] * 120, omni_text("", finish="stop"), DONE]
"""Four minutes of sound, more bytes than the network between two sockets can hold."""


@pytest.mark.parametrize("command", ["response.cancel", "barge_in", "output_audio_buffer.clear", "input.cancel"])
async def test_every_interruption_closes_the_stream_within_bounds(command: str) -> None:
    script = [omni_text("Well, "), omni_audio(pcm(0, 400)), Stall()]
    async with chat_server(script) as server, chatting(server) as chat:
        chat.ask()
        await chat.until_audio(2)
        with trio.fail_after(2):
            await server.stalled.wait()
        asked_s = trio.current_time()
        chat.send(command)
        done = await chat.answer()
        assert done["response"]["status"] == "cancelled"
        with trio.fail_after(1):
            await server.hung_up.wait()
        assert server.hung_up_s is not None
        assert server.hung_up_s - asked_s < 0.5
        assert chat.of("error") == []
        check_log(chat.events)


async def test_a_cancel_before_the_first_byte() -> None:
    async with chat_server([Stall()]) as server, chatting(server) as chat:
        chat.ask()
        await chat.until("response.created")
        with trio.fail_after(2):
            await server.stalled.wait()
        chat.send("response.cancel")
        done = await chat.answer()
        assert done["response"]["status"] == "cancelled"
        with trio.fail_after(1):
            await server.hung_up.wait()


async def test_the_end_of_a_session_closes_the_stream() -> None:
    async with chat_server([omni_audio(pcm(0, 400)), Stall()]) as server, chatting(server) as chat:
        chat.ask()
        await chat.until_audio()
        chat.send("session.close")
        await chat.until("session.closed")
        with trio.fail_after(1):
            await server.hung_up.wait()
        assert chat.plugin.health().detail["open_sessions"] == 0


async def test_an_answer_runs_ahead_of_its_listener_by_a_bounded_lead() -> None:
    """All of the sound is there at once; one second goes out, then real time rules; the rest is not read."""
    async with chat_server(TALE) as server, chatting(server, max_lead_ms=1000) as chat:
        chat.ask()
        await chat.until_audio()
        begun_s = trio.current_time()
        await chat.until_audio(8)
        sent_ms = chat.of("response.output_audio.delta")[-1]["metadata"]["audio_duration_ms"]
        passed_ms = (trio.current_time() - begun_s) * 1000
        assert sent_ms <= passed_ms + 1000 + 200
        assert passed_ms >= 400
        chat.send("response.cancel")
        await chat.answer()
        with trio.fail_after(1):
            await server.hung_up.wait()
        assert server.finished == 0


async def test_a_second_interruption_and_a_late_chunk_change_nothing() -> None:
    async with chat_server(TALE) as server, chatting(server) as chat:
        chat.ask()
        await chat.until_audio(3)
        chat.send("response.cancel")
        chat.send("response.cancel")
        await chat.answer()
        error = await chat.until("error")
        assert error["error"]["code"] == "response_not_active"
        before = len(chat.audio)
        await trio.sleep(0.3)
        assert len(chat.audio) == before
        check_log(chat.events)
        assert len(server.requests) == 1


async def interrupted(chat: Chat, played_ms: int) -> None:
    """Hear ``played_ms`` of the tale, then interrupt it."""
    chat.ask("Tell me a tale")
    while True:
        deltas = chat.of("response.output_audio.delta")
        if deltas and deltas[-1]["metadata"]["audio_duration_ms"] >= played_ms:
            break
        await chat.until_audio(len(deltas) + 1)
    response_id = chat.of("response.created")[-1]["response_id"]
    chat.send("playback.ack", played_ms=played_ms, response_id=response_id)
    await chat.until("playback.acknowledged")
    chat.send("response.cancel")
    await chat.answer()


async def test_the_next_request_tells_what_was_heard() -> None:
    async with chat_server(TALE, omni_answer("Yes.", 200)) as server, chatting(server) as chat:
        await interrupted(chat, 800)
        chat.ask("Go on")
        await chat.answer(2)
        first, assistant, last = server.requests[1]["messages"]
        assert (first["content"], last["content"]) == ("Tell me a tale", "Go on")
        assert assistant["role"] == "assistant"
        heard = assistant["content"]
        assert LONG_TEXT.startswith(heard)
        # 0.8 s at fifteen letters a second are twelve; the whole text had been there before the first sound.
        assert 5 <= len(heard) <= 24


async def test_what_was_not_acknowledged_was_not_heard() -> None:
    async with chat_server(TALE, omni_answer("Yes.", 200)) as server, chatting(server) as chat:
        await interrupted(chat, 0)
        chat.ask("Go on")
        await chat.answer(2)
        assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "user"]


async def test_models_that_need_all_audio_forget_an_interrupted_answer() -> None:
    scripts = (TALE, omni_answer("Yes.", 200), omni_answer("No.", 200))
    async with chat_server(*scripts) as server, chatting(server, text_requires_complete_audio=True) as chat:
        await interrupted(chat, 800)
        chat.ask("Go on")
        await chat.answer(2)
        chat.ask("And then?")
        await chat.answer(3)
        assert [m["content"] for m in server.requests[1]["messages"]] == ["Tell me a tale", "Go on"]
        # A whole answer is remembered as ever.
        assert [m["content"] for m in server.requests[2]["messages"]] == [
            "Tell me a tale",
            "Go on",
            "Yes.",
            "And then?",
        ]


async def test_a_new_answering_commit_replaces_the_running_answer() -> None:
    async with chat_server(TALE, omni_answer("Yes.", 200)) as server, chatting(server) as chat:
        chat.ask()
        await chat.until_audio(2)
        chat.send(append(loud(320), sample_rate_hz=16_000))
        chat.send("input_audio_buffer.commit", response_create=True)
        first = await chat.answer(1)
        assert first["response"]["status_details"] == {"type": "cancelled", "reason": "new_response"}
        second = await chat.answer(2)
        assert second["response"]["status"] == "completed"
        with trio.fail_after(1):
            await server.hung_up.wait()
        check_log(chat.events)


async def test_other_sessions_do_not_notice() -> None:
    """One session's stalled backend stream and its end touch nobody else on the same HTTP client."""
    from duplex_protocol.realtime import RealtimeDialect
    from tests.session.talk import Reader

    scripts = ([omni_audio(pcm(0, 400)), Stall()], omni_answer("Yes.", 200))
    async with chat_server(*scripts) as server, chatting(server) as chat:
        chat.ask()
        await chat.until_audio()
        dialect = RealtimeDialect(view="duplex")
        other = await chat.hub.open_session(dialect, dialect.parse_open({}, chat.plugin.defaults))
        reader = Reader(other.attach(0))
        chat.nursery.start_soon(reader.run)
        second = Chat(chat.hub, chat.plugin, other, reader, chat.nursery)
        second.ask("Me too")
        done = await second.answer()
        assert done["response"]["status"] == "completed"
        chat.send("response.cancel")
        await chat.answer()
        second.ask("Still there?")
        assert (await second.answer(2))["response"]["status"] == "completed"
        assert [request["messages"][-1]["content"] for request in server.requests] == [
            "Hello?",
            "Me too",
            "Still there?",
        ]
