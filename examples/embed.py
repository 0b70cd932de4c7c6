"""A full-duplex server inside your own Trio program, and a client that talks to it.

Run: python examples/embed.py question.wav   (mono, 16 kHz, 16 bit)
"""

import sys
from pathlib import Path

import trio

import trio_duplex
from trio_duplex.client import read_pcm16_wav


async def main(question: Path) -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_duplex.serve, trio_duplex.Deployment(model="demo"))
        async with trio_duplex.DuplexClient(server.ws_url, model="demo") as client:
            await client.stream_pcm(read_pcm16_wav(question), chunk_ms=32)
            await client.commit()
            async for response in client.responses():
                if response.decision == "listen":
                    continue
                async for _pcm in response.audio():  # play it, then say how far you got:
                    await client.ack_playback(response.played_ms, response_id=response.response_id)
                print(response.transcript)
                break
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
