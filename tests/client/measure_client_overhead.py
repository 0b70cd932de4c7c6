"""What one received audio delta costs a client, in CPU time: `python tests/client/measure_client_overhead.py`.

Figures per delta size: over an in-memory transport, and over a loopback WebSocket with the server in another process,
there beside the bare WebSocket library on the same stream. Each delta is read from `response.audio()` and
acknowledged as the client always does.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).parents[2]))
from trio_websocket import open_websocket_url, serve_websocket

from tests.client.client_kit import MemoryServer, created, delta, done
from trio_duplex.client import DuplexClient

DELTAS = 1000
ROUNDS = 9


async def consume(client: DuplexClient) -> float:
    """CPU microseconds per delta of one response."""
    async for response in client.responses():
        started = time.process_time()
        count = 0
        async for _ in response.audio():
            count += 1
        return (time.process_time() - started) / count * 1e6
    raise RuntimeError("no response")


def script(pcm_bytes: int, round_: int) -> list[str]:
    name = f"r{round_}"
    base = round_ * (DELTAS + 10) + 2
    events = [{"type": "response.speak", "response_id": name, "server_event_seq": base}]
    events += [delta(name, bytes(pcm_bytes), server_event_seq=base + 1 + n) for n in range(DELTAS)]
    events += [done(name, server_event_seq=base + 1 + DELTAS)]
    return [json.dumps(event) for event in events]


async def in_memory(pcm_bytes: int, paced: bool) -> list[float]:
    server = MemoryServer()
    costs: list[float] = []

    async def serve() -> None:
        peer = await server.accept()
        await peer.open()
        for round_ in range(ROUNDS):
            await peer.take_type("input_audio_buffer.clear")
            frames = script(pcm_bytes, round_)
            peer.push(frames[0])
            for frame in frames[1:]:
                if paced:
                    await trio.testing.wait_all_tasks_blocked()
                peer.push(frame)
        await peer.take_type("session.close")
        peer.push({"type": "session.closed"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with DuplexClient("ws://x", model="m", connect=server.connect) as client:
            for _ in range(ROUNDS):
                await client.clear_input()
                costs.append(await consume(client))
    return costs


def serve_process(pcm_bytes: int, port_out: multiprocessing.Queue) -> None:
    async def handler(request) -> None:
        ws = await request.accept()
        while json.loads(await ws.get_message())["type"] != "session.update":
            pass
        await ws.send_message(json.dumps(created()))
        round_ = 0
        while True:
            kind = json.loads(await ws.get_message())["type"]
            if kind == "session.close":
                await ws.send_message('{"type":"session.closed"}')
            elif kind == "input_audio_buffer.clear":
                for frame in script(pcm_bytes, round_):
                    await ws.send_message(frame)
                    await trio.sleep(0.0005)  # paced, so that each delta is a wake-up of its own
                round_ += 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve_websocket, handler, "127.0.0.1", 0, None))
            port_out.put(server.port)

    trio.run(main)


async def over_socket(port: int) -> list[float]:
    costs = []
    async with DuplexClient(f"ws://127.0.0.1:{port}", model="m") as client:
        for _ in range(ROUNDS):
            await client.clear_input()
            costs.append(await consume(client))
    return costs


async def bare_library(port: int) -> list[float]:
    """The same stream read by nothing but the WebSocket library: what no client on top of it can save."""
    costs = []
    url = f"ws://127.0.0.1:{port}"
    async with open_websocket_url(url, max_message_size=2**26, receive_buffer_size=65536) as ws:
        await ws.send_message('{"type":"session.update"}')
        await ws.get_message()
        for _ in range(ROUNDS):
            await ws.send_message('{"type":"input_audio_buffer.clear"}')
            await ws.get_message()
            started = time.process_time()
            for _ in range(DELTAS):
                await ws.get_message()
            costs.append((time.process_time() - started) / DELTAS * 1e6)
            await ws.get_message()
    return costs


def with_server(client: Callable[[int], Awaitable[list[float]]], pcm_bytes: int) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    ports: multiprocessing.Queue[int] = spawn.Queue()
    process = spawn.Process(target=serve_process, args=(pcm_bytes, ports), daemon=True)
    process.start()
    try:
        return trio.run(client, ports.get())
    finally:
        process.terminate()
        process.join()


def report(label: str, costs: list[float]) -> None:
    print(f"{label:60s} median {statistics.median(costs):6.1f}  min {min(costs):6.1f}  max {max(costs):6.1f} us/delta")


if __name__ == "__main__":
    print(platform.platform(), platform.processor(), "python", platform.python_version())
    for pcm_bytes, ms in ((3840, 80), (48000, 1000)):
        report(f"in memory, burst, {ms} ms deltas", trio.run(in_memory, pcm_bytes, False))
        report(f"in memory, one at a time (incl. test server), {ms} ms deltas", trio.run(in_memory, pcm_bytes, True))
        with_client = with_server(over_socket, pcm_bytes)
        bare = with_server(bare_library, pcm_bytes)
        report(f"loopback WebSocket, one at a time, {ms} ms deltas", with_client)
        report("  of which the WebSocket library and the kernel", bare)
        print(f"{'  so the client itself':60s} median {statistics.median(with_client) - statistics.median(bare):6.1f}")
