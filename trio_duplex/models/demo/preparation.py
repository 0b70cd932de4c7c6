"""One utterance on its way to an answer: recognition, the brain's words, and the sound of their first clause.

It may be begun before the turn is known to have ended, and is cancelled if the speaker goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import trio

from trio_duplex.models.demo.engine import Clip, Engine, EngineFailed, EngineGone, Reading, Urgency
from trio_duplex.models.demo.thinking import Script, Thought
from trio_duplex.models.plugin import GenerationFailed

__all__ = ["Preparation", "holds_words"]

FloatAudio = npt.NDArray[np.float32]


def holds_words(text: str) -> bool:
    """Whether a transcript holds anything that was said."""
    return any(character.isalnum() for character in text)


@attrs.define(eq=False)
class Preparation:
    """Run :meth:`run` in a nursery; read the fields once their events are set.

    ``transcript`` ("" for no words) after ``heard``; after ``settled`` :meth:`take_sound` may have something.
    ``thought`` is the answer that was begun (None: none was wanted), ``clause`` the first clause of it.
    """

    heard: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    transcript: str = ""
    thought: Thought | None = None
    clause: str | None = None
    failure: EngineFailed | EngineGone | None = None
    _sound: tuple[Clip, Reading] | None = attrs.field(default=None, repr=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)

    async def run(
        self,
        engine: Engine,
        audio: FloatAudio | None,
        *,
        urgency: Urgency,
        think: Callable[[str], Thought | None] | None,
        on_heard: Callable[[], object],
    ) -> None:
        """Recognise ``audio`` (None: nothing was said) and, with ``think``, begin the answer; ends when it is thought.

        ``think`` makes a thought of a transcript, which is run here; None of it: no answer in words is wanted.
        ``on_heard`` is called when the transcript is there.  Cancellation: work under way is abandoned; ``heard``
        and ``settled`` are set in any case.
        """
        try:
            with self._scope:
                if audio is not None:
                    self.transcript = await engine.transcribe(audio, urgency)
                self._tell(on_heard)
                if think is not None and holds_words(self.transcript):
                    self.thought = think(self.transcript)
                if self.thought is not None:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.thought.run)
                        await self._begin(engine, self.thought, urgency)
        except (EngineFailed, EngineGone) as failure:
            self.failure = failure
        finally:
            self._tell(on_heard)
            self.settled.set()

    async def _begin(self, engine: Engine, thought: Thought, urgency: Urgency) -> None:
        """The first sound.  Cancellation: abandoned."""
        try:
            self.clause = await Script(thought).next()
            if self.clause is not None:
                reading = engine.read(self.clause)
                clip = await reading.next(urgency)
                self._sound = None if clip is None else (clip, reading)
        except (EngineFailed, EngineGone) as failure:
            self.failure = failure
        except GenerationFailed:
            pass  # whoever says the thought is told
        self.settled.set()

    def take_sound(self) -> tuple[Clip, Reading] | None:
        """The first piece of ``clause`` as sound, and what gives the rest of it; only once.

        None when none was made: not wanted, failed, cancelled, or taken already.
        """
        sound, self._sound = self._sound, None
        return sound

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self._scope.cancel()

    def _tell(self, on_heard: Callable[[], object]) -> None:
        if not self.heard.is_set():
            self.heard.set()
            on_heard()
