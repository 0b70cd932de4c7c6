"""The cases whose check is on the client, each named after its id in the list of known faults."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import trio

from tests.client.client_kit import (
    MemoryServer,
    SocketPeer,
    delta,
    done,
    session,
    socket_server,
    tcp_server,
)
from tests.client.test_client_sockets import created_frame, text_frame, upgrade
from trio_duplex.client import (
    DuplexClient,
    DuplexProtocolError,
    DuplexSessionClosedError,
    ErrorEvent,
    ReconnectPolicy,
)
from trio_duplex.testing import Piece, ScriptedOptions, open_rig, silence, speech

LONG = ScriptedOptions(script=lambda _: [Piece(f"word{k} ", 200) for k in range(10)])
LIMIT_S = 10
REFUSED_CREATES = {"response_already_active", "response_create_without_input"}


def open_sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


# --- P5: `response.create` races a response that is there already


async def count_p5(client: DuplexClient) -> tuple[list[str], list[ErrorEvent]]:
    """Responses that ended within a minute, by status, and errors."""
    statuses, errors = [], []
    events = client.events()
    with trio.move_on_after(60):
        async for event in events:
            if event.type == "response.done":
                statuses.append(event.raw["response"]["status"])
            if isinstance(event, ErrorEvent):
                errors.append(event)
    return statuses, errors


async def test_p5_two_creates_back_to_back(autojump_clock: object) -> None:
    """One response, one typed error that names the second event; neither the session nor the response is touched."""
    async with open_rig(LONG) as rig, rig.client() as client:
        await client.send({"type": "conversation.item.create", "item": _text("Hello")})
        found: list[tuple[list[str], list[ErrorEvent]]] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                found.append(await count_p5(client))

            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            await client.send({"type": "response.create"})
            second = await client.send({"type": "response.create"})
            response = await _next(client)
            await response.wait(30)
        ((statuses, errors),) = found
        assert statuses == ["completed"]
        assert [(e.code, e.related_event_id) for e in errors] == [("response_already_active", second)]
        assert response.transcript == "".join(f"word{k} " for k in range(10))


@pytest.mark.parametrize("heard_first", [False, True])
async def test_p5_a_create_at_the_end_of_speech(autojump_clock: object, heard_first: bool) -> None:
    """The model answers by itself in the same moment: one response all the same, and the caller can go on."""
    async with open_rig(LONG) as rig, rig.client() as client:
        found: list[tuple[list[str], list[ErrorEvent]]] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                found.append(await count_p5(client))

            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            await client.append_audio(speech(320))
            stopped = client.events()
            await client.append_audio(silence(640))
            if heard_first:
                async for event in stopped:
                    if event.type == "input_audio_buffer.speech_stopped":
                        break
            asked = await client.send({"type": "response.create"})
            await (await _next(client)).wait(30)
        ((statuses, errors),) = found
        assert statuses == ["completed"]
        assert [e.related_event_id for e in errors] in ([], [asked])
        assert {e.code for e in errors} <= REFUSED_CREATES


def _text(words: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}


async def _next(client: DuplexClient):  # type: ignore[no-untyped-def]
    """The next response; a refused `create` is raised once and passed over, which ends nothing."""
    while True:
        try:
            async for response in client.responses():
                if response.decision != "listen":
                    return response
        except DuplexProtocolError as error:
            if error.code not in REFUSED_CREATES:
                raise


# --- C12: a failed first configuration leaks socket and tasks


async def test_c12_a_refused_opening_leaves_neither_socket_nor_task() -> None:
    async def refuse(peer: SocketPeer) -> None:
        await peer.take_type("session.update")
        await peer.push({"type": "error", "error": {"code": "bad_event", "message": "no"}})
        while True:  # this server does not even close
            await peer.take()

    with trio.fail_after(LIMIT_S):
        async with socket_server(refuse) as url:
            sockets, tasks = open_sockets(), trio.lowlevel.current_statistics().tasks_living
            for _ in range(5):
                with pytest.raises(DuplexProtocolError, match="no"):
                    async with DuplexClient(url, model="m"):
                        pytest.fail("entered")
            while open_sockets() > sockets or trio.lowlevel.current_statistics().tasks_living > tasks:  # noqa: ASYNC110
                await trio.sleep(0.005)  # the server's side notices a moment later


async def test_c12_a_refused_opening_says_goodbye(autojump_clock: object) -> None:
    server = MemoryServer()

    async def refuse() -> None:
        peer = await server.accept()
        await peer.take_type("session.update")
        peer.push({"type": "error", "error": {"code": "bad_event", "message": "no"}})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(DuplexProtocolError):
            async with DuplexClient("ws://h", model="m", connect=server.connect):
                pytest.fail("entered")
    assert server.peers[0].closed_by_client.is_set()


# --- D4: a peer that is gone without a close frame holds up the way out


@pytest.mark.parametrize("how", ["plays dead", "ends TCP"])
async def test_d4_leaving_a_dead_peer_takes_less_than_two_seconds(how: str) -> None:
    async def die(stream: trio.SocketStream) -> None:
        await upgrade(stream)
        await stream.receive_some(65536)
        await stream.send_all(created_frame())
        if how == "plays dead":
            await trio.sleep_forever()

    with trio.fail_after(LIMIT_S):
        async with tcp_server(die) as url:
            async with DuplexClient(url, model="m", reconnect=None) as client:
                before = trio.current_time()
                await client.close()
                assert trio.current_time() - before < 2
            assert trio.current_time() - before < 2


# --- D7: what goes wrong in the background dies there, and the consumer waits for ever


async def test_d7_invalid_json_is_survived_and_the_next_event_arrives(autojump_clock: object) -> None:
    async with session() as (client, peer, _):
        events = client.events()
        peer.push('{"type": "response.done"', "\x00", {"type": "fine"})
        assert (await anext(events)).type == "fine"
        assert client.statistics().frames_ignored == 2


@pytest.mark.parametrize("last", ["text", "half a frame"])
async def test_d7_a_transport_that_breaks_is_raised_from_every_iterator(last: str) -> None:
    async def lie(stream: trio.SocketStream) -> None:
        await upgrade(stream)
        await stream.receive_some(65536)
        await stream.send_all(created_frame() + text_frame('{"type": "response.done"'))
        await stream.send_all(text_frame("{") if last == "text" else b"\x81\x7e\x10\x00{")

    with trio.fail_after(LIMIT_S):
        async with (
            tcp_server(lie) as url,
            DuplexClient(url, model="m", reconnect=None) as client,
            trio.open_nursery() as nursery,
        ):

            async def consume(iterator: object) -> None:
                with pytest.raises(DuplexSessionClosedError, match="connection lost"):
                    async for _ in iterator:  # type: ignore[attr-defined]
                        pass

            for iterator in (client.events(), client, client.responses()):
                nursery.start_soon(consume, iterator)
            with pytest.raises(DuplexSessionClosedError):
                await client.wait_for("response.done", timeout_s=5)


async def test_d7_a_resume_that_is_refused_half_way() -> None:
    """The second connection is taken, and refused after the client has asked for its session: nothing is left."""
    connections = 0

    async def serve(peer: SocketPeer) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await peer.open()
            await peer.stream().aclose()
            return
        await peer.take_type("session.resume")
        await peer.push({"type": "error", "error": "expired", "code": "session_resume_expired"})
        while True:
            await peer.take()

    policy = ReconnectPolicy(backoff_s=(0.01, 0.02))
    with trio.fail_after(LIMIT_S):
        async with socket_server(serve) as url:
            tasks = trio.lowlevel.current_statistics().tasks_living
            async with DuplexClient(url, model="m", reconnect=policy) as client:
                with pytest.raises(DuplexSessionClosedError, match="session_resume_expired"):
                    async for _ in client:
                        pass
            while trio.lowlevel.current_statistics().tasks_living > tasks:  # noqa: ASYNC110
                await trio.sleep(0.005)
    assert connections == 2


# --- T1: a truncation or ack past the audio that exists


@pytest.mark.parametrize(
    ("asked_ms", "sent_ms"), [(185, 100), (1_000, 100), (-5, 0), (99.6, 99), (100, 100), (float("inf"), 100)]
)
async def test_t1_acks_and_truncations_stay_within_what_was_received(
    autojump_clock: object, asked_ms: float, sent_ms: int
) -> None:
    async with session() as (client, peer, _):
        peer.push(delta("r", bytes(4_800)))  # 100 ms
        await client.wait_for("response.output_audio.delta", timeout_s=1)
        await client.ack_playback(asked_ms, response_id="r")
        ack = await peer.take_type("playback.ack")
        assert (ack["played_ms"], ack["committed_ms"]) == (sent_ms, sent_ms)
        for _ in range(2):  # also twice, and after the end
            await client.truncate_item("item_r", asked_ms)
            assert (await peer.take_type("conversation.item.truncate"))["audio_end_ms"] == sent_ms
            peer.push(done("r"))
            await trio.testing.wait_all_tasks_blocked()


async def test_t1_a_truncation_past_the_end_does_not_mute_the_session(autojump_clock: object) -> None:
    async with open_rig(LONG) as rig, rig.client() as client:
        for _ in range(2):
            await client.append_audio(speech(320))
            await client.append_audio(silence(640))
            event = await client.wait_for("response.done", timeout_s=60)
            item_id = f"item_{event.response_id}"
            for wanted_ms in (2_085, 20_000, -1, 2_085):
                await client.truncate_item(item_id, wanted_ms)
            answers = client.events()
            await client.send({"type": "session.heartbeat"})
            async for event in answers:
                if event.type == "session.heartbeat_ack":
                    break
