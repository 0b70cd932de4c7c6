"""A full-duplex speech model inside your own Trio program, and a client that talks to it: no server, no socket.

Run: python examples/embed.py question.wav   (mono, 16 kHz, 16 bit)
"""

import sys
from pathlib import Path

import trio

import trio_duplex
from trio_duplex.client import read_pcm16_wav


async def main(question: Path) -> None:
    async with trio_duplex.open_hub(trio_duplex.Deployment(model="demo")) as hub, hub.connect() as client:
        await client.stream_pcm(read_pcm16_wav(question), chunk_ms=32)
        await client.commit()
        async for response in client.responses():
            if response.decision == "listen":
                continue
            async for _pcm in response.audio():  # play it, then say how far you got:
                await client.ack_playback(response.played_ms, response_id=response.response_id)
            print(response.transcript)
            break


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
