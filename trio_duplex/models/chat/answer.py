"""The chunks of one answer on their way to the session."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trio_duplex.models.chat.backend import CHAT_ERROR
from trio_duplex.models.chat.chunks import Audio, ChunkError, Finished, Text, ToolDelta, read_chunk
from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.chat.pace import Pace
from trio_duplex.models.chat.pieces import PieceCutter
from trio_duplex.models.chat.sound import SoundError, SoundReader
from trio_duplex.models.plugin import GenerationFailed, Say, Speech

__all__ = ["MAX_CALLS", "RESPONSE_ERROR", "Answer", "Call"]

RESPONSE_ERROR: Final = "response_error"
MAX_WAITING_TEXT: Final = 200_000
"""Characters that may wait for their sound; more is no spoken answer."""
MAX_CALLS: Final = 64
"""Tool calls of one answer."""
NO_AUDIO: Final[npt.NDArray[np.int16]] = np.zeros(0, np.int16)


@attrs.define
class Call:
    """A tool call that is being streamed."""

    call_id: str | None = None
    name: str = ""
    arguments: list[str] = attrs.field(factory=list)


class Answer:
    """The chunks of one answer on their way to the session: takes them as they come, says pieces as they are due."""

    def __init__(self, options: ChatOptions, say: Say, *, text_only: bool) -> None:
        self._say = say
        self._text_only = text_only
        self._rate_hz = options.output_rate_hz
        self._sound = SoundReader(options.output_rate_hz, bare_rate_hz=options.bare_rate_hz)
        self._pieces = PieceCutter(
            options.output_rate_hz, piece_ms=options.piece_ms, chars_per_s=options.speech_chars_per_s
        )
        self._pace = Pace(options.max_lead_ms / 1000)
        self._reason: str | None = None
        self.calls: dict[int, Call] = {}

    async def take(self, data: bytes) -> bool:
        """One chunk; false once the backend says that the answer is complete. Cancellation: the rest goes unsaid.

        Raises :class:`GenerationFailed`.
        """
        more = True
        try:
            for part in read_chunk(data):
                match part:
                    case Text(text):
                        self._write(text)
                    case Audio():
                        if not self._text_only:
                            for samples in self._sound.push(part):
                                self._pieces.add_sound(samples)
                                await trio.lowlevel.checkpoint()
                    case ToolDelta():
                        self._call(part)
                    case Finished(reason):
                        self._reason = reason
                        more = False
        except ChunkError as error:
            raise GenerationFailed(CHAT_ERROR, f"the backend's answer cannot be read: {error}") from None
        except SoundError as error:
            raise GenerationFailed(RESPONSE_ERROR, f"the backend's audio cannot be used: {error}") from None
        for piece in self._pieces.ready():
            await self._let_out(piece)
        return more

    async def finish(self) -> None:
        """What is left, once the answer is complete. Cancellation: the rest goes unsaid."""
        if self._text_only:
            self._say(Speech(audio=NO_AUDIO, end_of_turn=True, finish_reason=self._reason))
            return
        self._pieces.add_sound(self._sound.flush())
        for piece in self._pieces.finish():
            await self._let_out(attrs.evolve(piece, finish_reason=self._reason) if piece.end_of_turn else piece)

    async def _let_out(self, piece: Speech) -> None:
        await self._pace.wait(len(piece.audio) / self._rate_hz)
        self._say(piece)

    def _write(self, text: str) -> None:
        if self._text_only:
            self._say(Speech(audio=NO_AUDIO, text=text))
            return
        self._pieces.add_text(text)
        if self._pieces.waiting_text > MAX_WAITING_TEXT:
            raise GenerationFailed(RESPONSE_ERROR, "the answer's text has no end")

    def _call(self, delta: ToolDelta) -> None:
        call = self.calls.get(delta.index)
        if call is None:
            if len(self.calls) >= MAX_CALLS:
                raise GenerationFailed(RESPONSE_ERROR, f"the answer has more than {MAX_CALLS} tool calls")
            call = self.calls[delta.index] = Call()
        call.call_id = call.call_id or delta.call_id
        call.name = call.name or delta.name or ""
        call.arguments.append(delta.arguments)
