"""The checkpoint folder as published (tiny sizes): what loads, and one clear line for everything that does not."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from duplex_gpu.personaplex.config import LMConfig, MimiConfig, ModelConfigError, read_config
from duplex_gpu.personaplex.layout import LM_FILE, MIMI_FILE, TEXT_FILE, VOICES_ARCHIVE, lm_shapes, mimi_shapes
from duplex_gpu.personaplex.loading import DeviceError, LoadOptions, load_lm, load_mimi, load_unit
from duplex_gpu.personaplex.prompts import PromptError, VoiceShelf, load_voice
from duplex_gpu.personaplex.random_checkpoint import TINY, random_voice, write_checkpoint
from duplex_gpu.personaplex.text import TextModelError
from duplex_gpu.runtime.weights import CheckpointError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, text_model=text_model())
    return folder


def text_model() -> bytes | None:
    """A little sentencepiece model trained on the spot, with the tiny vocabulary's 101 pieces."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from duplex_gpu.personaplex.random_checkpoint import tiny_text_model

    assert sentencepiece is not None
    return tiny_text_model(TINY.lm.text_vocab)


def copy_with(source: Path, target: Path, change) -> Path:
    tensors = load_file(str(source))
    change(tensors)
    save_file(tensors, str(target))
    return target


def test_published_counts():
    assert len(lm_shapes(LMConfig(), 16)) == 475
    assert len(lm_shapes(LMConfig(), 8)) == 355
    assert len(mimi_shapes(MimiConfig())) == 318
    total = sum(torch.Size(shape).numel() for shape in lm_shapes(LMConfig(), 16).values())
    assert total == 8_371_408_896


def test_a_whole_folder_loads_and_talks(checkpoint: Path):
    seen: list[tuple[str, int, int]] = []
    unit = load_unit(checkpoint, LoadOptions(max_rows=2), lambda *args: seen.append(args))
    assert {name for name, _, _ in seen} == {LM_FILE, MIMI_FILE}
    for name in (LM_FILE, MIMI_FILE):
        done = [now for file, now, _ in seen if file == name]
        assert done == sorted(done)
        assert done[-1] <= next(total for file, _, total in seen if file == name)
    unit.warm_up()
    prompt = unit.prompt("NATF0", "You are kind.")
    unit.reset(1)
    unit.begin_prompt(1, prompt)
    while not unit.feed_prompt(1):
        pass
    outputs = [unit.run([(1, None)])[0] for _ in range(4)]
    assert all(o.pcm is not None and o.failure is None for o in outputs)


def test_sixteen_and_eight_depformer_steps_give_the_same_weights(checkpoint: Path, tmp_path: Path):
    def keep_eight(tensors):
        e = TINY.lm.dep_dim
        for name in list(tensors):
            parts = name.split(".")
            if (
                (name.startswith(("depformer_in", "linears")) and int(parts[1]) > 7)
                or (name.startswith("depformer_emb") and int(parts[1]) > 6)
                or (".gating." in name and name.startswith("depformer.") and int(parts[4]) > 7)
            ):
                del tensors[name]
            elif name.startswith("depformer.") and name.endswith("in_proj_weight"):
                tensors[name] = tensors[name][: 8 * 3 * e].clone()
            elif name.startswith("depformer.") and name.endswith("out_proj.weight"):
                tensors[name] = tensors[name][: 8 * e].clone()

    small = copy_with(checkpoint / LM_FILE, tmp_path / "eight.safetensors", keep_eight)
    full = load_lm(checkpoint / LM_FILE, TINY, CPU, torch.float32)
    half = load_lm(small, TINY, CPU, torch.float32)
    assert torch.equal(full.dep.into, half.dep.into)
    for a, b in zip(full.dep.steps, half.dep.steps, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x.qkv, y.qkv)
            assert torch.equal(x.down, y.down)


def test_everything_wrong_is_in_one_report(checkpoint: Path, tmp_path: Path):
    def spoil(tensors):
        del tensors["out_norm.alpha"]
        tensors["extra.weight"] = torch.zeros(2)
        tensors["text_linear.weight"] = torch.zeros(3, 5)

    path = copy_with(checkpoint / LM_FILE, tmp_path / "bad.safetensors", spoil)
    with pytest.raises(CheckpointError) as caught:
        load_lm(path, TINY, CPU, torch.float32)
    error = caught.value
    assert error.missing == ("out_norm.alpha",)
    assert error.unexpected == ("extra.weight",)
    assert error.misshapen == (("text_linear.weight", (3, 5), (101, 64)),)
    text = str(error)
    assert "\n" not in text
    for part in ("out_norm.alpha", "extra.weight", "text_linear.weight is [3, 5], wanted [101, 64]"):
        assert part in text


@pytest.mark.parametrize("kept", [0, 4, 100, -1000])
def test_truncated_files(checkpoint: Path, tmp_path: Path, kept: int):
    whole = (checkpoint / MIMI_FILE).read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[:kept])
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        load_mimi(path, TINY, CPU, torch.float32)


def test_missing_files_and_folders(checkpoint: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="no such folder"):
        load_unit(tmp_path / "nowhere", LoadOptions())
    with pytest.raises(CheckpointError, match="no such file"):
        load_lm(tmp_path / LM_FILE, TINY, CPU, torch.float32)
    with pytest.raises(TextModelError):
        load_unit(tmp_path, LoadOptions())


@pytest.mark.parametrize("name", ["mps", "no such thing", "cuda:93"])
def test_absent_devices(checkpoint: Path, name: str):
    with pytest.raises(DeviceError):
        load_unit(checkpoint, LoadOptions(device=name))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "JSON"),
        (json.dumps({"trio_duplex_sizes": {"lm": {"width": 3}}}), "lm.width"),
        (json.dumps({"trio_duplex_sizes": {"lm": {"dim": "big"}}}), "lm.dim"),
        (json.dumps({"trio_duplex_sizes": {"lm": {"heads": 7}}}), "heads"),
        (json.dumps({"trio_duplex_sizes": {"tts": {}}}), "tts"),
        (json.dumps({"trio_duplex_sizes": {"mimi": {"bins": 5}}}), "bins"),
    ],
)
def test_bad_sizes(tmp_path: Path, content: str, word: str):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ModelConfigError, match=word):
        read_config(path)


def test_published_sizes_without_a_config(tmp_path: Path):
    config = read_config(tmp_path / "config.json")
    assert (config.lm.dim, config.lm.layers, config.mimi.dim) == (4096, 32, 512)


def test_voices_from_the_archive_and_from_a_folder(checkpoint: Path, tmp_path: Path):
    shelf = VoiceShelf(checkpoint, TINY.lm)
    assert shelf.names == ("NATF0", "VARM0")
    packed = shelf.voice("VARM0")
    with tarfile.open(checkpoint / VOICES_ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    loose = VoiceShelf(tmp_path, TINY.lm).voice("VARM0")
    assert torch.equal(packed.embeddings, loose.embeddings)
    with pytest.raises(PromptError, match="NATF0, VARM0") as caught:
        shelf.voice("../NATF0")
    assert caught.value.code == "unknown_voice"


class Evil:
    def __reduce__(self):
        return (os.system, ("touch evil_was_here",))


@pytest.mark.parametrize("case", ["code", "no tensors", "wrong width", "wrong ring", "ids", "noise", "cut"])
def test_voices_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str):
    monkeypatch.chdir(tmp_path)
    good = random_voice(TINY.lm)
    made: object = {
        "code": {"embeddings": Evil(), "cache": good["cache"]},
        "no tensors": {"embeddings": 3, "cache": good["cache"]},
        "wrong width": {**good, "embeddings": torch.zeros(4, 1, 1, 9)},
        "wrong ring": {**good, "cache": torch.zeros(1, 17, 5, dtype=torch.int64)},
        "ids": {**good, "cache": torch.full((1, 17, 4), 70_000)},
    }.get(case, good)
    data = io.BytesIO()
    torch.save(made, data)
    content = data.getvalue()
    if case == "noise":
        content = b"\x00\x01 not a tensor file" * 40
    if case == "cut":
        content = content[: len(content) // 2]
    with pytest.raises(PromptError) as caught:
        load_voice("x", io.BytesIO(content), TINY.lm)
    assert caught.value.code == "bad_voice"
    assert not (tmp_path / "evil_was_here").exists()


def test_a_persona_that_does_not_fit(checkpoint: Path):
    unit = load_unit(checkpoint, LoadOptions(max_rows=1))
    with pytest.raises(PromptError) as caught:
        unit.prompt("NATF0", "word " * 500)
    assert caught.value.code == "persona_too_long"
    assert unit.prompt(None, "  ").count == 6


def test_the_text_model_is_optional_only_for_the_maker(tmp_path: Path):
    write_checkpoint(tmp_path, voices=())
    assert not (tmp_path / TEXT_FILE).exists()


def test_a_text_model_larger_than_the_vocabulary_is_refused(checkpoint: Path, tmp_path: Path):
    from duplex_gpu.personaplex.random_checkpoint import tiny_text_model

    write_checkpoint(tmp_path, text_model=tiny_text_model(130), voices=())
    with pytest.raises(TextModelError, match="130 pieces"):
        load_unit(tmp_path, LoadOptions())
