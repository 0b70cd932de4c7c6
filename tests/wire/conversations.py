"""Scripted conversations on the MiniCPM-o profile, with ids that can be written down: the source of all examples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from duplex_protocol.examples import CLIENT_EXAMPLES, State
from tests.wire.stack import Json, ReadableIds, Stack, Wire, append, open_stack
from trio_duplex.models.plugin import ControlReported, ToolCalled
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Piece
from trio_duplex.testing.profiles import ProfilePlugin

ANSWER = (Piece("It is sunny, "), Piece("24 degrees."))
OPENING: Json = CLIENT_EXAMPLES["session.update"].event
QUESTION = "what is the weather today"


@asynccontextmanager
async def demo(**settings: Any) -> AsyncIterator[tuple[Stack, Wire]]:
    """A session opened by the seed's own opening message."""
    plugin = ProfilePlugin("minicpmo_4_5", ANSWER)
    async with open_stack(plugin, ids=ReadableIds(), settings=SessionSettings(**settings)) as stack:
        wire = await stack.connect(duplex=1, autostart=0)
        yield stack, wire


async def open_native(wire: Wire) -> None:
    await wire.send(OPENING)
    await wire.until("session.updated")


async def open_chat(wire: Wire) -> None:
    session = {k: v for k, v in OPENING["session"].items() if k not in ("extra_body", "ref_audio")}
    await wire.send("session.update", session=session)
    await wire.until("session.updated")


async def heard(wire: Wire) -> None:
    await wire.send(append(1000, sample_rate_hz=16_000, transcript=QUESTION))
    await wire.until("input_audio_buffer.speech_started")


async def reach(state: State, stack: Stack, wire: Wire) -> Wire:
    """Bring a fresh socket's session into a state; returns the socket to go on with."""
    if state == "new":
        return wire
    if state in ("chat", "chat_committed"):
        await open_chat(wire)
    else:
        await open_native(wire)
    if state == "dropped":
        wire.socket.drop()
        await wire.over()
        return await stack.connect(duplex=1, autostart=0)
    if state in ("open", "chat"):
        return wire
    await heard(wire)
    if state == "heard":
        return wire
    await wire.send("input_audio_buffer.commit", response_create=state in ("speaking", "answered"))
    await wire.until("input_audio_buffer.committed")
    if state == "speaking":
        await wire.until("response.output_audio_transcript.delta")
    if state == "answered":
        await wire.until("rate_limits.updated")
    return wire


# --- conversations in which every server event comes up ---------------------------------------------------------------


async def an_answer(stack: Stack, wire: Wire) -> None:
    wire = await reach("answered", stack, wire)
    await wire.send(CLIENT_EXAMPLES["playback.ack"].event)
    await wire.send("session.heartbeat")
    await wire.send(CLIENT_EXAMPLES["conversation.item.retrieve"].event)
    await wire.send(CLIENT_EXAMPLES["conversation.item.truncate"].event)
    await wire.send(CLIENT_EXAMPLES["conversation.item.delete"].event)
    await wire.send("input_audio_buffer.commit", event_id="evt_0060")
    await wire.until("error")
    await wire.send("session.close")
    await wire.over()


async def an_interruption(stack: Stack, wire: Wire) -> None:
    wire = await reach("speaking", stack, wire)
    await wire.send(append(1000, sample_rate_hz=16_000))
    await wire.until("overlap.decision")
    await wire.send("output_audio_buffer.clear")
    await wire.until("output_audio_buffer.cleared")
    await wire.send("input_audio_buffer.clear")
    await wire.until("input_audio_buffer.cleared")


async def silence(stack: Stack, wire: Wire) -> None:
    wire = await reach("heard", stack, wire)
    await wire.send("input_audio_buffer.commit", final=True, is_speech=False)
    await wire.until("response.listen")


async def tools(stack: Stack, wire: Wire) -> None:
    wire = await reach("open", stack, wire)
    stack.model.hear(ToolCalled(call_id="call_7d1f", name="get_weather", arguments='{"city":"Hong Kong"}'))
    stack.model.hear(ToolCalled(call_id=None, name=None, arguments="{"))
    stack.model.hear(
        ControlReported(result={"ok": True, "operation": "signal", "unsupported_count": 1, "error_count": 0})
    )
    await wire.until("runtime.control")


async def written(stack: Stack, wire: Wire) -> None:
    wire = await reach("chat_committed", stack, wire)
    await wire.send("response.create", response={"modalities": ["text"]})
    await wire.until("rate_limits.updated")


async def resumed(stack: Stack, wire: Wire) -> list[Wire]:
    wire = await reach("open", stack, wire)
    second = await stack.connect(duplex=1, autostart=0)
    await second.send(CLIENT_EXAMPLES["session.resume"].event)
    await second.until("session.resumed")
    await wire.over()
    await second.send(CLIENT_EXAMPLES["session.event_ack"].event)
    await second.settled()
    third = await stack.connect(duplex=1, autostart=0)
    again = {"resume_token": "rt_02", "last_received_server_event_seq": 0}
    await third.send({**CLIENT_EXAMPLES["session.resume"].event, **again})
    await third.over()
    return [second, third]


async def left_alone(stack: Stack, wire: Wire) -> None:
    await reach("open", stack, wire)
    await wire.over()


async def record() -> dict[str, list[Json]]:
    """Every server event of all these conversations by its type, as received but for its id and number."""
    logs: list[list[Json]] = []
    for talk in (an_answer, an_interruption, silence, tools, written, resumed):
        async with demo() as (stack, wire):
            others = await talk(stack, wire) or []
            logs += [one.events for one in (wire, *others)]
    async with demo(idle_ttl_s=60.0) as (stack, wire):
        await left_alone(stack, wire)
        logs.append(wire.events)
    found: dict[str, list[Json]] = {}
    for event in (event for log in logs for event in log):
        bare = {k: v for k, v in event.items() if k not in ("event_id", "server_event_seq")}
        found.setdefault(event["type"], []).append(bare)
    return found
