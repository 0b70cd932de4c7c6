"""Tiny networks in the published layout, shared by the tests of this folder."""

from __future__ import annotations

import attrs
import torch

from duplex_gpu.personaplex.codec import MimiCodec
from duplex_gpu.personaplex.codec_torch_ops import TorchCodecOps
from duplex_gpu.personaplex.config import GREEDY, PersonaPlexConfig, SamplingConfig
from duplex_gpu.personaplex.engine import Engine, EngineOptions
from duplex_gpu.personaplex.layout import lm_shapes, mimi_shapes
from duplex_gpu.personaplex.lm_weights import build_lm_weights
from duplex_gpu.personaplex.mimi_weights import build_mimi_weights
from duplex_gpu.personaplex.random_checkpoint import TINY, random_state
from duplex_gpu.personaplex.text import TextPieces
from duplex_gpu.personaplex.unit import PersonaPlexUnit

State = dict[str, torch.Tensor]

CONFIG: PersonaPlexConfig = attrs.evolve(
    TINY,
    lm=attrs.evolve(TINY.lm, context=40),
)
"""A window of 40 columns, so that a test walks past its end within a second of work."""


def lm_state(seed: int = 11) -> State:
    return random_state(lm_shapes(CONFIG.lm), seed)


def mimi_state(seed: int = 12) -> State:
    return random_state(mimi_shapes(CONFIG.mimi), seed)


class TakeFrom:
    """Hands out tensors of a state dict the way the checkpoint loader does."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __call__(self, name: str, dtype: torch.dtype | None = None, rows: int | None = None) -> torch.Tensor:
        tensor = self._state[name][:rows].clone()
        return tensor if dtype is None else tensor.to(dtype)


def codec(rows: int, slots: int, state: State | None = None) -> MimiCodec:
    weights = build_mimi_weights(CONFIG.mimi, TakeFrom(state or mimi_state()), torch.float32)
    return MimiCodec(CONFIG.mimi, weights, TorchCodecOps(), rows, slots)


def engine(
    rows: int, pages: int | None = None, page_columns: int = 8, prefill_columns: int = 64, seed: int = 11
) -> Engine:
    config: PersonaPlexConfig = CONFIG
    per_slot = -(-config.lm.context // page_columns)
    return Engine(
        config,
        build_lm_weights(config.lm, TakeFrom(lm_state(seed)), torch.float32),
        build_mimi_weights(config.mimi, TakeFrom(mimi_state()), torch.float32),
        EngineOptions(
            max_rows=rows,
            kv_pages=per_slot * rows if pages is None else pages,
            page_columns=page_columns,
            prefill_columns=prefill_columns,
        ),
    )


def unit(
    rows: int,
    *,
    sampling: SamplingConfig = GREEDY,
    pages: int | None = None,
    page_columns: int = 8,
    prefill_columns: int = 64,
    seed: int = 11,
) -> PersonaPlexUnit:
    pieces: list[str | bytes] = [f" w{token}" for token in range(CONFIG.lm.text_vocab)]
    made = PersonaPlexUnit(
        engine(rows, pages, page_columns, prefill_columns, seed), TextPieces(pieces), sampling=sampling
    )
    made.warm_up()
    return made


def microphone(frames: int, seed: int) -> torch.Tensor:
    """Noise as input: float32 [frames, 1920]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, 1920, generator=generator) * 0.3
