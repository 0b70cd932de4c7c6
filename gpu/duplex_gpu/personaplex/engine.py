"""The networks wired into one batched step over static buffers: Mimi, column, transformer, depformer, Mimi."""

from __future__ import annotations

import attrs
import torch

from duplex_gpu.personaplex.codec import CodecOps, MimiCodec
from duplex_gpu.personaplex.codec_torch_ops import TorchCodecOps
from duplex_gpu.personaplex.column_ops import ColumnOps, TorchColumnOps
from duplex_gpu.personaplex.config import CODES, FRAME_SAMPLES, TOKENS, PersonaPlexConfig
from duplex_gpu.personaplex.depformer import Depformer
from duplex_gpu.personaplex.lm_weights import LMWeights
from duplex_gpu.personaplex.mimi_weights import MimiWeights
from duplex_gpu.personaplex.temporal import Temporal
from duplex_gpu.runtime.kv_pages import PagedKV
from duplex_gpu.runtime.ops import LMOps
from duplex_gpu.runtime.rows import LM_FIELDS, rows_of
from duplex_gpu.runtime.staging import Field, Staging
from duplex_gpu.runtime.torch_ops import TorchOps


@attrs.frozen
class EngineOptions:
    """How much the engine holds and how.

    `max_rows` sessions at once, `kv_pages` pages of `page_columns` columns for all of them together; `kv_dtype` the
    type keys and values are stored in (bfloat16 by default on CUDA, float8_e4m3fn halves it); `prefill_columns` the
    most prompt columns in one pass; `kernels` picks the Triton operations (CUDA only) or plain torch.
    """

    max_rows: int
    kv_pages: int
    page_columns: int = 64
    kv_dtype: torch.dtype | None = None
    prefill_columns: int = 64
    kernels: bool = False


@attrs.frozen(eq=False)
class Operations:
    """One way to run the three families of operations."""

    lm: LMOps
    codec: CodecOps
    column: ColumnOps


def pick_operations(kernels: bool, rows: int, device: torch.device) -> Operations:
    """Triton kernels for at most `rows` rows, or plain torch. Raises `ImportError` where Triton is not installed."""
    if not kernels:
        return Operations(TorchOps(), TorchCodecOps(), TorchColumnOps())
    from duplex_gpu.personaplex.codec_triton_ops import TritonCodecOps
    from duplex_gpu.personaplex.column_triton_ops import TritonColumnOps
    from duplex_gpu.runtime.triton_ops import TritonOps

    return Operations(TritonOps(rows, device), TritonCodecOps(rows, device), TritonColumnOps(rows, device))


class Engine:
    """Device state of all slots (one more, `scratch_slot`, pads batches) and the step that advances chosen rows.

    The caller fills `inputs.host`, calls `launch(rows)` (or replays its capture), waits for the device and reads
    `outputs.host`. Rows of one step must name different slots; slots that are not named keep every bit of their state.
    """

    def __init__(self, config: PersonaPlexConfig, lm: LMWeights, mimi: MimiWeights, options: EngineOptions) -> None:
        device = lm.text_head.device
        rows = options.max_rows
        self.config, self.options, self.weights, self.device = config, options, lm, device
        self.scratch_slot = rows
        wide = max(rows, options.prefill_columns)
        ops = pick_operations(options.kernels, wide, device)
        self.kv = PagedKV(
            layers=config.lm.layers,
            heads=config.lm.heads,
            head_dim=config.lm.head_dim,
            context=config.lm.context,
            slots=rows,
            pages=options.kv_pages,
            page_columns=options.page_columns,
            dtype=options.kv_dtype or lm.text_head.dtype,
            device=device,
        )
        self.codec = MimiCodec(config.mimi, mimi, ops.codec, rows, rows)
        self.temporal = Temporal(config.lm, lm, self.kv, ops.lm, wide)
        self.depformer = Depformer(config.lm, lm, ops.lm, rows)
        self._columns = ops.column
        self._lm_ops = ops.lm
        self._prompt = torch.zeros(options.prefill_columns, config.lm.dim, device=device)
        self.state_fields: dict[str, Field] = {
            **LM_FIELDS,
            "encoder_position": Field(),
            "decoder_slot": Field(),
            "decoder_position": Field(),
            "user_frame": Field(CODES),
            "forced": Field(TOKENS),
            "pages": Field(self.kv.table_pages),
        }
        self.inputs = Staging({**self.state_fields, "pcm": Field(FRAME_SAMPLES, real=True)}, wide, device)
        self.outputs = Staging(
            {
                "tokens": Field(TOKENS),
                "broken": Field(),
                "energy": Field(real=True),
                "pcm": Field(FRAME_SAMPLES, real=True),
            },
            rows,
            device,
        )
        self._next_tokens = torch.empty(rows + 1, TOKENS, dtype=torch.int32, device=device)
        self._late_codes = torch.empty(rows + 1, CODES - 1, dtype=torch.int32, device=device)
        self._play = torch.zeros(rows, CODES, dtype=torch.int32, device=device)
        self._start_state(slice(None))

    def reset(self, slot: int) -> None:
        """Start a slot anew: start tokens next, codec forgotten, KV pages given back. Positions are the caller's."""
        self._start_state(slice(slot, slot + 1))
        self.codec.reset(slot)
        self.kv.release(slot)

    def set_next(self, slot: int, tokens: torch.Tensor, late: torch.Tensor) -> None:
        """Say what the slot's next column holds: text and agent codes int [9], delayed user codes 1-7 int [7]."""
        self._next_tokens[slot].copy_(tokens)
        self._late_codes[slot].copy_(late)

    def next_tokens(self, slot: int) -> torch.Tensor:
        """The text and agent codes chosen for the slot's next column, int32 [9] (a view)."""
        return self._next_tokens[slot]

    def launch(self, count: int) -> None:
        """The whole unit step for the first `count` rows of `inputs`: everything from copy in to copy out."""
        self.inputs.to_device(count)
        self.encode(count)
        self.language(count)
        self.decode(count)
        self._report(count, True)
        self.outputs.to_host(count)

    def launch_column(self, count: int) -> None:
        """One column without audio: the user's codes come from `user_frame`. Used to finish a prompt."""
        self.inputs.to_device(count)
        self.language(count, audio=False)
        self._report(count, False)
        self.outputs.to_host(count)

    def embed(self, columns: torch.Tensor) -> torch.Tensor:
        """Input embeddings [count, dim] float32 of token columns int32 [count, 17]."""
        out = torch.empty(columns.shape[0], self.config.lm.dim, device=self.device)
        self._lm_ops.embed_columns(columns, self.weights.text_table, self.weights.audio_table, out)
        return out

    def set_prompt(self, embedded: torch.Tensor) -> None:
        """Put the input embeddings of the next prompt columns where `launch_prefill` reads them."""
        self._prompt[: embedded.shape[0]].copy_(embedded)

    def launch_prefill(self, count: int) -> None:
        """Keys and values of known columns: each of the `count` rows is a column of a session, in order, its input from
        `set_prompt`. Chooses nothing."""
        self.inputs.to_device(count)
        self.temporal.run(rows_of(self.inputs, count), self._prompt[:count])

    def encode(self, count: int) -> None:
        """PCM of the rows to codes."""
        device = rows_of(self.inputs, count).device
        self.codec.encode(device["pcm"], device["slot"], device["encoder_position"])

    def language(self, count: int, audio: bool = True) -> None:
        """Column, transformer, depformer: from user codes to the tokens of the next column."""
        rows = rows_of(self.inputs, count)
        columns, play = self.temporal.columns[:count], self._play[:count]
        codes = self.codec.codes[:count] if audio else None
        self._columns.assemble(rows, codes, self._next_tokens, self._late_codes, columns)
        self.temporal.step(rows)
        self.depformer.frame(
            rows, self.temporal.hidden[:count], self.temporal.text_logits[:count], rows.device["forced"]
        )
        self._columns.settle(rows, columns, self.depformer.tokens[:count], self._next_tokens, play)

    def decode(self, count: int) -> None:
        """The column's audio frame to PCM."""
        device = rows_of(self.inputs, count).device
        self.codec.decode(self._play[:count], device["decoder_slot"], device["decoder_position"])

    def _report(self, count: int, audio: bool) -> None:
        self._columns.report(
            (self.codec.latent[:count], self.codec.pcm[:count]) if audio else None,
            self.temporal.hidden[:count],
            self.temporal.columns[:count],
            self._play[:count],
            self.outputs.device,
        )

    def _start_state(self, where: slice) -> None:
        self._next_tokens[where] = self.config.lm.audio_start
        self._next_tokens[where, 0] = self.config.lm.text_start
        self._late_codes[where] = self.config.lm.audio_start
