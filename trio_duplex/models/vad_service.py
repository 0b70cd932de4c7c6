"""The speech detector of a server: one model thread for all sessions whose model does not detect speech itself.

Nothing is loaded before the first session asks for it. Needs the extra that brings torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import outcome
import structlog
import trio

from trio_duplex.models.plugin import FloatAudio
from trio_duplex.vad_scorer import VadFailed, VadUnavailable

if TYPE_CHECKING:
    from duplex_gpu.model_thread import ModelThread, Slot
    from duplex_gpu.steps import ModelThreadStatistics, RowResult

__all__ = ["VadService"]

log = structlog.get_logger(__name__)

LOAD_TIMEOUT_S = 60.0
STOP_S = 1.0
FRAMES_UNDER_WAY = 32
"""Frames of one stream at the detector at a time, so that a burst cannot flood its slot."""


class VadService:
    """A :class:`trio_duplex.vad_scorer.VadScorer` around the silero network.

    ``max_sessions`` streams fit at a time. ``weights``: the TorchScript file of another network of its kind.
    """

    def __init__(self, max_sessions: int, *, device: str = "cpu", weights: Path | None = None) -> None:
        self._max_sessions = max_sessions
        self._device = device
        self._weights = weights
        self._loading = trio.Lock()
        self._thread: ModelThread[FloatAudio, float] | None = None
        self._running = False
        self._streams = 0

    async def run(self) -> None:
        """Keep the thread until cancelled. Cancellation: the thread is asked to stop and waited for, one second."""
        self._running = True
        try:
            await trio.sleep_forever()
        finally:
            self._running = False
            thread, self._thread = self._thread, None
            if thread is not None:
                with trio.move_on_after(STOP_S, shield=True):
                    await trio.to_thread.run_sync(thread.stop, STOP_S, abandon_on_cancel=True)

    def model_threads(self) -> dict[str, ModelThreadStatistics]:
        """The detector's thread, once a session needed it."""
        return {} if self._thread is None else {"speech-detector": self._thread.statistics()}

    async def open(self) -> VadServiceStream:
        """A place for one session; the first one waits for the network to load.

        Raises :class:`VadUnavailable`. Cancellation: no place is taken; loading is abandoned.
        """
        from duplex_gpu.steps import ThreadDied

        async with self._loading:
            if not self._running:
                raise VadUnavailable("the speech detector is not running")
            if self._thread is None:
                self._thread = await self._load()
            if self._streams >= self._max_sessions:
                raise VadUnavailable(f"all {self._max_sessions} places of the speech detector are taken")
            try:
                stream = VadServiceStream(self, self._thread)
            except ThreadDied as error:
                raise VadUnavailable(str(error)) from error
            self._streams += 1
            return stream

    def closed(self) -> None:
        """A stream gave its place back."""
        self._streams -= 1

    async def _load(self) -> ModelThread[FloatAudio, float]:
        """Cancellation: abandoned."""
        started_s = trio.current_time()
        token = trio.lowlevel.current_trio_token()
        try:
            thread = await trio.to_thread.run_sync(self._build, token, abandon_on_cancel=True)
        except (ImportError, OSError, RuntimeError) as error:
            # No torch, no weights, or weights that are not what they should be: said to whoever asked for server VAD.
            log.warning("speech_detector_unavailable", error=repr(error))
            raise VadUnavailable(f"the speech detector cannot be loaded: {error}") from error
        log.info("speech_detector_loaded", load_s=round(trio.current_time() - started_s, 2))
        return thread

    def _build(self, token: trio.lowlevel.TrioToken) -> ModelThread[FloatAudio, float]:
        """On a worker thread: load, start, wait until warm."""
        from duplex_gpu.model_thread import ModelThread
        from duplex_gpu.silero_vad import SileroVadStep

        step = SileroVadStep(self._max_sessions, device=self._device, weights=self._weights)
        thread: ModelThread[FloatAudio, float] = ModelThread(
            step, call_soon=token.run_sync_soon, name="speech-detector", loop_gone=(trio.RunFinishedError,)
        )
        thread.start()
        if not thread.wait_ready(LOAD_TIMEOUT_S):
            thread.stop(0)
            raise RuntimeError(f"it was not warm after {LOAD_TIMEOUT_S:.0f} s")
        return thread


class VadServiceStream:
    """One session's slot; a reset takes a fresh one, which begins with silence. Raises ``ThreadDied`` when made."""

    def __init__(self, service: VadService, thread: ModelThread[FloatAudio, float]) -> None:
        self._service = service
        self._thread = thread
        self._waiter: trio.lowlevel.Task | None = None
        self._results: list[RowResult[float]] = []
        self._wanted = 0
        self._closed = False
        self._slot: Slot[FloatAudio, float] | None = self._open()

    def _open(self) -> Slot[FloatAudio, float]:
        results: list[RowResult[float]] = []
        self._results = results

        def deliver(result: RowResult[float]) -> None:
            results.append(result)
            if results is self._results and len(results) >= self._wanted and self._waiter is not None:
                task, self._waiter = self._waiter, None
                trio.lowlevel.reschedule(task, outcome.Value(None))

        return self._thread.open_slot(deliver)

    async def score(self, frames: Sequence[FloatAudio]) -> Sequence[float]:
        """See the protocol. Cancellation: results that come later are dropped by the reset that must follow."""
        scores: list[float] = []
        for start in range(0, len(frames), FRAMES_UNDER_WAY):
            scores += await self._score_some(frames[start : start + FRAMES_UNDER_WAY])
        return scores

    async def _score_some(self, frames: Sequence[FloatAudio]) -> list[float]:
        """Cancellation: as :meth:`score`."""
        from duplex_gpu.steps import SlotClosed, SlotOverloaded, ThreadDied

        await trio.lowlevel.checkpoint_if_cancelled()
        if self._slot is None:
            raise VadFailed("the speech detector is gone")
        self._results.clear()
        self._wanted = len(frames)
        try:
            for frame in frames:
                self._slot.submit(frame)
        except (ThreadDied, SlotClosed, SlotOverloaded) as error:
            raise VadFailed(str(error)) from error
        if len(self._results) < self._wanted:
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        scores: list[float] = []
        for result in self._results:
            if result.output is None:
                raise VadFailed(str(result.error))
            scores.append(result.output)
        return scores

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def reset(self) -> None:
        """Silence before the next frame; a dead detector is noticed at the next frame."""
        from duplex_gpu.steps import SlotsExhausted, ThreadDied

        if self._slot is None or self._closed:
            return
        self._slot.close()
        try:
            self._slot = self._open()
        except (SlotsExhausted, ThreadDied):
            self._slot = None

    def close(self) -> None:
        """Give the slot back; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._slot is not None:
            self._slot.close()
        self._service.closed()
