"""``openai-agents`` (Python): an agent with a tool, run by ``RealtimeRunner``; all at its defaults, semantic_vad too.

The library does the conversation by itself: it cuts the answer it plays at a barge-in, calls the function, sends the
result and asks for the answer to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import rehearsal as r
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession


class Conversation(r.Ledger):
    """What the session's events said."""

    def __init__(self) -> None:
        super().__init__()
        self.audio: dict[str, bytearray] = defaultdict(bytearray)
        self.items: list[str] = []
        """Items with sound, in order."""
        self.ended: list[str] = []
        self.interrupted: list[str] = []
        self.calls: list[int] = []
        self.history: list[Any] = []
        self.turns_over = 0
        self.detection: Any = None

    async def read(self, session: RealtimeSession) -> None:
        """Take events until the session is closed."""
        async for event in session:
            self.take(event)
            self.changed()

    def take(self, event: Any) -> None:
        match event.type:
            case "audio":
                if event.item_id not in self.audio:
                    self.items.append(event.item_id)
                if event.item_id in self.interrupted:
                    self.complaints.append("sound of an answer that was interrupted")
                self.audio[event.item_id] += event.audio.data
            case "audio_end":
                self.ended.append(event.item_id)
            case "audio_interrupted":
                self.interrupted.append(event.item_id)
            case "history_updated":
                self.history = list(event.history)
            case "history_added":
                self.history = [*(i for i in self.history if i.item_id != event.item.item_id), event.item]
            case "raw_model_event" if event.data.type == "raw_server_event":
                if event.data.data["type"] == "session.updated":
                    self.detection = event.data.data["session"]["audio"]["input"]["turn_detection"]
            case "raw_model_event" if event.data.type == "turn_ended":
                self.turns_over += 1
            case "raw_model_event" if event.data.type == "exception":
                self.complaints.append(f"exception: {event.data.exception!r} {event.data.context}")
            case "error":
                self.complaints.append(f"error: {event.error!r}")
            case _:
                pass

    def words(self, role: str) -> list[str]:
        """What was said, by item."""
        return [
            " ".join(getattr(part, "transcript", None) or getattr(part, "text", None) or "" for part in item.content)
            for item in self.history
            if getattr(item, "role", None) == role
        ]


async def scene(report: r.Report) -> None:
    talk = Conversation()

    async def go_forward(meters: int) -> str:
        """Moves the robot forward."""
        talk.calls.append(meters)
        return r.TOOL_RESULT

    agent = RealtimeAgent(name="robot", instructions="You are a robot.", tools=[function_tool(go_forward)])
    runner = RealtimeRunner(agent)
    session = await runner.run(model_config={"url": r.SERVER + "/v1/realtime?model=gpt-realtime", "api_key": r.KEY})
    async with session, asyncio.TaskGroup() as group:
        group.create_task(talk.read(session))
        await talk.until("session.updated", lambda: talk.detection)
        r.check(talk.detection["type"] == "semantic_vad", f"turn detection came back as {talk.detection}")
        report.passed("connect", "its defaults: semantic_vad, transcription, tracing")
        microphone = r.Microphone(session.send_audio)
        speaking = group.create_task(microphone.run())

        await microphone.say("question")
        await talk.until("sound", lambda: talk.items and r.seconds(talk.audio[talk.items[0]]) >= 2)
        loud = r.rms(bytes(talk.audio[talk.items[0]]))
        r.check(loud > r.AUDIBLE_RMS, f"the answer is silent (RMS {loud:.0f})")
        await talk.until("the user's words", lambda: r.has_words(" ".join(talk.words("user")), r.QUESTION_WORDS))
        report.passed("answer", f"understood {talk.words('user')[0]!r}")

        first = talk.items[0]
        r.check(first not in talk.ended, "the first answer ended before it could be interrupted")
        await microphone.say("interruption")
        await talk.until("audio_interrupted", lambda: first in talk.interrupted)
        await talk.until("a second answer", lambda: len(talk.items) > 1)
        await talk.until("its end", lambda: talk.items[1] in talk.ended, within_s=r.TALK_S)
        await talk.until("two turns over", lambda: talk.turns_over >= 2)
        heard_s = r.seconds(talk.audio[talk.items[1]])
        r.check(heard_s > 2, f"of the second answer only {heard_s:.1f} s were heard")
        report.passed("interruption", f"interrupted, then a whole answer of {heard_s:.1f} s")

        await microphone.say("command")
        await talk.until("the function", lambda: talk.calls)
        r.check(talk.calls == [10], f"called with {talk.calls}")
        await talk.until("an answer to its result", lambda: len(talk.items) > 2)
        await talk.until("its end", lambda: talk.items[2] in talk.ended, within_s=r.TALK_S)
        await talk.until(
            "its words", lambda: any(r.has_words(words, r.TOOL_RESULT_WORDS) for words in talk.words("assistant"))
        )
        report.passed("function", f"go_forward(10), then {talk.words('assistant')[-1]!r}")

        speaking.cancel()
        await session.close()
    r.check(not talk.complaints, "; ".join(talk.complaints))
    report.passed("end", f"closed; {len(talk.history)} items of history")


if __name__ == "__main__":
    r.rehearse(r.Report("openai-agents", "openai-agents", "openai"), scene)
