"""examples/barge_in_client.py against a loopback server with scripted stand-ins of the known models."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import trio

import trio_duplex
from duplex_protocol.profiles import ProfileName
from trio_duplex.client import read_pcm16_wav, write_pcm16_wav
from trio_duplex.testing import Piece, silence, speech
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.scripted_model import decode_pieces

EXAMPLE = Path(__file__).parents[2] / "examples" / "barge_in_client.py"
WORDS = [Piece(f"word{k} ", 200) for k in range(20)]

MODELS: dict[str, tuple[ProfileName, int]] = {
    "minicpmo_4_5": ("minicpmo_4_5", 24_000),
    "personaplex": ("personaplex", 24_000),
    "nemotron_voicechat": ("nemotron_voicechat", 22_050),
    "neutral": ("chat_fallback", 24_000),
}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("barge_in_client", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("preset", MODELS)
async def test_question_interruption_answer(
    preset: str, example: ModuleType, tmp_path: Path, nursery: trio.Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    name, rate_hz = MODELS[preset]
    pieces = WORDS[:4] if name == "minicpmo_4_5" else WORDS
    plugin = ProfilePlugin(name, pieces)
    bound = await nursery.start(partial(trio_duplex.serve, trio_duplex.Deployment(model="scripted"), plugin=plugin))
    for wav in ("question.wav", "follow_up.wav", "voice.wav"):
        write_pcm16_wav(tmp_path / wav, speech(400) + silence(80), sample_rate_hz=16_000)
    command = ["--url", f"{bound.ws_url}/v1/realtime", "--model", plugin.name, "--preset", preset]
    command += ["--question-wav", str(tmp_path / "question.wav"), "--interrupt-wav", str(tmp_path / "follow_up.wav")]
    command += ["--output-dir", str(tmp_path / "out")]
    if preset == "minicpmo_4_5":
        command += ["--ref-audio", str(tmp_path / "voice.wav")]
    with trio.fail_after(60):
        first, second = await example.barge_in(example.parse(command))
    lines = [line for line in capsys.readouterr().out.splitlines() if "response_" in line and ".wav:" in line]
    assert "cancelled" in lines[0]
    assert "completed" in lines[1]
    assert lines[1].endswith("".join(piece.text for piece in pieces).strip() + " ")
    heard = [
        [piece for piece, _ in decode_pieces(read_pcm16_wav(path, sample_rate_hz=rate_hz))] for path in (first, second)
    ]
    assert heard[0] == list(range(len(heard[0])))  # a beginning of the answer, whole and in order
    assert 0 < len(heard[0]) < len(pieces)
    assert heard[1] == list(range(len(pieces)))
    # Closed, not abandoned: the slot is free at once.
    assert plugin.open_slots == plugin.options.slots


def test_its_help_and_its_refusals() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, check=False)

    shown = run("--help").stdout
    for flag in ("--url", "--model", "--ref-audio", "--question-wav", "--interrupt-wav", "--output-dir", "--preset"):
        assert flag in shown
    assert run("--model", "m").returncode == 2


def test_the_flow_page_names_what_the_example_does() -> None:
    page = EXAMPLE.with_name("barge_in_client_flow.md").read_text(encoding="utf-8")
    assert "```mermaid\nsequenceDiagram" in page
    for event in ("session.update", "input_audio_buffer.commit", "response.cancel", "playback.ack", "session.closed"):
        assert event in page
