"""A chat backend as a plugin: what it can do, which configurations it takes, and the life of its HTTP client."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import attrs
import structlog
import trio

from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.profiles import profile
from duplex_protocol.values import Capabilities, SessionConfig
from trio_duplex.models.chat.backend import Backend, open_client
from trio_duplex.models.chat.body import OptionError, chat_tools
from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.chat.session import ChatSession
from trio_duplex.models.plugin import ModelHealth, OpenRefused, SessionContext, Traits, Unit

__all__ = ["ChatPlugin"]

log = structlog.get_logger(__name__)

LOCAL_PATHS: Final = ("ref_audio_path", "tts_ref_audio_path")
PLUGIN_REFUSES: Final = "invalid_duplex_runtime_config"


class ChatPlugin:
    """A :class:`trio_duplex.models.plugin.ModelPlugin` that describes its traits.

    A backend that is down does not keep the server from starting: each answer tells for itself, and ``health`` shows
    how the last ones went.
    """

    def __init__(self, options: ChatOptions, *, max_sessions: int = 32) -> None:
        self._options = options
        self._capabilities = profile(options.profile, max_sessions=max_sessions)
        self._backend: Backend | None = None
        self._sessions: set[ChatSession] = set()

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self._options.wire_name

    @property
    def unit(self) -> Unit:
        """No clock of its own (the table says 1000 ms); rates as deployed."""
        return Unit(self._capabilities.chunk_period_ms, self._options.input_rate_hz, self._options.output_rate_hz)

    @property
    def defaults(self) -> SessionDefaults:
        """The chat lane."""
        return SessionDefaults(
            model=self.name,
            input_rate_hz=self._options.input_rate_hz,
            output_rate_hz=self._options.output_rate_hz,
            native_lane=False,
        )

    def traits(self, config: SessionConfig) -> Traits:
        """Turns only; the session listens. Camera frames have no place in a turn here and are refused."""
        return Traits(
            detects_speech=False,
            turn_based=True,
            holds_manual_input=True,
            video="refused",
            text_needs_all_audio=self._options.text_requires_complete_audio,
            own_context=True,
        )

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """The profile's column of contract 20."""
        return self._capabilities

    # --- configurations -------------------------------------------------------------------------------------------

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """Check an opening configuration; a backend without a voice answers in text unless the client asks for sound.

        Raises :class:`RemoteProtocolError`: ``runtime_native_stage_role_required`` for the native lane,
        ``server_vad_requires_native_duplex`` for interruption by speech, ``unsupported_ref_audio_path``,
        ``unsupported_response_modality``, ``invalid_duplex_runtime_config`` for what this model does not take.
        """
        config = update.config
        if config.native_duplex:
            raise RemoteProtocolError(
                "runtime_native_stage_role_required",
                "this deployment has no model-native lane",
                param="session.extra_body.native_duplex",
            )
        self._check_voice(config)
        self._check_turns(config)
        self._check_tools(config)
        return self._with_modalities(update)

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """As :meth:`check`; instructions may change at any time (contract 17)."""
        config = update.config
        if config.ref_audio != current.ref_audio or "extra_body" in update.named:
            self._check_voice(config)
        self._check_turns(config)
        self._check_tools(config)
        return self._with_modalities(update)

    def _check_voice(self, config: SessionConfig) -> None:
        for key in LOCAL_PATHS:
            if key in config.extra_body:
                raise RemoteProtocolError(
                    "unsupported_ref_audio_path",
                    "reference audio is a data URL or an http(s) address, never a path",
                    param=f"session.extra_body.{key}",
                )
        if config.ref_audio is None:
            return
        if self._options.ref_audio == "refused":
            raise RemoteProtocolError(PLUGIN_REFUSES, "this model takes no reference audio", param="session.ref_audio")
        if not config.ref_audio.startswith(("data:", "http://", "https://")):
            raise RemoteProtocolError(
                "unsupported_ref_audio_path", "reference audio is a data URL or an http(s) address", param="ref_audio"
            )

    def _check_turns(self, config: SessionConfig) -> None:
        if config.overlap_policy == "barge_in_on_speech":
            raise RemoteProtocolError(
                "server_vad_requires_native_duplex",
                "interruption by speech needs a model-native session",
                param="overlap_policy",
            )
        if self._options.profile == "qwen3_omni" and config.auto_response:
            raise RemoteProtocolError(
                PLUGIN_REFUSES,
                "this model answers commits and response.create; extra_body.auto_response must be false",
                param="session.extra_body.auto_response",
            )

    def _check_tools(self, config: SessionConfig) -> None:
        if not config.tools:
            return
        if self._options.profile == "qwen3_omni":
            raise RemoteProtocolError(PLUGIN_REFUSES, "this model takes no tools", param="session.tools")
        try:
            chat_tools(config.tools)
        except OptionError as error:
            raise RemoteProtocolError(PLUGIN_REFUSES, str(error), param="session.tools") from None

    def _with_modalities(self, update: ConfigUpdate) -> SessionConfig:
        config = update.config
        if self._options.output == "audio" or "audio" not in config.modalities:
            return config
        if "modalities" in update.named:
            raise RemoteProtocolError(
                "unsupported_response_modality", "this model answers in text only", param="session.modalities"
            )
        return attrs.evolve(config, modalities=("text",))

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the HTTP client open. Cancellation: its connections are closed."""
        async with open_client(self._options) as client:
            self._backend = Backend(self._options, client)
            log.info("chat_backend", model=self.name, host=urlsplit(self._options.url).hostname)
            task_status.started()
            await trio.sleep_forever()

    async def open(self, config: SessionConfig, context: SessionContext) -> ChatSession:
        """A session costs nothing here. Raises ``OpenRefused`` before the plugin runs. Cancellation: no session."""
        await trio.lowlevel.checkpoint()
        if self._backend is None:
            raise OpenRefused("the chat lane is not running")
        session = ChatSession(self._backend, self._options, context, on_close=self._sessions.discard)
        self._sessions.add(session)
        return session

    def health(self) -> ModelHealth:
        """Ready while it runs; the detail tells of the backend without an address: answers and failures in a row."""
        backend = self._backend
        detail = {"open_sessions": len(self._sessions)}
        if backend is None:
            return ModelHealth(ready=False, alive=True, detail=detail)
        return ModelHealth(
            ready=True,
            alive=True,
            detail={
                **detail,
                "backend_answers": backend.answers,
                "backend_failures_in_a_row": backend.failures,
                "backend_last_failure": backend.last_failure,
            },
        )
