"""``trio-duplex talk --mic``: a person, a microphone, a loudspeaker and one session, until Ctrl-C."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from trio_duplex.client import (
    AudioDelta,
    AudioFormat,
    ConnectionResumed,
    DuplexClient,
    DuplexEvent,
    DuplexSessionClosedError,
    ErrorEvent,
    ListenDecision,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionConfig,
    WebSocketConnector,
)
from trio_duplex.client.buffers import BufferIterator
from trio_duplex.client.errors import unwrapped
from trio_duplex.live.device import put_away, watch
from trio_duplex.live.loudspeaker import Loudspeaker
from trio_duplex.live.microphone import LiveMicrophone
from trio_duplex.live.sound import Sound
from trio_duplex.showcase.lines import line_of

__all__ = ["LiveTalk", "talk_live"]

INPUT_HZ: Final = 16_000
OUTPUT_HZ: Final = 24_000
"""What is asked of the devices; one that cannot do it keeps its own rate."""

LOOK_EVERY_S: Final = 2.0
SILENT_S: Final = 3.0
"""So long nothing but zeros is no quiet room any more."""
LAST_WORD_S: Final = 2.0

ADVICE: Final = "use headphones: with open loudspeakers the model hears itself and is interrupted by it; Ctrl-C ends"


@attrs.define(eq=False)
class LiveTalk:
    """Both devices beside a client. Open them with :meth:`open` before the session, whose rates they decide.

    ``tell`` gets a line for each thing that a person wants to know. :attr:`stop` ends the conversation in good order.
    """

    sound: Sound
    tell: Callable[[str], None]
    microphone: LiveMicrophone = attrs.field(factory=LiveMicrophone)
    loudspeaker: Loudspeaker = attrs.field(factory=Loudspeaker)
    stop: trio.Event = attrs.field(factory=trio.Event)
    talking: bool = attrs.field(default=False, init=False)
    _errors: Counter[str] = attrs.field(factory=Counter, init=False)
    _told: dict[str, int] = attrs.field(factory=dict, init=False)
    _advised: bool = attrs.field(default=False, init=False)

    def open(self, input_device: int | str | None = None, output_device: int | str | None = None) -> SessionConfig:
        """Open both devices, not started; returns the session's configuration. Raises ``SoundError``."""
        self.microphone.open(self.sound, input_device, INPUT_HZ)
        try:
            self.loudspeaker.open(self.sound, output_device, OUTPUT_HZ)
        except BaseException:
            self.close()
            raise
        return SessionConfig(
            input_audio=AudioFormat("pcm16", self.microphone.rate_hz),
            output_audio=AudioFormat("pcm16", OUTPUT_HZ),
            playback_commit_policy="ack_only",
        )

    def close(self) -> None:
        """Give both devices back. Idempotent, bounded, raises nothing."""
        if not put_away([self.microphone, self.loudspeaker]):
            self.tell("the sound driver does not answer; its devices were left as they are")

    async def run(self, client: DuplexClient) -> None:
        """Talk until :attr:`stop`. The client has been entered; its session stays open.

        Raises ``SoundError`` when a device goes away, DuplexSessionClosedError when the session ends, and what else
        the client raises. Cancellation: both devices are given back, nothing more is acknowledged.
        """
        events = client.events()
        try:
            for device in (self.microphone, self.loudspeaker):
                device.start(self.sound)
            self.talking = True
            self.tell(f"listening to the {self.microphone.what}, playing on the {self.loudspeaker.what}")
            self.tell(ADVICE)
            with unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, events)
                    nursery.start_soon(self.microphone.run, client)
                    nursery.start_soon(self.loudspeaker.run, client)
                    nursery.start_soon(watch, [self.microphone, self.loudspeaker])
                    nursery.start_soon(self._report)
                    await self.stop.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self.close()
            self._tell_losses()
        with trio.move_on_after(LAST_WORD_S):
            await self.loudspeaker.finish(client)

    async def _listen(self, events: BufferIterator[DuplexEvent]) -> None:
        """Act on server events; raises DuplexSessionClosedError at their end. Cancellation: stops."""
        reason = "no reason given"
        async for event in events:
            if isinstance(event, SessionClosed):
                reason = event.reason or reason
            self._on_event(event)
        raise DuplexSessionClosedError(reason)

    def _on_event(self, event: DuplexEvent) -> None:
        speaker, response_id = self.loudspeaker, event.response_id
        if isinstance(event, AudioDelta):
            speaker.play(event)
            return
        if isinstance(event, ResponseCreated) and response_id is not None:
            speaker.expect(response_id)
        elif isinstance(event, (ListenDecision, ResponseDone)) and response_id is not None:
            if isinstance(event, ResponseDone) and event.status == "cancelled":
                speaker.cut(response_id)
            speaker.end(response_id)
        elif event.type == "output_audio_buffer.cleared":
            speaker.cut(response_id)
        elif event.type == "overlap.decision":
            if event.raw.get("action") != "barge_in":
                return
            speaker.cut()
        elif isinstance(event, ConnectionResumed):
            self.tell("the connection was lost and is back")
        line = line_of(event.raw)
        if line is not None and isinstance(event, ErrorEvent):
            self._tell_error(line)
        elif line is not None:
            self.tell(line)

    def _tell_error(self, line: str) -> None:
        """The same error again (one a block, say) is counted, and told with the next report."""
        if line not in self._errors:
            self.tell(line)
        self._errors[line] += 1

    async def _report(self) -> None:
        """Say soon what was lost, and that nothing comes. Cancellation: stops."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            self._tell_losses()
            microphone = self.microphone
            if not self._advised and microphone.silent_frames >= SILENT_S * microphone.rate_hz:
                self._advised = True
                self.tell(f"the {microphone.what} gives nothing but zeros: is it muted, or forbidden to this program?")

    def _tell_losses(self) -> None:
        for text, number in self._losses():
            if number > self._told.get(text, 0):
                self.tell(text.format(number))
                self._told[text] = number

        for line, times in self._errors.items():
            if times > 1:
                self.tell(f"{line} ({times - 1} times more)")
        self._errors.clear()

    def _losses(self) -> Iterator[tuple[str, int]]:
        microphone, speaker = self.microphone, self.loudspeaker
        refused_ms = microphone.refused_frames * 1000 // microphone.rate_hz
        unsent_ms = microphone.unsent_frames * 1000 // microphone.rate_hz
        yield "the connection is too slow: {} ms of your speech were lost so far", refused_ms
        yield "the connection was away: {} ms of your speech were lost so far", unsent_ms
        yield "the microphone lost something {} times so far: this machine is too busy", microphone.overflows
        yield "the loudspeaker ran dry {} times so far: this machine is too busy", speaker.underflows


async def talk_live(
    url: str,
    *,
    model: str,
    api_key: str | None,
    sound: Sound,
    input_device: int | str | None,
    output_device: int | str | None,
    tell: Callable[[str], None],
) -> None:
    """The whole of it: devices, connection, conversation. SIGINT or SIGTERM end it in good order, a second one at once.

    Raises ``SoundError`` and every ``DuplexClientError``. Cancellation: devices and connection are closed.
    """
    talk = LiveTalk(sound, tell)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    with unwrapped():
        async with trio.open_nursery() as nursery:

            async def watch_signals(task_status: trio.TaskStatus[None]) -> None:
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    task_status.started()
                    async for _ in signals:
                        if talk.stop.is_set() or not talk.talking:
                            nursery.cancel_scope.cancel()
                        talk.stop.set()

            await nursery.start(watch_signals)
            config = talk.open(input_device, output_device)
            try:
                client = DuplexClient(url, model=model, config=config, connect=WebSocketConnector(headers=headers))
                async with client:
                    tell(f"session {client.session_id} is open")
                    await talk.run(client)
                    tell("the conversation is over")
            finally:
                talk.close()
            nursery.cancel_scope.cancel()
