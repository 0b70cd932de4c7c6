"""One utterance on its way to an answer: recognition, the brain's words, and the sound of their first clause.

It may be begun before the turn is known to have ended, and is cancelled if the speaker goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import trio

from duplex_gpu.clauses import split_clauses
from trio_duplex.models.demo.engine import Clip, Engine, EngineFailed, EngineGone, Reading, Urgency

__all__ = ["Preparation", "holds_words"]

FloatAudio = npt.NDArray[np.float32]


def holds_words(text: str) -> bool:
    """Whether a transcript holds anything that was said."""
    return any(character.isalnum() for character in text)


@attrs.define(eq=False)
class Preparation:
    """Run :meth:`run` in a nursery; read the fields once their events are set.

    ``transcript`` ("" for no words) after ``heard``; after ``settled`` :meth:`take_sound` may have something.
    ``clause`` is the first clause of the answer that was thought of (None: no answer was wanted).
    """

    heard: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    transcript: str = ""
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
        think: Callable[[str], str] | None,
        on_heard: Callable[[], object],
    ) -> None:
        """Recognise ``audio`` (None: nothing was said) and, with ``think``, prepare the answer's beginning.

        ``on_heard`` is called when the transcript is there.  Cancellation: work under way is abandoned; ``heard``
        and ``settled`` are set in any case.
        """
        try:
            with self._scope:
                if audio is not None:
                    self.transcript = await engine.transcribe(audio, urgency)
                self._tell(on_heard)
                if think is not None and holds_words(self.transcript):
                    clauses = split_clauses(think(self.transcript))
                    if clauses:
                        self.clause = clauses[0].text
                        reading = engine.read(self.clause)
                        clip = await reading.next(urgency)
                        self._sound = None if clip is None else (clip, reading)
        except (EngineFailed, EngineGone) as failure:
            self.failure = failure
        finally:
            self._tell(on_heard)
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
