"""From a checkpoint folder as published to a ready unit: check everything first, then load straight to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import torch

from duplex_gpu.personaplex.config import CODES, PersonaPlexConfig, SamplingConfig, read_config
from duplex_gpu.personaplex.engine import Engine, EngineOptions
from duplex_gpu.personaplex.layout import (
    LM_FILE,
    MIMI_FILE,
    PUBLISHED_DEP_STEPS,
    TEXT_FILE,
    lm_shapes,
    mimi_shapes,
)
from duplex_gpu.personaplex.lm_weights import LMWeights, build_lm_weights
from duplex_gpu.personaplex.mimi_weights import MimiWeights, build_mimi_weights
from duplex_gpu.personaplex.prompts import VoiceShelf
from duplex_gpu.personaplex.text import TextModelError, TextPieces
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.runtime.weights import CheckpointError, Progress, TensorFile

Report = Callable[[str, int, int], None]
"""Called with (file name, bytes read, bytes in all) while loading."""


class DeviceError(RuntimeError):
    """The device named does not exist, or has too little free memory for what was asked."""


@attrs.frozen
class LoadOptions:
    """What to load where.

    `device` as torch names it; `max_rows` sessions at once; `kv_columns` columns of context for all of them together
    (None: what the device's free memory allows, or `max_rows` full windows on CPU); `fp8_kv` stores keys and values in
    8 bits; `kernels` False falls back to plain torch operations on CUDA.
    """

    device: str = "cpu"
    max_rows: int = 4
    kv_columns: int | None = None
    page_columns: int = 64
    fp8_kv: bool = False
    kernels: bool = True
    sampling: SamplingConfig = attrs.field(factory=SamplingConfig)
    prefill_columns: int = 64
    spare_bytes: int = 4 << 30
    """Device memory left free for graphs, libraries and prefill when `kv_columns` is None."""


def load_unit(folder: Path, options: LoadOptions, report: Report | None = None) -> PersonaPlexUnit:
    """Load a checkpoint folder and build the unit (not yet warmed up).

    Raises `CheckpointError` (missing, truncated, foreign or misshapen files: everything found is in one message),
    `ModelConfigError`, `PromptError` (an unreadable voices archive), `TextModelError`, `DeviceError`.
    """
    device = find_device(options.device)
    if not folder.is_dir():
        raise CheckpointError(folder, "no such folder")
    config = read_config(folder / "config.json")
    pieces = TextPieces.load(folder / TEXT_FILE)
    if len(pieces) > config.lm.text_vocab:
        raise TextModelError(f"{folder / TEXT_FILE}: {len(pieces)} pieces, the model knows {config.lm.text_vocab}")
    voices = VoiceShelf(folder, config.lm)
    on_gpu = device.type == "cuda"
    lm = load_lm(folder / LM_FILE, config, device, torch.bfloat16 if on_gpu else torch.float32, report)
    mimi = load_mimi(folder / MIMI_FILE, config, device, torch.float16 if on_gpu else torch.float32, report)
    return PersonaPlexUnit(
        build_engine(config, lm, mimi, options),
        pieces,
        voices,
        sampling=options.sampling,
    )


def find_device(name: str) -> torch.device:
    """The torch device of that name. Raises `DeviceError` when it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"unknown device {name!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            raise DeviceError(f"device {name} is not there: this machine has {count} CUDA devices")
        return torch.device("cuda", index)
    if device.type != "cpu":
        raise DeviceError(f"device {name!r} is not supported: use cpu or cuda:N")
    return device


def load_lm(
    path: Path, config: PersonaPlexConfig, device: torch.device, dtype: torch.dtype, report: Report | None = None
) -> LMWeights:
    """Read the language model: files with 16 depformer weight sets (as published) and with 8 are both accepted."""
    with TensorFile(path, device, _progress(path, report)) as file:
        steps = PUBLISHED_DEP_STEPS if f"linears.{CODES}.weight" in file.infos else CODES
        file.check(lm_shapes(config.lm, steps))
        return build_lm_weights(config.lm, file.take, dtype)


def load_mimi(
    path: Path, config: PersonaPlexConfig, device: torch.device, dtype: torch.dtype, report: Report | None = None
) -> MimiWeights:
    """Read the codec (all its codebooks must be there, 8 are kept)."""
    with TensorFile(path, device, _progress(path, report)) as file:
        file.check(mimi_shapes(config.mimi))
        return build_mimi_weights(config.mimi, file.take, dtype)


def build_engine(config: PersonaPlexConfig, lm: LMWeights, mimi: MimiWeights, options: LoadOptions) -> Engine:
    """The engine with as much KV memory as asked for or as fits. Raises `DeviceError` when not one session fits."""
    device = lm.text_head.device
    on_gpu = device.type == "cuda"
    kv_dtype = torch.float8_e4m3fn if options.fp8_kv else lm.text_head.dtype
    element = torch.empty(0, dtype=kv_dtype).element_size()
    page_bytes = config.lm.kv_bytes(options.page_columns, element)
    full = -(-config.lm.context // options.page_columns)
    pages = full * options.max_rows
    if options.kv_columns is not None:
        pages = -(-options.kv_columns // options.page_columns)
    if on_gpu:
        free, _ = torch.cuda.mem_get_info(device)
        room = (free - options.spare_bytes) // page_bytes
        if options.kv_columns is None:
            pages = min(pages, room)
        if room < min(full, 4) or pages > room:
            raise DeviceError(
                f"{device} has {free / 2**30:.1f} GiB free after the weights: room for {max(room, 0)} KV pages of "
                f"{options.page_columns} columns, {max(pages, 4)} are wanted"
            )
    return Engine(
        config,
        lm,
        mimi,
        EngineOptions(
            max_rows=options.max_rows,
            kv_pages=pages,
            page_columns=options.page_columns,
            kv_dtype=kv_dtype,
            prefill_columns=options.prefill_columns,
            kernels=on_gpu and options.kernels,
        ),
    )


def _progress(path: Path, report: Report | None) -> Progress | None:
    if report is None:
        return None
    return lambda done, total: report(path.name, done, total)
