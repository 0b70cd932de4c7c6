"""Sizes and constants of PersonaPlex-7B-v1 and its codec; the published `config.json` does not hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import attrs

SAMPLE_RATE_HZ = 24_000
FRAME_SAMPLES = 1920
FRAME_MS = 80
CODES = 8
"""Codebooks used per side: 1 semantic and 7 acoustic."""
STREAMS = 1 + 2 * CODES
"""Tokens in a column: text, agent codes 0-7, user codes 0-7."""
TOKENS = 1 + CODES
"""Tokens the model chooses per column: text and the agent codes."""

PAD_TEXT = 3
SILENCE_CODES = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
SINE_CODES = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
SPACER_FRAMES = 6
"""Half a second of silence (rounded down to frames) after the voice and after the persona."""


class ModelConfigError(ValueError):
    """A size in `config.json` is unknown, of a wrong type, or does not fit the others."""


@attrs.frozen
class LMConfig:
    """Sizes of the temporal transformer and the depformer; the defaults are the published model's."""

    dim: int = 4096
    layers: int = 32
    heads: int = 32
    ffn: int = 11264
    text_vocab: int = 32000
    audio_vocab: int = 2048
    context: int = 3000
    """Columns attention sees, the current one included (2999 reproduces the vendor's fork)."""
    rope_base: float = 10000.0
    norm_eps: float = 1e-8
    dep_dim: int = 1024
    dep_layers: int = 6
    dep_heads: int = 16
    dep_ffn: int = 2816

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def dep_head_dim(self) -> int:
        return self.dep_dim // self.dep_heads

    @property
    def text_start(self) -> int:
        return self.text_vocab

    @property
    def audio_start(self) -> int:
        return self.audio_vocab

    def weight_bytes(self, element_bytes: int = 2) -> int:
        """Bytes of the weights that one step reads in full (tables excluded: a step reads single rows of them)."""
        temporal = self.layers * (4 * self.dim * self.dim + 3 * self.ffn * self.dim) + self.text_vocab * self.dim
        layer = 4 * self.dep_dim * self.dep_dim + 3 * self.dep_ffn * self.dep_dim
        depth = CODES * (self.dep_layers * layer + self.audio_vocab * self.dep_dim + self.dep_dim * self.dim)
        return element_bytes * (temporal + depth)

    def kv_bytes(self, columns: int, element_bytes: int = 2) -> int:
        """Bytes of keys and values of `columns` columns."""
        return 2 * self.layers * self.dim * columns * element_bytes


@attrs.frozen
class MimiConfig:
    """Sizes of the Mimi codec; the defaults are the published one's. Strides are fixed by the frame of 1920 samples."""

    filters: int = 64
    dim: int = 512
    layers: int = 8
    heads: int = 8
    ffn: int = 2048
    context: int = 250
    """Positions (25 Hz) the codec's transformers see."""
    bins: int = 2048
    code_dim: int = 256
    stored_codes: int = 32
    """Codebooks in the file (the first 8 are used)."""
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


ENCODER_STRIDES = (4, 5, 6, 8)
DECODER_STRIDES = (8, 6, 5, 4)


@attrs.frozen
class SamplingConfig:
    """How tokens are drawn: temperature 0 means greedy; `text_top_k` at most 64, `audio_top_k` up to the vocabulary."""

    text_temperature: float = 0.7
    text_top_k: int = 25
    audio_temperature: float = 0.8
    audio_top_k: int = 250

    def __attrs_post_init__(self) -> None:
        if not (0.0 <= self.text_temperature <= 10.0 and 0.0 <= self.audio_temperature <= 10.0):
            raise ModelConfigError("sampling temperatures must lie in 0 to 10")
        if not 1 <= self.text_top_k <= 64:
            raise ModelConfigError("text_top_k must lie in 1 to 64")
        if self.audio_top_k < 1:
            raise ModelConfigError("audio_top_k must be at least 1")


GREEDY = SamplingConfig(text_temperature=0.0, audio_temperature=0.0)


@attrs.frozen
class PersonaPlexConfig:
    """Both networks' sizes."""

    lm: LMConfig = attrs.field(factory=LMConfig)
    mimi: MimiConfig = attrs.field(factory=MimiConfig)

    def __attrs_post_init__(self) -> None:
        lm, mimi = self.lm, self.mimi
        for whole, part, what in (
            (lm.dim, lm.heads, "lm.dim / lm.heads"),
            (lm.dep_dim, lm.dep_heads, "lm.dep_dim / lm.dep_heads"),
            (mimi.dim, mimi.heads, "mimi.dim / mimi.heads"),
        ):
            if part <= 0 or whole % part or (whole // part) % 2:
                raise ModelConfigError(f"{what} must be an even whole number, got {whole} / {part}")
        if mimi.bins != lm.audio_vocab:
            raise ModelConfigError(f"mimi.bins ({mimi.bins}) and lm.audio_vocab ({lm.audio_vocab}) must be equal")
        if mimi.stored_codes < CODES:
            raise ModelConfigError(f"mimi.stored_codes must be at least {CODES}, got {mimi.stored_codes}")
        if lm.context < 2 or mimi.context < 4:
            raise ModelConfigError("contexts must hold at least two frames")


SIZES_KEY = "trio_duplex_sizes"
"""Key under which a checkpoint of other than the published sizes states them in `config.json`."""


def read_config(path: Path) -> PersonaPlexConfig:
    """Sizes for the checkpoint folder's `config.json`: the published ones unless `SIZES_KEY` overrides some.

    Raises `ModelConfigError` for unreadable JSON, unknown names and sizes that do not fit each other. A missing file
    means the published sizes.
    """
    if not path.exists():
        return PersonaPlexConfig()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelConfigError(f"{path.name} is not readable JSON: {error}") from error
    sizes = raw.get(SIZES_KEY, {}) if isinstance(raw, dict) else {}
    if not isinstance(sizes, dict):
        raise ModelConfigError(f"{path.name}: {SIZES_KEY} must be an object")
    unknown = sorted(set(sizes) - {"lm", "mimi"})
    if unknown:
        raise ModelConfigError(f"{path.name}: unknown part {unknown[0]!r} in {SIZES_KEY}")
    return PersonaPlexConfig(
        lm=_override(LMConfig(), sizes.get("lm", {}), "lm"),
        mimi=_override(MimiConfig(), sizes.get("mimi", {}), "mimi"),
    )


_Sizes = TypeVar("_Sizes", LMConfig, MimiConfig)


def _override(base: _Sizes, values: object, part: str) -> _Sizes:
    if not isinstance(values, dict):
        raise ModelConfigError(f"{SIZES_KEY}.{part} must be an object")
    known = {field.name: type(getattr(base, field.name)) for field in attrs.fields(type(base))}
    for name, value in values.items():
        kind = known.get(name)
        if kind is None:
            raise ModelConfigError(f"unknown size {part}.{name}")
        if isinstance(value, bool) or not isinstance(value, (int, kind)) or value <= 0:
            raise ModelConfigError(f"{part}.{name} must be a positive {kind.__name__}, got {value!r}")
    return attrs.evolve(base, **values)
