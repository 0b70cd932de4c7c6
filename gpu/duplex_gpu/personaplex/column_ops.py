"""Bookkeeping around a column in plain torch: which 17 tokens go in, what is kept for the next one, what is reported.

Per slot the device keeps `next_tokens` int32 [slots + 1, 9], the text and agent codes of the next column, and
`late_codes` int32 [slots + 1, 7], the user's codes 1-7 of the last frame, which belong to the next column.
"""

from __future__ import annotations

from typing import Protocol

import torch

from duplex_gpu.personaplex.config import CODES, TOKENS
from duplex_gpu.runtime.rows import Rows

Tensor = torch.Tensor


class ColumnOps(Protocol):
    """See `TorchColumnOps`."""

    def assemble(
        self, rows: Rows, codes: Tensor | None, next_tokens: Tensor, late_codes: Tensor, columns: Tensor
    ) -> None: ...

    def settle(self, rows: Rows, columns: Tensor, tokens: Tensor, next_tokens: Tensor, play: Tensor) -> None: ...

    def report(
        self,
        sound: tuple[Tensor, Tensor] | None,
        hidden: Tensor,
        columns: Tensor,
        play: Tensor,
        out: dict[str, Tensor],
    ) -> None: ...


class TorchColumnOps:
    """The plain torch versions. `rows.device["user_frame"]` [n, 8] overrides the codec's codes where it is not -1."""

    def assemble(
        self,
        rows: Rows,
        codes: Tensor | None,
        next_tokens: Tensor,
        late_codes: Tensor,
        columns: Tensor,
    ) -> None:
        """Fill `columns` [n, 17] from the slot's state and this frame's user codes; keep codes 1-7 for the next one."""
        slot = rows.device["slot"][:, 0].long()
        frame = rows.device["user_frame"]
        if codes is not None:
            frame = torch.where(frame >= 0, frame, codes)
        columns[:, :TOKENS] = next_tokens[slot]
        columns[:, TOKENS] = frame[:, 0]
        columns[:, TOKENS + 1 :] = late_codes[slot]
        late_codes[slot] = frame[:, 1:]

    def settle(self, rows: Rows, columns: Tensor, tokens: Tensor, next_tokens: Tensor, play: Tensor) -> None:
        """Keep the chosen `tokens` [n, 9] for the next column; `play` [n, 8] becomes this column's audio frame:
        code 0 of this column and the newly chosen codes 1-7, which the delay puts beside it."""
        play[:, 0] = columns[:, 1]
        play[:, 1:] = tokens[:, 2:]
        next_tokens[rows.device["slot"][:, 0].long()] = tokens

    def report(
        self,
        sound: tuple[Tensor, Tensor] | None,
        hidden: Tensor,
        columns: Tensor,
        play: Tensor,
        out: dict[str, Tensor],
    ) -> None:
        """Fill the output fields: `tokens` [n, 9] (text of this column, codes of its audio frame), `broken` [n, 1]
        (a number that is not finite in the row), `energy` [n, 1] (RMS of the frame) and `pcm` [n, 1920].

        `sound` is (the latent heard, the PCM made). The latent counts because quantizing hides what is wrong in it,
        while the encoder's state stays broken.
        """
        n = hidden.shape[0]
        out["tokens"][:n, 0] = columns[:, 0]
        out["tokens"][:n, 1 : 1 + CODES] = play
        finite = torch.isfinite(hidden).all(1)
        if sound is not None:
            latent, pcm = sound
            finite &= torch.isfinite(pcm).all(1) & torch.isfinite(latent).all(1)
            out["energy"][:n, 0] = pcm.square().mean(1).sqrt()
            out["pcm"][:n] = pcm
        out["broken"][:n, 0] = (~finite).int()
