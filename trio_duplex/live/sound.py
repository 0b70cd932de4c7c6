"""The sound library behind a small interface: which devices there are, and streams on them. Errors are one line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, cast

import attrs

__all__ = ["Flags", "OpenStream", "Sound", "SoundError", "SoundModule", "SoundStream"]

Kind = Literal["input", "output"]

BLOCK_MS: Final = 20
"""How much sound one callback carries."""
LATENCY_S: Final = 0.06
"""What is asked of the device: three blocks. Less makes Python's threads stutter, more makes an interruption late."""
WORDS: Final[Mapping[Kind, str]] = {"input": "microphone", "output": "loudspeaker"}
SEE: Final = "see trio-duplex talk --list-devices"


class SoundError(Exception):
    """There is no usable sound device, or it went away; the message is one line."""


class Flags(Protocol):
    """What the library says about one block."""

    @property
    def input_overflow(self) -> bool:
        """Sound before this block was lost."""

    @property
    def output_underflow(self) -> bool:
        """The device ran dry before this block."""


class SoundStream(Protocol):
    """One direction of one device; its callback runs in a thread of the library."""

    @property
    def latency(self) -> float:
        """Seconds between the callback and the air, as far as the device knows."""

    @property
    def samplerate(self) -> float:
        """Frames per second."""

    def start(self) -> None:
        """From here on the callback is called."""

    def abort(self) -> None:
        """No callback after this; sound that the device holds is thrown away."""

    def close(self) -> None:
        """Give the device back."""


Callback = Callable[[memoryview, int, Any, Flags], None]
"""(samples, frames, times, flags): mono int16 as a buffer, to be read (input) or filled (output)."""


class SoundModule(Protocol):
    """What is used of the module ``sounddevice``; tests have one of their own."""

    @property
    def PortAudioError(self) -> type[Exception]:  # noqa: N802 - the library's name
        """What every call may raise."""

    def query_devices(self, device: int | str | None = None, kind: str | None = None) -> Any:
        """All devices, or one as a mapping; ValueError for a name that fits none or several."""

    def check_input_settings(self, *, device: int, channels: int, dtype: str, samplerate: float) -> None:
        """PortAudioError for what the device cannot do."""

    def check_output_settings(self, *, device: int, channels: int, dtype: str, samplerate: float) -> None:
        """PortAudioError for what the device cannot do."""

    def RawInputStream(self, **settings: Any) -> SoundStream:  # noqa: N802
        """Open a microphone; not started."""

    def RawOutputStream(self, **settings: Any) -> SoundStream:  # noqa: N802
        """Open a loudspeaker; not started."""


@attrs.frozen
class OpenStream:
    """A stream that is open and not started; ``what`` names it in errors."""

    stream: SoundStream
    what: str
    rate_hz: int


@attrs.frozen
class Sound:
    """The devices of this machine."""

    module: SoundModule

    @classmethod
    def find(cls) -> Sound:
        """Import the library. Raises :class:`SoundError` where the package or its PortAudio is missing."""
        try:
            module = importlib.import_module("sounddevice")
        except ModuleNotFoundError:
            raise SoundError(
                "a microphone needs the package 'sounddevice'; install the extra: pip install 'trio-duplex[mic]'"
            ) from None
        except OSError as error:
            raise SoundError(
                f"the package 'sounddevice' cannot be used: {error} (on Debian and Ubuntu: apt install libportaudio2)"
            ) from None
        return cls(cast(SoundModule, module))

    def listing(self) -> str:
        """One line for each device, ``>`` and ``<`` at the default ones. Raises :class:`SoundError`: there is none."""
        try:
            devices = self.module.query_devices()
        except self.module.PortAudioError as error:
            raise SoundError(f"the sound devices cannot be listed: {error}") from None
        if not devices:
            raise SoundError("this machine has no sound device")
        return str(devices)

    def open_input(
        self, device: int | str | None, wanted_hz: int, callback: Callback, ended: Callable[[], None]
    ) -> OpenStream:
        """A microphone at ``wanted_hz``, or at its own rate where it cannot do that. Raises :class:`SoundError`.

        ``ended`` is called in the library's thread when the stream has stopped, for whatever reason.
        """
        module = self.module
        return self._open(
            "input", device, wanted_hz, module.check_input_settings, module.RawInputStream, callback, ended
        )

    def open_output(
        self, device: int | str | None, wanted_hz: int, callback: Callback, ended: Callable[[], None]
    ) -> OpenStream:
        """A loudspeaker, as :meth:`open_input`."""
        module = self.module
        return self._open(
            "output", device, wanted_hz, module.check_output_settings, module.RawOutputStream, callback, ended
        )

    def _open(
        self,
        kind: Kind,
        device: int | str | None,
        wanted_hz: int,
        check: Callable[..., None],
        make: Callable[..., SoundStream],
        callback: Callback,
        ended: Callable[[], None],
    ) -> OpenStream:
        found = self._device(kind, device)
        index, what = int(found["index"]), f"{WORDS[kind]} {str(found['name'])!r}"
        try:
            check(device=index, channels=1, dtype="int16", samplerate=wanted_hz)
            rate_hz = wanted_hz
        except self.module.PortAudioError:
            rate_hz = round(found["default_samplerate"])
        try:
            stream = make(
                samplerate=rate_hz,
                blocksize=rate_hz * BLOCK_MS // 1000,
                device=index,
                channels=1,
                dtype="int16",
                latency=LATENCY_S,
                callback=callback,
                finished_callback=ended,
            )
        except self.module.PortAudioError as error:
            raise SoundError(f"the {what} cannot be opened: {error}") from None
        return OpenStream(stream, what, rate_hz)

    def _device(self, kind: Kind, device: int | str | None) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self.module.query_devices(device, kind)
        except (ValueError, self.module.PortAudioError) as error:
            if device is None:
                raise SoundError(f"there is no {WORDS[kind]}; {SEE}") from None
            raise SoundError(f"no {WORDS[kind]} fits {device!r}: {' '.join(str(error).split())}; {SEE}") from None
        return found
