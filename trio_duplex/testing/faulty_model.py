"""A scripted model with a fault in one of its calls, for one session or for all, at open, at a step, or all along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import trio

from duplex_protocol.values import SessionConfig
from trio_duplex.models import plugin as model
from trio_duplex.testing.scripted_model import ScriptedPlugin, ScriptedSession

__all__ = ["Fault", "FaultyPlugin", "FaultySession"]

Where = Literal["open", "start", "submit", "respond", "late", "hang", "shield", "results", "close", "interrupt"]


class DeviceOutOfMemory(RuntimeError):
    """What a device library raises when it has no memory left."""


@attrs.frozen(kw_only=True)
class Fault:
    """What goes wrong in which session.

    ``where``: the call that fails: ``open`` and ``start`` (its ``run``) raise; ``submit``, ``respond`` and
    ``interrupt`` raise from the ``after``-th call on; ``late``: an answer takes ``slower`` times as long; ``hang``: it
    never returns; ``shield``: it refuses to be cancelled for ``slower`` seconds; ``results``: the output stream ends
    at the ``after``-th append; ``close``: giving the slot back takes ``slower`` seconds.
    ``sessions``: which, counted from 0 in order of opening; None = all.
    """

    where: Where
    sessions: tuple[int, ...] | None = (0,)
    after: int = 1
    slower: float = 10.0
    error: Callable[[], Exception] = lambda: DeviceOutOfMemory("device out of memory")


@attrs.define(eq=False)
class FaultySession(ScriptedSession):
    """A scripted session with a fault (or none)."""

    fault: Fault | None = None
    calls: int = 0

    def _due(self, *where: Where) -> Fault | None:
        """The fault, if it is one of these and due at this call."""
        if self.fault is None or self.fault.where not in where:
            return None
        self.calls += 1
        return self.fault if self.calls >= self.fault.after else None

    def submit(self, audio: model.FloatAudio, *, video_frames: Sequence[str] = ()) -> None:
        """See the fault."""
        fault = self._due("submit", "results")
        if fault is not None and fault.where == "submit":
            raise fault.error()
        if fault is not None:
            self.break_results()
            return
        ScriptedSession.submit(self, audio, video_frames=video_frames)

    async def respond(self, request: model.ResponseRequest, say: model.Say) -> None:
        """See the fault. Cancellation: as the scripted model, but for ``shield``."""
        fault = self._due("respond", "late", "hang", "shield")
        if fault is None:
            await ScriptedSession.respond(self, request, say)
        elif fault.where == "respond":
            raise fault.error()
        elif fault.where == "hang":
            await trio.sleep_forever()
        elif fault.where == "shield":
            with trio.CancelScope(shield=True):
                await trio.sleep(fault.slower)
                await ScriptedSession.respond(self, request, say)
        else:

            def slow_say(speech: model.Speech) -> None:
                pieces.append(speech)

            pieces: list[model.Speech] = []
            unpaced = attrs.evolve(self.plugin.options, unpaced=True)
            paced, self.plugin.options = self.plugin.options, unpaced
            try:
                await ScriptedSession.respond(self, request, slow_say)
            finally:
                self.plugin.options = paced
            for piece in pieces:
                await trio.sleep(len(piece.audio) / self.plugin.options.output_rate_hz * fault.slower)
                say(piece)

    def interrupt(self, epoch: int) -> None:
        """See the fault."""
        if (fault := self._due("interrupt")) is not None:
            raise fault.error()
        ScriptedSession.interrupt(self, epoch)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See the fault. Cancellation: returns."""
        if (fault := self._due("start")) is not None:
            raise fault.error()
        await ScriptedSession.run(self, task_status)

    async def aclose(self) -> None:
        """See the fault. Cancellation: the slot is given back before the first checkpoint."""
        await ScriptedSession.aclose(self)
        if (fault := self._due("close")) is not None:
            await trio.sleep(fault.slower)


@attrs.define(eq=False)
class FaultyPlugin(ScriptedPlugin):
    """A scripted model whose sessions have a fault; :meth:`die` ends the model for all."""

    fault: Fault | None = None
    opened: int = 0
    _death: trio.Event = attrs.field(factory=trio.Event)
    _error: Exception | None = None

    def die(self, error: Exception) -> None:
        """The model's own thread ends with ``error``."""
        self._error = error
        self._death.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ready at once; raises what :meth:`die` was given. Cancellation: stops."""
        self.running = True
        task_status.started()
        try:
            await self._death.wait()
            assert self._error is not None
            raise self._error
        finally:
            self.running = False

    async def open(self, config: SessionConfig, context: model.SessionContext) -> FaultySession:
        """Take a slot. Cancellation: before the slot is taken."""
        await trio.lowlevel.checkpoint()
        number, self.opened = self.opened, self.opened + 1
        mine = self.fault if self.fault is not None and _concerns(self.fault, number) else None
        if mine is not None and mine.where == "open":
            raise mine.error()
        if self.open_slots == 0:
            raise model.OpenRefused("the scripted model has no slot left")
        self.open_slots -= 1
        session = FaultySession(self, config, context, fault=mine)
        self.sessions.append(session)
        return session


def _concerns(fault: Fault, number: int) -> bool:
    return fault.sessions is None or number in fault.sessions
