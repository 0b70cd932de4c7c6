"""What a microphone and a loudspeaker share: a stream whose callback runs in a thread that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Final

import attrs
import trio

from trio_duplex.live.sound import OpenStream, Sound, SoundError

__all__ = ["SAMPLE_BYTES", "Device", "put_away", "watch"]

SAMPLE_BYTES: Final = 2
STALL_S: Final = 3.0
"""A device that asks for nothing this long is gone, even where nobody says so (macOS)."""
LOOK_EVERY_S: Final = 0.5
STOP_WITHIN_S: Final = 2.0


@attrs.define(eq=False)
class Device:
    """One direction. The callback of the subclass counts ``calls`` and wakes Trio with :meth:`_wake`."""

    calls: int = attrs.field(default=0, init=False)
    ended: bool = attrs.field(default=False, init=False)
    closed: bool = attrs.field(default=False, init=False)
    _open: OpenStream | None = attrs.field(default=None, init=False)
    _token: trio.lowlevel.TrioToken | None = attrs.field(default=None, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def what(self) -> str:
        """Its name in a sentence."""
        return self._opened.what

    @property
    def rate_hz(self) -> int:
        """Frames per second of the stream."""
        return self._opened.rate_hz

    @property
    def _opened(self) -> OpenStream:
        assert self._open is not None
        return self._open

    def start(self, sound: Sound) -> None:
        """Let the callback run. Inside Trio. Raises :class:`SoundError`."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            self._opened.stream.start()
        except sound.module.PortAudioError as error:
            raise SoundError(f"the {self.what} cannot be started: {error}") from None

    def _on_end(self) -> None:
        """The stream has stopped: in the library's thread."""
        self.ended = True

    def _wake(self) -> None:
        """Set ``_news`` in Trio's thread. Never blocks; called by the callback."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._on_news, idempotent=True)

    def _on_news(self) -> None:
        self._news.set()

    async def _next_news(self) -> None:
        """Wait for :meth:`_wake`. Cancellation: loses no news."""
        await self._news.wait()
        self._news = trio.Event()


async def watch(devices: Sequence[Device]) -> None:
    """Raise :class:`SoundError` when one of the started devices stops by itself. Cancellation: stops watching."""
    seen = [(-1, 0.0)] * len(devices)
    while True:
        for place, device in enumerate(devices):
            calls, since_s = seen[place]
            if device.ended:
                raise SoundError(f"the {device.what} has stopped; was it unplugged?")
            if device.calls != calls:
                seen[place] = (device.calls, trio.current_time())
            elif trio.current_time() - since_s >= STALL_S:
                raise SoundError(f"the {device.what} gave no sign of life for {STALL_S:g} s; was it unplugged?")
        await trio.sleep(LOOK_EVERY_S)


def put_away(devices: Sequence[Device]) -> bool:
    """Stop and close the streams that are open; False if a driver did not come back in time (its thread is a daemon).

    Takes milliseconds. A driver that hangs must not keep a program from ending, hence the thread.
    """

    streams = [device._open.stream for device in devices if device._open is not None and not device.closed]
    for device in devices:
        device.closed = True

    def close() -> None:
        for stream in streams:
            stream.abort()
            stream.close()

    if not streams:
        return True
    thread = Thread(target=close, name="put away sound devices", daemon=True)
    thread.start()
    thread.join(STOP_WITHIN_S)
    return not thread.is_alive()
