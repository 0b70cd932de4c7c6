"""Talk to a full-duplex speech server from Trio. Start at `DuplexClient`."""

from . import presets
from .client import DuplexClient
from .collector import EventCollector
from .counters import ClientStatistics
from .errors import DuplexClientError, DuplexConnectionError, DuplexProtocolError, DuplexSessionClosedError
from .events import (
    AudioDelta,
    ConnectionResumed,
    DuplexEvent,
    ErrorEvent,
    ListenDecision,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionResumed,
    SessionUpdated,
    SpeakDecision,
    TextDelta,
    TranscriptDelta,
    wrap_event,
)
from .helpers import acknowledge_collected_playback, chunk_period_ms, has_residual_model_unit, wait_for_condition
from .inline import InlineDuplexClient
from .media import audio_data_url, image_data_url, read_pcm16_wav, reference_audio_data_url, write_pcm16_wav
from .response import ResponseHandle
from .session_metrics import (
    distribution_summary,
    metric_mean,
    summarize_session_request_metrics,
    summarize_stage_metrics,
)
from .transport import ConnectFactory, WebSocketConnector, WebSocketTransport
from .urls import build_realtime_url
from .values import (
    DUPLEX_FIRST_UNIT_MS,
    DUPLEX_UNIT_MS,
    PCM16_BYTES_PER_SAMPLE,
    PCM16_SAMPLE_RATE,
    AudioFormat,
    Deadlines,
    ReconnectPolicy,
    SessionConfig,
    duplex_unit_boundary_ms,
)
from .video import concat_frames, concat_frames_b64, unit_subframe_offsets

__all__ = [
    "DUPLEX_FIRST_UNIT_MS",
    "DUPLEX_UNIT_MS",
    "PCM16_BYTES_PER_SAMPLE",
    "PCM16_SAMPLE_RATE",
    "AudioDelta",
    "AudioFormat",
    "ClientStatistics",
    "ConnectFactory",
    "ConnectionResumed",
    "Deadlines",
    "DuplexClient",
    "DuplexClientError",
    "DuplexConnectionError",
    "DuplexEvent",
    "DuplexProtocolError",
    "DuplexSessionClosedError",
    "ErrorEvent",
    "EventCollector",
    "InlineDuplexClient",
    "ListenDecision",
    "ReconnectPolicy",
    "ResponseCreated",
    "ResponseDone",
    "ResponseHandle",
    "SessionClosed",
    "SessionConfig",
    "SessionCreated",
    "SessionExpired",
    "SessionResumed",
    "SessionUpdated",
    "SpeakDecision",
    "TextDelta",
    "TranscriptDelta",
    "WebSocketConnector",
    "WebSocketTransport",
    "acknowledge_collected_playback",
    "audio_data_url",
    "build_realtime_url",
    "chunk_period_ms",
    "concat_frames",
    "concat_frames_b64",
    "distribution_summary",
    "duplex_unit_boundary_ms",
    "has_residual_model_unit",
    "image_data_url",
    "metric_mean",
    "presets",
    "read_pcm16_wav",
    "reference_audio_data_url",
    "summarize_session_request_metrics",
    "summarize_stage_metrics",
    "unit_subframe_offsets",
    "wait_for_condition",
    "wrap_event",
    "write_pcm16_wav",
]
