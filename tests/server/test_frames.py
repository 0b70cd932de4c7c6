"""The quick way through frames says the same as wsproto, however the bytes are cut."""

from __future__ import annotations

import random
import struct

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from tests.server.server_kit import masked_frame
from trio_duplex.server.frames import SHORT_BYTES, TextFrames, text_frames

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
FEEDS = 40


class Ear:
    """wsproto's server, which hears whole messages."""

    def __init__(self, kind: ConnectionType = ConnectionType.SERVER) -> None:
        self.connection = Connection(kind)
        self.found: list[tuple[str, object]] = []
        self._pieces: list[str | bytes] = []

    def hear(self, data: bytes) -> None:
        self.connection.receive_data(data)
        for event in self.connection.events():
            if isinstance(event, TextMessage | BytesMessage):
                self._pieces.append(event.data if isinstance(event.data, str) else bytes(event.data))
                if event.message_finished:
                    empty: str | bytes = "" if isinstance(event.data, str) else b""
                    self.found.append(("message", empty.join(self._pieces)))  # type: ignore[arg-type]
                    self._pieces.clear()
            elif isinstance(event, Ping):
                self.found.append(("ping", bytes(event.payload)))
            elif isinstance(event, CloseConnection):
                self.found.append(("close", int(event.code)))


def by_wsproto(stream: bytes) -> list[tuple[str, object]]:
    ear = Ear()
    ear.hear(stream)
    return ear.found


def by_us(pieces: list[bytes]) -> tuple[list[tuple[str, object]], int]:
    """What comes out, and how many messages took the quick way."""
    frames, ear = TextFrames(), Ear()
    quick = 0
    for piece in pieces:
        for part in frames.feed(piece):
            if isinstance(part, str):
                quick += 1
                ear.found.append(("message", part))
            elif not ear.found or ear.found[-1][0] != "close":  # as the server: deaf after a fault
                ear.hear(part)
    return ear.found, quick


def masked(payload: bytes, opcode: int = TEXT, fin: bool = True, mask: bytes = b"\x37\xfa\x21\x3d") -> bytes:
    """A client's frame with a mask that shows."""
    head = masked_frame(payload, opcode, fin)[: -4 - len(payload)]
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def cut(stream: bytes, rng: random.Random) -> list[bytes]:
    pieces = []
    while stream:
        size = rng.choice((1, 2, 5, 100, 4000, 70_000))
        pieces.append(stream[:size])
        stream = stream[size:]
    return pieces


def a_frame(rng: random.Random) -> bytes:
    size = rng.choice((0, 1, 2, 125, 126, 127, 255, 256, 257, 258, 4321, SHORT_BYTES, SHORT_BYTES + 1))
    words = "".join(rng.choice("aé€😀") for _ in range(size)).encode()[:size].decode("utf-8", "ignore").encode()
    kind = rng.randrange(6)
    if kind == 0:
        return masked(words, BINARY)
    if kind == 1:
        return masked(words[:125], PING)
    if kind == 2:
        half = len(words) // 2  # perhaps in the middle of a letter
        between = masked(b"!", PING) if rng.random() < 0.5 else b""
        return masked(words[:half], TEXT, fin=False) + between + masked(words[half:], 0)
    return masked(words, TEXT)


@pytest.mark.parametrize("seed", range(FEEDS))
def test_the_same_messages_in_the_same_order_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sent = [a_frame(rng) for _ in range(12)]
    stream = b"".join(sent)
    found, quick = by_us(cut(stream, rng))
    assert found == by_wsproto(stream)
    assert quick == sum(whole[0] == 0x81 and len(whole) <= SHORT_BYTES + 8 for whole in sent)


FAULTS = {
    "unmasked": text_frames([b"hello"]),
    "reserved bit": bytes([0xC1]) + masked(b"hello")[1:],
    "reserved opcode": masked(b"hello", 3),
    "half a letter": masked("é".encode()[:1]),
    "bad letters in the middle": masked(b"a" * 300 + b"\xff" + b"a" * 300),
    "long size of a short frame": b"\x81\xfe" + struct.pack("!H", 5) + bytes(4) + b"hello",
    "longest size of a short frame": b"\x81\xff" + struct.pack("!Q", 200) + bytes(4) + b"h" * 200,
    "continuation of nothing": masked(b"hello", 0),
    "text within a message": masked(b"a", TEXT, fin=False) + masked(b"b", TEXT),
    "long ping": b"\x89\xfe" + struct.pack("!H", 126) + bytes(4) + b"p" * 126,
    "fragment of a ping": masked(b"a", PING, fin=False),
    "close": masked(struct.pack("!H", 4321) + b"bye", CLOSE),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_fault_is_wsprotos_to_tell_and_what_came_before_it_counts(name: str, size: int) -> None:
    stream = masked(b"before") + FAULTS[name] + masked(b"after")
    found, quick = by_us([stream[at : at + size] for at in range(0, len(stream), size)])
    assert quick >= 1
    wanted = by_wsproto(stream)
    assert wanted[-1][0] == "close"
    assert found[: len(wanted)] == wanted


def test_what_is_held_back_is_one_short_frame() -> None:
    frames = TextFrames()
    long = masked(b"x" * (SHORT_BYTES + 1))
    assert b"".join(part for part in frames.feed(long[:50_000]) if isinstance(part, bytes)) == long[:50_000]
    frames = TextFrames()
    short = masked(b"x" * SHORT_BYTES)
    assert list(frames.feed(short[:-1])) == []
    assert list(frames.feed(short[-1:])) == ["x" * SHORT_BYTES]


def test_text_frames_are_what_a_client_reads() -> None:
    payloads = [b"", b"a" * 125, b"b" * 126, b"c" * 65_535, b"d" * 65_536, "é".encode()]
    client = Ear(ConnectionType.CLIENT)
    client.hear(text_frames(payloads))
    assert client.found == [("message", payload.decode()) for payload in payloads]


def test_frames_are_cut_one_by_one_as_they_are_asked_for() -> None:
    """Ten thousand empty ones fit into one read: cutting them all at once held up everybody for 12 ms."""
    frames = TextFrames()
    parts = frames.feed(masked(b"a") + masked(b"b") + text_frames([b"unmasked"]))
    assert [next(parts), next(parts)] == ["a", "b"]
    assert list(parts) == [text_frames([b"unmasked"])]


def test_a_text_over_the_listeners_limit_is_wsprotos_too() -> None:
    frames = TextFrames(1_000)
    assert list(frames.feed(masked(b"x" * 1_000))) == ["x" * 1_000]
    assert list(frames.feed(masked(b"x" * 1_001))) == [masked(b"x" * 1_001)]
