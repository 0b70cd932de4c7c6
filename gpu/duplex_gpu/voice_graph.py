"""The network of a Piper voice, cut in two so that sound comes out before all of it is made.

A VITS voice has a *front* (text encoder, durations, flow: phoneme ids to one latent vector per 256 samples)
and a *decoder* (a stack of convolutions: latent vectors to samples).  Three quarters of the time goes into
the decoder, and a sample depends on no more than ``CONTEXT_FRAMES`` vectors to each side; so the decoder can run
over a few vectors at a time and give the same samples (to float rounding) as over all of them.  The front also
tells how many vectors each phoneme id lasts: a true alignment.

The published file is one ONNX graph; it is cut in memory, by the names Piper's exporter gives its nodes.
A file with other names (or several speakers, whose decoder needs more inputs) still works, in one piece and
without alignment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import attrs
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from duplex_gpu.onnx_session import open_session

__all__ = ["SplitVoice", "VoiceGraph", "WholeVoice", "open_voice_graph"]

CONTEXT_FRAMES = 12
"""Measured on the joe voice: the error of a piece's samples falls to float rounding (2e-7) at 12 vectors."""
FIRST_DECODER_NODE = "/dec/conv_pre/Conv"
DURATIONS_NODE = "/Ceil"

Samples = NDArray[np.float32]


@attrs.frozen(eq=False)
class Latent:
    """What the front makes of some phoneme ids."""

    frames: NDArray[np.float32]
    """``float32[1, channels, n]``; for a voice in one piece ``float32[1, 1, samples]``, already sound."""
    frames_per_id: NDArray[np.int64] | None
    """``int64[ids]``: how many frames each id lasts; they add up to ``n``.  ``None`` without an alignment."""

    @property
    def count(self) -> int:
        """How many frames there are."""
        return int(self.frames.shape[2])


class VoiceGraph(Protocol):
    """A voice's network, in one piece or two."""

    @property
    def samples_per_frame(self) -> int:
        """How many samples a frame becomes."""
        ...

    def encode(self, ids: NDArray[np.int64], scales: NDArray[np.float32], speaker: int) -> Latent:
        """Phoneme ids ``int64[n]``, and noise scale, length scale, duration noise scale as ``float32[3]``."""
        ...

    def decode(self, latent: Latent, start: int, stop: int) -> Samples:
        """The samples of frames ``start`` to ``stop``, ``float32[m]`` in about [-1, 1]."""
        ...


def _feeds(
    session: onnxruntime.InferenceSession, ids: NDArray[np.int64], scales: NDArray[np.float32], speaker: int
) -> dict[str, NDArray[np.generic]]:
    feeds: dict[str, NDArray[np.generic]] = {
        "input": ids[None],
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": scales,
    }
    if any(entry.name == "sid" for entry in session.get_inputs()):
        feeds["sid"] = np.array([speaker], np.int64)
    return feeds


class WholeVoice:
    """A voice run in one piece: ``encode`` makes all the samples, ``decode`` hands them out."""

    def __init__(self, model: Path) -> None:
        self.samples_per_frame = 1
        self._session = open_session(model)
        names = {entry.name for entry in self._session.get_inputs()}
        if not {"input", "input_lengths", "scales"} <= names <= {"input", "input_lengths", "scales", "sid"}:
            raise ValueError(f"{model} has the inputs {sorted(names)}, which are not those of a Piper voice")

    def encode(self, ids: NDArray[np.int64], scales: NDArray[np.float32], speaker: int) -> Latent:
        """See :class:`VoiceGraph`."""
        [sound] = self._session.run(None, _feeds(self._session, ids, scales, speaker))
        return Latent(sound.reshape(1, 1, -1), None)

    def decode(self, latent: Latent, start: int, stop: int) -> Samples:
        """See :class:`VoiceGraph`."""
        samples: Samples = latent.frames[0, 0, start:stop]
        return samples


class SplitVoice:
    """A voice cut at the first node of its decoder."""

    def __init__(self, front: bytes, decoder: bytes, latent_name: str, channels: int) -> None:
        self._front = open_session(front)
        self._decoder = open_session(decoder)
        self._latent_name = latent_name
        self.samples_per_frame = self._run(np.zeros((1, channels, 1), np.float32)).size

    def encode(self, ids: NDArray[np.int64], scales: NDArray[np.float32], speaker: int) -> Latent:
        """See :class:`VoiceGraph`."""
        frames, durations = self._front.run(None, _feeds(self._front, ids, scales, speaker))
        return Latent(frames, durations.reshape(-1).astype(np.int64))

    def decode(self, latent: Latent, start: int, stop: int) -> Samples:
        """See :class:`VoiceGraph`."""
        first, last = max(0, start - CONTEXT_FRAMES), min(latent.count, stop + CONTEXT_FRAMES)
        sound = self._run(np.ascontiguousarray(latent.frames[:, :, first:last]))
        return sound[(start - first) * self.samples_per_frame : (stop - first) * self.samples_per_frame]

    def _run(self, frames: NDArray[np.float32]) -> Samples:
        [sound] = self._decoder.run(None, {self._latent_name: frames})
        samples: Samples = sound.reshape(-1)
        return samples


def open_voice_graph(model: Path) -> VoiceGraph:
    """Open a Piper voice, in two pieces if its graph can be cut.

    Raises ``ValueError`` for a graph with other inputs, and what onnx and onnxruntime raise for a broken file.
    """
    graph = onnx.load(str(model))
    nodes = {node.name: node for node in graph.graph.node}
    cuttable = FIRST_DECODER_NODE in nodes and DURATIONS_NODE in nodes
    if not cuttable or any(entry.name == "sid" for entry in graph.graph.input):
        return WholeVoice(model)
    weight = nodes[FIRST_DECODER_NODE].input[1]
    [channels] = [tensor.dims[1] for tensor in graph.graph.initializer if tensor.name == weight]
    latent, durations = nodes[FIRST_DECODER_NODE].input[0], nodes[DURATIONS_NODE].output[0]
    extractor = onnx.utils.Extractor(graph)
    front = extractor.extract_model(["input", "input_lengths", "scales"], [latent, durations])
    decoder = extractor.extract_model([latent], [graph.graph.output[0].name])
    return SplitVoice(front.SerializeToString(), decoder.SerializeToString(), latent, channels)
