"""One pinned block in, one pinned block out: all a step exchanges with the host, a row per batch row.

Every field is a whole number of 32-bit words of the row, integers and float32 alike, so that a single copy each way
moves a step's inputs and outputs whatever the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt
import torch


@attrs.frozen
class Field:
    """`words` 32-bit words per row, read as float32 when `real`, else as int32."""

    words: int = 1
    real: bool = False


class Staging:
    """A host block (pinned where the device is CUDA) and its device twin, [rows, words] int32, with views per field.

    `host[name]` is a numpy array [rows, field words], `device[name]` a tensor of the same shape; both are views.
    `words` int32 [rows, width] is the whole host block, fields in the order given.
    """

    def __init__(self, fields: Mapping[str, Field], rows: int, device: torch.device) -> None:
        width = sum(field.words for field in fields.values())
        width = -(-width // 4) * 4
        on_gpu = device.type == "cuda"
        self.rows = rows
        self.width = width
        self._host = torch.zeros(rows, width, dtype=torch.int32, pin_memory=on_gpu)
        self._device = torch.zeros(rows, width, dtype=torch.int32, device=device) if on_gpu else self._host
        self.host: dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]] = {}
        self.device: dict[str, torch.Tensor] = {}
        at = 0
        ints = self.words = self._host.numpy()
        for name, field in fields.items():
            stop = at + field.words
            self.host[name] = ints.view(np.float32)[:, at:stop] if field.real else ints[:, at:stop]
            block = self._device.view(torch.float32) if field.real else self._device
            self.device[name] = block[:, at:stop]
            at = stop

    def to_device(self, rows: int) -> None:
        """Copy the first `rows` rows to the device (asynchronous there, nothing to do on CPU)."""
        if self._device is not self._host:
            self._device[:rows].copy_(self._host[:rows], non_blocking=True)

    def to_host(self, rows: int) -> None:
        """Copy the first `rows` rows to the host (asynchronous; wait for the stream before reading)."""
        if self._device is not self._host:
            self._host[:rows].copy_(self._device[:rows], non_blocking=True)
