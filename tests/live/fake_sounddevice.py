"""A stand-in for the module ``sounddevice``: devices whose callbacks a test, or a thread in real time, calls.

Buffers are cffi's, as the real module's are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import cffi

FFI = cffi.FFI()


class PortAudioError(Exception):
    pass


@attrs.define
class Flags:
    input_overflow: bool = False
    output_underflow: bool = False


@attrs.define(eq=False)
class FakeStream:
    """``pump`` is one callback. ``taken``: what a loudspeaker got; ``given``: what a microphone gave."""

    module: FakeSoundDevice
    kind: str
    samplerate: float
    blocksize: int
    latency: float
    callback: Callable[..., None]
    finished_callback: Callable[[], None]
    taken: bytearray = attrs.field(factory=bytearray, repr=False)
    given: bytearray = attrs.field(factory=bytearray, repr=False)
    started: bool = False
    aborted: bool = False
    closed: bool = False

    def start(self) -> None:
        if self.module.start_error is not None:
            raise PortAudioError(self.module.start_error)
        self.started = True
        if self.module.real_time:
            threading.Thread(target=self._run, daemon=True).start()

    def abort(self) -> None:
        was = self.running
        self.aborted = True
        if was:
            self.finished_callback()

    def close(self) -> None:
        self.closed = True

    @property
    def running(self) -> bool:
        return self.started and not self.aborted and not self.closed

    def pump(self, *, overflow: bool = False, underflow: bool = False) -> None:
        """One block, unless the stream does not run."""
        if not self.running:
            return
        size = self.blocksize * 2
        memory = FFI.new("char[]", size)
        buffer = FFI.buffer(memory, size)
        flags = Flags(overflow, underflow)
        if self.kind == "input":
            buffer[:] = self.module.source(self.blocksize, int(self.samplerate))
            self.given += bytes(buffer)
            self.callback(buffer, self.blocksize, None, flags)
        else:
            buffer[:] = b"\x7f" * size  # the device's memory holds anything
            self.callback(buffer, self.blocksize, None, flags)
            self.taken += bytes(buffer)

    def _run(self) -> None:
        due = time.monotonic()
        end = None if self.module.vanish_after_s is None else due + self.module.vanish_after_s
        while self.running:
            self.pump()
            due += self.blocksize / self.samplerate
            time.sleep(max(0.0, due - time.monotonic()))
            if end is not None and self.kind == "input" and time.monotonic() >= end:
                self.finished_callback()
                return


class DeviceList(tuple[Any, ...]):
    def __repr__(self) -> str:
        return "\n".join(f"  {d['index']} {d['name']}" for d in self)


def silence(frames: int, _rate_hz: int) -> bytes:
    return bytes(2 * frames)


@attrs.define(eq=False)
class FakeSoundDevice:
    """Put it where the module belongs. ``rates``: what the devices can do, None for everything."""

    source: Callable[[int, int], bytes] = silence
    rates: tuple[int, ...] | None = None
    latency_s: float = 0.0
    names: tuple[str, ...] = ("Desk mic", "Box", "Other mic")
    real_time: bool = False
    vanish_after_s: float | None = None
    open_error: str | None = None
    start_error: str | None = None
    streams: list[FakeStream] = attrs.field(factory=list)
    PortAudioError: type[Exception] = PortAudioError

    def query_devices(self, device: int | str | None = None, kind: str | None = None) -> Any:
        devices = DeviceList(
            {"name": name, "index": index, "default_samplerate": float((self.rates or (48_000,))[0])}
            for index, name in enumerate(self.names)
        )
        if kind is None:
            return devices
        fitting = [d for d in devices if (d["name"].endswith("mic")) == (kind == "input")]
        if device is not None:
            fitting = [d for d in fitting if device == d["index"] or str(device).lower() in d["name"].lower()]
            if len(fitting) > 1:
                names = "\n".join(f"[{d['index']}] {d['name']}" for d in fitting)
                raise ValueError(f"Multiple {kind} devices found for {device!r}:\n{names}")
        if not fitting:
            raise (PortAudioError("Error querying device -1") if device is None else ValueError(f"No {kind} device"))
        return fitting[0]

    def check_input_settings(self, *, device: int, channels: int, dtype: str, samplerate: float) -> None:
        assert (channels, dtype) == (1, "int16")
        if self.rates is not None and samplerate not in self.rates:
            raise PortAudioError("Invalid sample rate [PaErrorCode -9997]")

    check_output_settings = check_input_settings

    def _stream(self, kind: str, **settings: Any) -> FakeStream:
        if self.open_error is not None:
            raise PortAudioError(self.open_error)
        stream = FakeStream(
            self,
            kind,
            float(settings["samplerate"]),
            settings["blocksize"],
            self.latency_s,
            settings["callback"],
            settings["finished_callback"],
        )
        self.streams.append(stream)
        return stream

    def RawInputStream(self, **settings: Any) -> FakeStream:  # noqa: N802
        return self._stream("input", **settings)

    def RawOutputStream(self, **settings: Any) -> FakeStream:  # noqa: N802
        return self._stream("output", **settings)

    @property
    def microphone(self) -> FakeStream:
        return next(s for s in self.streams if s.kind == "input")

    @property
    def loudspeaker(self) -> FakeStream:
        return next(s for s in self.streams if s.kind == "output")
