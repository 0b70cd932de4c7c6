"""The event reader against the standard (WHATWG HTML 9.2.6), in any cut, within its bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.chat.sse import SseReader, SseTooLong


def read(*blocks: bytes, limit: int = 1000) -> list[bytes]:
    reader = SseReader(limit)
    return [event for block in blocks for event in reader.feed(block)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: first\ndata: second\n\n", [b"first\nsecond"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\n\ndata: a\n\n\n", [b"a"]),
        (b"data: no empty line at the end\n", []),
        (b"data: " + "grüß 你好".encode() + b"\n\n", ["grüß 你好".encode()]),
        (b"<html>\n<p>hello\n\n", []),
    ],
)
def test_the_standard(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events
    assert read(*[stream[k : k + 1] for k in range(len(stream))]) == events


LINES = st.lists(st.sampled_from([b"data: x", b"data: yy", b": c", b"", b"data", b"foo: bar"]), max_size=12)


@settings(derandomize=True, database=None, deadline=None)
@given(LINES, st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12), st.data())
def test_the_cut_does_not_matter(lines: list[bytes], ends: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    blocks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*blocks) == read(stream)


def test_what_is_kept_is_bounded() -> None:
    assert read(b"data: " + b"x" * 900 + b"\n\n", limit=1000) == [b"x" * 900]
    with pytest.raises(SseTooLong):
        read(*[b"x" * 100] * 11, limit=1000)
    with pytest.raises(SseTooLong):
        read(*[b"data: " + b"x" * 90 + b"\n"] * 12, limit=1000)
    # What is over does not count: many events are fine.
    assert len(read(*[b"data: " + b"x" * 900 + b"\n\n"] * 50, limit=1000)) == 50
