"""The server of `realtime.py`: PersonaPlex with random weights at the published sizes (`--tiny`: tiny ones) on a free
port. Prints its URL once warm; SIGTERM ends it. Or compile kernels only, see `bench/unit_step.py --compile`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from trio_duplex.cli import configure_logging, settle_process, tune_process

tune_process()  # before torch loads

import attrs  # noqa: E402
import torch  # noqa: E402

from duplex_gpu.personaplex.config import PersonaPlexConfig  # noqa: E402
from duplex_gpu.personaplex.layout import lm_shapes, mimi_shapes  # noqa: E402
from duplex_gpu.personaplex.lm_weights import build_lm_weights  # noqa: E402
from duplex_gpu.personaplex.loading import LoadOptions, Report, build_engine, find_device  # noqa: E402
from duplex_gpu.personaplex.mimi_weights import build_mimi_weights  # noqa: E402
from duplex_gpu.personaplex.prompts import VoiceShelf  # noqa: E402
from duplex_gpu.personaplex.random_checkpoint import TINY, random_take, random_voice  # noqa: E402
from duplex_gpu.personaplex.text import TextPieces  # noqa: E402
from duplex_gpu.personaplex.unit import PersonaPlexUnit  # noqa: E402
from trio_duplex.config import Deployment  # noqa: E402
from trio_duplex.models.personaplex import PersonaPlexOptions, PersonaPlexPlugin  # noqa: E402
from trio_duplex.server.serve import serve  # noqa: E402
from trio_duplex.session.settings import SessionSettings  # noqa: E402

VOICE_COLUMNS = 50


class WordPieces(TextPieces):
    """One token per word, for want of the published text model."""

    def encode(self, text: str) -> list[int]:
        return [4 + len(word) % (len(self) - 4) for word in text.split()]


def random_unit(folder: Path, tiny: bool, options: LoadOptions, report: Report) -> PersonaPlexUnit:
    """What `load_unit` gives, with weights made on the device."""
    config = attrs.evolve(TINY, lm=attrs.evolve(TINY.lm, context=600)) if tiny else PersonaPlexConfig()
    device = find_device(options.device)
    cuda = device.type == "cuda"
    lm_type, codec_type = (torch.bfloat16, torch.float16) if cuda else (torch.float32, torch.float32)
    with torch.inference_mode():
        lm = build_lm_weights(config.lm, random_take(lm_shapes(config.lm), 1, device, lm_type), lm_type)
        take = random_take(mimi_shapes(config.mimi), 2, device, torch.float32)
        mimi = build_mimi_weights(config.mimi, take, codec_type)
    if cuda:
        torch.cuda.empty_cache()
    (folder / "voices").mkdir()
    for number in range(3):
        voice = random_voice(config.lm, columns=5 if tiny else VOICE_COLUMNS, seed=number)
        torch.save(voice, folder / "voices" / f"NATF{number}.pt")
    pieces = WordPieces([f" w{token}" for token in range(config.lm.text_vocab)])
    engine = build_engine(config, lm, mimi, options)
    return PersonaPlexUnit(engine, pieces, VoiceShelf(folder, config.lm), sampling=options.sampling)


async def main(arguments: argparse.Namespace) -> None:
    options = PersonaPlexOptions(
        rows=arguments.rows,
        kv=arguments.kv,
        columns_per_session=arguments.columns,
        max_step_share=arguments.step_share,
        cancel_mute_ms=arguments.mute_ms,
    )
    began = time.monotonic()
    shutdown = trio.Event()
    with tempfile.TemporaryDirectory() as folder, trio.open_signal_receiver(signal.SIGTERM) as signals:
        plugin = PersonaPlexPlugin(options, load=partial(random_unit, Path(folder), arguments.tiny))
        deployment = Deployment(model="personaplex", duplex_session=SessionSettings(max_sessions="auto"))
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                async for _ in signals:
                    shutdown.set()

            nursery.start_soon(stop)
            start = partial(serve, deployment, plugin=plugin, shutdown=shutdown)

            async def run() -> None:
                async with trio.open_nursery() as inner:
                    bound = await inner.start(start)
                    settle_process()
                    print(f"ready {bound.ws_url} {time.monotonic() - began:.1f}", flush=True)
                nursery.cancel_scope.cancel()

            nursery.start_soon(run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--columns", type=int, default=None)
    parser.add_argument("--kv", choices=["native", "fp8"], default="native")
    parser.add_argument("--step-share", type=float, default=0.75)
    parser.add_argument("--mute-ms", type=int, default=400)
    parser.add_argument("--tiny", action="store_true")
    configure_logging("console", "warning")
    sys.exit(trio.run(main, parser.parse_args()))
