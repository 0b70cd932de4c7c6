"""Bookkeeping around a column as Triton kernels, mirrors of `TorchColumnOps`."""

from __future__ import annotations

import torch
import triton

from duplex_gpu.personaplex import column_kernels as kernels
from duplex_gpu.personaplex.config import CODES, TOKENS
from duplex_gpu.runtime.kernels import chain
from duplex_gpu.runtime.rows import Rows

Tensor = torch.Tensor


class TritonColumnOps:
    """Kernels for any number of rows (the arguments are those of the other kernel families)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._block = triton.next_power_of_2(TOKENS)

    def assemble(
        self, rows: Rows, codes: Tensor | None, next_tokens: Tensor, late_codes: Tensor, columns: Tensor
    ) -> None:
        slot, frame = rows.device["slot"], rows.device["user_frame"]
        kernels.assemble_kernel[(rows.count,)](
            slot, frame, frame if codes is None else codes, next_tokens, late_codes, columns, slot.stride(0), CODES,
            codes is not None, self._block, chain.EARLY, **chain.launch(1),
        )  # fmt: skip

    def settle(self, rows: Rows, columns: Tensor, tokens: Tensor, next_tokens: Tensor, play: Tensor) -> None:
        slot = rows.device["slot"]
        kernels.settle_kernel[(rows.count,)](
            slot, columns, tokens, next_tokens, play, slot.stride(0), CODES, self._block, chain.EARLY,
            **chain.launch(1),
        )  # fmt: skip

    def report(
        self,
        sound: tuple[Tensor, Tensor] | None,
        hidden: Tensor,
        columns: Tensor,
        play: Tensor,
        out: dict[str, Tensor],
    ) -> None:
        count, width = hidden.shape
        latent, pcm = (hidden, hidden) if sound is None else sound
        samples = out["pcm"].shape[1]
        kernels.report_kernel[(count,)](
            pcm, latent, hidden, columns, play, out["tokens"], out["broken"], out["energy"],
            out["pcm"], out["tokens"].stride(0), CODES, self._block, samples, triton.next_power_of_2(samples), width,
            triton.next_power_of_2(width), latent.shape[1], triton.next_power_of_2(latent.shape[1]), sound is not None,
            chain.EARLY, **chain.launch(4),
        )  # fmt: skip
