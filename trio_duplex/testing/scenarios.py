"""The conversations that the explorer knows: short, and each with another way to be interrupted."""

from __future__ import annotations

import trio

from trio_duplex.client import DuplexClient, DuplexConnectionError, ResponseHandle
from trio_duplex.models.plugin import ResponseRequest, ToolCalled
from trio_duplex.testing.explorer import Scenario
from trio_duplex.testing.rig import Rig, silence, speech
from trio_duplex.testing.scripted_model import Piece, ScriptedOptions, Step

__all__ = ["SCENARIOS"]

SHORT = ScriptedOptions(script=lambda _: [Piece("One "), Piece("two "), Piece("three.")])


def _answers(request: ResponseRequest) -> list[Step]:
    return [Piece(f"word{k} ") for k in range(6)]


async def ask(client: DuplexClient) -> None:
    """A short utterance and the silence after it."""
    await client.append_audio(speech(160))
    await client.append_audio(silence(512))


async def next_answer(client: DuplexClient) -> ResponseHandle:
    """The next response that speaks."""
    async for response in client.responses():
        if response.decision != "listen":
            return response
    raise DuplexConnectionError("the session ended before an answer")


async def full_turn(rig: Rig) -> None:
    """Ask, hear the whole answer, say how far it was played, leave."""
    async with rig.client() as client:
        await ask(client)
        answer = await next_answer(client)
        async for _ in answer.audio():
            await client.ack_playback(answer.played_ms, response_id=answer.response_id)
        await answer.wait()


async def barge_in(rig: Rig) -> None:
    """Speak over the answer after its second piece; hear the second answer."""
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
    """Lose the connection in the middle of the answer; the client takes it up again."""
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
    """The model calls a tool; the client answers it and asks for the response."""
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
    """Close the session while another task is still sending audio."""

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


SCENARIOS: dict[str, Scenario] = {
    s.name: s
    for s in (
        Scenario("full_turn", full_turn, SHORT),
        Scenario("barge_in", barge_in, ScriptedOptions(script=_answers)),
        Scenario("resume", resume, ScriptedOptions(script=_answers)),
        Scenario("tool_call", tool_call, SHORT),
        Scenario("close_during_append", close_during_append, SHORT),
    )
}
"""By name."""
