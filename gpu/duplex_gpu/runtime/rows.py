"""The rows of one step as every operation sees them: device views of the staged inputs, and the host's own copy."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt
import torch

from duplex_gpu.runtime.staging import Field, Staging

LM_FIELDS: dict[str, Field] = {
    "slot": Field(),
    "column": Field(),
    "seed": Field(2),
    "top_k": Field(2),
    "temperature": Field(2, real=True),
}
"""What the language-model operations read per row: slot, absolute column number (rope, ring cell and counter of the
random numbers), 64-bit seed as two words, top-k and temperature of text and of audio. `pages`
[table pages] comes on top."""


@attrs.frozen(eq=False)
class Rows:
    """`count` rows of a step. `device[name]` are tensors [count, words], `host[name]` numpy arrays of the same shape.

    Only operations of the plain torch path look at `host`; kernels take everything from the device.
    """

    count: int
    device: Mapping[str, torch.Tensor]
    host: Mapping[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]]

    def lengths(self, context: int) -> list[int]:
        """Live columns per row, the current one included."""
        return [min(int(column) + 1, context) for column in self.host["column"][:, 0]]


def rows_of(staging: Staging, count: int) -> Rows:
    """The first `count` rows of a staging block."""
    return Rows(
        count,
        {name: view[:count] for name, view in staging.device.items()},
        {name: view[:count] for name, view in staging.host.items()},
    )
