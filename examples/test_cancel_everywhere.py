"""Cancel a conversation of your own application at every step, and let the kit check what is left.

Run: pytest examples/test_cancel_everywhere.py
"""

from trio_duplex.testing import Piece, Rig, ScriptedOptions, silence, speech
from trio_duplex.testing.explorer import Scenario, explore

MODEL = ScriptedOptions(script=lambda request: [Piece("Hello "), Piece("there.")])


async def my_conversation(rig: Rig) -> None:
    async with rig.client() as client:  # your code, with any DuplexClient of the rig
        await client.append_audio(speech(200))
        await client.append_audio(silence(600))
        async for response in client.responses():
            if response.decision != "listen":
                async for _pcm in response.audio():
                    await client.ack_playback(response.played_ms, response_id=response.response_id)
                return


def test_cancelled_at_every_step() -> None:
    report = explore(Scenario("mine", my_conversation, MODEL), kinds=["response", "session", "connection", "caller"])
    report.check()  # one line to replay for each promise that was broken
    assert len(report.points) > 200
