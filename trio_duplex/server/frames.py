"""WebSocket frames as most clients send them, without wsproto's copies: whole, short, masked text (RFC 6455, 5.2).

A session's client sends one such frame after the other, a dozen a second, and every one of them costs the event loop.
:class:`TextFrames` cuts them out of the byte stream; whatever else comes – fragments, binary, control frames, long
ones, faults – is handed on byte for byte to wsproto, which knows the whole protocol and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

__all__ = ["SHORT_BYTES", "TextFrames", "text_frames"]

SHORT_BYTES: Final = 65_535
"""A longer frame goes to wsproto, which works on it as it comes, instead of in one piece at its end."""

_WHOLE_TEXT: Final = 0x81
_MASKED: Final = 0x80
_FEW_BYTES: Final = 256
"""Up to here one big integer is quicker than an array."""


class TextFrames:
    """One client's byte stream. ``feed`` gives texts (str) and what is not for this class (bytes), in their order.

    A text of more than ``most_bytes`` is not for this class either.
    """

    def __init__(self, most_bytes: int = SHORT_BYTES) -> None:
        self._most_bytes = min(most_bytes, SHORT_BYTES)
        self._held = b""
        self._passing = 0
        self._fragmented = False
        self._lost = False

    def feed(self, data: bytes) -> Iterator[str | bytes]:
        """Take bytes as they came; an unfinished short frame is kept until the rest of it comes.

        Each frame is cut when it is asked for: ten thousand tiny ones in one read must not keep the event loop. The
        iterator is read to its end before the next bytes are fed, or nothing is fed any more.
        """
        if self._lost:
            yield data
            return
        if self._held:
            data = self._held + data
            self._held = b""
        at, end = 0, len(data)
        while at < end:
            if self._passing:
                part = data[at : at + self._passing]
                self._passing -= len(part)
                at += len(part)
                yield part
                continue
            head = _head(data, at)
            if head is None:
                self._held = data[at:]
                break
            start, size = head
            whole = start + size - at
            if not data[at + 1] & _MASKED:
                self._lost = True  # a fault: nothing after it means anything
                yield data[at:]
                break
            if (
                data[at] != _WHOLE_TEXT
                or size > self._most_bytes
                or self._fragmented
                or not _shortest(start - at, size)
            ):
                if data[at] & 0x08 == 0:
                    self._fragmented = not data[at] & 0x80
                self._passing = whole
                continue
            if end - at < whole:
                self._held = data[at:]
                break
            text: str | bytes
            try:
                text = str(_unmasked(data, start, size), "utf-8")
            except UnicodeDecodeError:
                text = data[at : at + whole]  # wsproto says so
            at += whole
            yield text


def _head(data: bytes, at: int) -> tuple[int, int] | None:
    """``(start of the payload, its size)`` of the frame at ``at``; None while its head is not all there."""
    end = len(data)
    if end - at < 2:
        return None
    size, start = data[at + 1] & 0x7F, at + 2
    if size > 125:
        start += 2 if size == 126 else 8
        if end < start:
            return None
        size = int.from_bytes(data[at + 2 : start], "big")
    if data[at + 1] & _MASKED:
        start += 4
        if end < start:
            return None
    return start, size


def _shortest(head: int, size: int) -> bool:
    """Whether the size was written as short as it must be (5.2); ``head`` counts the bytes before the payload."""
    return size < 126 if head == 6 else head == 8 and size > 125


def _unmasked(data: bytes, start: int, size: int) -> bytes:
    mask = data[start - 4 : start]
    if size <= _FEW_BYTES:
        key = (mask * (size // 4 + 1))[:size]
        number = int.from_bytes(data[start : start + size], "little") ^ int.from_bytes(key, "little")
        return number.to_bytes(size, "little")
    words = -(-size // 4)
    padded = data[start : start + size] + bytes(4 * words - size)
    clear: bytes = (np.frombuffer(padded, np.uint32) ^ np.frombuffer(mask, np.uint32)).tobytes()
    return clear[:size]


def text_frames(payloads: list[bytes]) -> bytes:
    """Unmasked, unfragmented text frames, one after the other, without wsproto's decode, encode and three copies."""
    parts: list[bytes] = []
    for payload in payloads:
        size = len(payload)
        if size < 126:
            parts.append(bytes((_WHOLE_TEXT, size)))
        elif size < 65536:
            parts.append(b"\x81\x7e" + size.to_bytes(2, "big"))
        else:
            parts.append(b"\x81\x7f" + size.to_bytes(8, "big"))
        parts.append(payload)
    return b"".join(parts)
