"""The chat lane as a model, without a session: what it hands out, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from duplex_protocol.values import SessionConfig
from tests.chat.chat_kit import WARY
from tests.chat.chat_server import DONE, ChatServer, chat_server, omni_audio, omni_text, pcm
from trio_duplex.models.chat import ChatOptions, ChatPlugin
from trio_duplex.models.chat.session import ChatSession
from trio_duplex.models.plugin import HistoryEntry, OpenRefused, ResponseRequest, SessionContext, Speech

REQUEST = ResponseRequest(
    epoch=0, response_id="resp", config=SessionConfig(model="m"), history=(HistoryEntry("item", "user", "Hi"),)
)


@asynccontextmanager
async def model_of(server: ChatServer, **options: Any) -> AsyncIterator[ChatSession]:
    plugin = ChatPlugin(ChatOptions(url=server.url, model="m", **{**WARY, **options}))
    with pytest.raises(OpenRefused):
        await plugin.open(REQUEST.config, SessionContext("s", lambda: ()))
    async with trio.open_nursery() as nursery:
        await nursery.start(plugin.run)
        session = await plugin.open(REQUEST.config, SessionContext("s", lambda: ()))
        yield session
        await session.aclose()
        await session.aclose()
        assert plugin.health().detail["open_sessions"] == 0
        nursery.cancel_scope.cancel()


async def test_pieces_are_short_and_the_last_one_says_why_it_is_the_last() -> None:
    script = [omni_text("Cut off in the mid"), omni_audio(pcm(0, 1000)), omni_text("", finish="length"), DONE]
    pieces: list[Speech] = []
    async with chat_server(script) as server, model_of(server) as session:
        with trio.fail_after(5):
            await session.respond(REQUEST, pieces.append)
    assert sum(len(p.audio) for p in pieces) == 24_000
    assert max(len(p.audio) for p in pieces) == 4_800
    assert "".join(p.text for p in pieces) == "Cut off in the mid"
    assert [(p.end_of_turn, p.finish_reason) for p in pieces[:-1]] == [(False, None)] * (len(pieces) - 1)
    assert (pieces[-1].end_of_turn, pieces[-1].finish_reason) == (True, "length")
    assert len(pieces[-1].audio)


async def test_a_text_answer_says_it_too() -> None:
    script = [omni_text("Cut "), omni_text("off", finish="length"), DONE]
    pieces: list[Speech] = []
    async with chat_server(script) as server, model_of(server) as session:
        with trio.fail_after(5):
            await session.respond(attrs.evolve(REQUEST, text_only=True), pieces.append)
    assert [(p.text, p.end_of_turn, p.finish_reason) for p in pieces] == [
        ("Cut ", False, None),
        ("off", False, None),
        ("", True, "length"),
    ]


async def test_another_rate_is_brought_to_the_unit_s() -> None:
    """A tone of 16 kHz chunks arrives as the same tone at 24 kHz, without a seam between chunks."""
    import numpy as np

    time_s = np.arange(16_000) / 16_000
    tone = (8000 * np.sin(2 * np.pi * 440 * time_s)).astype("<i2").tobytes()
    script = [*[omni_audio(tone[k : k + 6400], 16_000) for k in range(0, len(tone), 6400)], DONE]
    pieces: list[Speech] = []
    async with chat_server(script) as server, model_of(server) as session:
        with trio.fail_after(5):
            await session.respond(REQUEST, pieces.append)
    heard = np.concatenate([p.audio for p in pieces]).astype(float)
    assert len(heard) == 24_000
    wanted = 8000 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert np.abs(heard - wanted)[200:-200].max() < 20
