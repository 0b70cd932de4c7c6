"""Values shared by commands and events: session configuration, items, playback cursors, capabilities.

Everything is immutable; the session replaces values, it never edits them.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

from duplex_protocol.audio_formats import AudioFormat

Json = dict[str, Any]

SessionState = Literal["open", "closing", "closed"]
TurnState = Literal["idle", "user_speaking", "user_committed", "assistant_generating", "assistant_playing", "barge_in"]
OverlapPolicy = Literal["listen_only", "barge_in_on_speech"]
CommitPolicy = Literal["ack_only", "commit_all_on_done"]
ItemStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
Role = Literal["user", "assistant", "system"]

DEFAULT_IDLE_TIMEOUT_S: Final = 300.0


@attrs.frozen
class TextMark:
    """A text position in time: the first ``text_chars`` characters have been spoken by ``audio_end_ms``."""

    text_chars: int
    audio_end_ms: int

    def as_wire(self) -> Json:
        """One entry of the wire's ``audio_text_marks``."""
        return {"text_chars": self.text_chars, "audio_end_ms": self.audio_end_ms}


@attrs.frozen
class Playback:
    """The four playback cursors of a response in milliseconds (contract 14.1, 24a)."""

    generated_ms: int = 0
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0

    def as_wire(self) -> Json:
        """The wire's ``playback`` object."""
        return {
            "generated_ms": self.generated_ms,
            "sent_ms": self.sent_ms,
            "played_ms": self.played_ms,
            "committed_ms": self.committed_ms,
        }


@attrs.frozen
class TurnDetection:
    """Effective turn detection with all defaults filled (contract section 9).

    ``kind`` is ``server_vad`` or, in the plain view only, ``semantic_vad``; ``echo`` holds extra keys that the
    client sent and wants to see again (``eagerness``).
    """

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    min_speech_duration_ms: int | None = None
    interrupt_response: bool = True
    create_response: bool = True
    echo: Json = attrs.field(factory=dict)


@attrs.frozen
class SessionConfig:
    """The effective configuration of a session, after aliases and defaults.

    ``extra_body`` never holds the deprecated lane alias; ``unknown`` holds client keys we do not know, which are
    echoed as they came (contract 3.2).
    """

    model: str
    modalities: tuple[str, ...] = ("audio", "text")
    instructions: str | None = None
    voice: str | None = None
    ref_audio: str | None = None
    input_format: AudioFormat = AudioFormat("pcm16", 16_000)
    output_format: AudioFormat = AudioFormat("pcm16", 24_000)
    temperature: float | None = None
    max_tokens: int | None = None
    speed: float | None = None
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    overlap_policy: OverlapPolicy = "listen_only"
    overlap_short_ack_ms: float = 700
    overlap_barge_in_ms: float = 1200
    overlap_silence_rms: float = 0.003
    playback_commit_policy: CommitPolicy = "commit_all_on_done"
    turn_detection: TurnDetection | None = None
    turn_detection_named: bool = False
    transcription: Json | None = None
    noise_reduction: Json | None = None
    tools: tuple[Json, ...] = ()
    tool_choice: Any = None
    metadata: Json | None = None
    include: Any = None
    prompt: Any = None
    tracing: Any = None
    audio: Json | None = None
    extra_body: Json = attrs.field(factory=dict)
    unknown: Json = attrs.field(factory=dict)

    @property
    def auto_response(self) -> bool:
        """Whether the model may answer by itself (``extra_body.auto_response`` or ``full_duplex``; absent = off)."""
        return bool(self.extra_body.get("auto_response") or self.extra_body.get("full_duplex"))

    @property
    def native_duplex(self) -> bool | None:
        """The lane switch of ``extra_body``, None when the client did not name it."""
        value = self.extra_body.get("native_duplex")
        return None if value is None else bool(value)


@attrs.frozen
class ContentPart:
    """One part of an item. ``raw`` is the part as a client sent it (items made by ``conversation.item.create``)."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio"]
    text: str | None = None
    transcript: str | None = None
    is_speech: bool | None = None
    audio_duration_ms: int | None = None
    audio_text_marks: tuple[TextMark, ...] = ()
    raw: Json | None = None


@attrs.frozen
class Item:
    """A conversation item (``realtime.item``): a message, a function call or its output."""

    id: str
    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Role | None = "user"
    status: ItemStatus = "completed"
    content: tuple[ContentPart, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


@attrs.frozen(kw_only=True)
class Deadlines:
    """How one session's units of work kept their deadline so far; the wire's ``deadlines`` (our extension).

    ``units`` had a deadline and were finished, ``missed`` of them after it. Lateness is finish minus deadline, negative
    for early; the percentiles are over the last 1024 units, the maximum over all; None before the first unit.
    """

    units: int = 0
    missed: int = 0
    lateness_ms_p50: float | None = None
    lateness_ms_p99: float | None = None
    lateness_ms_max: float | None = None

    def as_wire(self) -> Json:
        """The wire's object: ms with three decimals."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in attrs.asdict(self).items()}


@attrs.frozen
class Capabilities:
    """The capability object of ``session.created`` in the key order of contract section 20."""

    supports_session_adapter: bool = True
    supports_model_native_turn_policy: bool = True
    supports_external_turn_signal: bool = False
    supports_client_commit: bool = True
    supports_barge_in: bool = False
    supports_playback_ack: bool = True
    supports_input_append: bool = True
    supports_replace_latest_chunk: bool = False
    supports_reencode_context: bool = False
    supports_rollback_to_checkpoint: bool = False
    supports_turn_commit_only: bool = False
    supports_kv_lease: bool = False
    supports_core_kv_lease: bool = False
    supports_scheduler_native_append: bool = False
    supports_model_internal_state: bool = True
    supports_stage_resumption: bool = True
    supports_core_resumable_request: bool = True
    supports_stage_connector_handoff: bool = True
    supports_independent_io_streams: bool = True
    supports_realtime_endpoint: bool = True
    supports_multi_session: bool = True
    supports_multi_session_same_replica: bool = True
    supports_session_lease: bool = True
    supports_session_resume: bool = True
    session_admission_mode: str = "engine_managed"
    supports_audio_truncate: bool = False
    requires_model_runner_kv: bool = False
    requires_native_stage_role: bool = False
    implementation_level: str = "model_native_duplex"
    adapter_patterns: tuple[str, ...] = ("scheduler_data_plane",)
    input_modes: tuple[str, ...] = ("append_audio_chunk",)
    signal_sources: tuple[str, ...] = ("model_native", "client_event")
    stage_handoff_transport: str | None = None
    chunk_period_ms: int = 1000
    target_barge_in_latency_ms: int | None = None

    def as_wire(self) -> Json:
        """The wire's ``capabilities`` object (tuples become lists)."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in attrs.asdict(self, recurse=False).items()}


@attrs.frozen
class SessionSnapshot:
    """Everything the ``session`` object of the wire shows, read off the session in one moment."""

    session_id: str
    config: SessionConfig
    capabilities: Capabilities
    state: SessionState = "open"
    turn_state: TurnState = "idle"
    epoch: int = 0
    turn_id: int = 0
    active_request_id: str | None = None
    active_response_id: str | None = None
    active_response_turn_id: int | None = None
    playback: Playback = Playback()
