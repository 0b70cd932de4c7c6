"""LiveKit's agents with its OpenAI realtime plugin: an ``AgentSession`` whose room is this script; all at its defaults.

The microphone and the loudspeaker are LiveKit's own interfaces (``AudioInput``, ``AudioOutput``), as its console uses
them. The plugin greets by ``response.create`` first, which only works when its ``metadata`` comes back. Every 20
minutes (here: sooner) it changes over to a new connection and tells it the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import rehearsal as r
from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice import io
from livekit.plugins import openai

CHUNK_MS = 50
CONNECTION_S = 75.0
"""After what time the plugin shall change its connection; by then the rest of the conversation should be over."""


class Model(openai.realtime.RealtimeModel):
    """The plugin's model, which tells when a session of it has a new connection."""

    def __init__(self, talk: Conversation, **options: Any) -> None:
        super().__init__(**options)
        self._talk = talk

    def session(self, **options: Any) -> Any:
        """A new session."""
        session = super().session(**options)
        session.on("session_reconnected", lambda _: self._talk.reconnected())
        session.on("openai_server_event_received", self._talk.wired)
        return session


class Ear(io.AudioInput):
    """The microphone as LiveKit pulls it."""

    def __init__(self) -> None:
        super().__init__(label="rehearsal")
        self._frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def put(self, chunk: bytes) -> None:
        """One chunk of the microphone."""
        frame = rtc.AudioFrame(data=chunk, sample_rate=r.RATE_HZ, num_channels=1, samples_per_channel=len(chunk) // 2)
        self._frames.put_nowait(frame)

    async def __anext__(self) -> rtc.AudioFrame:
        return await self._frames.get()


class Loudspeaker(io.AudioOutput):
    """Plays in real time without a sound, and says how far it came."""

    def __init__(self, talk: Conversation) -> None:
        super().__init__(
            label="rehearsal",
            capabilities=io.AudioOutputCapabilities(pause=False),
            next_in_chain=None,
            sample_rate=r.RATE_HZ,
        )
        self._talk = talk
        self._began_s = 0.0
        self._given_s = 0.0
        self._cut = asyncio.Event()
        self._playing: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        """Play one more frame of the answer."""
        await super().capture_frame(frame)
        if self._playing is not None:
            await self._playing
        if not self._given_s:
            self._began_s = time.monotonic()
            self._cut.clear()
            self._talk.answers.append(bytearray())
            self.on_playback_started(created_at=time.time())
        self._given_s += frame.duration
        self._talk.answers[-1] += bytes(frame.data)
        self._talk.changed()

    def flush(self) -> None:
        """The answer is complete."""
        super().flush()
        if self._given_s and self._playing is None:
            self._playing = asyncio.create_task(self._play_out())

    def clear_buffer(self) -> None:
        """Stop playing."""
        self._cut.set()

    async def _play_out(self) -> None:
        rest_s = self._began_s + self._given_s - time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cut.wait(), max(0.0, rest_s))
        played_s = min(self._given_s, time.monotonic() - self._began_s)
        interrupted = self._cut.is_set()
        self._given_s, self._playing = 0.0, None
        self._talk.played.append((played_s, interrupted))
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)
        self._talk.changed()


class Conversation(r.Ledger):
    """What the session's events said, and what was played."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bytearray] = []
        self.played: list[tuple[float, bool]] = []
        self.user_words: list[str] = []
        self.messages: list[Any] = []
        self.calls: list[int] = []
        self.closed: list[Any] = []
        self.connections = 1
        self.detection: Any = None

    def wired(self, event: dict[str, Any]) -> None:
        """An event of the server, as it came."""
        if event["type"] == "session.updated":
            self.detection = event["session"]["audio"]["input"]["turn_detection"]

    def reconnected(self) -> None:
        """The plugin has changed its connection."""
        self.connections += 1
        self.changed()

    def follow(self, session: AgentSession[None]) -> None:
        """Listen to everything that the session says about itself."""

        def transcribed(event: Any) -> None:
            if event.is_final:
                self.user_words.append(event.transcript)
            self.changed()

        def added(event: Any) -> None:
            self.messages.append(event.item)
            self.changed()

        def closed(event: Any) -> None:
            self.closed.append(event)
            self.changed()

        session.on("user_input_transcribed", transcribed)
        session.on("conversation_item_added", added)
        session.on("error", lambda event: self.complain(f"error: {event.error!r}"))
        session.on("close", closed)

    def said(self, role: str) -> list[Any]:
        """Messages of one side, in order."""
        return [m for m in self.messages if getattr(m, "role", None) == role]


class Robot(Agent):
    """An agent with one function."""

    def __init__(self, talk: Conversation) -> None:
        super().__init__(instructions="You are a robot.")
        self._talk = talk

    @function_tool
    async def go_forward(self, meters: int) -> str:
        """Moves the robot forward.

        Args:
            meters: How far.
        """
        self._talk.calls.append(meters)
        return r.TOOL_RESULT


async def scene(report: r.Report) -> None:
    talk = Conversation()
    base_url = r.SERVER.replace("ws", "http", 1) + "/v1"
    model = Model(talk, base_url=base_url, api_key=r.KEY, max_session_duration=CONNECTION_S)
    session: AgentSession[None] = AgentSession(llm=model)
    talk.follow(session)
    ear = Ear()
    session.input.audio = ear
    session.output.audio = Loudspeaker(talk)
    await session.start(agent=Robot(talk))
    async with asyncio.TaskGroup() as group:
        greeting = session.generate_reply(instructions="Say hello to the user.")
        await asyncio.wait_for(greeting.wait_for_playout(), r.TALK_S)
        await talk.until("the greeting", lambda: talk.said("assistant"))
        r.check(talk.detection and talk.detection["type"] == "semantic_vad", f"turn detection is {talk.detection}")
        report.passed(
            "connect", f"its defaults: semantic_vad; greeted by generate_reply: {text(talk.said('assistant')[0])!r}"
        )

        microphone = r.Microphone(ear.put, chunk_ms=CHUNK_MS)
        speaking = group.create_task(microphone.run())
        await microphone.say("question")
        await talk.until("sound", lambda: len(talk.answers) > 1 and r.seconds(talk.answers[1]) >= 2)
        loud = r.rms(bytes(talk.answers[1]))
        r.check(loud > r.AUDIBLE_RMS, f"the answer is silent (RMS {loud:.0f})")
        await talk.until("the user's words", lambda: r.has_words(" ".join(talk.user_words), r.QUESTION_WORDS))
        report.passed("answer", f"understood {talk.user_words[-1]!r}")

        r.check(len(talk.played) == 1, "the first answer ended before it could be interrupted")
        await microphone.say("interruption")
        await talk.until("the end of playback", lambda: len(talk.played) > 1)
        played_s, cut = talk.played[1]
        r.check(cut, f"the answer was played to its end ({played_s:.1f} s)")
        await talk.until("the message that was cut", lambda: len(talk.said("assistant")) > 1)
        r.check(talk.said("assistant")[1].interrupted, "the message is not marked as interrupted")
        await talk.until("the second answer's end", lambda: len(talk.played) > 2, within_s=r.TALK_S)
        whole_s, cut = talk.played[2]
        r.check(not cut and whole_s > 2, f"of the second answer {whole_s:.1f} s were heard, cut: {cut}")
        report.passed("interruption", f"cut after {played_s:.1f} s, then a whole answer of {whole_s:.1f} s")

        await microphone.say("command")
        await talk.until("the function", lambda: talk.calls)
        r.check(talk.calls == [10], f"called with {talk.calls}")
        await talk.until("the answer to its result", lambda: len(talk.played) > 3, within_s=r.TALK_S)
        await talk.until(
            "its words", lambda: any(r.has_words(text(m), r.TOOL_RESULT_WORDS) for m in talk.said("assistant"))
        )
        report.passed("function", f"go_forward(10), then {text(talk.said('assistant')[-1])!r}")
        await talk.until("a new connection", lambda: talk.connections > 1, within_s=CONNECTION_S + r.ANSWER_S)
        recalled = session.generate_reply(user_input="What did I say?")
        await asyncio.wait_for(recalled.wait_for_playout(), r.TALK_S)
        await talk.until("an answer on it", lambda: r.has_words(text(talk.said("assistant")[-1]), ("forward",)))
        speaking.cancel()
    await session.aclose()
    await model.aclose()
    r.check(talk.closed and talk.closed[0].error is None, f"closed with {talk.closed}")
    r.check(not talk.complaints, "; ".join(talk.complaints))
    users = len(talk.said("user"))
    r.check(users == 4, f"the history has {users} messages of the user, not 4")
    report.passed("end", "changed its connection and told the new one the history; closed")


def text(message: Any) -> str:
    return message.text_content or ""


if __name__ == "__main__":
    r.rehearse(r.Report("livekit", "livekit-agents", "livekit-plugins-openai"), scene)
