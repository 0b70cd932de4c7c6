"""The mailbox: the only door into a session. One consumer, arrival order, bounded without ever blocking a reader."""

from __future__ import annotations

import sys
from collections import deque
from typing import Generic, TypeVar

import attrs
import trio

from duplex_protocol.commands import (
    DATA_COMMANDS,
    AppendAudio,
    AppendText,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearInput,
    ClearOutput,
    Command,
    CommitInput,
    CreateItem,
)
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.session.conversation import stored_bytes
from trio_duplex.session.messages import HeardResult, RefusedEvent

PREEMPTING = (CancelResponse, CancelInput, BargeIn, ClearOutput, ClearInput)
"""Commands that win over an append which hangs (contract 1.2, 22)."""

SMALL_COMMAND_BYTES = 4_096
_HOLD_NOTHING = frozenset({type(None), bool, int, float})

FIELD_NAMES = {kind: tuple(field.name for field in attrs.fields(kind)) for kind in Command.__subclasses__()}


@attrs.frozen
class MailboxLimits:
    """Bounds of what may wait (contract 16.3). Refused events count as commands; results wait outside for room.

    ``max_pending_command_bytes`` is for commands over ``SMALL_COMMAND_BYTES``, the first of which is always taken; the
    small ones (cancel, heartbeat, acks) keep the room that their number gives them.
    """

    max_pending_input_bytes: int = 16 * 1024 * 1024
    max_pending_turns: int = 4
    max_pending_appends: int | None = None
    max_pending_data: int = 4096
    max_pending_commands: int = 1024
    max_pending_command_bytes: int = 16 * 1024 * 1024
    max_pending_results: int = 1024


def input_bytes(command: Command) -> int:
    """What a data command holds in memory while it waits, in bytes."""
    if isinstance(command, AppendAudio):
        frames = command.video_frames
        return len(command.audio) + (sum(map(len, frames)) if frames else 0)
    if isinstance(command, CreateItem):
        return stored_bytes(command.item) + 256
    if isinstance(command, AppendText):
        return len(command.text) + 256
    return 256


def command_bytes(command: Command) -> int:
    """What a command that is not data holds in memory while it waits, in bytes, where that is much; else 0."""
    size = 0
    for name in FIELD_NAMES[type(command)]:
        value = getattr(command, name)
        if value.__class__ not in _HOLD_NOTHING:
            size += _held_bytes(value)
    return size if size > SMALL_COMMAND_BYTES else 0


def _held_bytes(value: object) -> int:
    """Bytes of the strings and containers in a JSON value, whose depth the wire has bounded."""
    if isinstance(value, str):
        return sys.getsizeof(value)
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(sys.getsizeof(key) + _held_bytes(member) for key, member in value.items())
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(_held_bytes, value))
    return 0


def reserves_turn(message: object) -> bool:
    """Whether a message is a commit: one of the few turns that may wait, counted from its admission on."""
    return isinstance(message, CommitInput) or (isinstance(message, CreateItem) and bool(message.audio))


Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Messages in arrival order. ``post`` never blocks; data commands over a bound are refused whole (24a)."""

    def __init__(self, limits: MailboxLimits) -> None:
        self._limits = limits
        self._messages: deque[Message | Command] = deque()
        self._wakeup = trio.Event()
        self._bytes = 0
        self._turns = 0
        self._appends = 0  # those that wait, and the one that is being applied
        self._data = 0
        self._commands = 0  # of the client, data not among them; refused events are
        self._command_bytes = 0
        self._large: deque[tuple[Command, int]] = deque()  # those of them that hold much, and how much
        self._results = 0
        self._room = trio.Event()  # for results
        self.refused = 0

    def post(self, message: Message) -> None:
        """Add an internal message (the end, a last result): always accepted."""
        self._results += isinstance(message, HeardResult)
        self._messages.append(message)
        self._wakeup.set()

    @property
    def has_room_for_results(self) -> bool:
        """Whether fewer than ``max_pending_results`` wait."""
        return self._results < self._limits.max_pending_results

    async def post_result(self, message: Message) -> None:
        """Add a model result as soon as fewer than ``max_pending_results`` wait.

        Meanwhile the model's own bounded channel fills, so that the model is told; nothing is dropped here.
        Cancellation: it was not added.
        """
        while not self.has_room_for_results:
            self._room = trio.Event()
            await self._room.wait()
        self.post(message)

    def post_refused(self, message: Message) -> bool:
        """Add a client's event that did not decode; false (and nothing added) where too many commands wait."""
        if self._commands >= self._limits.max_pending_commands:
            self.refused += 1
            return False
        self._commands += 1
        self._messages.append(message)
        self._wakeup.set()
        return True

    def post_command(self, command: Command) -> None:
        """Add a client command.

        Raises :class:`RemoteProtocolError` ``input_backpressure`` (and takes nothing) when the bounds are reached.
        """
        if isinstance(command, DATA_COMMANDS):
            size = input_bytes(command)
            turn = reserves_turn(command)
            if (
                self._bytes + size > self._limits.max_pending_input_bytes
                or self._data >= self._limits.max_pending_data
                or (turn and self._turns >= self._limits.max_pending_turns)
                or (isinstance(command, AppendAudio) and self._appends_full)
            ):
                self.refused += 1
                raise RemoteProtocolError(
                    "input_backpressure", "too much input is waiting for this session", event_id=command.event_id
                )
            self._bytes += size
            self._data += 1
            self._turns += turn
            self._appends += isinstance(command, AppendAudio)
        else:
            size = command_bytes(command)
            if self._commands >= self._limits.max_pending_commands or (
                size and self._command_bytes and self._command_bytes + size > self._limits.max_pending_command_bytes
            ):
                self.refused += 1
                raise RemoteProtocolError(
                    "input_backpressure", "too many commands are waiting for this session", event_id=command.event_id
                )
            self._commands += 1
            if size:
                self._command_bytes += size
                self._large.append((command, size))
        self._messages.append(command)
        self._wakeup.set()

    def drop_appends(self) -> int:
        """Forget waiting audio appends: a close preempts them (contract 13). Returns how many were dropped."""
        kept = deque(m for m in self._messages if not isinstance(m, AppendAudio))
        dropped = [m for m in self._messages if isinstance(m, AppendAudio)]
        self._messages = kept
        self._bytes -= sum(input_bytes(m) for m in dropped)
        self._data -= len(dropped)
        self._appends -= len(dropped)
        return len(dropped)

    @property
    def _appends_full(self) -> bool:
        most = self._limits.max_pending_appends
        return most is not None and self._appends >= most

    @property
    def urgent(self) -> bool:
        """Whether a command waits that wins over a hanging append."""
        return any(isinstance(message, PREEMPTING) for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    async def get(self) -> Message | Command:
        """The oldest message; a checkpoint. Cancellation: nothing is taken."""
        if self._messages:
            await trio.lowlevel.checkpoint()
        while not self._messages:
            self._wakeup = trio.Event()
            await self._wakeup.wait()
        message = self._messages.popleft()
        if isinstance(message, DATA_COMMANDS):
            self._bytes -= input_bytes(message)
            self._data -= 1
        elif isinstance(message, Command):
            self._commands -= 1
            if self._large and self._large[0][0] is message:
                self._command_bytes -= self._large.popleft()[1]
        elif isinstance(message, RefusedEvent):
            self._commands -= 1
        elif isinstance(message, HeardResult):
            self._results -= 1
            self._room.set()
        return message

    def finished(self, message: Message | Command) -> None:
        """A message was applied: its reservation among the pending turns or appends is free again (contract 16.3)."""
        self._turns -= reserves_turn(message)
        self._appends -= isinstance(message, AppendAudio)
