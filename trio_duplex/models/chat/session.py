"""One session of a turn-based model: every answer is a request built from the true history.

Nothing is kept here between answers but the tool calls that the model made, whose form the history does not hold.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from duplex_protocol.values import SessionConfig
from trio_duplex.models.chat.answer import MAX_CALLS, RESPONSE_ERROR, Answer, Call
from trio_duplex.models.chat.backend import Backend
from trio_duplex.models.chat.body import OptionError, build_body
from trio_duplex.models.chat.messages import HistoryBounds, KnownCall, build_messages
from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.plugin import (
    FloatAudio,
    GenerationFailed,
    ModelResult,
    ResponseRequest,
    Say,
    SessionContext,
    ToolCalled,
    Turn,
)

__all__ = ["RESPONSE_ERROR", "ChatSession"]

log = structlog.get_logger(__name__)

KNOWN_CALLS: Final = 256
RESULTS: Final = MAX_CALLS


class ChatSession:
    """A :class:`trio_duplex.models.plugin.ModelSession` with the trait ``turn_based``: it hears nothing by itself."""

    def __init__(
        self,
        backend: Backend,
        options: ChatOptions,
        context: SessionContext,
        on_close: Callable[[ChatSession], object] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._options = options
        self._context = context
        self._on_close = on_close
        self._calls: OrderedDict[str, KnownCall] = OrderedDict()
        self._closed = False
        self._send, self._receive = trio.open_memory_channel[ModelResult](RESULTS)

    @property
    def results(self) -> trio.MemoryReceiveChannel[ModelResult]:
        """Tool calls; nothing else is decided here."""
        return self._receive

    def submit(self, audio: FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """Nothing: the session holds input back until it is a turn, and turns come with the history."""

    def end_turn(self) -> Turn:
        """An empty turn: nothing is heard here (see :meth:`submit`)."""
        return Turn(0, 0, speech=False)

    def drop_input(self) -> None:
        """Nothing to forget."""

    def interrupt(self, epoch: int) -> None:
        """Nothing to do: an answer lives in :meth:`respond`, and what was not heard is not in the history."""

    def reconfigure(self, config: SessionConfig) -> None:
        """Nothing to do: every request for an answer brings the configuration along."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """No tasks of its own. Cancellation: ends."""
        task_status.started()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Leave. Cancellation: everything is done before the one checkpoint."""
        if not self._closed:
            self._closed = True
            self._send.close()
            self._on_close(self)
        await trio.lowlevel.checkpoint()

    # --- answering --------------------------------------------------------------------------------------------------

    async def respond(self, request: ResponseRequest, say: Say) -> None:
        """One answer, at most ``max_lead_ms`` ahead of real time; its tool calls are told at its end.

        Raises :class:`GenerationFailed`: ``chat_error`` for a backend that is down, slow, or talks nonsense,
        ``response_error`` for an answer whose audio cannot be trusted. What was said before stays said.
        Cancellation: the HTTP stream is closed at once; audio that was not handed out is dropped.
        """
        sound = self._options.output == "audio" and not request.text_only
        answer = Answer(self._options, say, text_only=not sound)
        await self._backend.ask(self._body(request, sound=sound), answer.take)
        await answer.finish()
        for call in answer.calls.values():
            await self._tell(call, request)

    def _body(self, request: ResponseRequest, *, sound: bool) -> dict[str, object]:
        options = self._options
        if request.options.get("tools") and options.profile == "qwen3_omni":
            raise GenerationFailed(RESPONSE_ERROR, "this model takes no tools")
        messages = build_messages(
            request.history,
            instructions=request.instructions,
            calls=self._calls,
            bounds=HistoryBounds(
                max_messages=options.max_messages, max_audios=options.max_audios, max_bytes=options.max_bytes
            ),
            audio_input=options.audio_input,
        )
        try:
            return build_body(options, request.config, request.options, messages, sound=sound)
        except OptionError as error:
            raise GenerationFailed(RESPONSE_ERROR, str(error)) from None

    async def _tell(self, call: Call, request: ResponseRequest) -> None:
        """A complete tool call becomes a result. Cancellation: it is not told, and will not be remembered."""
        call_id = call.call_id or f"call_{uuid.uuid4().hex}"
        arguments = "".join(call.arguments)
        self._calls[call_id] = KnownCall(call.name, arguments)
        while len(self._calls) > KNOWN_CALLS:
            self._calls.popitem(last=False)
        log.debug("chat_tool_call", session_id=self._context.session_id, response_id=request.response_id)
        try:
            await self._send.send(ToolCalled(call_id=call_id, name=call.name or None, arguments=arguments))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return  # the session is going away
