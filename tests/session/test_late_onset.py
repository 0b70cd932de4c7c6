"""An onset that the model reports after its own audio was committed neither interrupts the answer nor opens an item."""

from __future__ import annotations

import pytest
import trio

from tests.session.talk import append, loud
from trio_duplex.testing import Piece, ScriptedOptions, check_history, open_rig, run_seeded

OPTIONS = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(5)])
SETTINGS = {
    "extra_body": {"auto_response": False},
    "overlap_policy": "barge_in_on_speech",
    "turn_detection": {"type": "server_vad"},
}


@pytest.mark.parametrize("seed", range(6))
def test_speak_commit_and_ask_at_once(seed: int) -> None:
    """The client sends all three in one go; whatever runs first, the answer is heard to its end."""

    async def play() -> None:
        async with open_rig(OPTIONS) as rig:
            socket = await rig.connect(duplex="1")
            await socket.send({"type": "session.update", "session": SETTINGS})
            await socket.send(append(loud(320)))
            await socket.send({"type": "input_audio_buffer.commit"})
            await socket.send({"type": "response.create"})
            done = await socket.until("response.done")
            assert done["response"]["status"] == "completed"
            # The next utterance does interrupt.
            await socket.send(append(loud(320)))
            await socket.send({"type": "input_audio_buffer.commit", "response_create": True})
            await socket.until("response.output_audio.delta")
            await socket.send(append(loud(320)))
            done = await socket.until("response.done")
            assert done["response"]["status_details"]["reason"] == "turn_detected"
            committed = [e["item_id"] for e in socket.received if e["type"] == "input_audio_buffer.committed"]
            started = [e["item_id"] for e in socket.received if e["type"] == "input_audio_buffer.speech_started"]
            assert len(committed) == 2
            assert started[-1] not in committed
            assert check_history(socket.received) == ()

    run_seeded(play, seed)


async def test_the_clock_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """Silence between the two utterances changes nothing."""
    async with open_rig(OPTIONS) as rig, rig.client() as client:
        for _ in range(2):
            await client.append_audio(loud(320))
            await client.commit(create_response=True)
            await client.wait_for("response.done", timeout_s=30)
            await client.append_audio(bytes(16_000))
