# ruff: noqa: N802 - tests of a case carry its id
"""What went wrong for people who run such servers, tried on ours through the whole stack; each test names its case."""

from __future__ import annotations

import pytest
import trio

from duplex_protocol.catalogue import SERVER_EVENTS
from tests.protocol.test_wire_openai_types import models
from tests.wire.stack import AUTO, Json, Wire, append, open_stack
from trio_duplex.testing import Piece, ScriptedOptions, check_history

LONG = [Piece(f"word{k} ", 200) for k in range(25)]
TALKS = ScriptedOptions(script=lambda _: LONG)
USER_TEXT: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}


async def ask(wire: Wire) -> None:
    await wire.send(append(400))
    await wire.send(append(640, 0))


async def resume(stack: object, wire: Wire, session_id: str, token: str, after: int) -> Wire:
    again = await stack.connect(duplex=1, autostart=0)  # type: ignore[attr-defined]
    await again.send(
        "session.resume",
        session_id=session_id,
        incarnation=0,
        resume_token=token,
        last_received_server_event_seq=after,
    )
    return again


# --- 1. ordering and shape --------------------------------------------------------------------------------------------


async def test_P1_exactly_the_ga_names(autojump_clock: trio.testing.MockClock) -> None:
    """Every tier 1 and 2 event of a full turn is one of OpenAI's GA types; no beta name is sent in either view."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        await ask(wire)
        await wire.until("response.done")
        shared = {kind for kind in wire.types if SERVER_EVENTS[kind].tier < 3}
        assert shared <= set(models())
        assert "response.output_audio.delta" in shared
        assert not [kind for kind in wire.types if kind.startswith(("response.audio", "response.text"))]


ELEVEN: list[tuple[Json, str]] = [
    ({"type": "session.update", "session": {}}, "session.updated"),
    ({"type": "session.update", "session": {"type": "realtime", "instructions": "x", "tools": []}}, "session.updated"),
    ({"type": "input_audio_buffer.append"}, "error"),
    (append(400), "input_audio_buffer.speech_started"),
    ({"type": "input_audio_buffer.commit"}, "error"),
    ({"type": "input_audio_buffer.clear"}, "input_audio_buffer.cleared"),
    ({"type": "conversation.item.create"}, "error"),
    ({"type": "conversation.item.create", "item": USER_TEXT}, "conversation.item.done"),
    (
        {"type": "conversation.item.create", "previous_item_id": "root", "item": {**USER_TEXT, "id": "item_1"}},
        "conversation.item.done",
    ),
    ({"type": "conversation.item.retrieve"}, "error"),
    ({"type": "conversation.item.retrieve", "item_id": "item_x"}, "error"),
    ({"type": "conversation.item.delete"}, "error"),
    ({"type": "conversation.item.delete", "item_id": "item_x"}, "error"),
    ({"type": "conversation.item.truncate"}, "error"),
    ({"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 1}, "error"),
    ({"type": "response.create"}, "response.created"),
    (
        {
            "type": "response.create",
            "response": {
                "instructions": "x",
                "metadata": {"a": "b"},
                "output_modalities": ["audio"],
                "tools": [],
                "tool_choice": "auto",
                "conversation": "auto",
                "max_output_tokens": "inf",
                "audio": {"output": {"voice": "marin", "format": {"type": "audio/pcm", "rate": 24000}}},
                "input": None,
                "prompt": None,
            },
        },
        "response.created",
    ),
    ({"type": "response.cancel"}, "error"),
    ({"type": "response.cancel", "response_id": "resp_x"}, "error"),
    ({"type": "output_audio_buffer.clear"}, "output_audio_buffer.cleared"),
]


@pytest.mark.parametrize(("event", "reply"), ELEVEN, ids=lambda v: v if isinstance(v, str) else v["type"])
async def test_P2_each_of_openais_client_events_is_answered(
    event: Json, reply: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Minimal and maximal: the documented reply or a typed error with the event's id, never silence."""
    async with open_stack(TALKS) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
        await wire.send({**event, "event_id": "evt_p2"})
        got = await wire.until(reply, 2 if reply == "session.updated" else 1)
        if reply == "error":
            assert got["error"]["event_id"] == "evt_p2"
            assert got["error"]["code"]
        else:
            assert not wire.of("error")


async def test_P4_a_decision_that_ends_a_precreated_response_names_it(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ScriptedOptions(script=lambda _: [])) as stack:
        wire = await stack.duplex({})
        await wire.send(append(1000))
        await wire.send("input_audio_buffer.commit", response_create=True)
        done = await wire.until("response.done")
        (listen,) = wire.of("response.listen")
        assert listen["response_id"] == listen["response"]["id"] == done["response_id"]
        assert done["response"]["metadata"]["committed"] is False
        await ask(wire)
        await wire.send("input_audio_buffer.commit", is_speech=False)
        silent = await wire.until("response.listen", 2)
        assert "response_id" not in silent, "nothing was begun, nothing is named"


@pytest.mark.parametrize("index", range(0, 60, 3))
async def test_P7_cancel_at_every_event_of_a_turn(index: int, autojump_clock: trio.testing.MockClock) -> None:
    """One terminal, every bracket closed, whatever had been sent when the cancel came."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        await ask(wire)
        await wire.when(lambda: len(wire.events) >= index, f"{index} events")
        await wire.send("response.cancel")
        await wire.settled()
        await trio.sleep(20)
        await wire.send("session.close")
        await wire.over()
        assert not check_history(wire.events, complete=True)


async def test_P12_a_clean_end_is_one(autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        await ask(wire)
        await wire.until("response.output_audio.delta")
        await wire.send("session.close")
        gone = await wire.over()
        assert wire.events[-1]["type"] == "session.closed"
        assert wire.events[-1]["reason"] == "session_close"
        assert gone.code == 1000
        assert stack.hub.statistics().sessions == 0


# --- 2. cancellation --------------------------------------------------------------------------------------------------


async def test_C8_the_interrupted_users_words_survive(autojump_clock: trio.testing.MockClock) -> None:
    """A barge-in ends generation only: transcripts and history of the input side stay."""
    said = ("first question", "no wait", "third")
    async with open_stack(ScriptedOptions(script=lambda _: LONG, transcripts=said)) as stack:
        wire = await stack.duplex()
        await ask(wire)
        await wire.until("response.output_audio.delta", 3)
        await ask(wire)
        await wire.until("response.created", 2)
        transcripts = [e["transcript"] for e in wire.of("conversation.item.input_audio_transcription.completed")]
        assert transcripts == ["first question", "no wait"]
        users = [e.text for e in stack.model.requests[-1].history if e.role == "user"]
        assert users == ["first question", "no wait"]
        assert not check_history(wire.events)


# --- 3. resume --------------------------------------------------------------------------------------------------------


async def test_R1_two_sockets_race_to_resume(autojump_clock: trio.testing.MockClock) -> None:
    """One wins, the other is refused; never two live sockets, and the refused one changes nothing."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex({**AUTO, "session_id": "sess_1"})
        token = wire.of("session.created")[0]["resume_token"]
        wire.socket.drop()
        await wire.over()
        first = await stack.connect(duplex=1, autostart=0)
        second = await stack.connect(duplex=1, autostart=0)
        event = {"type": "session.resume", "session_id": "sess_1", "incarnation": 0, "resume_token": token}
        await first.send(event)
        await second.send(event)
        await first.until("session.resumed")
        await second.over()
        assert second.events[0]["code"] == "invalid_resume_token"
        await ask(first)
        await first.until("response.done")


async def test_R1_a_socket_that_dies_in_the_activation_may_use_its_token_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Killed between session.resumed and the first replayed event: the old token works once more."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex({**AUTO, "session_id": "sess_1"})
        token = wire.of("session.created")[0]["resume_token"]
        await ask(wire)
        await wire.until("response.output_audio.delta", 3)
        wire.socket.drop()
        await wire.over()
        half = await resume(stack, wire, "sess_1", token, 2)
        half.socket.drop()
        await half.over()
        again = await resume(stack, wire, "sess_1", token, 2)
        await again.until("response.done")
        assert [e["server_event_seq"] for e in again.events[1:4]] == [3, 4, 5]
        third = await resume(stack, wire, "sess_1", token, 2)
        await third.over()
        assert third.events[0]["code"] == "invalid_resume_token", "once more, not for ever"


@pytest.mark.parametrize("code", [1000, 1001, 1006, 4001])
async def test_R4_only_session_close_ends_a_session(code: int, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex({**AUTO, "session_id": "sess_1"})
        token = wire.of("session.created")[0]["resume_token"]
        wire.socket.close(code)
        await wire.over()
        await trio.sleep(29)
        again = await resume(stack, wire, "sess_1", token, 2)
        await again.until("session.resumed")
        await again.send("session.close")
        await again.over()
        assert stack.hub.statistics().sessions == 0


async def test_R5_there_is_no_cap_on_a_live_session(autojump_clock: trio.testing.MockClock) -> None:
    """Two hours with a heartbeat a minute: still there."""
    async with open_stack(TALKS) as stack:
        wire = await stack.duplex()
        for _ in range(120):
            await trio.sleep(60)
            await wire.settled()
        await ask(wire)
        await wire.until("response.done")
