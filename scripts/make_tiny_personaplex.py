"""Write a tiny random checkpoint in the published layout of PersonaPlex-7B-v1, to try the whole server on a CPU.

    python scripts/make_tiny_personaplex.py tiny_personaplex

It speaks noise; names, file layout and the loader are the real ones. `config.json` states the sizes, which the real
checkpoint leaves to the code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from duplex_gpu.personaplex.random_checkpoint import TINY, tiny_text_model, write_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_checkpoint(
        options.folder,
        TINY,
        seed=options.seed,
        text_model=tiny_text_model(TINY.lm.text_vocab),
        voices=("NATF0", "NATF2", "VARM0"),
    )
    total = sum(path.stat().st_size for path in options.folder.iterdir())
    print(f"{options.folder}: {total / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
