"""`InlineDuplexClient`: the client's surface on a session in the same process, without a socket (contract 21.6).

The client knows nothing of the server's packages: what it needs of a hub are the two interfaces below, which
`trio_duplex.open_hub` gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import orjson
import trio

from .client import DuplexClient
from .errors import DuplexConnectionError, DuplexSessionClosedError
from .events import (
    AudioDelta,
    DuplexEvent,
    JsonDict,
    ListenDecision,
    TextDelta,
    TranscriptDelta,
    base64_text,
    wrap_event,
)
from .link_base import TEARDOWN_TIMEOUT_S, LinkBase
from .session_state import SessionState
from .values import SessionConfig

INLINE_URL = "inline:"
"""What stands before the model's name in the `url` of a client without one."""


class InlineVisit(Protocol):
    """A client's hold on one session of a hub. Leaving ends the session: nobody can come back to it."""

    def post(self, event: JsonDict | bytes) -> bool:
        """Give the session one client event; never blocks. Bytes are its JSON: the event is a stranger's.

        A dictionary is one that the client built itself; audio in it is `bytes`.

        False: the session gave this client up, as a server closes the socket of somebody who sends faster than can be
        taken, again and again."""

    async def deliver(self, take: Callable[[JsonDict], None]) -> None:
        """Task: call `take` with each server event when it appears, with id and number; audio in it is still `bytes`.

        `take` is called from inside the session, which must not be disturbed: it is quick, never raises and changes
        nothing but the client. Returns after the session's last event. Cancellation ends it; before, none is lost."""

    async def keep_alive(self) -> None:
        """Task: the session's lease does not run out while this runs. Cancellation ends it."""

    def leave(self) -> None:
        """End the session if it has not ended. Idempotent, never blocks."""

    async def gone(self) -> None:
        """Wait until the session has ended and its slot is free. Cancellation lets go of it all the same."""


class InlineHub(Protocol):
    """Where an inline client's session lives."""

    async def visit(self, opening: bytes) -> InlineVisit | JsonDict:
        """Open a session by the JSON of its `session.update`; a refusal is the `error` event a socket would carry.

        Cancellation: no session is left."""


class InlineDuplexClient(DuplexClient):
    """A `DuplexClient` whose session runs in a hub of the same Trio program.

    Same methods, events, errors and ways out, over memory: no JSON text of audio, no heartbeat, no event
    acknowledgement, no resume (there is no connection that could be lost alone). `omni` is the hub, as given by
    `trio_duplex.open_hub`; its `connect(config)` makes these clients. Leaving waits until the session's slot is free.
    """

    def __init__(
        self,
        omni: InlineHub,
        *,
        model: str,
        config: SessionConfig | None = None,
        handshake_timeout_s: float = 30.0,
    ) -> None:
        def link(state: SessionState) -> LinkBase:
            return InlineLink(omni, state=state, on_event=self._dispatch, on_end=self._on_end)

        url = f"{INLINE_URL}{model}"
        self._set_up(link, url, model, config, session_id=None, heartbeat_s=None, open_s=handshake_timeout_s)


class InlineLink(LinkBase):
    """Carries events between one client and one session as dictionaries."""

    def __init__(
        self,
        hub: InlineHub,
        *,
        state: SessionState,
        on_event: Callable[[DuplexEvent], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(state=state, on_event=on_event, on_end=on_end)
        self._hub = hub
        self._visit: InlineVisit | None = None

    async def open(self, nursery: trio.Nursery, opening: dict[str, Any]) -> None:
        """Open the session with the update itself. DuplexProtocolError if the hub refuses it.

        When cancelled, no session is left open.
        """
        found = await self._hub.visit(orjson.dumps(opening))
        if isinstance(found, dict):
            self._take(wrap_event(found, received_at_s=time.monotonic()))
            return
        self._visit = found
        nursery.start_soon(self._read, found)
        nursery.start_soon(found.keep_alive)

    async def send(self, event: dict[str, Any], *, own: bool = False, yields: bool = True) -> None:
        """Give the session one event, behind a checkpoint; the session acts on it at the caller's next one.

        So whoever waits for the answer behind this does not miss it. With `yields` False only cancellation is looked
        for.

        When cancelled, the event was not given. TypeError for what JSON cannot say.
        """
        if self.end is not None:
            raise DuplexSessionClosedError(self.end.reason)
        if self._visit is None:
            raise DuplexConnectionError("not connected")
        # A stranger's dictionary is checked and copied as a socket would do it; there is no audio in it as a rule.
        given = event if own else orjson.dumps(event)
        if yields:
            await trio.lowlevel.checkpoint()
            if self.end is not None:
                raise DuplexSessionClosedError(self.end.reason)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if not self._visit.post(given):
            self.finish("connection lost: too much input is waiting for this session", expected=False)
            self._visit.leave()

    async def heartbeat(self, interval_s: float) -> None:
        """Not needed here: `InlineVisit.keep_alive` does it. Only a checkpoint."""
        await trio.lowlevel.checkpoint()

    async def close(self, timeout_s: float) -> None:
        """End the session and wait for its last event. Cancellation leaves the rest to `tear_down`."""
        self._closing = True
        if self._visit is not None:
            self._visit.leave()
            if self.end is None:
                with trio.move_on_after(timeout_s):
                    await self._ended.wait()
        self.finish("closed", expected=True)
        await trio.lowlevel.checkpoint()

    async def tear_down(self) -> None:
        """Shielded: end the session and see that it is gone, slot and all.

        Cancellation waits for that, within a bound.
        """
        self._closing = True
        if self._visit is not None:
            self._visit.leave()
            with trio.move_on_after(TEARDOWN_TIMEOUT_S, shield=True):
                await self._visit.gone()
        self.finish("closed", expected=True)

    async def _read(self, visit: InlineVisit) -> None:
        """Task: the only reader. Never waits for a consumer. Ends with the session."""
        await visit.deliver(self._take_frame)
        if self.end is None:
            # Only a hub that dies itself leaves a session without its last event.
            self.finish("connection lost: the hub has ended", expected=self._closing)

    def _take_frame(self, frame: JsonDict) -> None:
        if self.end is None:
            self.counters.frames_received += 1
            self._take(event_of(frame, received_at_s=time.monotonic()))


def event_of(frame: JsonDict, *, received_at_s: float | None = None) -> DuplexEvent:
    """The typed event of a server's frame before encoding. `raw` is a copy, and what the wire would have said.

    Of the events that come many times a second the copy is made when it is asked for: their frames are built for this
    one event, so nothing changes in them. An audio delta keeps the bytes it came with, which are not decoded again.
    """
    late = _COPIED_LATE.get(frame.get("type"))
    if late is None:
        event = wrap_event(wire_copy(frame), received_at_s=received_at_s)
    else:
        event = late(frame, received_at_s=received_at_s)
        event._keep_frame(wire_copy)
    if isinstance(event, AudioDelta):
        audio = frame.get("delta")
        if isinstance(audio, bytes):
            event._keep_decoded(audio)
    return event


def wire_copy(frame: JsonDict) -> JsonDict:
    """`frame` as it would be after JSON: a deep copy in which `bytes` are base64 text and tuples are lists."""
    return {key: value if value.__class__ in _PLAIN else _copied(value) for key, value in frame.items()}


_COPIED_LATE: dict[object, type[DuplexEvent]] = {
    "response.output_audio.delta": AudioDelta,
    "response.output_audio_transcript.delta": TranscriptDelta,
    "response.output_text.delta": TextDelta,
    "response.listen": ListenDecision,
    "playback.acknowledged": DuplexEvent,
}
_PLAIN = frozenset({str, int, bool, type(None)})


def _copied(value: object) -> object:
    if value.__class__ is bytes:
        return base64_text(value)
    # Small structures beside the audio: the encoder's own code copies them faster than a walk in Python would.
    return orjson.loads(orjson.dumps(value, default=base64_text))
