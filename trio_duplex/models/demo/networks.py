"""The demo model's three networks and how they are loaded.  Importing this module loads no network library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from duplex_gpu.steps import BatchedStep
from trio_duplex.models.demo.engine import FloatAudio
from trio_duplex.models.demo.options import DemoOptions

if TYPE_CHECKING:
    from duplex_gpu.piper_voice import Speech

__all__ = ["Networks", "Recognizer", "Voice"]


class Recognizer(Protocol):
    """:class:`duplex_gpu.moonshine.MoonshineRecognizer`, as far as it is used here; one thread at a time."""

    def warm_up(self) -> None:
        """Make the first real run as quick as the later ones."""
        ...

    def transcribe(self, audio: FloatAudio, should_stop: Callable[[], bool]) -> str | None:
        """The words of float32[n] at 16 kHz; None when ``should_stop`` said so."""
        ...


class Voice(Protocol):
    """:class:`duplex_gpu.piper_voice.PiperVoice`, as far as it is used here; one thread at a time."""

    @property
    def sample_rate_hz(self) -> int:
        """Rate of everything it says."""
        ...

    def warm_up(self) -> None:
        """Make the first real run as quick as the later ones."""
        ...

    def stream(self, text: str) -> Iterator[Speech]:
        """``text`` as sound, piece by piece; each ``next`` is a piece of work."""
        ...


class Networks:
    """What :class:`trio_duplex.models.demo.threads.ThreadEngine` loads; each method blocks, on the job thread."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options

    def detector(self, slots: int) -> BatchedStep[FloatAudio, float]:
        """Silero's network for ``slots`` sessions.  Raises ``WeightsMissing`` or ``WeightsCorrupt``."""
        from duplex_gpu.silero_vad import SileroVadStep

        return SileroVadStep(slots, device=self._options.device)

    def recognizer(self) -> Recognizer:
        """Moonshine tiny.  Raises ``WeightsMissing`` or ``WeightsCorrupt``."""
        from duplex_gpu.moonshine import MoonshineRecognizer

        return MoonshineRecognizer()

    def voice(self) -> Voice:
        """A Piper voice.  Raises ``VoiceUnsuitable``, ``WeightsMissing`` or ``WeightsCorrupt``."""
        from duplex_gpu.piper_voice import PiperVoice

        return PiperVoice.load(self._options.voice, speed=self._options.speed)
