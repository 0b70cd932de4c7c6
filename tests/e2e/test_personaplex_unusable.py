"""What makes PersonaPlex unusable at start is one clear line and a non-zero exit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch
import trio
import yaml
from safetensors.torch import load_file, save_file

from duplex_gpu.personaplex.layout import LM_FILE, MIMI_FILE, TEXT_FILE, VOICES_ARCHIVE
from duplex_gpu.personaplex.random_checkpoint import TINY, tiny_text_model, write_checkpoint
from tests.cli.command import error_line, run
from trio_duplex.config import DeployError, Deployment, load_deployment
from trio_duplex.models.personaplex import PersonaPlexOptions, PersonaPlexPlugin
from trio_duplex.models.registry import build_plugin

DEPLOY = Path(__file__).parents[2] / "deploy" / "personaplex.yaml"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    write_checkpoint(folder, text_model=tiny_text_model(TINY.lm.text_vocab), voices=("NATF2",))
    return folder


def _change(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file(tensors, folder / name)

    return apply


def _truncate(folder: Path) -> None:
    path = folder / LM_FILE
    path.write_bytes(path.read_bytes()[:-1000])


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_change(LM_FILE, lambda t: t.pop("out_norm.alpha")), "1 missing (out_norm.alpha)"),
    "unexpected": (_change(MIMI_FILE, lambda t: t.update(extra=torch.zeros(1))), "1 unexpected (extra)"),
    "misshapen": (
        _change(LM_FILE, lambda t: t.update({"text_linear.weight": torch.zeros(3, 3)})),
        "text_linear.weight is [3, 3]",
    ),
    "truncated": (_truncate, "truncated"),
    "no codec": (lambda folder: (folder / MIMI_FILE).unlink(), "no such file"),
    "no text model": (lambda folder: (folder / TEXT_FILE).unlink(), TEXT_FILE),
    "no voices": (lambda folder: (folder / VOICES_ARCHIVE).unlink(), "NATF2"),
    "broken voices": (lambda folder: (folder / VOICES_ARCHIVE).write_bytes(b"nothing"), "not a readable archive"),
}


@pytest.mark.parametrize("case", CASES)
async def test_files_that_cannot_be_used(checkpoint: Path, case: str) -> None:
    spoil, says = CASES[case]
    spoil(checkpoint)
    plugin = PersonaPlexPlugin(PersonaPlexOptions(checkpoint=checkpoint, devices=("cpu",)))
    assert says in await one_line(plugin)


@pytest.mark.parametrize(
    ("device", "says"), [("cuda:7", "cuda:7"), ("mps", "not supported"), ("gpu", "unknown device")]
)
async def test_a_device_that_is_not_there(checkpoint: Path, device: str, says: str) -> None:
    plugin = PersonaPlexPlugin(PersonaPlexOptions(checkpoint=checkpoint, devices=(device,)))
    assert says in await one_line(plugin)


async def one_line(plugin: PersonaPlexPlugin) -> str:
    with trio.fail_after(60), pytest.raises(BaseExceptionGroup) as raised:
        await plugin.run()
    errors: BaseException = raised.value
    while isinstance(errors, BaseExceptionGroup):
        (errors,) = errors.exceptions
    assert isinstance(errors, DeployError)
    assert "\n" not in str(errors)
    assert not plugin.health().ready
    return str(errors)


def test_no_folder_by_the_command(tmp_path: Path) -> None:
    raw = yaml.safe_load(DEPLOY.read_text(encoding="utf-8"))
    raw["options"]["checkpoint"] = str(tmp_path / "nowhere")
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(yaml.safe_dump(raw), encoding="utf-8")
    finished = run("serve", "--deploy", deploy, "--port", "0", "--log-level", "error")
    line = error_line(finished)
    assert "nowhere" in line
    assert "no such folder" in line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoints": "x"}, "unknown key 'checkpoints'"),
        ({"kv": "int3"}, "kv"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"devices": []}, "devices"),
        ({"quiet_energy": 0.5}, "quiet_energy"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], says: str) -> None:
    with pytest.raises(DeployError, match=says):
        build_plugin(Deployment(model="personaplex", options=options))


def test_the_number_of_sessions_is_left_to_models_that_measure_themselves() -> None:
    assert load_deployment(DEPLOY).duplex_session.session_limit > 100
    deployment = Deployment(model="demo")
    auto = attrs.evolve(deployment.duplex_session, max_sessions="auto")
    with pytest.raises(DeployError, match="give a number"):
        build_plugin(attrs.evolve(deployment, duplex_session=auto))
