"""The snippets of the API page, over a socket, changed only in import names and event loop."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import pytest
import trio

from tests.client.client_kit import created, delta, done, socket_server
from trio_duplex.client import wait_for_condition, write_pcm16_wav

TONE = bytes(n % 256 for n in range(4800))  # 100 ms at 24 kHz


class Answering:
    """A server that answers each commit, first with a listen decision, then with 300 ms of speech."""

    def __init__(self):
        self.got = []

    async def __call__(self, peer):
        while True:
            message = await peer.take()
            self.got.append(message)
            match message["type"]:
                case "session.update":
                    await peer.push(created())
                case "input_audio_buffer.commit":
                    await peer.push(
                        {"type": "response.listen", "response": {"status": "listening"}},
                        {"type": "response.created", "response_id": "r1", "response": {"id": "r1"}},
                        {"type": "response.speak", "response_id": "r1"},
                    )
                    for text in ("It is ", "sunny, ", "24 degrees."):
                        transcript = {"type": "response.output_audio_transcript.delta", "response_id": "r1"}
                        await peer.push(delta("r1", TONE), transcript | {"delta": text})
                    await peer.push(done("r1"), {"type": "rate_limits.updated", "rate_limits": []})
                case "session.close":
                    await peer.push({"type": "session.closed", "reason": "session_close"})
                    return

    def of_type(self, kind):
        return [message for message in self.got if message["type"] == kind]


@pytest.fixture
def paths(tmp_path):
    write_pcm16_wav(tmp_path / "reference_voice.wav", bytes(3200), sample_rate_hz=16000)
    write_pcm16_wav(tmp_path / "question_16k.wav", bytes(16000 * 2 // 4), sample_rate_hz=16000)
    return tmp_path


@asynccontextmanager
async def opened(paths):
    server = Answering()
    with trio.fail_after(10):
        async with socket_server(server) as url:
            # --- Open a session
            from trio_duplex.client import DuplexClient, audio_data_url
            from trio_duplex.client.presets.minicpmo_4_5 import create_duplex_session_config

            config = create_duplex_session_config(ref_audio=audio_data_url(paths / "reference_voice.wav"))
            async with DuplexClient(f"{url}/v1/realtime", model="openbmb/MiniCPM-o-4_5", config=config) as client:
                print(client.session_id, client.session_info["capabilities"])
                # ---
                yield client, server


async def test_open(paths, capsys):
    async with opened(paths) as (_, server):
        pass
    assert "sess_1" in capsys.readouterr().out
    payload = server.of_type("session.update")[0]["session"]
    assert payload["model"] == "openbmb/MiniCPM-o-4_5"
    assert payload["ref_audio"].startswith("data:audio/wav;base64,UklGR")
    assert payload["extra_body"] == {"auto_response": True, "native_duplex": True, "force_listen_count": 0}


async def test_stream_commit_consume(paths, capsys):
    heard = []
    play = heard.append
    async with opened(paths) as (client, server):
        # --- Stream audio and commit a turn
        from trio_duplex.client import read_pcm16_wav

        question = read_pcm16_wav(paths / "question_16k.wav")
        await client.stream_pcm(question, chunk_ms=100)  # paced 100 ms appends
        await client.commit(create_response=False)  # the model decides listen/speak

        # --- Consume responses
        async for response in client.responses():
            if response.decision == "listen":
                continue  # the model kept listening
            async for chunk in response.audio():  # decoded PCM16 at 24 kHz
                play(chunk)
                await client.ack_playback(response.played_ms, response_id=response.response_id)
            await response.wait()
            print(response.transcript, response.done_event.raw["response"]["status"])
            break
    assert capsys.readouterr().out.endswith("It is sunny, 24 degrees. completed\n")
    assert heard == [TONE] * 3
    assert len(server.of_type("input_audio_buffer.append")) == 3
    assert [m["played_ms"] for m in server.of_type("playback.ack")] == [100, 200, 300]


async def test_interrupt(paths):
    async with opened(paths) as (client, server):
        await client.cancel_response()  # cancel the active response (epoch advances)
        await client.clear_input()  # drop un-committed input audio
    assert server.of_type("response.cancel")
    assert server.of_type("input_audio_buffer.clear")


async def test_raw_events(paths):
    async with opened(paths) as (client, server):
        kinds = []
        async with trio.open_nursery() as nursery:

            async def watch(task_status):
                events = client.events()
                task_status.started()
                async for event in events:
                    kinds.append(event.type)
                    if event.type == "response.done":
                        break

            await nursery.start(watch)
            nursery.start_soon(client.commit)
            event = await client.wait_for("response.done", timeout_s=30)
            assert event.response_id == "r1"
        event_id = await client.send({"type": "response.create"})
        assert kinds[0] == "response.listen"
    assert server.of_type("response.create")[0]["event_id"] == event_id


async def test_measure_latency(paths):
    async with opened(paths) as (client, _), trio.open_nursery() as nursery:
        # --- Measure latency
        from trio_duplex.client import EventCollector, acknowledge_collected_playback

        collector = EventCollector()
        nursery.start_soon(collector.consume, client)
        commit_sent_at = time.monotonic()
        await client.commit(create_response=False)
        await wait_for_condition(lambda: collector.count("rate_limits.updated") == 1, timeout_s=5, label="the answer")
        summary = collector.timing_summary(after_s=commit_sent_at, input_committed_at_s=commit_sent_at)
        # ---
        assert summary["audio_output"]["chunk_count"] == 3
        assert 0 <= summary["request_metrics"]["ttfp_ms"] < 5000
        assert summary["request_metrics"]["audio_duration_ms"] == 300
        await acknowledge_collected_playback(client, collector)
        await client.close()
