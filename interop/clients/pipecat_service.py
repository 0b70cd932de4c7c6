"""Pipecat with its OpenAI realtime service: the usual pipeline, with a transport whose room is this script.

The service names no format, no turn detection and no transcription; it talks by what the server does by default.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import rehearsal as r
from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    StartFrame,
    TranscriptionFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

CHUNK_MS = 20


class Ear(BaseInputTransport):
    """The microphone as the pipeline's first processor."""

    async def start(self, frame: StartFrame) -> None:
        """The pipeline starts."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def put(self, chunk: bytes) -> None:
        """One chunk of the microphone."""
        await self.push_audio_frame(InputAudioRawFrame(audio=chunk, sample_rate=r.RATE_HZ, num_channels=1))


class Loudspeaker(BaseOutputTransport):
    """Plays in real time without a sound."""

    def __init__(self, params: TransportParams, talk: Conversation) -> None:
        super().__init__(params)
        self._talk = talk
        self._free_at_s = 0.0

    async def start(self, frame: StartFrame) -> None:
        """The pipeline starts."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play a frame; returns when it was heard."""
        self._talk.hear(frame.audio)
        now_s = time.monotonic()
        self._free_at_s = max(now_s, self._free_at_s) + r.seconds(frame.audio)
        await asyncio.sleep(self._free_at_s - now_s)
        return True


class Conversation(r.Ledger, BaseObserver):
    """Which frames went through the pipeline, and what was played."""

    def __init__(self) -> None:
        r.Ledger.__init__(self)
        BaseObserver.__init__(self)
        self._seen: set[int] = set()
        self.playing = False
        self.heard: list[bytearray] = []
        """Played sound, by answer. After a barge-in Pipecat may play a rest of the old one, which is no new answer."""
        self._responded = False
        self.interruptions = 0
        self.user_words: list[str] = []
        self.calls: list[int] = []
        self.ended = False

    def hear(self, pcm: bytes) -> None:
        """Played."""
        if self.playing:
            self.heard[-1] += pcm
            self.changed()

    async def on_push_frame(self, data: FramePushed) -> None:
        """Every frame, once."""
        if data.frame.id not in self._seen:
            self._seen.add(data.frame.id)
            self.take(data.frame)
            self.changed()

    def take(self, frame: Frame) -> None:
        match frame:
            case LLMFullResponseStartFrame():
                self._responded = True
            case BotStartedSpeakingFrame() if not self.playing:
                self.playing = True
                if self._responded:
                    self._responded = False
                    self.heard.append(bytearray())
            case BotStoppedSpeakingFrame():
                self.playing = False
            case InterruptionFrame():
                self.interruptions += 1
            case TranscriptionFrame():
                self.user_words.append(frame.text)
            case ErrorFrame():
                self.complain(f"error: {frame.error}")
            case EndFrame():
                self.ended = True
            case _:
                pass


async def scene(report: r.Report) -> None:
    talk = Conversation()
    llm = OpenAIRealtimeLLMService(api_key=r.KEY, base_url=r.SERVER + "/v1/realtime")

    async def go_forward(call: FunctionCallParams) -> None:
        talk.calls.append(call.arguments["meters"])
        talk.changed()
        await call.result_callback(r.TOOL_RESULT)

    llm.register_function(r.TOOL, go_forward)
    tool = FunctionSchema(r.TOOL, r.TOOL_DESCRIPTION, r.TOOL_PARAMETERS["properties"], r.TOOL_PARAMETERS["required"])  # type: ignore[arg-type]
    context = LLMContext([{"role": "user", "content": "Say hello."}], ToolsSchema([tool]))
    aggregators = LLMContextAggregatorPair(context)
    params = TransportParams(audio_in_enabled=True, audio_out_enabled=True, audio_out_end_silence_secs=0)
    ear, loudspeaker = Ear(params), Loudspeaker(params, talk)
    worker = PipelineWorker(
        Pipeline([ear, aggregators.user(), llm, loudspeaker, aggregators.assistant()]),
        params=PipelineParams(audio_in_sample_rate=r.RATE_HZ, audio_out_sample_rate=r.RATE_HZ),
        observers=[talk],
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(runner.run())
        await worker.queue_frames([LLMRunFrame()])
        await talk.until("the greeting's end", lambda: len(talk.heard) == 1 and not talk.playing, within_s=r.TALK_S)
        await talk.until("the greeting's words", lambda: said(context, "assistant"))
        report.passed("connect", f"its defaults; greeted: {said(context, 'assistant')[0]!r}")

        microphone = r.Microphone(ear.put, chunk_ms=CHUNK_MS)
        speaking = group.create_task(microphone.run())
        await microphone.say("question")
        await talk.until("sound", lambda: len(talk.heard) > 1 and r.seconds(talk.heard[1]) >= 2)
        loud = r.rms(bytes(talk.heard[1]))
        r.check(loud > r.AUDIBLE_RMS, f"the answer is silent (RMS {loud:.0f})")
        await talk.until("the user's words", lambda: r.has_words(" ".join(talk.user_words), r.QUESTION_WORDS))
        report.passed("answer", f"understood {talk.user_words[-1]!r}")

        r.check(talk.playing and len(talk.heard) == 2, "the first answer ended before it could be interrupted")
        before = talk.interruptions
        await microphone.say("interruption")
        await talk.until("an interruption", lambda: talk.interruptions > before)
        await talk.until("a second answer", lambda: len(talk.heard) > 2)
        played_s = r.seconds(talk.heard[1])
        await talk.until("its end", lambda: not talk.playing, within_s=r.TALK_S)
        whole_s = r.seconds(talk.heard[2])
        r.check(whole_s > 2, f"of the second answer only {whole_s:.1f} s were heard")
        report.passed("interruption", f"cut after {played_s:.1f} s, then a whole answer of {whole_s:.1f} s")

        await microphone.say("command")
        await talk.until("the function", lambda: talk.calls)
        r.check(talk.calls == [10], f"called with {talk.calls}")
        await talk.until(
            "the answer to its result", lambda: len(talk.heard) > 3 and not talk.playing, within_s=r.TALK_S
        )
        await talk.until(
            "its words", lambda: any(r.has_words(words, r.TOOL_RESULT_WORDS) for words in said(context, "assistant"))
        )
        report.passed("function", f"go_forward(10), then {said(context, 'assistant')[-1]!r}")
        speaking.cancel()
        await worker.stop_when_done()
        await asyncio.wait_for(running, r.ANSWER_S)
    r.check(not talk.complaints, "; ".join(talk.complaints))
    users = said(context, "user")
    r.check(len(users) == 4, f"the history of the user is {users}")
    report.passed("end", f"EndFrame, pipeline finished; {len(context.messages)} messages of history")


def said(context: LLMContext, role: str) -> list[str]:
    """Texts of one side in the context, in order."""
    texts: list[str] = []
    for message in context.messages:
        if isinstance(message, dict) and message.get("role") == role and message.get("content"):
            content: Any = message["content"]
            texts.append(content if isinstance(content, str) else " ".join(part.get("text", "") for part in content))
    return texts


if __name__ == "__main__":
    logger.enable("pipecat")
    r.rehearse(r.Report("pipecat", "pipecat-ai"), scene)
