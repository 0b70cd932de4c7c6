"""The demo model as a plugin: what it can do, which configurations it takes, and its life.

It listens and talks by itself: the model owns turn-taking unless the client says otherwise.  ``voice`` and
``ref_audio`` are accepted whatever they are, because stock clients always send one; the model has one voice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Capabilities, SessionConfig
from trio_duplex.models.demo.engine import Engine
from trio_duplex.models.demo.options import DemoOptions
from trio_duplex.models.demo.session import DemoSession
from trio_duplex.models.demo.thinking import Brain, EndpointThinker, RuleBrain
from trio_duplex.models.demo.threads import ThreadEngine
from trio_duplex.models.plugin import ModelHealth, OpenRefused, RunsModelThreads, SessionContext, Traits, Unit
from trio_duplex.models.progress import Progress
from trio_duplex.turn_detection import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from duplex_gpu.steps import ModelThreadStatistics
    from trio_duplex.models.chat import EndpointBrain

__all__ = ["DemoPlugin"]

log = structlog.get_logger(__name__)


class DemoPlugin:
    """A :class:`trio_duplex.models.plugin.ModelPlugin`.

    ``max_sessions`` is the number of the detector's slots.  ``clock`` is what the model answers when asked for the
    time.  ``progress`` is told about loading, on the Trio thread.  ``engine`` replaces the real networks (tests).
    ``warm_up`` false: recognition and voice are loaded, but not run before the first session.
    """

    def __init__(
        self,
        options: DemoOptions | None = None,
        *,
        max_sessions: int = 32,
        engine: Engine | None = None,
        clock: Callable[[], datetime] = datetime.now,
        progress: Progress | None = None,
        warm_up: bool = True,
    ) -> None:
        self._options = options or DemoOptions()
        self._max_sessions = max_sessions
        self._engine: Engine = engine or ThreadEngine(
            self._options, max_sessions=max_sessions, progress=progress, warm_up=warm_up
        )
        self._endpoint: EndpointBrain | None = None
        self._brain: Brain = RuleBrain(clock)
        if self._options.brain is not None:
            from trio_duplex.models.chat import EndpointBrain  # needs the HTTP library

            self._endpoint = EndpointBrain(self._options.brain)
            self._brain = EndpointThinker(self._endpoint)
        self._sessions: set[DemoSession] = set()

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self._options.name

    @property
    def unit(self) -> Unit:
        """96 ms, 16 kHz in, 24 kHz out, unless deployed otherwise."""
        return Unit(
            period_ms=self._options.unit_ms, input_rate_hz=SAMPLE_RATE_HZ, output_rate_hz=self._options.output_rate_hz
        )

    @property
    def defaults(self) -> SessionDefaults:
        """A native lane with the unit's rates."""
        return SessionDefaults(
            model=self.name, input_rate_hz=SAMPLE_RATE_HZ, output_rate_hz=self._options.output_rate_hz, native_lane=True
        )

    def traits(self, config: SessionConfig) -> Traits:
        """It hears, ends turns and answers by itself; what it answers is words, wherever they come from."""
        return Traits(own_context=True)

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """Those of a native model that can be interrupted, resumed and truncated (contract 20)."""
        several = self._max_sessions > 1
        return Capabilities(
            supports_external_turn_signal=True,
            supports_client_commit=True,
            supports_barge_in=True,
            supports_multi_session=several,
            supports_multi_session_same_replica=several,
            supports_session_resume=True,
            supports_audio_truncate=True,
            signal_sources=("model_native", "client_event", "server_policy"),
            chunk_period_ms=self._options.unit_ms,
        )

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """Fill in who owns turn-taking.  Refuses nothing."""
        return self._with_turn_owner(update)

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """As :meth:`check`; ``instructions`` may not change once there was audio (contract 17).

        Raises ``instructions_update_unsupported`` with ``param`` ``instructions``.
        """
        if audio_started and update.config.instructions != current.instructions:
            raise RemoteProtocolError(
                "instructions_update_unsupported",
                "instructions cannot change after the first audio",
                param="instructions",
            )
        return self._with_turn_owner(update)

    def _with_turn_owner(self, update: ConfigUpdate) -> SessionConfig:
        """The model answers by itself when the client did not say whether it may.

        A client that *names* ``turn_detection`` null and says nothing else wants to do it all by commits.
        """
        config = update.config
        by_hand = "turn_detection" in update.named and config.turn_detection is None
        said = bool(config.extra_body.keys() & {"auto_response", "full_duplex"})
        if said and not (by_hand and "extra_body" not in update.named):
            return config
        return attrs.evolve(config, extra_body={**config.extra_body, "auto_response": not by_hand})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, warm up, report started, serve.

        Raises one-line errors for weights or a voice that cannot be used (in a group when a brain runs beside them).
        Cancellation: ends within two seconds.
        """
        if self._endpoint is None:
            await self._engine.run(task_status=task_status)
            return
        async with trio.open_nursery() as nursery:
            await nursery.start(self._endpoint.run)
            await nursery.start(self._engine.run)
            task_status.started()

    async def open(self, config: SessionConfig, context: SessionContext) -> DemoSession:
        """Take a slot.  Raises ``OpenRefused``.  Cancellation: only before the slot is taken."""
        await trio.lowlevel.checkpoint()
        try:
            session = DemoSession(
                self._engine, self._options, config, context, self._brain, on_close=self._sessions.discard
            )
        except OpenRefused as refusal:
            log.warning("demo_open_refused", session_id=context.session_id, reason=str(refusal))
            raise
        self._sessions.add(session)
        return session

    def model_threads(self) -> Mapping[str, ModelThreadStatistics]:
        """Those of the engine; none for one that runs without threads (tests)."""
        return self._engine.model_threads() if isinstance(self._engine, RunsModelThreads) else {}

    def health(self) -> ModelHealth:
        """The engine's health, with the number of open sessions."""
        health = self._engine.health()
        detail = {**health.detail, "open_sessions": len(self._sessions)}
        if isinstance(self._brain, EndpointThinker):
            brain = self._brain
            failures: dict[str, object] = {"answers": brain.answers, "failures_in_a_row": brain.failures}
            detail["brain"] = failures | ({"last_failure": brain.last_failure} if brain.last_failure else {})
        return attrs.evolve(health, detail=detail)
