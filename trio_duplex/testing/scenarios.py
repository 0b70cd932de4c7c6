"""The conversations that the explorer knows: short, and each with another way to be interrupted."""

from __future__ import annotations

import trio

from trio_duplex.client import DuplexClient, DuplexConnectionError, DuplexEvent, ResponseHandle
from trio_duplex.client.buffers import BufferIterator
from trio_duplex.models.plugin import ResponseRequest, ToolCalled
from trio_duplex.testing.chat_model import MemoryChatPlugin, spoken_chunks
from trio_duplex.testing.explorer import Scenario
from trio_duplex.testing.rig import Rig, silence, speech
from trio_duplex.testing.scripted_model import Piece, ScriptedOptions, Step
from trio_duplex.testing.scripted_vad import ScriptedVad
from trio_duplex.testing.sockets import Faults

__all__ = ["SCENARIOS"]

SHORT = ScriptedOptions(script=lambda _: [Piece("One "), Piece("two "), Piece("three.")])


def _answers(request: ResponseRequest) -> list[Step]:
    return [Piece(f"word{k} ") for k in range(6)]


async def ask(client: DuplexClient) -> None:
    """A short utterance and the silence after it. Cancellation: some of it was sent."""
    await client.append_audio(speech(160))
    await client.append_audio(silence(512))


async def next_answer(client: DuplexClient) -> ResponseHandle:
    """The next response that speaks. Cancellation: none is lost."""
    async for response in client.responses():
        if response.decision != "listen":
            return response
    raise DuplexConnectionError("the session ended before an answer")


async def full_turn(rig: Rig) -> None:
    """Ask, hear the whole answer, say how far it was played, leave. Cancellation: the client leaves."""
    async with rig.client() as client:
        await ask(client)
        answer = await next_answer(client)
        async for _ in answer.audio():
            await client.ack_playback(answer.played_ms, response_id=answer.response_id)
        await answer.wait()


async def barge_in(rig: Rig) -> None:
    """Speak over the answer after its second piece; hear the second answer. Cancellation: the client leaves."""
    async with rig.client() as client:
        await ask(client)
        answer = await next_answer(client)
        heard = 0
        async for _ in answer.audio():
            heard += 1
            if heard == 1:
                await client.ack_playback(answer.played_ms, response_id=answer.response_id)
            if heard == 2:
                await ask(client)
        await (await next_answer(client)).wait()


async def resume(rig: Rig) -> None:
    """Lose the connection in the middle of the answer; the client takes it up again.

    Cancellation: the client leaves.
    """
    async with rig.client() as client:
        await ask(client)
        answer = await next_answer(client)
        heard = 0
        async for _ in answer.audio():
            heard += 1
            if heard == 2:
                rig.drop()
        await answer.wait()
        await client.send({"type": "session.heartbeat"})
        await client.wait_for("session.heartbeat_ack", timeout_s=30)


async def tool_call(rig: Rig) -> None:
    """The model calls a tool; the client answers it and asks for the response. Cancellation: the client leaves."""
    async with rig.client() as client:
        model = rig.plugin.sessions[-1]
        if model.closed:  # the session was ended under us
            return
        model.hear(ToolCalled(call_id="call_1", name="weather", arguments='{"city":"Oslo"}'))
        call = await client.wait_for("response.function_call_arguments.done", timeout_s=30)
        output = {"type": "function_call_output", "call_id": call.raw["call_id"], "output": "rain"}
        await client.send({"type": "conversation.item.create", "item": output})
        await client.send({"type": "response.create"})
        async for response in client.responses():
            if response.transcript or response.decision != "listen":
                await response.wait()
                if response.transcript:
                    break


async def close_during_append(rig: Rig) -> None:
    """Close the session while another task is still sending audio. Cancellation: the client leaves."""

    async def talk(client: DuplexClient) -> None:
        try:
            for _ in range(20):
                await client.append_audio(speech(32))
                await trio.sleep(0.032)
        except DuplexConnectionError:
            pass

    async with rig.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(talk, client)
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
        await client.close()


async def chat_stream(rig: Rig) -> None:
    """The chat lane: cancel a streamed answer in its middle, then hear another one to its end."""
    async with rig.client(rig.config(auto_response=False)) as client:
        for heard in (2, 99):
            await client.append_audio(speech(320))
            await client.commit(create_response=True)
            answer = await next_answer(client)
            async for _ in answer.audio():
                heard -= 1
                if heard == 0:
                    await client.cancel_response(answer.response_id)
            await answer.wait()


async def commands(rig: Rig) -> None:
    """Every command at an awkward moment; refusals are answers too. Cancellation: the client leaves."""
    async with rig.client() as client:
        events = client.events()
        await ask(client)
        created = await _until(events, "response.created")
        await _until(events, "response.output_audio.delta")
        await client.send({"type": "playback.ack", "played_ms": 99_999, "response_id": created.response_id})
        await client.send({"type": "session.update", "session": {"output_audio_format": "g711_ulaw"}})
        await client.send({"type": "response.create"})
        await client.send({"type": "session.heartbeat"})
        await client.send({"type": "conversation.item.create", "item": _text("by the way", "item_note")})
        await client.send({"type": "conversation.item.retrieve", "item_id": "item_note"})
        await _until(events, "conversation.item.retrieved")
        await _until(events, "response.output_audio.delta")
        await client.send({"type": "output_audio_buffer.clear"})
        await _until(events, "response.done")
        await client.send({"type": "conversation.item.delete", "item_id": "item_note"})
        await client.send({"type": "input.cancel"})
        await client.send({"type": "barge_in"})
        await client.commit()
        await client.append_audio(speech(160))
        await trio.sleep(0.1)
        await client.commit(create_response=True)
        second = await _until(events, "response.output_audio.delta")
        truncate = {"content_index": 0, "audio_end_ms": 100}
        await client.send({"type": "conversation.item.truncate", "item_id": f"item_{second.response_id}", **truncate})
        await client.cancel_response()
        await _until(events, "response.done")
        await client.append_audio(speech(64))
        await client.clear_input()
        await client.send({"type": "session.close", "drain": "sent"})
        await _until(events, "session.closed")


async def _until(events: BufferIterator[DuplexEvent], kind: str) -> DuplexEvent:
    async for event in events:
        if event.type == kind:
            return event
    raise DuplexConnectionError(f"the session ended before {kind}")


def _text(words: str, item_id: str) -> dict[str, object]:
    content = [{"type": "input_text", "text": words}]
    return {"id": item_id, "type": "message", "role": "user", "content": content}


async def slow_reader(rig: Rig) -> None:
    """A client that reads slower than the answer is spoken: what it was not given before the barge-in is gone.

    Cancellation: the client leaves.
    """
    async with rig.client() as client:
        events = client.events()
        await ask(client)
        await _until(events, "response.output_audio.delta")
        await trio.sleep(1.5)
        await client.send({"type": "barge_in"})
        await _until(events, "response.done")


async def stale_token(rig: Rig) -> None:
    """After a resume the token used before resumes nothing more, while a second loss can be resumed.

    Cancellation: the client leaves.
    """
    async with rig.client() as client:
        for _ in range(2):
            used = {
                "type": "session.resume",
                "session_id": client.session_id,
                "incarnation": client.incarnation,
                "resume_token": client.resume_token,
                "last_received_server_event_seq": 1,
            }
            rig.drop()
            await client.wait_for("session.resumed", timeout_s=30)
            await client.send({"type": "session.heartbeat"})
            await client.wait_for("session.heartbeat_ack", timeout_s=30)
            thief = await rig.connect(duplex="1", autostart="0")
            await thief.send(used)
            answer = await thief.receive()
            if answer["type"] == "session.resumed":
                raise AssertionError("a used resume token resumed the session again")


async def by_detector(rig: Rig) -> None:
    """Server VAD in front of a model that hears nothing by itself; a barge-in by speech.

    Cancellation: the client leaves.
    """
    async with rig.client(rig.config(turn_detection={"type": "server_vad"})) as client:
        events = client.events()
        await client.append_audio(speech(320))
        await client.append_audio(silence(640))
        await client.commit()
        await _until(events, "response.output_audio.delta")
        await client.append_audio(speech(320))
        await _until(events, "response.done")


def _chat() -> MemoryChatPlugin:
    return MemoryChatPlugin(lambda body: spoken_chunks(["One ", "two ", "three ", "four."]))


SCENARIOS: dict[str, Scenario] = {
    s.name: s
    for s in (
        Scenario("full_turn", full_turn, SHORT),
        Scenario("barge_in", barge_in, ScriptedOptions(script=_answers)),
        Scenario("resume", resume, ScriptedOptions(script=_answers), undisturbed=False),
        Scenario("tool_call", tool_call, SHORT),
        Scenario("close_during_append", close_during_append, SHORT, undisturbed=False),
        Scenario("chat_stream", chat_stream, plugin=_chat),
        Scenario("commands", commands, ScriptedOptions(script=_answers), thorough=False, undisturbed=False),
        Scenario(
            "slow_reader",
            slow_reader,
            ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(15)]),
            faults=(Faults(reads_per_s=30_000, buffer_bytes=16_000),),
            thorough=False,
        ),
        Scenario("stale_token", stale_token, SHORT, thorough=False, undisturbed=False),
        Scenario(
            "by_detector",
            by_detector,
            ScriptedOptions(script=_answers, owns_turns=False),
            scorer=ScriptedVad,
            thorough=False,
            undisturbed=False,
        ),
    )
}
"""By name."""
