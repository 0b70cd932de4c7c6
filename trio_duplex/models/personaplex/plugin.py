"""PersonaPlex as a plugin: what it can do, which configurations it takes, its replicas and their sessions."""

from __future__ import annotations

import hashlib
import secrets

import attrs
import structlog
import trio

from duplex_gpu.personaplex.prompts import Prompt, PromptError
from duplex_gpu.steps import ModelThreadStatistics
from duplex_protocol import model_rules
from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.profiles import profile
from duplex_protocol.values import Capabilities, SessionConfig
from trio_duplex.models.personaplex.options import UNIT_MS, PersonaPlexOptions
from trio_duplex.models.personaplex.replica import LoadUnit, ModelGone, Replica
from trio_duplex.models.personaplex.session import PersonaPlexSession
from trio_duplex.models.plugin import Framing, ModelHealth, OpenRefused, SessionContext, Traits, Unit
from trio_duplex.models.progress import Progress

__all__ = ["PersonaPlexPlugin"]

log = structlog.get_logger(__name__)

RATE_HZ = 24_000
CHARACTERS_PER_TOKEN = 64
"""More than any piece of the text model holds: a longer persona is refused before it is cut into tokens."""


class PersonaPlexPlugin:
    """A :class:`trio_duplex.models.plugin.ModelPlugin`.

    ``max_sessions`` None: as many as memory and the measured step allow; a number caps that. ``load`` replaces the
    reading of the checkpoint (random weights, tests). ``progress`` is told about loading, on the Trio thread.
    """

    def __init__(
        self,
        options: PersonaPlexOptions | None = None,
        *,
        max_sessions: int | None = None,
        load: LoadUnit | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._options = options or PersonaPlexOptions()
        self._max_sessions = max_sessions
        self._sessions: set[PersonaPlexSession] = set()
        self.replicas = tuple(
            Replica(
                device,
                self._options,
                max_sessions=max_sessions,
                needed_voice=_stem(model_rules.DEFAULT_VOICE),
                load=load,
                progress=_of_replica(progress, device, alone=len(self._options.devices) == 1),
            )
            for device in self._options.devices
        )

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self._options.name

    @property
    def unit(self) -> Unit:
        """80 ms, 24 kHz in and out."""
        return Unit(period_ms=UNIT_MS, input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ)

    @property
    def defaults(self) -> SessionDefaults:
        """A native lane, always."""
        return SessionDefaults(model=self.name, input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ, native_lane=True)

    def traits(self, config: SessionConfig) -> Traits:
        """Fed unit by unit; its own clock fills every pause, so that the session feeds no silence."""
        return Traits(detects_speech=False, whole_units=True, framing=Framing("pcm_f32le", RATE_HZ))

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """Contract 20: no barge-in, no resume, no truncate."""
        most = sum(replica.rows for replica in self.replicas)
        return profile("personaplex", max_sessions=most if self._max_sessions is None else self._max_sessions)

    # --- configurations -----------------------------------------------------------------------------------------------

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """The model's rules, then whether this checkpoint has the voice and the persona fits beside it.

        Raises ``invalid_duplex_runtime_config`` with ``param`` ``voice`` or ``instructions``.
        """
        config = _auto(model_rules.check_open("personaplex", update))
        if self.replicas[0].ready:
            self._prompt(self.replicas[0], config)
        return config

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """Voice and persona stand."""
        return _auto(model_rules.check_update("personaplex", current, update))

    def _prompt(self, replica: Replica, config: SessionConfig) -> Prompt:
        voice, persona = config.voice or model_rules.DEFAULT_VOICE, config.instructions or ""
        window = replica.unit.engine.config.lm.context
        try:
            if len(persona) > CHARACTERS_PER_TOKEN * window:
                raise PromptError("persona_too_long", f"the persona does not fit into the context of {window} columns")
            return replica.prompt(_stem(voice), persona)
        except PromptError as error:
            param = "voice" if error.code in ("unknown_voice", "bad_voice") else "instructions"
            raise RemoteProtocolError("invalid_duplex_runtime_config", str(error), param=param) from None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load and time every replica, report started, watch them.

        Raises (in a group) ``DeployError`` for what cannot be used, ``ModelGone`` once the last replica is lost.
        Cancellation: the threads are asked to stop and waited for, two seconds.
        """
        async with trio.open_nursery() as nursery:
            started = [trio.Event() for _ in self.replicas]
            for replica, event in zip(self.replicas, started, strict=True):
                nursery.start_soon(self._serve, replica, event)
            for event in started:
                await event.wait()
            task_status.started()

    async def _serve(self, replica: Replica, started: trio.Event) -> None:
        """One replica's life; the loss of one ends its sessions only, while another one is left. Cancellation: ends."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(replica.run)
                started.set()
        except* ModelGone as lost:
            for session in [s for s in self._sessions if s.replica is replica]:
                session.fail(f"the model on {replica.device} is gone")
            if not any(other.ready for other in self.replicas):
                raise lost from None

    async def open(self, config: SessionConfig, context: SessionContext) -> PersonaPlexSession:
        """Take a slot on the replica with the fewest sessions and feed voice and persona.

        Raises ``OpenRefused``: no slot, no time in the step, no memory. Cancellation: the slot is given back.
        """
        await trio.lowlevel.checkpoint()
        replica = min(self.replicas, key=lambda each: (each.refusal() is not None, each.sessions))
        prompt = self._prompt(replica, config) if replica.ready else None
        session = PersonaPlexSession(replica, self._options, context.session_id, on_close=self._sessions.discard)
        opened = False
        try:
            assert prompt is not None  # a replica that is not ready gives no slot
            with trio.fail_after(self._options.stuck_after_s):
                await session.start(prompt, self._seed(context.session_id))
            opened = True
        except trio.TooSlowError:
            raise OpenRefused("the model does not answer") from None
        except OpenRefused as refusal:
            log.warning("personaplex_open_refused", session_id=context.session_id, reason=str(refusal))
            raise
        finally:
            if not opened:
                session.discard()
        self._sessions.add(session)
        return session

    def _seed(self, session_id: str) -> int:
        """64 bits for the session's draws: made of the deployment's seed and the session's name, else random."""
        if self._options.seed is None:
            return secrets.randbits(64)
        name = f"{self._options.seed}/{session_id}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")

    def model_threads(self) -> dict[str, ModelThreadStatistics]:
        """One thread for each replica that is warm."""
        measured = ((replica.device, replica.statistics()) for replica in self.replicas)
        return {device: numbers for device, numbers in measured if numbers is not None}

    def health(self) -> ModelHealth:
        """Ready once every replica is loaded, alive while one is; with each one's numbers and those of the sessions."""
        each = [replica.health() for replica in self.replicas]
        accounts = [session.account for session in self._sessions]
        worst = [a.worst_ms for a in accounts if a.worst_ms is not None]
        detail: dict[str, object] = {
            "replicas": [health.detail for health in each],
            "open_sessions": len(self._sessions),
            "open_sessions_units": sum(a.units for a in accounts),
            "open_sessions_silence_units": sum(session.silence_units for session in self._sessions),
            "open_sessions_deadline_misses": sum(a.missed for a in accounts),
            "open_sessions_worst_lateness_ms": max(worst, default=None),
        }
        return ModelHealth(
            ready=any(health.ready for health in each), alive=any(health.alive for health in each), detail=detail
        )


def _auto(config: SessionConfig) -> SessionConfig:
    """The network answers by itself, whatever a client says or does not say: nobody can ask it not to."""
    if config.extra_body.keys() & {"auto_response", "full_duplex"}:
        return config
    return attrs.evolve(config, extra_body={**config.extra_body, "auto_response": True})


def _of_replica(progress: Progress | None, device: str, *, alone: bool) -> Progress | None:
    """What a replica tells to: with its device's name where there are several."""
    if progress is None or alone:
        return progress
    tell = progress
    return lambda what, part: tell(f"{what} ({device})", part)


def _stem(voice: str) -> str:
    """A bundled voice's file name without its ending."""
    return voice.removesuffix(".pt")
