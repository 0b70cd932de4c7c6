"""Names and shapes of the published checkpoint files, as functions of the sizes."""

from __future__ import annotations

from duplex_gpu.personaplex.config import CODES, DECODER_STRIDES, ENCODER_STRIDES, LMConfig, MimiConfig

Shapes = dict[str, tuple[int, ...]]

LM_FILE = "model.safetensors"
MIMI_FILE = "tokenizer-e351c8d8-checkpoint125.safetensors"
TEXT_FILE = "tokenizer_spm_32k_3.model"
VOICES_ARCHIVE = "voices.tgz"
VOICES_FOLDER = "voices"

PUBLISHED_DEP_STEPS = 16


def lm_shapes(config: LMConfig, dep_steps: int = CODES) -> Shapes:
    """Every tensor of `model.safetensors` with `dep_steps` depformer weight sets (16 published, 8 accepted)."""
    d, e = config.dim, config.dep_dim
    shapes: Shapes = {
        "text_emb.weight": (config.text_vocab + 1, d),
        "text_linear.weight": (config.text_vocab, d),
        "out_norm.alpha": (1, 1, d),
        "depformer_text_emb.weight": (config.text_vocab + 1, e),
    }
    for k in range(2 * CODES):
        shapes[f"emb.{k}.weight"] = (config.audio_vocab + 1, d)
    for i in range(config.layers):
        at = f"transformer.layers.{i}."
        shapes[at + "self_attn.in_proj_weight"] = (3 * d, d)
        shapes[at + "self_attn.out_proj.weight"] = (d, d)
        shapes[at + "gating.linear_in.weight"] = (2 * config.ffn, d)
        shapes[at + "gating.linear_out.weight"] = (d, config.ffn)
        shapes[at + "norm1.alpha"] = shapes[at + "norm2.alpha"] = (1, 1, d)
    for k in range(dep_steps):
        shapes[f"depformer_in.{k}.weight"] = (e, d)
        shapes[f"linears.{k}.weight"] = (config.audio_vocab, e)
    for k in range(dep_steps - 1):
        shapes[f"depformer_emb.{k}.weight"] = (config.audio_vocab + 1, e)
    for i in range(config.dep_layers):
        at = f"depformer.layers.{i}."
        shapes[at + "self_attn.in_proj_weight"] = (dep_steps * 3 * e, e)
        shapes[at + "self_attn.out_proj.weight"] = (dep_steps * e, e)
        shapes[at + "norm1.alpha"] = shapes[at + "norm2.alpha"] = (1, 1, e)
        for k in range(dep_steps):
            shapes[at + f"gating.{k}.linear_in.weight"] = (2 * config.dep_ffn, e)
            shapes[at + f"gating.{k}.linear_out.weight"] = (e, config.dep_ffn)
    return shapes


def mimi_shapes(config: MimiConfig, codes: int | None = None) -> Shapes:
    """Every tensor of the codec's file; with `codes` only that many codebooks (the first one is semantic)."""
    shapes: Shapes = {}

    def conv(name: str, out: int, into: int, kernel: int) -> None:
        shapes[name + ".weight"], shapes[name + ".bias"] = (out, into, kernel), (out,)

    def residual(name: str, channels: int) -> None:
        conv(f"{name}.block.1.conv.conv", channels // 2, channels, 3)
        conv(f"{name}.block.3.conv.conv", channels, channels // 2, 1)

    channels = config.filters
    conv("encoder.model.0.conv.conv", channels, 1, 7)
    for j, stride in enumerate(ENCODER_STRIDES):
        residual(f"encoder.model.{3 * j + 1}", channels)
        conv(f"encoder.model.{3 * j + 3}.conv.conv", 2 * channels, channels, 2 * stride)
        channels *= 2
    conv("encoder.model.14.conv.conv", config.dim, channels, 3)
    conv("decoder.model.0.conv.conv", channels, config.dim, 7)
    for j, stride in enumerate(DECODER_STRIDES):
        name = f"decoder.model.{3 * j + 2}.convtr.convtr"
        shapes[name + ".weight"], shapes[name + ".bias"] = (channels, channels // 2, 2 * stride), (channels // 2,)
        channels //= 2
        residual(f"decoder.model.{3 * j + 3}", channels)
    conv("decoder.model.14.conv.conv", 1, channels, 3)

    d = config.dim
    shapes["downsample.conv.conv.conv.weight"] = (d, d, 4)
    shapes["upsample.convtr.convtr.convtr.weight"] = (d, 1, 4)
    for side in ("encoder", "decoder"):
        for i in range(config.layers):
            at = f"{side}_transformer.transformer.layers.{i}."
            shapes[at + "self_attn.in_proj_weight"] = (3 * d, d)
            shapes[at + "self_attn.out_proj.weight"] = (d, d)
            shapes[at + "linear1.weight"] = (config.ffn, d)
            shapes[at + "linear2.weight"] = (d, config.ffn)
            for k in (1, 2):
                shapes[at + f"norm{k}.weight"] = shapes[at + f"norm{k}.bias"] = (d,)
                shapes[at + f"layer_scale_{k}.scale"] = (d,)
    total = config.stored_codes if codes is None else codes
    for group, count in (("first", 1), ("rest", total - 1)):
        at = f"quantizer.rvq_{group}."
        shapes[at + "input_proj.weight"] = (config.code_dim, d, 1)
        shapes[at + "output_proj.weight"] = (d, config.code_dim, 1)
        for i in range(count):
            book = at + f"vq.layers.{i}._codebook."
            shapes[book + "embedding_sum"] = (config.bins, config.code_dim)
            shapes[book + "cluster_usage"] = (config.bins,)
            shapes[book + "_initialized"] = (1,)
    return shapes
