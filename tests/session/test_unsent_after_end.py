"""Deltas that no socket took: an answer that ended by itself keeps them, also when its epoch is ended later (24a)."""

from __future__ import annotations

import trio

from tests.session.talk import talking
from trio_duplex.testing import Piece, ScriptedOptions, check_history

SIX = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(6)])


async def test_a_finished_answer_keeps_its_unsent_deltas(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SIX) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 2)
        talk.reader.paused = True
        await trio.sleep(5)  # the answer is complete now; most of it nobody has taken
        talk.send("barge_in")
        talk.send("session.close")
        await talk.session.ended.wait()
        talk.reader.resume()
        await talk.reader.ended.wait()
        (done,) = talk.reader.of("response.done")
        assert done["response"]["status"] == "completed"
        assert len(talk.reader.of("response.output_audio.delta")) == 6
        assert check_history(talk.events, complete=True) == ()
