"""Random weights in the published layout: for tests, benchmarks and a tiny checkpoint that the real loader reads."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import attrs
import torch
from safetensors.torch import save_file

from duplex_gpu.personaplex.config import (
    CODES,
    SIZES_KEY,
    STREAMS,
    LMConfig,
    MimiConfig,
    PersonaPlexConfig,
)
from duplex_gpu.personaplex.layout import (
    LM_FILE,
    MIMI_FILE,
    PUBLISHED_DEP_STEPS,
    TEXT_FILE,
    VOICES_ARCHIVE,
    VOICES_FOLDER,
    lm_shapes,
    mimi_shapes,
)

TINY = PersonaPlexConfig(
    lm=LMConfig(
        dim=64,
        layers=2,
        heads=4,
        ffn=176,
        text_vocab=101,
        audio_vocab=2048,
        context=96,
        dep_dim=32,
        dep_layers=2,
        dep_heads=2,
        dep_ffn=88,
    ),
    mimi=MimiConfig(filters=4, dim=64, layers=2, heads=2, ffn=128, context=10, bins=2048, code_dim=16, stored_codes=10),
)
"""Small enough for a CPU, with the published vocabulary of codes so that the published prompt codes are valid."""


def random_tensor(
    name: str, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A tensor whose scale keeps activations of order one, on the generator's device."""
    device = generator.device
    if name.endswith("_initialized"):
        return torch.ones(shape, device=device)
    if name.endswith("cluster_usage"):
        return 0.5 + torch.rand(shape, generator=generator, device=device)
    noise = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    if name.endswith((".alpha", "norm1.weight", "norm2.weight")):
        return noise.mul_(0.1).add_(1.0)
    if name.endswith(".scale"):
        return noise.mul_(0.05).add_(0.3)
    if name.endswith("embedding_sum"):
        return noise.mul_(0.7 if "rvq_rest" in name else 1.0)
    if name.endswith(".bias"):
        return noise.mul_(0.1)
    if "emb" in name.split(".")[0]:
        return noise.mul_(1.0 if name.startswith("depformer") else 0.25)
    fan_in = math.prod(shape[1:])
    gain = 2.5 if name.startswith(("linears", "text_linear")) else 1.0
    if "convtr" in name:
        fan_in = 2 * shape[0] if "upsample" not in name else 2
    if name == "encoder.model.0.conv.conv.weight":
        gain = 3.0
    if name == "decoder.model.14.conv.conv.weight":
        gain = 0.3
    return noise.mul_(gain * fan_in**-0.5)


def random_state(
    shapes: dict[str, tuple[int, ...]], seed: int, device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """One random tensor for every entry of a layout (`lm_shapes`, `mimi_shapes`), float32."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return {name: random_tensor(name, shape, generator) for name, shape in shapes.items()}


def random_take(
    shapes: dict[str, tuple[int, ...]], seed: int, device: torch.device, dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    """Tensors made when asked for, straight on the device: full-size weights without holding them twice."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def take(name: str, want: torch.dtype | None = None, rows: int | None = None) -> torch.Tensor:
        shape = shapes[name]
        if rows is not None:
            shape = (min(rows, shape[0]), *shape[1:])
        tensor = random_tensor(name, shape, generator, dtype)
        return tensor if want is None else tensor.to(want)

    return take


def write_checkpoint(
    folder: Path,
    config: PersonaPlexConfig = TINY,
    *,
    dep_steps: int = PUBLISHED_DEP_STEPS,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    text_model: bytes | None = None,
    voices: tuple[str, ...] = ("NATF0", "VARM0"),
) -> None:
    """Write a checkpoint folder as published: language model, codec, voices archive, config, text model if given."""
    folder.mkdir(parents=True, exist_ok=True)
    lm = random_state(lm_shapes(config.lm, dep_steps), seed)
    save_file({name: tensor.to(dtype) for name, tensor in lm.items()}, str(folder / LM_FILE))
    save_file(random_state(mimi_shapes(config.mimi), seed + 1), str(folder / MIMI_FILE))
    sizes = {"lm": attrs.asdict(config.lm), "mimi": attrs.asdict(config.mimi)}
    (folder / "config.json").write_text(json.dumps({"model_type": "personaplex", SIZES_KEY: sizes}, indent=1))
    if text_model is not None:
        (folder / TEXT_FILE).write_bytes(text_model)
    with tarfile.open(folder / VOICES_ARCHIVE, "w:gz") as archive:
        for number, voice in enumerate(voices):
            data = io.BytesIO()
            torch.save(random_voice(config.lm, seed=seed + 2 + number), data)
            member = tarfile.TarInfo(f"{VOICES_FOLDER}/{voice}.pt")
            member.size = data.tell()
            data.seek(0)
            archive.addfile(member, data)


def random_voice(config: LMConfig, columns: int = 5, seed: int = 0) -> dict[str, torch.Tensor]:
    """A voice prompt of the published form: `embeddings` [columns, 1, 1, dim] and the token ring `cache` [1, 17, 4]."""
    generator = torch.Generator().manual_seed(seed)
    cache = torch.randint(0, config.audio_vocab, (1, STREAMS, 4), generator=generator)
    cache[:, 0] = 3
    late = (columns + 1) % 4  # in the newest column only the delayed codes of the last frame are known
    cache[:, [0, 1, 1 + CODES], late] = -2
    embeddings = torch.randn(columns, 1, 1, config.dim, generator=generator)
    return {"embeddings": embeddings, "cache": cache}


def tiny_text_model(pieces: int) -> bytes:
    """A sentencepiece model of `pieces` pieces trained on a few sentences, with the published special ids (0-3).

    Raises `ImportError` where sentencepiece is not installed.
    """
    import sentencepiece

    sentences = [
        "You are a kind and patient friend who listens well and answers in short sentences.",
        "You enjoy having a good conversation. You work for a bakery and take orders for bread and cake.",
        "Hello there, how are you today? I am fine, thank you very much. What can I do for you?",
        "The quick brown fox jumps over the lazy dog, and nobody knows why.",
    ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=pieces,
        model_type="bpe",
        character_coverage=1.0,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()
