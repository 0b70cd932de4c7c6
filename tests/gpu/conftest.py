"""Fixtures of the GPU room's tests.  The networks are loaded once for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from duplex_gpu.moonshine import MoonshineRecognizer
from duplex_gpu.piper_voice import PiperVoice
from tests.gpu.gpu_kit import TRANSCRIPTS, Loop, recording


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="session")
def recordings() -> dict[str, NDArray[np.float32]]:
    return {name: recording(name) for name in TRANSCRIPTS}


@pytest.fixture(scope="session")
def recognizer() -> MoonshineRecognizer:
    recognizer = MoonshineRecognizer()
    recognizer.warm_up()
    return recognizer


@pytest.fixture(scope="session")
def voice() -> PiperVoice:
    voice = PiperVoice.load()
    voice.warm_up()
    return voice
