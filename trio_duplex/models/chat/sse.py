"""Server-sent events out of bytes that arrive in any cut (WHATWG HTML, section 9.2.6).  Pure.

Own code, because a reader that is fed by strangers must bound what it keeps: the libraries split lines of any length.
Only what chat completions use is told: the data of events. ``event``, ``id`` and ``retry`` mean nothing to us.
"""

from __future__ import annotations

import re

__all__ = ["SseReader", "SseTooLong"]

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseTooLong(Exception):
    """An event (or a line) is longer than allowed; the stream cannot be read on."""


class SseReader:
    """:meth:`feed` bytes, get the data of the events that they complete. Keeps at most ``max_event_bytes``.

    A CR LF that is cut between two blocks is one line end. An event that the stream's end leaves without its empty
    line is dropped, as the standard says.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._begun: list[bytes] = []  # of the line at hand
        self._begun_bytes = 0
        self._data: list[bytes] = []  # of the event at hand
        self._data_bytes = 0
        self._skip_line_feed = False
        self._first_line = True

    def feed(self, block: bytes) -> list[bytes]:
        """The data of every event that ``block`` completes, lines joined by LF. Raises :class:`SseTooLong`."""
        events: list[bytes] = []
        if self._skip_line_feed and block:
            block = block.removeprefix(b"\n")
            self._skip_line_feed = False
        start = 0
        for end in _LINE_END.finditer(block):
            self._begin(block[start : end.start()])
            start = end.end()
            event = self._line(self._take())
            if event is not None:
                events.append(event)
            if end.group() == b"\r" and start == len(block):
                self._skip_line_feed = True
        self._begin(block[start:])
        return events

    def _begin(self, part: bytes) -> None:
        if part:
            self._begun.append(part)
            self._begun_bytes += len(part)
            self._check()

    def _take(self) -> bytes:
        line = self._begun[0] if len(self._begun) == 1 else b"".join(self._begun)
        self._begun.clear()
        self._begun_bytes = 0
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return line

    def _line(self, line: bytes) -> bytes | None:
        """Take one line; the event's data when it was the empty one."""
        if not line:
            if not self._data:
                return None
            event = b"\n".join(self._data)
            self._data.clear()
            self._data_bytes = 0
            return event
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            self._check()
        return None

    def _check(self) -> None:
        if self._begun_bytes + self._data_bytes > self._max_event_bytes:
            raise SseTooLong(f"an event has more than {self._max_event_bytes} bytes")
