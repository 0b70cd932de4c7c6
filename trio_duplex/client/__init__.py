"""Talk to a full-duplex speech server from Trio. Start at `DuplexClient`."""

from .client import ClientStatistics, DuplexClient
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
from .response import ResponseHandle
from .transport import ConnectFactory, WebSocketConnector, WebSocketTransport
from .urls import build_realtime_url
from .values import (
    DUPLEX_FIRST_UNIT_MS,
    DUPLEX_UNIT_MS,
    PCM16_BYTES_PER_SAMPLE,
    PCM16_SAMPLE_RATE,
    AudioFormat,
    ReconnectPolicy,
    SessionConfig,
    duplex_unit_boundary_ms,
)

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
    "DuplexClient",
    "DuplexClientError",
    "DuplexConnectionError",
    "DuplexEvent",
    "DuplexProtocolError",
    "DuplexSessionClosedError",
    "ErrorEvent",
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
    "build_realtime_url",
    "duplex_unit_boundary_ms",
    "wrap_event",
]
