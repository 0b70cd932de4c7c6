"""The reference package (moshi 0.2.13) with the same tiny random weights. Import only after `pytest.importorskip`."""

from __future__ import annotations

import copy
import os

os.environ["NO_TORCH_COMPILE"] = "1"

import torch
from moshi.models import LMGen, loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel

from tests.gpu.personaplex.support import CONFIG, State


def oracle_lm(state: State) -> LMModel:
    lm = CONFIG.lm
    sizes = dict(
        loaders._lm_kwargs,
        dim=lm.dim,
        num_layers=lm.layers,
        num_heads=lm.heads,
        text_card=lm.text_vocab,
        card=lm.audio_vocab,
        context=lm.context,
        depformer_dim=lm.dep_dim,
        depformer_dim_feedforward=int(4.125 * lm.dep_dim),
        depformer_num_heads=lm.dep_heads,
        depformer_num_layers=lm.dep_layers,
    )
    model = loaders.get_moshi_lm(None, lm_kwargs=sizes, device="cpu", dtype=torch.float32)
    model.load_state_dict(state, strict=True)
    return model


def oracle_mimi(state: State) -> MimiModel:
    mimi = CONFIG.mimi
    sizes = copy.deepcopy(loaders._mimi_config)
    sizes["seanet"].update(dimension=mimi.dim, n_filters=mimi.filters)
    sizes["transformer"].update(
        d_model=mimi.dim,
        num_heads=mimi.heads,
        num_layers=mimi.layers,
        dim_feedforward=mimi.ffn,
        input_dimension=mimi.dim,
        output_dimensions=[mimi.dim],
        context=mimi.context,
    )
    sizes["quantizer"].update(
        dimension=mimi.code_dim,
        n_q=mimi.stored_codes,
        bins=mimi.bins,
        input_dimension=mimi.dim,
        output_dimension=mimi.dim,
    )
    model = loaders.get_mimi(None, sizes, device="cpu", num_codebooks=8)
    model.load_state_dict(state, strict=True)
    return model


def oracle_generator(model: LMModel, out_of_sync: bool = False) -> LMGen:
    return LMGen(model, use_sampling=False, support_out_of_sync=out_of_sync)
