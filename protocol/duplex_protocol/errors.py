"""The error vocabulary of the wire: one row per code, and the two exception families.

As in h11 there are two families. The *peer* broke a rule: :class:`RemoteProtocolError`; it becomes one wire
``error`` with ``code``, ``param`` and the offending ``event_id`` and has no side effect. *Our caller* broke a
rule: :class:`LocalProtocolError`; that is a bug in the program that uses this package.

The rows come from contract section 6 (6.1 handshake stage, 6.2 established session).
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

ErrorClass = Literal["invalid_request_error", "server_error", "rate_limit_error"]

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
RATE: Final = "rate_limit_error"


@attrs.frozen
class ErrorRow:
    """What the wire says about one error code.

    ``error_class`` is OpenAI's ``error.type``; ``session_ends`` is true where contract 6.2 says that the session
    does not survive; ``retryable`` is the value of the extension field ``error.retryable`` (None: not sent).
    """

    error_class: ErrorClass
    session_ends: bool = False
    retryable: bool | None = None


# Codes that are not named here have class ``invalid_request_error`` and leave the session open (contract 6).
ERRORS: Final[dict[str, ErrorRow]] = {
    # framing and shape
    "invalid_json": ErrorRow(INVALID),
    "bad_event": ErrorRow(INVALID),
    "event_too_large": ErrorRow(INVALID),
    "unknown_event": ErrorRow(INVALID),
    "bad_audio": ErrorRow(INVALID),
    "unsupported_audio_format": ErrorRow(INVALID),
    "unsupported_response_modality": ErrorRow(INVALID),
    # handshake
    "config_timeout": ErrorRow(INVALID),
    "unsupported": ErrorRow(INVALID),
    "beta_api_shape_disabled": ErrorRow(INVALID),
    "invalid_session_config": ErrorRow(INVALID),
    "invalid_duplex_runtime_config": ErrorRow(INVALID),
    "ref_audio_required": ErrorRow(INVALID),
    "unsupported_ref_audio_path": ErrorRow(INVALID),
    "unsupported_nemotron_duplex_mode": ErrorRow(INVALID),
    "model_not_found": ErrorRow(INVALID),
    "session_exists": ErrorRow(INVALID),
    "session_closed": ErrorRow(INVALID),
    "unknown_session": ErrorRow(INVALID, session_ends=True),
    "resource_exhausted": ErrorRow(RATE, retryable=True),
    "duplex_session_busy": ErrorRow(RATE, retryable=True),
    # resume
    "invalid_session_resume": ErrorRow(INVALID),
    "session_resume_expired": ErrorRow(INVALID),
    "unsupported_session_resume": ErrorRow(INVALID),
    "session_resume_conflict": ErrorRow(INVALID),
    "invalid_resume_token": ErrorRow(INVALID),
    "invalid_event_ack": ErrorRow(INVALID),
    # turn detection
    "unsupported_turn_detection": ErrorRow(INVALID),
    "server_vad_requires_native_duplex": ErrorRow(INVALID),
    "server_vad_manual_commit_unsupported": ErrorRow(INVALID),
    "server_vad_initialization_failed": ErrorRow(SERVER),
    "server_vad_inference_failed": ErrorRow(SERVER),
    # input
    "input_audio_buffer_empty": ErrorRow(INVALID),
    "native_text_append_unsupported": ErrorRow(INVALID),
    "invalid_video_frames": ErrorRow(INVALID),
    "invalid_input_modality": ErrorRow(INVALID),
    "input_backpressure": ErrorRow(RATE, retryable=True),
    "commit_aborted": ErrorRow(SERVER),
    # items
    "missing_item_id": ErrorRow(INVALID),
    "item_not_found": ErrorRow(INVALID),
    "item_exists": ErrorRow(INVALID),
    "invalid_function_call_output": ErrorRow(INVALID),
    "function_response_backlog": ErrorRow(INVALID),
    # responses
    "response_already_active": ErrorRow(INVALID),
    "response_create_without_input": ErrorRow(INVALID),
    "response_not_active": ErrorRow(INVALID),
    "unsupported_native_response_options": ErrorRow(INVALID),
    "barge_in_unsupported": ErrorRow(INVALID),
    # playback
    "playback_item_mismatch": ErrorRow(INVALID),
    "playback_item_not_found": ErrorRow(INVALID),
    "playback_ack_too_late": ErrorRow(INVALID),
    # session.update
    "model_update_unsupported": ErrorRow(INVALID),
    "voice_update_unsupported": ErrorRow(INVALID),
    "voice_update_after_audio_unsupported": ErrorRow(INVALID),
    "ref_audio_update_unsupported": ErrorRow(INVALID),
    "instructions_update_unsupported": ErrorRow(INVALID),
    "persona_update_unsupported": ErrorRow(INVALID),
    "native_duplex_mode_update_unsupported": ErrorRow(INVALID),
    "sliding_window_update_unsupported": ErrorRow(INVALID),
    "invalid_sliding_window_config": ErrorRow(INVALID),
    "session_update_aborted": ErrorRow(INVALID),
    "invalid_request_error": ErrorRow(INVALID),
    # engine and server
    "runtime_open_failed": ErrorRow(SERVER),
    "runtime_open_unsupported": ErrorRow(SERVER),
    "runtime_append_failed": ErrorRow(SERVER),
    "runtime_append_task_failed": ErrorRow(SERVER, session_ends=True),
    "runtime_data_plane_stream_failed": ErrorRow(SERVER, session_ends=True),
    "runtime_data_plane_text_without_audio": ErrorRow(SERVER),
    "runtime_signal_failed": ErrorRow(SERVER),
    "runtime_abort_failed": ErrorRow(SERVER),
    "runtime_touch_failed": ErrorRow(SERVER),
    "runtime_close_failed": ErrorRow(SERVER),
    "runtime_native_stage_role_required": ErrorRow(SERVER),
    "runtime_native_runner_kv_required": ErrorRow(SERVER),
    "response_error": ErrorRow(SERVER),
    "chat_error": ErrorRow(SERVER),
    "nemotron_function_call_parse_error": ErrorRow(SERVER),
    "native_duplex_prefill_failed": ErrorRow(SERVER),
    "native_kv_replica_lost": ErrorRow(SERVER, session_ends=True),
    "realtime_input_failed": ErrorRow(SERVER),
    "engine_error": ErrorRow(SERVER),
    "internal_error": ErrorRow(SERVER),
    "runtime_contract_invalid": ErrorRow(INVALID),
    "runtime_resume_failed": ErrorRow(INVALID),
    "runtime_resume_unsupported": ErrorRow(INVALID),
    "runtime_touch_unsupported": ErrorRow(SERVER),
    # typed refusals of an engine, in place of a runtime_*_failed code
    "stale_fence": ErrorRow(INVALID),
    "failed_precondition": ErrorRow(INVALID),
    "not_found": ErrorRow(INVALID),
    "invalid_argument": ErrorRow(INVALID),
    "invalid_capability": ErrorRow(INVALID),
    "timeout": ErrorRow(INVALID, retryable=True),
    # route and lane
    "multi_api_duplex_unsupported": ErrorRow(INVALID),
    "text_only_turn_unsupported": ErrorRow(INVALID),
    "duplex_error": ErrorRow(INVALID),
}

_DEFAULT_ROW: Final = ErrorRow(INVALID)


def error_row(code: str) -> ErrorRow:
    """The row of ``code``; unknown codes get the default row (contract 6: ``invalid_request_error``, stays open)."""
    return ERRORS.get(code, _DEFAULT_ROW)


class LocalProtocolError(Exception):
    """The caller of this package misused it (a bug on our side, never the peer's fault)."""


class RemoteProtocolError(Exception):
    """The peer broke a rule; carries everything the wire's ``error`` event needs.

    ``code`` is a key of :data:`ERRORS`, ``param`` the offending field's path, ``event_id`` the client's id of the
    offending event (filled in by the one place that knows it), ``retryable`` overrides the row's value.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.retryable = error_row(code).retryable if retryable is None else retryable

    @property
    def error_class(self) -> ErrorClass:
        """OpenAI's class word for this code."""
        return error_row(self.code).error_class

    def __repr__(self) -> str:
        return f"RemoteProtocolError({self.code!r}, {self.message!r}, param={self.param!r}, event_id={self.event_id!r})"
