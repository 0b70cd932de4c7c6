"""The official ``openai`` Python SDK, asynchronous: raw events, so this script does what an application would.

It also reads every event with the SDK's own types, strictly (the SDK itself does not), and lets the SDK reconnect to
the same session, by URL, after its socket was torn in the middle of an answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from typing import Any, get_args

import rehearsal as r
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from pydantic import BaseModel, ValidationError
from websockets.exceptions import InvalidStatus

TYPES: dict[str, list[type[BaseModel]]] = defaultdict(list)
for _model in get_args(get_args(RealtimeServerEvent)[0]):
    for _word in get_args(_model.model_fields["type"].annotation):
        TYPES[_word].append(_model)

EXTRA = {"conversation.item.created"}
"""Beta-era events that GA servers still may send and that the SDK passes on; every other type must be known to it."""


class Conversation(r.Ledger):
    """Everything that came over one session, in order, and over however many sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.audio: dict[str, bytearray] = defaultdict(bytearray)
        self.last_seq = 0
        self.session: dict[str, Any] = {}
        self.reconnects = 0

    async def read(self, connection: AsyncRealtimeConnection) -> None:
        """Take events until the connection is closed."""
        async for event in connection:
            self.take(event)

    def resume(self, _: ReconnectingEvent) -> ReconnectingOverrides:
        """The query with which the SDK shall reconnect: back to this session, from the first event that was missed."""
        self.reconnects += 1
        return {
            "extra_query": {
                "session_id": self.session["id"],
                "resume_token": self.session["resume_token"],
                "incarnation": self.session["incarnation"],
                "last_received_server_event_seq": self.last_seq,
            }
        }

    def take(self, event: Any) -> None:
        raw = event.to_dict()
        kind = raw["type"]
        strict_errors = [error for model in TYPES[kind] if (error := misfit(model, raw))]
        if TYPES[kind] and len(strict_errors) == len(TYPES[kind]):
            self.complaints.append(f"{kind} is not what the SDK's types say: {strict_errors[0]}")
        if kind == "error":
            self.complaints.append(f"error event: {raw['error']}")
        if not raw.get("event_id"):
            self.complaints.append(f"{kind} has no event_id")
        if kind == "response.output_audio.delta":
            self.audio[raw["response_id"]] += base64.b64decode(raw["delta"])
            if self.done(raw["response_id"]):
                self.complaints.append("a delta after its response was done")
        if kind == "session.created":
            self.session = raw["session"]
        seq = raw.get("server_event_seq")
        if seq is not None:
            if seq != self.last_seq + 1:
                self.complaints.append(f"event {seq} came after event {self.last_seq}")
            self.last_seq = seq
        self.events.append(raw)
        self.changed()

    def all(self, kind: str) -> list[Any]:
        return [event for event in self.events if event["type"] == kind]

    def last(self, kind: str) -> Any:
        found = self.all(kind)
        return found[-1] if found else None

    def response_ids(self) -> list[str]:
        return [event["response"]["id"] for event in self.all("response.created")]

    def done(self, response_id: str) -> Any:
        return next((e["response"] for e in self.all("response.done") if e["response"]["id"] == response_id), None)


def misfit(model: type[BaseModel], raw: dict[str, Any]) -> str | None:
    """Why an event does not fit one of the SDK's types."""
    try:
        model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def transcript(response: Any) -> str:
    return " ".join(part.get("transcript") or "" for item in response["output"] for part in item.get("content", ()))


async def heard(talk: Conversation, response_id: str, at_least_s: float) -> None:
    await talk.until(
        f"{at_least_s} s of sound", lambda: r.seconds(talk.audio[response_id]) >= at_least_s, within_s=r.TALK_S
    )
    loud = r.rms(bytes(talk.audio[response_id]))
    r.check(loud > r.AUDIBLE_RMS, f"the answer is silent (RMS {loud:.0f})")


async def scene(report: r.Report) -> None:
    client = AsyncOpenAI(api_key=r.KEY, base_url=r.SERVER.replace("ws", "http", 1) + "/v1")
    talk = Conversation()
    connecting = client.realtime.connect(model="gpt-realtime", on_reconnecting=talk.resume)
    async with client, connecting as connection, asyncio.TaskGroup() as group:
        reader = group.create_task(talk.read(connection))
        await talk.until("session.created", lambda: talk.last("session.created"))
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "You are a robot.",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24000},
                        "transcription": {"model": "gpt-4o-mini-transcribe"},
                        "turn_detection": {"type": "semantic_vad"},
                    },
                    "output": {"voice": "marin"},
                },
                "tools": [
                    {
                        "type": "function",
                        "name": r.TOOL,
                        "description": r.TOOL_DESCRIPTION,
                        "parameters": r.TOOL_PARAMETERS,
                    }
                ],
            }
        )
        await talk.until("session.updated", lambda: talk.last("session.updated"))
        detection = talk.last("session.updated")["session"]["audio"]["input"]["turn_detection"]
        r.check(detection["type"] == "semantic_vad", f"turn detection came back as {detection}")
        report.passed("connect", f"semantic_vad, session {talk.last('session.created')['session']['id'][:9]}…")

        async def append(chunk: bytes) -> None:
            await connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode("ascii"))

        microphone = r.Microphone(append)
        speaking = group.create_task(microphone.run())
        await answer(report, talk, microphone)
        await interruption(report, talk, microphone, connection)
        await function(report, talk, microphone, connection)
        await resume(talk, microphone, connection)
        speaking.cancel()
        await connection.close(code=1000, reason="bye")
        await reader
    unknown = {event["type"] for event in talk.events} - TYPES.keys() - EXTRA
    r.check(not unknown, f"event types that the SDK does not know: {sorted(unknown)}")
    await without_key()
    kept = f"torn in an answer, resumed by URL without loss, closed; all {len(talk.events)} events fit the SDK's types"
    report.passed("end", f"{kept}; a wrong key: 401")


async def answer(report: r.Report, talk: Conversation, microphone: r.Microphone) -> None:
    await microphone.say("question")
    await talk.until("response.created", lambda: talk.response_ids())
    await heard(talk, talk.response_ids()[0], 2.0)
    kind = "conversation.item.input_audio_transcription.completed"
    await talk.until("the user's transcript", lambda: talk.last(kind))
    said = talk.last(kind)["transcript"]
    r.check(r.has_words(said, r.QUESTION_WORDS), f"understood {said!r}")
    report.passed("answer", f"understood {said!r}")


async def interruption(
    report: r.Report, talk: Conversation, microphone: r.Microphone, connection: AsyncRealtimeConnection
) -> None:
    first = talk.response_ids()[0]
    r.check(not talk.done(first), "the first answer ended before it could be interrupted")
    await microphone.say("interruption")
    await talk.until("the end of the interrupted answer", lambda: talk.done(first))
    done = talk.done(first)
    r.check(done["status"] == "cancelled", f"the interrupted answer ended as {done['status']}")
    r.check(done["status_details"]["reason"] == "turn_detected", f"reason {done['status_details']}")
    item = done["output"][0]
    played_ms = int(r.seconds(talk.audio[first]) * 1000) - 200
    await connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=played_ms)
    await talk.until("item.truncated", lambda: talk.last("conversation.item.truncated"))
    await talk.until("a second answer", lambda: len(talk.response_ids()) > 1)
    second = talk.response_ids()[1]
    await talk.until("the end of the second answer", lambda: talk.done(second), within_s=r.TALK_S)
    r.check(talk.done(second)["status"] == "completed", f"the second answer ended as {talk.done(second)['status']}")
    await heard(talk, second, 2.0)
    heard_s = r.seconds(talk.audio[first])
    report.passed("interruption", f"cancelled after {heard_s:.1f} s, turn_detected; then a whole answer")


async def function(
    report: r.Report, talk: Conversation, microphone: r.Microphone, connection: AsyncRealtimeConnection
) -> None:
    await microphone.say("command")

    def call() -> Any:
        items = [event["item"] for event in talk.all("response.output_item.done")]
        return next((item for item in items if item["type"] == "function_call"), None)

    await talk.until("a function call", call)
    found = call()
    arguments = r.as_json(found["arguments"])
    r.check((found["name"], arguments) == (r.TOOL, {"meters": 10}), f"called {found['name']}({arguments})")
    answers = len(talk.response_ids())
    await connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": found["call_id"], "output": r.TOOL_RESULT}
    )
    await connection.response.create()
    await talk.until("an answer to the result", lambda: len(talk.response_ids()) > answers)
    last = talk.response_ids()[-1]
    await talk.until("its end", lambda: talk.done(last), within_s=r.TALK_S)
    said = transcript(talk.done(last))
    r.check(r.has_words(said, r.TOOL_RESULT_WORDS), f"the result was answered with {said!r}")
    report.passed("function", f"{found['name']}({found['arguments']}), then {said!r}")


async def resume(talk: Conversation, microphone: r.Microphone, connection: AsyncRealtimeConnection) -> None:
    """The network fails in the middle of an answer; the SDK reconnects, and not one event is missing or twice."""
    answers = len(talk.response_ids())
    before = talk.session
    await microphone.say("question")
    await talk.until("another answer", lambda: len(talk.response_ids()) > answers)
    last = talk.response_ids()[-1]
    await heard(talk, last, 2.0)
    connection._connection.transport.abort()
    await talk.until("session.created again", lambda: talk.session is not before)
    r.check(talk.session["id"] == before["id"], "another session was opened")
    r.check(talk.session["resume_token"] != before["resume_token"], "the resume token was not renewed")
    await talk.until("the end of the answer", lambda: talk.done(last), within_s=r.TALK_S)
    r.check(talk.done(last)["status"] == "completed", f"the answer ended as {talk.done(last)['status']}")
    r.check(talk.reconnects == 1, f"the SDK reconnected {talk.reconnects} times")


async def without_key() -> None:
    """A key that the server does not know is refused before the upgrade, with the reason."""
    async with AsyncOpenAI(api_key=r.KEY + "x", base_url=r.SERVER.replace("ws", "http", 1) + "/v1") as client:
        try:
            async with asyncio.timeout(r.ANSWER_S), client.realtime.connect(model="gpt-realtime"):
                raise r.StepFailed("a wrong key was let in")
        except InvalidStatus as refused:
            r.check(refused.response.status_code == 401, f"a wrong key gave {refused.response.status_code}")
            r.check(b"invalid_api_key" in (refused.response.body or b""), "the refusal has no reason")


if __name__ == "__main__":
    r.rehearse(r.Report("openai", "openai"), scene)
