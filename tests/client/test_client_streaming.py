"""Appends, pacing, camera frames, playback reports (contract 21.4; case T1)."""

from __future__ import annotations

import base64

import pytest
import trio

from tests.client.client_kit import delta, done, session
from trio_duplex.client import AudioFormat, SessionConfig

SECOND = 32_000  # bytes of 16 kHz PCM16


async def appends(peer):
    return [message for message in peer.taken_now() if message["type"] == "input_audio_buffer.append"]


async def test_append_fields(autojump_clock):
    async with session() as (client, peer, _):
        await client.append_audio(
            b"\x01\x02" * 3200, is_speech=True, video_frames=["data:image/jpeg;base64,/9j/", "AAAA"]
        )
        await client.append_audio(b"\x01\x02" * 10)
        first, second = await appends(peer)
        assert base64.b64decode(first["audio"]) == b"\x01\x02" * 3200
        assert first["format"] == "pcm16"
        assert (first["sample_rate_hz"], first["duration_ms"], first["audio_end_ms"]) == (16000, 200, 200)
        assert first["is_speech"] is True
        assert first["video_frames"] == ["/9j/", "AAAA"]
        assert (second["duration_ms"], second["audio_end_ms"]) == (1, 201)
        assert "is_speech" not in second
        assert "video_frames" not in second


async def test_float_input(autojump_clock):
    config = SessionConfig(input_audio=AudioFormat("pcm_f32le", 24000))
    async with session(config=config) as (client, peer, _):
        await client.stream_pcm(bytes(4 * 1920 * 3), chunk_ms=80)
        sent = await appends(peer)
        assert [m["duration_ms"] for m in sent] == [80, 80, 80]
        assert sent[0]["format"] == "pcm_f32le"
        assert sent[0]["sample_rate_hz"] == 24000


async def test_stream_cuts_paces_and_keeps_every_byte(autojump_clock):
    async with session() as (client, peer, _):
        pcm = bytes(n % 251 for n in range(SECOND + 100))
        before = trio.current_time()
        assert await client.stream_pcm(pcm, is_speech=False) == 0
        assert trio.current_time() - before == pytest.approx(1 + 100 / SECOND)
        sent = await appends(peer)
        assert b"".join(base64.b64decode(m["audio"]) for m in sent) == pcm
        assert [m["duration_ms"] for m in sent] == [200] * 5 + [3]
        assert all(m["is_speech"] is False for m in sent)


async def test_stream_as_fast_as_possible(autojump_clock):
    async with session() as (client, peer, _):
        before = trio.current_time()
        await client.stream_pcm(bytes(10 * SECOND), chunk_ms=100, realtime=False)
        assert trio.current_time() == before
        assert len(await appends(peer)) == 100
        await client.stream_pcm(b"")
        assert await appends(peer) == []
        with pytest.raises(ValueError, match="chunk_ms"):
            await client.stream_pcm(bytes(100), chunk_ms=0)


async def test_pace_makes_up_for_slow_sends(autojump_clock):
    async with session() as (client, peer, _):
        send = client._link._transport.send

        async def slow(text):
            await trio.sleep(0.05)
            await send(text)

        client._link._transport.send = slow
        before = trio.current_time()
        await client.stream_pcm(bytes(SECOND), chunk_ms=100)
        assert trio.current_time() - before == pytest.approx(1.0)
        assert len(await appends(peer)) == 10


async def test_frames_ride_the_append_that_closes_a_unit(autojump_clock):
    async with session() as (client, peer, _):
        sent = await client.stream_pcm(
            bytes(4 * SECOND + SECOND // 2),
            chunk_ms=300,
            realtime=False,
            video_frames=["f0", "data:image/png;base64,f1"],
            stacked_video_frames=["s0", "s1", "s2"],
        )
        assert sent == 4
        carried = {m["audio_end_ms"]: m["video_frames"] for m in await appends(peer) if "video_frames" in m}
        # ends at 1200 (unit 0), 2100 (1), 3000 (2), 4200 (3); the last frame of each track repeats
        assert carried == {1200: ["f0", "s0"], 2100: ["f1", "s1"], 3000: ["f1", "s2"], 4200: ["f1", "s2"]}


async def test_unit_boundaries_count_from_each_call(autojump_clock):
    async with session() as (client, peer, _):
        await client.append_audio(bytes(SECOND // 2))
        assert await client.stream_pcm(bytes(SECOND), realtime=False, video_frames=["f"]) == 1
        sent = await appends(peer)
        assert [("video_frames" in m, m["audio_end_ms"]) for m in sent][-1] == (True, 1500)
        assert await client.stream_pcm(bytes(SECOND - 2), realtime=False, video_frames=["f"]) == 0
        assert (
            await client.stream_pcm(bytes(3 * SECOND), chunk_ms=3000, realtime=False, video_frames=["a", "b", "c"]) == 1
        )
        assert (await appends(peer))[-1]["video_frames"] == ["c"]


async def test_cancelled_stream_stops(autojump_clock):
    async with session() as (client, peer, _):
        with trio.move_on_after(0.45):
            await client.stream_pcm(bytes(SECOND), chunk_ms=100)
        assert len(await appends(peer)) == 5
        await client.append_audio(bytes(3200))
        assert (await appends(peer))[-1]["audio_end_ms"] == 600


@pytest.mark.parametrize(
    ("asked", "sent"), [(0, 0), (-5, 0), (60.7, 60), (100, 100), (185, 100), (1000, 100), (float("inf"), 100)]
)
async def test_acks_stay_within_what_was_received(autojump_clock, asked, sent):
    """T1: nobody can have heard more than what arrived."""
    async with session() as (client, peer, _):
        peer.push(delta("r", bytes(2400)), delta("r", bytes(2400), metadata={"audio_duration_ms": 100}))
        responses = client.responses()
        handle = await anext(responses)
        await trio.sleep(0.1)
        for finished in (False, True):
            if finished:
                peer.push(done("r", "cancelled"))
                await handle.wait(1)
            await client.ack_playback(asked, response_id="r", committed_ms=asked)
            await client.ack_playback(asked, item_id="item_r")
            await client.truncate_item("item_r", asked)
            await client.truncate_item("item_r", asked)
        messages = [m for m in peer.taken_now() if m["type"] in ("playback.ack", "conversation.item.truncate")]
        assert len(messages) == 8
        for message in messages:
            for key in ("played_ms", "committed_ms", "audio_end_ms"):
                assert message.get(key, sent) == sent


async def test_unknown_responses_are_not_second_guessed_and_send_is_raw(autojump_clock):
    async with session() as (client, peer, _):
        await client.ack_playback(500, response_id="elsewhere")
        assert (await peer.take_type("playback.ack"))["played_ms"] == 500
        peer.push(delta("r", bytes(4800)))
        await anext(client.responses())
        await client.send({"type": "conversation.item.truncate", "item_id": "item_r", "audio_end_ms": 9999})
        assert (await peer.take_type("conversation.item.truncate"))["audio_end_ms"] == 9999
