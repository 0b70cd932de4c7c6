"""``trio-duplex talk``: one recording against any server of this API, with the answers as WAV files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from trio_duplex.client import AudioFormat, SessionConfig, WebSocketConnector
from trio_duplex.showcase.conversation import Conversation, converse
from trio_duplex.showcase.event_log import Entry, EventLog
from trio_duplex.showcase.facts import answers
from trio_duplex.showcase.lines import line_of
from trio_duplex.showcase.recordings import Recording

__all__ = ["Talk"]

CALM_S: Final = 1.5
"""Silence after the last answer, before the conversation counts as over."""


@attrs.define(eq=False)
class Talk:
    """Stream ``recording`` in real time, then listen until nobody has anything more to say.

    ``tell`` gets a line for each thing that happens. ``patience_s`` is how long to wait for a first answer after the
    end of the recording, and for the end of the last one.
    """

    url: str
    model: str
    recording: Recording
    tell: Callable[[str], None]
    api_key: str | None = attrs.field(default=None, repr=False)
    patience_s: float = 15.0
    longest_s: float = 120.0
    log: EventLog = attrs.field(factory=EventLog)
    _listens: int = 0

    async def run(self) -> None:
        """Hold the conversation. Raises every ``DuplexClientError``. Cancellation: closes the session, bounded."""
        self.log.listeners.append(self._on_entry)
        config = SessionConfig(
            input_audio=AudioFormat("pcm16", self.recording.rate_hz), playback_commit_policy="ack_only"
        )
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        connector = WebSocketConnector(headers=headers)
        await converse(self.url, self.log, self._story, model=self.model, config=config, connector=connector)

    async def _story(self, talk: Conversation) -> None:
        self.tell(f"streaming {self.recording.name}, {self.recording.duration_ms / 1000:.1f} s")
        await talk.microphone.say(self.recording).finished.wait()
        with trio.move_on_after(self.longest_s):
            with trio.move_on_after(self.patience_s) as patience:
                while not talk.speaker.played:
                    await self._something(talk)
                patience.deadline = float("inf")
                await self._calm(talk)
        if not talk.speaker.played:
            self.tell(f"no answer came within {self.patience_s:g} s")

    async def _calm(self, talk: Conversation) -> None:
        """Return when every answer has ended and sounded, and nothing new began for a while."""
        while True:
            for response_id in list(talk.speaker.played):
                await talk.speaker.wait_finished(response_id)
            known = len(talk.speaker.played)
            await trio.sleep(CALM_S)
            if len(talk.speaker.played) == known and not self._answering():
                return

    def _answering(self) -> bool:
        """A response is open."""
        return any(not answer.dones for answer in answers(self.log))

    async def _something(self, talk: Conversation) -> None:
        """Wait for any next server event."""
        await talk.log.expect(lambda _: True, what="a server event", within_s=self.longest_s, after=talk.log.position)

    def _on_entry(self, entry: Entry) -> None:
        if entry.side != "server":
            return
        if entry.type == "response.listen":
            self._listens += 1
            return
        line = line_of(entry.event)
        if line is not None:
            if self._listens:
                self.tell(f"listened for {self._listens} units")
                self._listens = 0
            self.tell(line)

    def sound(self) -> list[tuple[str, bytes, int]]:
        """Every answer that sounded: id, PCM16, rate in Hz."""
        return [(a.response_id, a.pcm, a.rate_hz) for a in answers(self.log) if a.pcm]
