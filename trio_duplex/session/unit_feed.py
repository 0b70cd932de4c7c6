"""Cutting input into whole units for models that are fed unit by unit (contract 10.1, 10.4, 18)."""

from __future__ import annotations

from collections import deque

import numpy as np
import trio

from trio_duplex.models.plugin import FloatAudio, InputUnit, SessionOverloaded, Unit, UnitSession

WAITING_UNITS = 8
"""Units of input that may wait for a model that takes none before an append is refused."""
_NOTHING: FloatAudio = np.zeros(0, np.float32)


class UnitFeed:
    """Samples in, whole units out, in order. ``listen_units``: on the first so many the model may not speak.

    ``last_input_s`` is when real input was last pushed, ``last_fed_s`` when a unit was last handed over.
    """

    def __init__(self, model: UnitSession, unit: Unit, *, listen_units: int = 0) -> None:
        self._model = model
        self._unit_samples = unit.input_rate_hz * unit.period_ms // 1000
        self._rest: FloatAudio = _NOTHING
        self._frames: deque[tuple[str, ...]] = deque()
        self._listen_units = listen_units
        self.last_input_s = trio.current_time()
        self.last_fed_s = trio.current_time()

    def push(
        self,
        samples: FloatAudio,
        frames: tuple[str, ...] = (),
        *,
        epoch: int,
        is_speech: bool | None = None,
        force_listen: bool = False,
    ) -> None:
        """Add real input; every unit that it completes is handed over.

        Raises :class:`SessionOverloaded` and then took nothing.
        """
        if len(self._rest) >= WAITING_UNITS * self._unit_samples:
            self._hand_over(epoch, is_speech=None, force_listen=False)
            if len(self._rest) >= WAITING_UNITS * self._unit_samples:
                raise SessionOverloaded("the model takes no more units")
        self._rest = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        if frames:
            self._frames.append(frames)
        self.last_input_s = trio.current_time()
        self._hand_over(epoch, is_speech=is_speech, force_listen=force_listen)

    def pad(self, *, epoch: int, is_speech: bool | None = None, force_listen: bool = False) -> None:
        """The turn ends here: silence up to the unit's boundary; nothing when the boundary is here already."""
        missing = -len(self._rest) % self._unit_samples
        if missing:
            self._rest = np.concatenate([self._rest, np.zeros(missing, np.float32)])
        self._hand_over(epoch, is_speech=is_speech, force_listen=force_listen)

    def silence(self, *, epoch: int, force_listen: bool) -> None:
        """One unit of silence that nobody sent; a begun unit is completed by it instead."""
        if len(self._rest):
            self.pad(epoch=epoch, force_listen=force_listen)
            return
        self._submit(np.zeros(self._unit_samples, np.float32), epoch, None, force_listen, silence=True)

    def drop(self) -> None:
        """Forget the begun unit and frames that wait."""
        self._rest = _NOTHING
        self._frames.clear()

    def _hand_over(self, epoch: int, *, is_speech: bool | None, force_listen: bool) -> None:
        """Hand over whole units; those that the model does not take stay and are tried again with later input."""
        size = self._unit_samples
        while len(self._rest) >= size:
            whole = len(self._rest) == size
            block, rest = (self._rest, _NOTHING) if whole else (self._rest[:size], self._rest[size:])
            try:
                self._submit(block, epoch, is_speech, force_listen, silence=False)
            except SessionOverloaded:
                return
            self._rest = rest

    def _submit(
        self, audio: FloatAudio, epoch: int, is_speech: bool | None, force_listen: bool, *, silence: bool
    ) -> None:
        self._model.submit_unit(
            InputUnit(
                epoch=epoch,
                audio=audio,
                video_frames=self._frames[0] if self._frames else (),
                is_speech=is_speech,
                force_listen=force_listen or self._listen_units > 0,
                silence=silence,
            )
        )
        if self._frames:
            self._frames.popleft()
        self._listen_units = max(0, self._listen_units - 1)
        self.last_fed_s = trio.current_time()
