"""Which tile each product uses, by its use, its shape and the number of batch rows.

The entries for the published sizes come from a search over whole captured frames on one H200; other shapes get a plain
tile, or the library where none divides them. Nothing is tuned at run time: a step must not stop to try variants.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Tile:
    """`rows` of the weight per program, inner `step`, pipeline `stages`, `warps`, inner `splits` (atomic sums).

    `batch` rows per program (0: all of them, 16 to 64); `register`: the single-row path; `ask`: prefetch the weight
    into L2 before the wait; `late`: let the successor start only after the main loop.
    """

    rows: int
    step: int = 64
    stages: int = 2
    warps: int = 4
    splits: int = 1
    batch: int = 0
    register: bool = False
    ask: bool = False
    late: bool = False


LIBRARY = None
"""In a table: leave the product to the vendor's library."""

Choice = Tile | None
Table = dict[tuple[str, int, int], tuple[tuple[int, Choice], ...]]

_BIG = 1 << 30

PUBLISHED: Table = {
    # temporal transformer: dim 4096, ffn 11264
    ("qkv", 12288, 4096): ((16, Tile(32, 128, 4)), (32, Tile(16, 256, 3)), (_BIG, LIBRARY)),
    ("add", 4096, 4096): (
        (16, Tile(64, 128, 4, splits=4)),
        (32, Tile(128, 128, 3, 8, splits=4)),
        (64, Tile(64, 128, 4, splits=2)),
        (_BIG, Tile(128, 64, 5, 8, splits=4, batch=128)),
    ),
    ("gate", 11264, 4096): ((16, Tile(64, 64, 4)), (32, Tile(32, 128, 4)), (_BIG, LIBRARY)),
    ("add", 4096, 11264): (
        (32, Tile(64, 128, 4, splits=4)),
        (64, Tile(128, 64, 5, 8, splits=4)),
        (_BIG, Tile(128, 64, 5, 8, splits=4, batch=128)),
    ),
    ("product", 32000, 4096): (
        (32, Tile(64, 128, 4)),
        (64, Tile(128, 64, 5, 8)),
        (_BIG, Tile(128, 64, 5, 8, batch=128)),
    ),
    # depformer: dim 1024, ffn 2816
    ("product", 8192, 4096): (
        (1, Tile(32, 256, 4)),
        (16, Tile(64, 128, 3)),
        (64, Tile(64, 128, 3, ask=True)),
        (_BIG, Tile(64, 128, 3, batch=128)),
    ),
    ("product", 3072, 1024): (
        (1, Tile(8, register=True)),
        (16, Tile(64, 128, 4, late=True)),
        (32, Tile(64, 64, 6, ask=True)),
        (64, Tile(64, 64, 6, batch=32, ask=True)),
        (_BIG, LIBRARY),
    ),
    ("add", 1024, 1024): (
        (1, Tile(64, register=True)),
        (16, Tile(64, 128, 2, splits=8, late=True)),
        (32, Tile(64, 64, 4, splits=4, ask=True)),
        (64, Tile(64, 128, 2, splits=4, batch=32, ask=True)),
        (_BIG, Tile(64, 128, 2, splits=4, batch=64, ask=True)),
    ),
    ("gate", 2816, 1024): (
        (1, Tile(8, register=True)),
        (16, Tile(64, 128, 4, late=True)),
        (32, Tile(64, 64, 4, ask=True)),
        (64, Tile(64, 64, 3, batch=32, ask=True)),
        (_BIG, LIBRARY),
    ),
    ("add", 1024, 2816): (
        (1, Tile(16, splits=11, register=True)),
        (16, Tile(64, 64, 4, splits=11, late=True)),
        (32, Tile(64, 64, 5, splits=4, ask=True)),
        (64, Tile(64, 128, 2, splits=11, ask=True)),
        (_BIG, Tile(64, 128, 2, splits=11, batch=64, ask=True)),
    ),
    ("product", 2048, 1024): (
        (1, Tile(16, register=True)),
        (16, Tile(16, 256, 4, late=True)),
        (32, Tile(32, 128, 4, ask=True)),
        (64, Tile(16, 128, 4, ask=True)),
        (_BIG, Tile(32, 128, 4, batch=64, ask=True)),
    ),
}


def choose_tile(use: str, outputs: int, inner: int, count: int) -> Choice:
    """The tile for a product of `count` rows, or None for the library."""
    for most, tile in PUBLISHED.get((use, outputs, inner), ()):
        if count <= most:
            return tile
    rows = next((size for size in (32, 16) if outputs % size == 0), None)
    step = next((size for size in (128, 64, 32, 16) if inner % size == 0), None)
    if rows is None or step is None:
        return LIBRARY
    return Tile(rows, step)


def batch_tile(tile: Tile, count: int) -> int:
    """Batch rows per program: the tile's own, or the power of two that holds all rows, 16 to 64."""
    if tile.register:
        return 1
    if tile.batch:
        return tile.batch
    size = 16
    while size < count and size < 64:
        size *= 2
    return size
