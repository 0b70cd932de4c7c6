"""What an ended session leaves behind in a long-lived process: no bytes of its conversation."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.lowlevel

from trio_duplex.client import DuplexClient
from trio_duplex.config import Deployment
from trio_duplex.hub import Hub
from trio_duplex.server import serve as serving
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin, silence, speech


async def test_its_journal_is_empty_once_its_socket_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ScriptedPlugin(ScriptedOptions(script=lambda _: [Piece("one "), Piece("two.")], unpaced=True))
    hubs: list[Hub] = []
    build = serving.build_hub

    def built(*arguments: object) -> Hub:
        hubs.append(build(*arguments))  # type: ignore[arg-type]
        return hubs[-1]

    monkeypatch.setattr(serving, "build_hub", built)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serving.serve, Deployment("scripted"), plugin=plugin))
            async with DuplexClient(bound.ws_url, model="scripted") as client:
                [session] = hubs[0].sessions()
                await client.stream_pcm(speech(320) + silence(640), realtime=False)
                async for response in client.responses():
                    await response.wait(5)
                    if response.decision == "speak":
                        break
                assert session.journal.statistics().kept_bytes > 10_000
            await session.ended.wait()
            while session.attachment is not None or session.journal.statistics().kept_bytes:
                await trio.lowlevel.checkpoint()  # the server's side of the socket goes a moment later
            nursery.cancel_scope.cancel()
