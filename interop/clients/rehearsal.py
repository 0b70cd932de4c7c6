"""What every Python client of the suite shares: a microphone, an ear, a ledger to wait on, and the report.

Standard library only, because each client lives in an environment of its own. The runner tells a client where the
server is through the environment and reads its report from the last line of standard output.
"""

from __future__ import annotations

import array
import asyncio
import json
import math
import os
import sys
import traceback
import wave
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RATE_HZ = 24_000
BYTES_PER_MS = RATE_HZ * 2 // 1000
SPEECH = Path(os.environ["INTEROP_SPEECH"])
SERVER = os.environ["INTEROP_URL"]
"""``ws://host:port`` of the server."""
KEY = os.environ["INTEROP_KEY"]

ANSWER_S = 20.0
"""Longest wait for something that the server owes; the machine may be slow, the suite does not measure."""
TALK_S = 40.0
"""Longest wait for the end of an answer that is spoken in real time."""
AUDIBLE_RMS = 300.0
"""Of 32768: silence and noise stay far below, the voice far above."""

QUESTION_WORDS = ("young", "man")
"""Of the recording ``question`` (he was not an ill disposed young man); what the recogniser must get right."""
TOOL = "go_forward"
TOOL_DESCRIPTION = "Moves the robot forward."
TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"meters": {"type": "integer", "description": "How far."}},
    "required": ["meters"],
    "additionalProperties": False,
}
"""The recording ``command`` says: go forward ten meters."""
TOOL_RESULT = "moved, the battery is low"
TOOL_RESULT_WORDS = ("battery", "low")

STEPS = ("connect", "answer", "interruption", "function", "end")


class StepFailed(Exception):
    """Something that the server or the client owed did not happen; the text says what."""


def check(fact: object, what: str) -> None:
    """Fail the step with ``what`` unless ``fact``."""
    if not fact:
        raise StepFailed(what)


def has_words(text: str | None, words: Iterable[str]) -> bool:
    """Whether a transcript holds all ``words``."""
    said = (text or "").lower()
    return all(word in said for word in words)


def rms(pcm: bytes) -> float:
    """Root mean square of 16-bit samples."""
    samples = array.array("h", pcm[: len(pcm) // 2 * 2])
    return math.sqrt(sum(x * x for x in samples) / len(samples)) if samples else 0.0


def seconds(pcm: bytes | bytearray) -> float:
    """How long PCM of the suite's rate sounds."""
    return len(pcm) / (RATE_HZ * 2)


def recording(name: str) -> bytes:
    """The samples of a prepared recording: 24 kHz, mono, 16-bit."""
    with wave.open(str(SPEECH / f"{name}.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE_HZ, 1, 2)
        return file.readframes(file.getnframes())


class Microphone:
    """Sends a chunk every ``chunk_ms`` in real time for as long as it runs: what is to be said, else silence."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], *, chunk_ms: int = 100) -> None:
        self._send = send
        self._chunk_ms = chunk_ms
        self._pending = bytearray()
        self._said = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        size = self._chunk_ms * BYTES_PER_MS
        while True:
            chunk = bytes(self._pending[:size])
            del self._pending[:size]
            await self._send(chunk.ljust(size, b"\0"))
            if not self._pending:
                self._said.set()
            due += self._chunk_ms / 1000
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def say(self, name: str) -> None:
        """Say a recording; returns when its last chunk is sent."""
        self._said.clear()
        self._pending += recording(name)
        await self._said.wait()


class Ledger:
    """State that callbacks change and steps wait on."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.complaints: list[str] = []
        """Errors that the client reported; any of them fails the step in which it came."""

    def changed(self) -> None:
        """Something may have become true."""
        self._changed.set()
        self._changed = asyncio.Event()

    def complain(self, what: str) -> None:
        """The client reported an error."""
        self.complaints.append(what)
        self.changed()

    async def until(self, what: str, fact: Callable[[], object], *, within_s: float = ANSWER_S) -> None:
        """Wait until ``fact()``; an error reported meanwhile, or too long a wait, fails the step."""
        try:
            async with asyncio.timeout(within_s):
                while not fact():
                    changed = self._changed
                    check(not self.complaints, f"while waiting for {what}: {'; '.join(self.complaints)}")
                    await changed.wait()
        except TimeoutError:
            raise StepFailed(f"{what}: not within {within_s:.0f} s") from None
        check(not self.complaints, f"with {what}: {'; '.join(self.complaints)}")


class Report:
    """The results of one client, printed as one line of JSON at the end."""

    def __init__(self, client: str, *packages: str) -> None:
        self.client = client
        self.versions = {name: version(name) for name in packages}
        self.steps: dict[str, tuple[str, str]] = {}

    def passed(self, step: str, detail: str) -> None:
        """The step was done as it should."""
        self.steps[step] = ("pass", detail)
        print(f"  {step}: {detail}", flush=True)

    def cannot(self, step: str, why: str) -> None:
        """The client's API has nothing for this step."""
        self.steps[step] = ("cannot", why)
        print(f"  {step}: cannot: {why}", flush=True)

    def failed(self, why: str) -> None:
        """The step after the last one that was done failed, and with it the rest."""
        step = next((name for name in STEPS if name not in self.steps), "end")
        self.steps[step] = ("fail", why)
        print(f"  {step}: FAILED: {why}", flush=True)

    def print(self) -> bool:
        """Print it; True when every step was passed or cannot be."""
        steps = {name: {"status": s, "detail": d} for name, (s, d) in self.steps.items()}
        print(json.dumps({"client": self.client, "versions": self.versions, "steps": steps}), flush=True)
        return set(STEPS) <= set(steps) and all(status != "fail" for status, _ in self.steps.values())


def rehearse(report: Report, scene: Callable[[Report], Awaitable[None]]) -> None:
    """Run ``scene`` on asyncio, print the report, and exit: 0 when all went well."""

    async def run() -> None:
        await scene(report)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        check(not left, f"tasks are left: {[task.get_name() for task in left]}")

    try:
        asyncio.run(run())
    except Exception as error:  # noqa: BLE001  (border: a client's crash is a result)
        for leaf in _leaves(error):
            if not isinstance(leaf, StepFailed):
                traceback.print_exception(leaf)
            report.failed(str(leaf) or type(leaf).__name__)
            break
    ok = report.print()
    sys.stdout.flush()
    os._exit(0 if ok else 1)  # a library's own threads shall not keep the process


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def as_json(value: Any) -> dict[str, Any]:
    """Arguments of a call as an object."""
    loaded = json.loads(value)
    check(isinstance(loaded, dict), f"arguments are no object: {value!r}")
    return dict(loaded)
