"""A client of the demo model through hub, session and dialect; no WebSocket."""

from __future__ import annotations

from typing import Any

import attrs
import pybase64
import trio

from duplex_protocol.realtime import RealtimeDialect
from tests.models.models_kit import FloatAudio
from tests.session.talk import Reader
from trio_duplex.hub import Hub
from trio_duplex.models.demo import DemoPlugin
from trio_duplex.samples import int16_from_float
from trio_duplex.session.core import Session
from trio_duplex.session.settings import SessionSettings

Json = dict[str, Any]
CHUNK = 512


@attrs.define(eq=False)
class Client:
    """One session and what its client has read."""

    hub: Hub
    session: Session
    reader: Reader

    def send(self, kind: str, **fields: Any) -> None:
        for command in self.session.dialect.decode({"type": kind, **fields}):
            self.session.post(command)

    def ask(self, text: str, **options: Any) -> None:
        """A text item and the wish for an answer."""
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.send("response.create", **({"response": options} if options else {}))

    async def speak(self, audio: FloatAudio) -> None:
        """Append samples at 16 kHz as they would come from a microphone."""
        for begin in range(0, len(audio), CHUNK):
            chunk = int16_from_float(audio[begin : begin + CHUNK])
            await trio.sleep(len(chunk) / 16_000)
            self.send("input_audio_buffer.append", audio=pybase64.b64encode(chunk.astype("<i2").tobytes()).decode())

    async def until(self, kind: str, count: int = 1) -> Json:
        """The event number ``count`` of this type."""
        with trio.fail_after(10):
            return await self.reader.until(kind, count)

    def of(self, kind: str) -> list[Json]:
        return self.reader.of(kind)

    @property
    def transcript(self) -> str:
        """What was said so far."""
        return "".join(event["delta"] for event in self.of("response.output_audio_transcript.delta"))


async def open_client(
    nursery: trio.Nursery, plugin: DemoPlugin, config: Json | None = None, *, view: str = "duplex"
) -> Client:
    """A hub with one session, all of it in ``nursery`` (cancel it at the end)."""
    hub = Hub(plugin, SessionSettings(), id_seed=7)
    await nursery.start(hub.run)
    await hub.ready.wait()
    dialect = RealtimeDialect(view=view)  # type: ignore[arg-type]
    update = dialect.parse_open(config or {}, plugin.defaults)
    session = await hub.open_session(dialect, update, strict=view != "plain")
    reader = Reader(session.attach(0))
    nursery.start_soon(reader.run)
    return Client(hub, session, reader)
