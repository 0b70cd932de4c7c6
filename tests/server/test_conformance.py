"""RFC 6455 by the byte, in the classes of the Autobahn suite: framing, fragments, reserved bits, UTF-8, closing.

Each row is one connection to the echo endpoint: what the client sends, and what must come back. docs/promises.md shows
the outcomes, and which layer is responsible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

from tests.server.server_kit import converse, make_app, masked_frame, open_tcp, upgrade_request
from trio_duplex.server.listener import BoundAddress

Serve = Callable[..., Awaitable[BoundAddress]]

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


@attrs.frozen
class Frame:
    """One frame from the server."""

    opcode: int
    payload: bytes
    fin: bool = True

    @property
    def code(self) -> int | None:
        """A Close frame's code."""
        return int.from_bytes(self.payload[:2], "big") if len(self.payload) >= 2 else None


class Raw:
    """Frames in, bytes out, TCP's end as None."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def bytes(self, n: int) -> bytes | None:
        while len(self.buffer) < n:
            try:
                chunk = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self.buffer += chunk
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    async def frame(self) -> Frame | None:
        head = await self.bytes(2)
        if head is None:
            return None
        assert head[0] & 0x70 == 0, "no extension was agreed"
        assert head[1] & 0x80 == 0, "a server never masks"
        size: int = head[1]
        if size >= 126:
            size = int.from_bytes(await self.bytes(2 if size == 126 else 8) or b"", "big")
        return Frame(head[0] & 0x0F, await self.bytes(size) or b"", bool(head[0] & 0x80))

    async def frames(self, count: int) -> list[Frame]:
        """Up to ``count`` frames; fewer at a Close frame or the end of TCP."""
        got: list[Frame] = []
        while len(got) < count and (frame := await self.frame()) is not None:
            got.append(frame)
            if frame.opcode == CLOSE:
                break
        return got


def f(payload: bytes | str = b"", opcode: int = TEXT, fin: bool = True) -> bytes:
    """A client's frame."""
    return masked_frame(payload.encode() if isinstance(payload, str) else payload, opcode, fin)


def with_bits(frame: bytes, bits: int) -> bytes:
    """The frame with reserved bits set."""
    return bytes((frame[0] | bits,)) + frame[1:]


def close(code: int, reason: bytes = b"") -> bytes:
    return f(code.to_bytes(2, "big") + reason, CLOSE)


def echoed(*texts: str) -> list[Frame]:
    return [Frame(TEXT, text.encode()) for text in texts]


KAPPA = "κόσμε".encode()
SMILE = "😀".encode()

FINE: dict[str, tuple[bytes, list[Frame]]] = {
    # 1: lengths at every border of the length field
    **{f"text of {n} bytes": (f("x" * n), echoed("x" * n)) for n in (0, 125, 126, 127, 128, 65535, 65536)},
    "binary": (f(b"\xfe" * 200, BINARY), echoed("200 bytes")),
    # 2: pings and pongs
    "empty ping": (f(b"", PING), [Frame(PONG, b"")]),
    "ping of 125 bytes": (f(b"\xff" * 125, PING), [Frame(PONG, b"\xff" * 125)]),
    "three pings at once": (
        f(b"a", PING) + f(b"b", PING) + f(b"c", PING),
        [Frame(PONG, b) for b in (b"a", b"b", b"c")],
    ),
    "unasked pong": (f(b"x", PONG) + f("on"), echoed("on")),
    # 5: fragments
    "two fragments": (f("he", fin=False) + f("llo", 0), echoed("hello")),
    "empty fragments": (f("", fin=False) + f("", 0, False) + f("", 0), echoed("")),
    "ping between fragments": (
        f("he", fin=False) + f(b"!", PING) + f("llo", 0),
        [Frame(PONG, b"!"), *echoed("hello")],
    ),
    "pong between fragments": (f("he", fin=False) + f(b"!", PONG) + f("llo", 0), echoed("hello")),
    "a thousand fragments": (f("x", fin=False) + f("x", 0, False) * 998 + f("x", 0), echoed("x" * 1000)),
    "binary fragments": (f(b"\xff", BINARY, False) + f(b"\xfe", 0), echoed("2 bytes")),
    # 6: UTF-8
    "UTF-8": (f(KAPPA), echoed(KAPPA.decode())),
    "code point split over fragments": (
        f(SMILE[:1], TEXT, False) + f(SMILE[1:3], 0, False) + f(SMILE[3:], 0),
        echoed("😀"),
    ),
    "highest code point": (f("\U0010ffff"), echoed("\U0010ffff")),
    "noncharacters are characters": (f("\ufffe\uffff"), echoed("\ufffe\uffff")),
    # 7: closing
    "close without a code": (f(b"", CLOSE), [Frame(CLOSE, b"")]),
    "close with a reason": (close(1000, b"bye"), [Frame(CLOSE, (1000).to_bytes(2, "big") + b"bye")]),
    "longest reason": (close(1000, b"r" * 123), [Frame(CLOSE, (1000).to_bytes(2, "big") + b"r" * 123)]),
    "nothing after close is heard": (f(b"", CLOSE) + f("late") + f(b"", PING), [Frame(CLOSE, b"")]),
    **{
        f"close {code}": (close(code), [Frame(CLOSE, code.to_bytes(2, "big"))])
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    },
}

FAULTS: dict[str, tuple[bytes, int]] = {
    # name: what the client sends, code of the server's Close frame
    "ping of 126 bytes": (f(b"x" * 126, PING), 1002),
    "close of 126 bytes": (close(1000, b"r" * 124), 1002),
    "fragmented ping": (f(b"x", PING, False), 1002),
    "fragmented close": (f(b"", CLOSE, False), 1002),
    **{f"reserved bits {bits:#04x}": (with_bits(f("x"), bits), 1002) for bits in (0x10, 0x20, 0x40, 0x70)},
    "reserved bit on a ping": (with_bits(f(b"", PING), 0x40), 1002),
    "reserved bit between fragments": (f("x", fin=False) + with_bits(f("x", 0), 0x40), 1002),
    **{f"opcode {opcode}": (f("x", opcode), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "continuation of nothing": (f("x", 0), 1002),
    "continuation after a whole message": (f("x", fin=False) + f("y", 0) + f("z", 0), 1002),
    "a message inside a message": (f("x", fin=False) + f("y"), 1002),
    "unmasked text": (b"\x81\x01x", 1002),
    "unmasked close": (b"\x88\x00", 1002),
    "length not in its shortest form (16 bit)": (b"\x81\xfe\x00\x05\0\0\0\0hello", 1002),
    "length not in its shortest form (64 bit)": (b"\x81\xff" + (5).to_bytes(8, "big") + b"\0\0\0\0hello", 1002),
    "length with the highest bit": (b"\x81\xff" + (1 << 63).to_bytes(8, "big") + b"\0\0\0\0", 1002),
    "invalid UTF-8": (f(b"\xce\xba\xff"), 1007),
    "invalid UTF-8 in the second fragment": (f(KAPPA, TEXT, False) + f(b"\xed\xa0\x80", 0), 1007),
    "a surrogate": (f(b"\xed\xa0\x80"), 1007),
    "an overlong form": (f(b"\xc0\xaf"), 1007),
    "above the highest code point": (f(b"\xf4\x90\x80\x80"), 1007),
    "a message that ends in a code point": (f(SMILE[:2]), 1007),
    "fragments that end in a code point": (f(SMILE[:1], TEXT, False) + f(SMILE[1:2], 0), 1007),
    "a close of one byte": (f(b"\x03", CLOSE), 1002),
    "a reason that is not UTF-8": (close(1000, b"\xff"), 1007),
    **{
        f"close {code}": (close(code), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
}


async def opened(bound: BoundAddress, stack: Any) -> Raw:
    raw = Raw(stack)
    await stack.send_all(upgrade_request())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = await raw.bytes(1)
        assert byte is not None
        head += byte
    assert head.startswith(b"HTTP/1.1 101 ")
    return raw


@pytest.mark.parametrize("chop", [None, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", FINE)
async def test_what_is_allowed_works(name: str, chop: int | None, serve: Serve, quiet: Any) -> None:
    data, expected = FINE[name]
    if chop and len(data) > 3000:
        chop = 997  # long ones are cut more coarsely: the borders of their heads are what matters
    bound = await serve(make_app())
    with trio.fail_after(5):
        async with await open_tcp(bound) as stream:
            raw = await opened(bound, stream)
            with suppress(trio.BrokenResourceError):  # once both have said Close, the server may end TCP
                for begin in range(0, len(data), chop or len(data)):
                    await stream.send_all(data[begin : begin + (chop or len(data))])
            assert await raw.frames(len(expected)) == expected
            if expected[-1].opcode == CLOSE:
                assert await raw.frame() is None, "after both Close frames the server ends TCP"


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_forbidden_is_closed_with_its_code_and_hurts_nobody(name: str, serve: Serve, quiet: Any) -> None:
    data, code = FAULTS[name]
    bound = await serve(make_app())
    with trio.fail_after(10):
        async with await open_tcp(bound) as stream:
            raw = await opened(bound, stream)
            await stream.send_all(data)
            answers = await raw.frames(3)
            assert answers, "TCP ended without a Close frame"
            assert (answers[-1].opcode, answers[-1].code) == (CLOSE, code)
    await converse(bound)


async def test_invalid_text_is_noticed_before_the_message_ends(serve: Serve, quiet: Any) -> None:
    """Autobahn 6.4: fail fast."""
    bound = await serve(make_app())
    with trio.fail_after(5):
        async with await open_tcp(bound) as stream:
            raw = await opened(bound, stream)
            await stream.send_all(f(KAPPA + b"\xf4\x90\x80\x80", TEXT, False))
            (answer,) = await raw.frames(1)
            assert (answer.opcode, answer.code) == (CLOSE, 1007)
