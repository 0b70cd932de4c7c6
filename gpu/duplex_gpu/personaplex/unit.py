"""The PersonaPlex unit step as a model thread drives it: slots, prompts, and one batched 80 ms step for due rows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import torch

from duplex_gpu.personaplex.config import (
    FRAME_MS,
    FRAME_SAMPLES,
    SAMPLE_RATE_HZ,
    STREAMS,
    TOKENS,
    SamplingConfig,
)
from duplex_gpu.personaplex.engine import Engine
from duplex_gpu.personaplex.prompts import Prompt, PromptError, Voice, VoiceShelf, build_prompt, wrap_persona
from duplex_gpu.personaplex.text import SILENT_IDS, TextModelError, TextPieces, Transcript
from duplex_gpu.personaplex.unit_rows import FeedPrompt, Payload, Pcm, Start, UnitOutput
from duplex_gpu.runtime.graphs import GraphBuckets, StepWait, buckets_up_to
from duplex_gpu.runtime.kv_pages import KVExhaustedError, KVStatistics

_FINISH = 0
"""Names the prompt-finishing step among the waits; batch buckets count up from 1, prefill buckets down from -1."""


@attrs.define(eq=False)
class _Feeding:
    """A prompt on its way into a slot: columns done so far."""

    prompt: Prompt
    embedded: torch.Tensor
    done: int


_READY = UnitOutput(0, "", None, 0.0)
_FEEDING = UnitOutput(0, "", None, 0.0, ready=False)
_FAILED = UnitOutput(0, "", None, 0.0, "kv_exhausted")


def _levels(pcm: Pcm) -> npt.NDArray[np.int16]:
    """Samples of all rows as 16-bit levels, rounded and clipped: here in one go, and without the interpreter's lock.

    Numbers that are not finite give any level.
    """
    scaled = pcm * np.float32(32768.0)
    np.rint(scaled, out=scaled)
    np.minimum(scaled, 32767, out=scaled)
    np.maximum(scaled, -32768, out=scaled)
    with np.errstate(invalid="ignore"):
        return scaled.astype(np.int16)


class PersonaPlexUnit:
    """Implements the unit-step protocol of the model thread: `max_rows`, `warm_up`, `reset`, `run`.

    Everything but `prompt` belongs to one thread, the one that owns the device. A session goes through rows of `run`:
    `Start`, then `FeedPrompt` until the output is `ready` (at once without a prompt), then one frame after the other.
    Prompts are fed in chunks, at most one in a step, so that the other sessions hardly wait.
    """

    unit_ms = FRAME_MS
    sample_rate_hz = SAMPLE_RATE_HZ
    unit_samples = FRAME_SAMPLES

    def __init__(
        self,
        engine: Engine,
        pieces: TextPieces,
        voices: VoiceShelf | None = None,
        *,
        sampling: SamplingConfig | None = None,
        buckets: Sequence[int] | None = None,
    ) -> None:
        self.engine = engine
        self.max_rows = engine.options.max_rows
        self.pieces = pieces
        self.voices = voices
        self._sampling = sampling or SamplingConfig()
        self._chunk = engine.options.prefill_columns
        self._steps = GraphBuckets(engine.launch, buckets or buckets_up_to(self.max_rows), engine.device)
        self._column_steps = GraphBuckets(engine.launch_column, (1,), engine.device)
        sizes = sorted({min(size, self._chunk) for size in (16, 32, self._chunk)})
        self._prefill_steps = GraphBuckets(engine.launch_prefill, sizes, engine.device)
        self._wait = StepWait(engine.device)
        self._prefixes: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._feeding: dict[int, _Feeding] = {}
        self._transcripts = [Transcript(pieces) for _ in range(self.max_rows)]
        self._fresh = np.ones(self.max_rows + 1, np.bool_)
        words = sum(field.words for field in engine.state_fields.values())
        self._words = np.zeros((self.max_rows + 1, words), np.int32)
        self._views: dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]] = {}
        at = 0
        for name, field in engine.state_fields.items():
            part = self._words[:, at : at + field.words]
            self._views[name] = part.view(np.float32) if field.real else part
            at += field.words
        for slot in range(self.max_rows + 1):
            self._restart(slot)

    # -- the protocol of the model thread ------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Compile, capture every batch bucket, and leave all slots as new. Call once, from the thread that will run."""
        host = self.engine.inputs.host
        for name, view in self._views.items():
            host[name][:] = view[self.engine.scratch_slot]
        host["pcm"][:] = 0.0
        with torch.inference_mode():
            pool = self._steps.capture()
            self._column_steps.capture(pool)
            self._prefill_steps.capture(pool)
            self._rehearse()
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)

    def reset(self, slot: int, sampling: SamplingConfig | None = None, seed: int = 0) -> None:
        """Start a session in a slot: everything of the last one is gone, its KV pages are free again.

        `seed` (64 bits) fixes the session's draws whoever shares its batches.
        """
        self._check_slot(slot)
        with torch.inference_mode():
            self.engine.reset(slot)
        self._restart(slot, sampling or self._sampling, seed)

    def run(self, rows: Sequence[tuple[int, Payload]]) -> list[UnitOutput]:
        """One step for some slots: frames of PCM all in one batch, and with it at most one chunk of one prompt.

        Returns one output per row in the same order. Rows that start a session answer with `ready`; of several that
        have a prompt to feed the first one gets its chunk, the others stay as they are until a later step.
        Raises `ValueError`, with nothing changed, for a slot named twice or out of range, a frame of another shape, or
        a frame for a slot whose prompt is not fed yet.
        """
        frames = self._checked(rows)
        outputs: dict[int, UnitOutput] = {}
        failed = self._grow([slot for slot, _ in frames])
        live = [row for row in frames if row[0] not in failed] if failed else frames
        if live:
            outputs = dict(zip((slot for slot, _ in live), self._step(live), strict=True))
        fed = False
        for slot, payload in rows:
            if slot in outputs:
                continue
            if slot in failed:
                outputs[slot] = _FAILED
            elif isinstance(payload, Start):
                outputs[slot] = self._start(slot, payload)
            elif slot in self._feeding and not fed:
                fed = True
                outputs[slot] = _READY if self.feed_prompt(slot) else _FEEDING
            else:
                outputs[slot] = _FEEDING if slot in self._feeding else _READY
        return [outputs[slot] for slot, _ in rows]

    # -- prompts -------------------------------------------------------------------------------------------------

    def prompt(self, voice: str | None, persona: str | None) -> Prompt:
        """Lay out a prompt; touches no slot and not the device (any thread may). Raises `PromptError` with a `code`."""
        chosen: Voice | None = None
        if voice is not None:
            if self.voices is None:
                raise PromptError("unknown_voice", f"unknown voice {voice!r}; no voices are loaded")
            chosen = self.voices.voice(voice)
        tokens: list[int] = []
        if persona is not None and persona.strip():
            try:
                tokens = self.pieces.encode(wrap_persona(persona))
            except TextModelError as error:
                raise PromptError("no_text_model", str(error)) from error
        return build_prompt(self.engine.config.lm, chosen, tokens)

    def begin_prompt(self, slot: int, prompt: Prompt) -> None:
        """Start feeding a prompt into a freshly reset slot; a voice fed before is copied in. Then call `feed_prompt`.

        Raises `KVExhaustedError`, with the slot unchanged, when its columns do not fit into free memory.
        """
        self._check_slot(slot)
        if self._views["column"][slot, 0] != 0 or slot in self._feeding:
            raise ValueError(f"slot {slot} must be reset before it is given a prompt")
        engine, kv = self.engine, self.engine.kv
        self._ensure(slot, prompt.count)
        with torch.inference_mode():
            columns = torch.from_numpy(prompt.columns).to(engine.device)
            embedded = engine.embed(columns)
            done = 0
            if prompt.voice is not None:
                embedded = torch.cat([prompt.voice.embeddings.to(engine.device), embedded])
                pages = self._prefixes.get(prompt.voice.name)
                if pages is not None:
                    kv.restore(slot, prompt.cached, pages)
                    done = prompt.cached
        self._feeding[slot] = _Feeding(prompt, embedded, done)

    def feed_prompt(self, slot: int) -> bool:
        """Feed the next chunk of the prompt; True once it is all in and the slot may `run`."""
        feeding = self._feeding[slot]
        prompt, engine, done = feeding.prompt, self.engine, feeding.done
        border = prompt.cached if done < prompt.cached else prompt.count - 1
        stop = min(done + self._chunk, border)
        with torch.inference_mode():
            if stop > done:
                self._prefill(slot, feeding.embedded[done:stop], done)
                feeding.done = stop
                if stop == prompt.cached and prompt.voice is not None:
                    self._prefixes.setdefault(prompt.voice.name, engine.kv.snapshot(slot, stop))
                return False
            self._finish_prompt(slot, prompt)
        del self._feeding[slot]
        return True

    # -- numbers -------------------------------------------------------------------------------------------------

    def kv_statistics(self) -> KVStatistics:
        """How many KV pages there are and are free."""
        return self.engine.kv.statistics()

    def column(self, slot: int) -> int:
        """Columns the slot has run so far, prompts included."""
        return int(self._views["column"][slot, 0])

    # -- inside --------------------------------------------------------------------------------------------------

    def _checked(self, rows: Sequence[tuple[int, Payload]]) -> list[tuple[int, Pcm | None]]:
        """The rows that carry a frame. Raises `ValueError` for anything `run` cannot do."""
        slots: set[int] = set()
        frames: list[tuple[int, Pcm | None]] = []
        for slot, payload in rows:
            self._check_slot(slot)
            if slot in slots:
                raise ValueError(f"slot {slot} is named twice in one step")
            slots.add(slot)
            if isinstance(payload, (Start, FeedPrompt)):
                continue
            if slot in self._feeding:
                raise ValueError(f"slot {slot} is still being fed its prompt")
            if payload is not None and payload.shape != (FRAME_SAMPLES,):
                raise ValueError(f"a frame has {FRAME_SAMPLES} samples, got {payload.shape}")
            frames.append((slot, payload))
        return frames

    def _start(self, slot: int, start: Start) -> UnitOutput:
        self.reset(slot, start.sampling, start.seed)
        if start.prompt is None:
            return _READY
        try:
            self.begin_prompt(slot, start.prompt)
        except KVExhaustedError:
            return _FAILED
        return _FEEDING

    def _step(self, rows: Sequence[tuple[int, Pcm | None]]) -> list[UnitOutput]:
        count = len(rows)
        size = self._steps.bucket(count) if self._steps.captured else count
        index = [slot for slot, _ in rows] + [self.engine.scratch_slot] * (size - count)
        self._stage(index)
        pcm = self.engine.inputs.host["pcm"]
        for i, (_, frame) in enumerate(rows):
            pcm[i] = 0.0 if frame is None else frame
        started = time.perf_counter()
        with torch.inference_mode():
            self._steps.replay(size)
        self._wait.wait(size, started)
        slots = np.array(index[:count])
        fresh = self._fresh[slots]
        self._advance(slots, fresh)
        return self._collect(index[:count], fresh)

    def _stage(self, index: list[int]) -> None:
        """Copy the chosen slots' words into the staged rows: the fields lie there in the same order."""
        words = self._words.shape[1]
        self.engine.inputs.words[: len(index), :words] = self._words[index]

    def _advance(self, slots: npt.NDArray[np.int64], fresh: npt.NDArray[np.bool_]) -> None:
        views = self._views
        views["column"][slots] += 1
        views["encoder_position"][slots] += 2
        started = slots[~fresh]
        views["decoder_position"][started] += 2
        new = slots[fresh]
        if new.size:
            self._go_live(new)

    def _go_live(self, slots: npt.NDArray[np.int64]) -> None:
        """From a session's second column on nothing is forced and its audio is decoded."""
        views = self._views
        views["user_frame"][slots] = -1
        views["forced"][slots] = -1
        views["decoder_slot"][slots, 0] = slots
        self._fresh[slots] = False

    def _collect(self, slots: list[int], fresh: npt.NDArray[np.bool_]) -> list[UnitOutput]:
        host = self.engine.outputs.host
        count = len(slots)
        pcm: npt.NDArray[np.float32] = host["pcm"][:count].astype(np.float32)
        levels = _levels(pcm)
        energies = host["energy"][:count, 0].tolist()
        broken = host["broken"][:count, 0].tolist()
        ids = host["tokens"][:count, 0].tolist()
        outputs = []
        for i, slot in enumerate(slots):
            if broken[i]:
                outputs.append(UnitOutput(0, "", None, 0.0, "not_finite"))
            elif fresh[i]:
                outputs.append(UnitOutput(int(ids[i]), "", None, 0.0))
            else:
                token = int(ids[i])
                text = "" if token in SILENT_IDS else self._transcripts[slot].add(token)
                outputs.append(UnitOutput(token, text, pcm[i], energies[i], levels=levels[i]))
        return outputs

    def _grow(self, slots: list[int]) -> set[int]:
        """Give the rows that enter a new KV page one; returns those for which none is left."""
        page = self.engine.kv.page_columns
        columns = self._views["column"][slots, 0]
        entering = np.flatnonzero((columns % page == 0) & (columns < self.engine.kv.context))
        failed: set[int] = set()
        for i in entering.tolist():
            try:
                self._ensure(slots[i], int(columns[i]) + 1)
            except KVExhaustedError:
                failed.add(slots[i])
        return failed

    def _ensure(self, slot: int, columns: int) -> None:
        kv = self.engine.kv
        if kv.ensure(slot, columns):
            table = kv.table(slot)
            self._views["pages"][slot, : len(table)] = table

    def _prefill(self, slot: int, embedded: torch.Tensor, first: int) -> None:
        """Run columns of one session, `first` and those after it, as the rows of one pass."""
        engine, host, count = self.engine, self.engine.inputs.host, embedded.shape[0]
        size = self._prefill_steps.bucket(count) if self._prefill_steps.captured else count
        self._stage([slot] * count + [engine.scratch_slot] * (size - count))
        host["column"][:count, 0] = np.arange(first, first + count)
        engine.set_prompt(embedded)
        started = time.perf_counter()
        self._prefill_steps.replay(size)
        self._wait.wait(-size, started)

    def _rehearse(self) -> None:
        """Start one session with a made-up voice, so that nothing of it is loaded for the first time in earnest."""
        lm = self.engine.config.lm
        voice = Voice("", torch.zeros(2, lm.dim), *np.zeros((2, STREAMS), np.int32))
        try:
            prompt = build_prompt(lm, voice, [])
            for _ in range(2):
                self.reset(0)
                self.begin_prompt(0, prompt)
                while not self.feed_prompt(0):
                    pass
        except (PromptError, KVExhaustedError):  # too small a context or memory for prompts at all
            pass
        self._prefixes.pop("", None)
        self.reset(0)

    def _finish_prompt(self, slot: int, prompt: Prompt) -> None:
        """Run the prompt's last column as an ordinary step: that chooses the first live column's text and code 0."""
        engine, views = self.engine, self._views
        last = prompt.columns[-1]
        engine.set_next(slot, torch.from_numpy(last[:TOKENS].copy()), torch.from_numpy(last[TOKENS + 1 :].copy()))
        views["column"][slot] = prompt.count - 1
        views["user_frame"][slot, 0] = last[TOKENS]
        views["user_frame"][slot, 1:] = prompt.user_late
        views["forced"][slot] = -1
        views["forced"][slot, 2:] = prompt.agent_late
        self._stage([slot])
        started = time.perf_counter()
        self._column_steps.replay(1)
        self._wait.wait(_FINISH, started)
        views["column"][slot] = prompt.count
        self._go_live(np.array([slot]))

    def _restart(self, slot: int, sampling: SamplingConfig | None = None, seed: int = 0) -> None:
        sampling = sampling or self._sampling
        lm, views = self.engine.config.lm, self._views
        self._words[slot] = 0
        views["slot"][slot] = slot
        views["top_k"][slot] = (sampling.text_top_k, min(sampling.audio_top_k, lm.audio_vocab))
        views["temperature"][slot] = (sampling.text_temperature, sampling.audio_temperature)
        views["seed"][slot] = np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.int32)
        # The first column of all is made of start tokens, whatever the codec hears, and gives no audio.
        views["user_frame"][slot] = lm.audio_start
        views["forced"][slot] = -1
        views["forced"][slot, 2:] = lm.audio_start
        views["decoder_slot"][slot] = self.engine.scratch_slot
        self._fresh[slot] = True
        if slot < self.max_rows:
            self._feeding.pop(slot, None)
            self._transcripts[slot].reset()

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_rows:
            raise ValueError(f"slot {slot} is not one of 0..{self.max_rows - 1}")
