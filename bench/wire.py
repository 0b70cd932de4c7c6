"""What one session costs the server per client append and per audio delta; and beside it, what the socket costs.

Run: python bench/wire.py [--sessions 100] [--messages 20000]

Every number is CPU time of this process on one core. "append" is JSON text → parse → decode → mailbox → session → model
(a model that only counts samples); "delta" is model speech → session → projection → journal → numbered JSON bytes, both
events of the pair. The socket rows run our listener with an endpoint that does nothing, in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import platform
import resource
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pybase64
import structlog
import trio
import trio.testing
import trio_websocket

from duplex_protocol import wire
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import SessionConfig
from trio_duplex.hub import Hub
from trio_duplex.models import plugin as model
from trio_duplex.server.app import DuplexApp
from trio_duplex.server.listener import serve_asgi
from trio_duplex.server.socket import ServerSocket
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import Hang, ScriptedOptions, ScriptedPlugin, ScriptedSession

CHUNK_MS = 100
PAUSE_S = 0.001
"""Between two messages to the listener: they come one by one then, as those of live clients do."""
RATE_HZ = 24_000


class DeafSession(ScriptedSession):
    """Takes audio and does nothing with it: the bench measures the session, not the hearing."""

    def submit(self, audio: model.FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        self._loud = True


class DeafPlugin(ScriptedPlugin):
    async def open(self, config: SessionConfig, context: model.SessionContext) -> ScriptedSession:
        self.open_slots -= 1
        session = DeafSession(self, config, context)
        self.sessions.append(session)
        return session


def append_text() -> str:
    """One append of 100 ms at 16 kHz, as a client sends it."""
    pcm = np.random.default_rng(1).integers(-3000, 3000, 16_000 * CHUNK_MS // 1000, dtype=np.int16).tobytes()
    event = {"type": "input_audio_buffer.append", "event_id": "evt_1", "audio": pybase64.b64encode(pcm).decode()}
    return orjson.dumps(event).decode()


async def open_sessions(hub: Hub, count: int) -> list[Session]:
    sessions = []
    for _ in range(count):
        dialect = RealtimeDialect(view="duplex")
        update = dialect.parse_open({"extra_body": {"auto_response": True}}, hub.plugin.defaults)
        sessions.append(await hub.open_session(dialect, update))
    return sessions


async def measure(count: int, messages: int) -> dict[str, Any]:
    """Medians over ten blocks, in microseconds of CPU per append and per delta pair."""
    plugin = DeafPlugin(ScriptedOptions(script=lambda _: [Hang()], slots=count + 1))
    hub = Hub(plugin, SessionSettings(max_sessions=count + 1))
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        await hub.ready.wait()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        sessions = await open_sessions(hub, count)
        cursors = [s.attach(0).cursor for s in sessions]
        drain(cursors)
        memory = (tracemalloc.get_traced_memory()[0] - before) / count
        tracemalloc.stop()
        appends = [await appending(sessions, messages // 10) for _ in range(10)]
        for session in sessions:
            session.post(*session.dialect.decode({"type": "input_audio_buffer.commit"}))
        await trio.testing.wait_all_tasks_blocked()
        drain(cursors)
        deltas = [speaking(sessions, cursors, messages // 10) for _ in range(10)]
        again = replay_cost(sessions[0])
        nursery.cancel_scope.cancel()
    return {
        "append_us": statistics.median(appends),
        "delta_us": statistics.median(deltas),
        "second_cursor_us": again,
        "memory_per_idle_session_kib": memory / 1024,
    }


def drain(cursors: Sequence[Any]) -> None:
    for cursor in cursors:
        while True:
            try:
                cursor.next_nowait()
            except trio.WouldBlock:
                break


async def appending(sessions: list[Session], messages: int) -> float:
    text = append_text()
    started = time.process_time()
    for start in range(0, messages, len(sessions)):
        for session in sessions[: messages - start]:
            for command in session.dialect.decode(wire.parse(text)):
                session.post(command)
        await trio.testing.wait_all_tasks_blocked()
    return (time.process_time() - started) / messages * 1e6


def speaking(sessions: list[Session], cursors: Sequence[Any], messages: int) -> float:
    audio = np.random.default_rng(2).integers(-3000, 3000, RATE_HZ * CHUNK_MS // 1000, dtype=np.int16)
    speech = model.Speech(audio=audio, text="word ")
    started = time.process_time()
    for start in range(0, messages, len(sessions)):
        for session, cursor in zip(sessions[: messages - start], cursors, strict=False):
            assert session.generation is not None
            session.generation.say(speech)
            cursor.next_nowait()
            cursor.next_nowait()
            # A client that acknowledges, as ours does: the journal stays small.
            session.journal.trim(cursor.position)
    return (time.process_time() - started) / messages * 1e6


def replay_cost(session: Session) -> float:
    """A second cursor over kept events: bytes are handed out again, nothing is encoded."""
    assert session.generation is not None
    speech = model.Speech(audio=np.ones(2_400, np.int16), text="word ")
    for _ in range(500):
        session.generation.say(speech)
    first = session.journal.cursor(session.journal.head)
    drain([first])
    second = session.journal.cursor(session.journal.head - 1000)
    started = time.process_time()
    drain([second])
    return (time.process_time() - started) / 1000 * 1e6


# --- the socket beside it -----------------------------------------------------------------------------------------


def socket_server(pipe: Connection) -> None:
    """A process with our listener and an endpoint that reads (or sends) and does nothing else; reports CPU.

    It reads and sends as a session's connection does: through ``receive_each`` and ``send_all``.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

    async def sink(socket: ServerSocket) -> None:
        await socket.accept()
        await socket.receive_each(lambda message: True)

    async def source(socket: ServerSocket) -> None:
        await socket.accept()
        data = append_text().encode()
        for _ in range(int(socket.query["n"])):
            await socket.send_all([data], 5.0)
            await trio.lowlevel.checkpoint()
        await socket.receive()

    async def main() -> None:
        app = DuplexApp(sockets={"/sink": sink, "/source": source}, health=lambda: (True, {}))
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(lambda task_status: serve_asgi(app, task_status=task_status))
            pipe.send(bound.ws_url)
            while True:
                question = await trio.to_thread.run_sync(pipe.recv)
                if question is None:
                    break
                usage = resource.getrusage(resource.RUSAGE_SELF)
                pipe.send(usage.ru_utime + usage.ru_stime)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def socket_cost(messages: int) -> dict[str, float]:
    """CPU of the listener's process per received and per sent message of the append's size."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=socket_server, args=(theirs,), daemon=True)
    process.start()
    url = await trio.to_thread.run_sync(ours.recv)

    def cpu() -> float:
        ours.send("cpu")
        return float(ours.recv())

    text = append_text()
    async with trio_websocket.open_websocket_url(f"{url}/sink", receive_buffer_size=65536) as ws:
        before = cpu()
        for _ in range(messages):
            await ws.send_message(text)
            await trio.sleep(PAUSE_S)
        await ws.ping()
        receive = (cpu() - before) / messages * 1e6
    before = cpu()
    async with trio_websocket.open_websocket_url(f"{url}/source?n={messages}", receive_buffer_size=65536) as ws:
        for _ in range(messages):
            await ws.get_message()
        send = (cpu() - before) / messages * 1e6
    ours.send(None)
    process.join(10)
    return {"socket_receive_us": receive, "socket_send_us": send}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("bench/results/wire.json"))
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    results = trio.run(measure, arguments.sessions, arguments.messages)
    results |= trio.run(socket_cost, min(arguments.messages, 5_000))
    results |= {
        "sessions": arguments.sessions,
        "machine": f"{platform.machine()}, {multiprocessing.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {p: version(p) for p in ("trio", "hypercorn", "orjson", "pybase64", "numpy")},
    }
    rows = [
        ("append → model", results["append_us"], results["socket_receive_us"]),
        ("speech → delta pair bytes", results["delta_us"], results["socket_send_us"]),
    ]
    print(f"{results['machine']}; {arguments.sessions} sessions, {CHUNK_MS} ms of audio per message")
    print(f"{'':28}{'session, us':>12}{'socket, us':>12}{'ratio':>8}")
    for name, ours, socket in rows:
        print(f"{name:28}{ours:12.1f}{socket:12.1f}{ours / socket:8.2f}")
    print(f"second cursor, per event: {results['second_cursor_us']:.2f} us (nothing is encoded again)")
    print(f"memory of an idle session: {results['memory_per_idle_session_kib']:.0f} KiB")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
