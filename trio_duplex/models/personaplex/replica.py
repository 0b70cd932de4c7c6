"""One device's copy of the network: the thread that owns it, who may come in, and how it is doing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import structlog
import trio

from duplex_gpu.model_thread import ModelThread, Slot
from duplex_gpu.personaplex.config import ModelConfigError, SamplingConfig
from duplex_gpu.personaplex.loading import DeviceError, LoadOptions, Report, find_device, load_unit
from duplex_gpu.personaplex.prompts import Prompt, PromptError
from duplex_gpu.personaplex.text import TextModelError
from duplex_gpu.personaplex.unit import PersonaPlexUnit
from duplex_gpu.personaplex.unit_rows import Payload, UnitOutput
from duplex_gpu.runtime.graphs import buckets_up_to
from duplex_gpu.runtime.weights import CheckpointError
from duplex_gpu.steps import ModelThreadStatistics, RowResult, SlotsExhausted, ThreadDied
from trio_duplex.config import DeployError
from trio_duplex.models.personaplex.admission import Admission, step_times
from trio_duplex.models.personaplex.options import UNIT_MS, PersonaPlexOptions
from trio_duplex.models.plugin import ModelHealth, OpenRefused
from trio_duplex.models.progress import Progress

__all__ = ["DEAD", "LoadUnit", "ModelGone", "Replica"]

log = structlog.get_logger(__name__)

DEAD = "engine_error"
LoadUnit = Callable[[LoadOptions, Report], PersonaPlexUnit]
GPU_ROWS, CPU_ROWS = 128, 4
TIMED_STEPS = 9
STEPS_TO_TRUST = 200
"""Steps after which the measured percentile says something."""
LOAD_TIMEOUT_S = 1800.0
WATCH_PERIOD_S = 0.5
STOP_S = 2.0
UNUSABLE = (CheckpointError, DeviceError, ModelConfigError, PromptError, TextModelError)


class ModelGone(RuntimeError):
    """The thread of a replica has died or is stuck."""


class _Step:
    """The batched step of the model thread: loads, captures and times the network in its warm-up."""

    def __init__(
        self, load: Callable[[], PersonaPlexUnit], rows: int, needed_voice: str, tell: Callable[[str, float], None]
    ) -> None:
        self.max_rows = rows
        self._load = load
        self._tell = tell
        self._needed_voice = needed_voice
        self.unit: PersonaPlexUnit | None = None
        self.timed: list[tuple[int, float]] = []

    def warm_up(self) -> None:
        unit = self._load()
        voices = unit.voices
        if voices is None or self._needed_voice not in voices.names:
            raise PromptError("unknown_voice", f"the checkpoint has no voice {self._needed_voice}, the default one")
        for name in voices.names:  # a broken one is said now, and nobody waits for the disk later
            voices.voice(name)
        self._tell("warming up", 0.0)
        unit.warm_up()
        buckets = buckets_up_to(self.max_rows)
        for number, rows in enumerate(buckets):
            self._tell("timing the step", number / len(buckets))
            self.timed.append((rows, _median_ms(unit, rows)))
        self.unit = unit

    def reset(self, slot: int) -> None:
        assert self.unit is not None
        self.unit.reset(slot)

    def run(self, rows: Sequence[tuple[int, Payload]]) -> Sequence[UnitOutput]:
        assert self.unit is not None
        return self.unit.run(rows)


def _median_ms(unit: PersonaPlexUnit, rows: int) -> float:
    """Of a step with so many rows, each a few columns long."""
    batch: list[tuple[int, Payload]] = [(slot, None) for slot in range(rows)]
    taken = []
    for number in range(TIMED_STEPS + 2):
        began = time.perf_counter()
        unit.run(batch)
        if number >= 2:
            taken.append(1e3 * (time.perf_counter() - began))
    for slot in range(rows):
        unit.reset(slot)
    return statistics.median(taken)


class Replica:
    """See the module's text. Everything here is called on the Trio thread."""

    def __init__(
        self,
        device: str,
        options: PersonaPlexOptions,
        *,
        max_sessions: int | None,
        needed_voice: str,
        load: LoadUnit | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.device = _device(device)
        self._options = options
        self._progress = progress or (lambda _what, _part: None)
        most = options.rows or (GPU_ROWS if self.device.startswith("cuda") else CPU_ROWS)
        self.rows = most if max_sessions is None else min(most, max_sessions)
        self._loader = load or partial(load_unit, options.checkpoint)
        self._step = _Step(self._load, self.rows, needed_voice, self._tell)
        self._thread: ModelThread[Payload, UnitOutput] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._admission: Admission | None = None
        self._gone: str | None = None
        self.sessions = 0
        self.refused = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, capture, warm up and time on the model thread, report started, then watch it until cancelled.

        Raises :class:`trio_duplex.config.DeployError` with one line for files or a device that cannot be used, and
        :class:`ModelGone` when the thread died or got stuck. Cancellation: the thread is asked to stop and waited for,
        two seconds.
        """
        self._token = trio.lowlevel.current_trio_token()
        thread: ModelThread[Payload, UnitOutput] = ModelThread(
            self._step,
            call_soon=self._token.run_sync_soon,
            gather_window_s=self._options.gather_window_ms / 1000,
            name=f"personaplex-{self.device}",
            loop_gone=(trio.RunFinishedError,),
        )
        thread.start()
        try:
            try:
                warm = await trio.to_thread.run_sync(thread.wait_ready, LOAD_TIMEOUT_S, abandon_on_cancel=True)
            except ThreadDied as death:
                if isinstance(death.__cause__, UNUSABLE):
                    raise DeployError(" ".join(str(death.__cause__).split())) from death.__cause__
                raise ModelGone(f"loading failed: {death.__cause__!r}") from death.__cause__
            if not warm:
                raise ModelGone(f"the network was not warm after {LOAD_TIMEOUT_S:.0f} s")
            self._settle()
            self._thread = thread
            task_status.started()
            await self._watch(thread)
        finally:
            self._gone = self._gone or "the model is stopping"
            with trio.move_on_after(STOP_S, shield=True):
                await trio.to_thread.run_sync(thread.stop, STOP_S, abandon_on_cancel=True)

    def _load(self) -> PersonaPlexUnit:
        """On the model thread, whose own device this becomes."""
        if self.device.startswith("cuda"):
            import torch

            find_device(self.device)  # one clear line when it is not there
            torch.cuda.set_device(self.device)
        options = self._options
        sampling = SamplingConfig(
            options.text_temperature, options.text_top_k, options.audio_temperature, options.audio_top_k
        )
        load = LoadOptions(
            device=self.device,
            max_rows=self.rows,
            fp8_kv=options.kv == "fp8",
            kernels=options.kernels,
            sampling=sampling,
        )
        return self._loader(load, self._report)

    def _report(self, name: str, done: int, total: int) -> None:
        """On the model thread."""
        self._tell(f"loading {name}", done / max(total, 1))

    def _tell(self, what: str, part: float) -> None:
        """On the model thread."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._progress, what, part)
        except trio.RunFinishedError:
            return  # loading was abandoned, and with it whoever wanted to know

    def _settle(self) -> None:
        """What was measured becomes the rule of admission. Raises ``DeployError`` when not one session fits."""
        unit = self.unit
        lm, kv = unit.engine.config.lm, unit.kv_statistics()
        element = unit.engine.kv.k.element_size()
        weight_element = unit.engine.weights.text_head.element_size()
        asked = self._options.columns_per_session
        self._admission = Admission(
            times=step_times(
                self._step.timed, weight_bytes=lm.weight_bytes(weight_element), column_bytes=lm.kv_bytes(1, element)
            ),
            columns=lm.context if asked is None else min(asked, lm.context),
            budget_ms=UNIT_MS * self._options.max_step_share,
            kv_columns=kv.pages_total * kv.page_columns,
            rows=self.rows,
        )
        most = self._admission.most_sessions()
        log.info(
            "personaplex_ready",
            device=self.device,
            sessions=most,
            step_ms={rows: round(ms, 1) for rows, ms in self._step.timed},
            kv_columns=self._admission.kv_columns,
        )
        alone_ms = self._admission.times.predicted_ms(1, self._admission.columns)
        if alone_ms > self._admission.budget_ms:
            log.warning("personaplex_too_slow", device=self.device, step_ms_p99=round(alone_ms, 1))
        if most == 0:
            raise DeployError(f"{self.device} cannot serve one session: {self._admission.refusal(0)}")

    async def _watch(self, thread: ModelThread[Payload, UnitOutput]) -> None:
        """Cancellation: at any point."""
        while True:
            await trio.sleep(WATCH_PERIOD_S)
            now = thread.statistics()
            if not now.alive:
                self._gone = "the model thread has died"
            elif now.busy_for_s > self._options.stuck_after_s:
                self._gone = f"the model thread has been stuck for {now.busy_for_s:.0f} s"
            if self._gone is not None:
                log.error("personaplex_dead", device=self.device, reason=self._gone, sessions=self.sessions)
                raise ModelGone(self._gone)

    # --- sessions -----------------------------------------------------------------------------------------------------

    @property
    def unit(self) -> PersonaPlexUnit:
        """The loaded network."""
        if self._step.unit is None:
            raise RuntimeError("the network is not loaded yet")
        return self._step.unit

    @property
    def ready(self) -> bool:
        """Loaded, timed and alive."""
        return self._thread is not None and self._gone is None

    @property
    def chunk_columns(self) -> int:
        """Columns of a prompt that one step reads at most."""
        return self.unit.engine.options.prefill_columns

    def prompt(self, voice: str, persona: str) -> Prompt:
        """Lay out a session's prompts. Raises ``PromptError``."""
        return self.unit.prompt(voice, persona)

    def refusal(self) -> str | None:
        """Why no further session may come in now; None = it may."""
        if self._gone is not None:
            return self._gone
        if self._thread is None or self._admission is None:
            return "the model is still loading"
        measured = self._thread.statistics()
        trusted = measured.steps >= STEPS_TO_TRUST and self.sessions > 0
        return self._admission.refusal(self.sessions, measured.step_ms_p99 if trusted else None)

    def take(self, deliver: Callable[[RowResult[UnitOutput]], None]) -> Slot[Payload, UnitOutput]:
        """A slot for a session; give it back with :meth:`give_back`. Raises ``OpenRefused``."""
        reason = self.refusal()
        if reason is not None:
            self.refused += 1
            raise OpenRefused(reason)
        assert self._thread is not None
        try:
            slot = self._thread.open_slot(deliver)
        except (SlotsExhausted, ThreadDied) as error:
            raise OpenRefused(str(error)) from error
        self.sessions += 1
        return slot

    def give_back(self, slot: Slot[Payload, UnitOutput]) -> None:
        """Idempotent."""
        if not slot.closed:
            slot.close()
            self.sessions -= 1

    # --- numbers ------------------------------------------------------------------------------------------------------

    def statistics(self) -> ModelThreadStatistics | None:
        """Of the model thread; None before it is warm."""
        return None if self._thread is None else self._thread.statistics()

    def health(self) -> ModelHealth:
        """Ready, alive, and the numbers of thread, memory and admission."""
        detail: dict[str, object] = {"device": self.device, "sessions": self.sessions, "refused": self.refused}
        if self._admission is not None:
            admission = self._admission
            detail["most_sessions"] = admission.most_sessions()
            detail["predicted_step_ms_p99"] = round(
                admission.times.predicted_ms(max(self.sessions, 1), admission.columns), 2
            )
            detail["step_ms_at_start"] = {str(rows): round(ms, 2) for rows, ms in self._step.timed}
            detail["kv"] = attrs.asdict(self.unit.kv_statistics())
        measured = self.statistics()
        if measured is not None:
            detail["thread"] = attrs.asdict(measured)
        if self._gone is not None:
            detail["reason"] = self._gone
        return ModelHealth(ready=self.ready, alive=self._gone is None, detail=detail)


def _device(name: str) -> str:
    """``auto`` is the first GPU, or the CPU where there is none."""
    if name != "auto":
        return name
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
