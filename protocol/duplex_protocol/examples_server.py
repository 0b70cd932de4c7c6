"""One worked example per server event, as a client of the duplex view receives it, without event id and number.

Recorded from the scripted conversations of the wire tests, which compare them with what is received again; ``…`` stands
for audio. Ids are those of :mod:`duplex_protocol.examples`.
"""

from __future__ import annotations

from typing import Final

from duplex_protocol.examples import REFERENCE_VOICE
from duplex_protocol.profiles import MINICPMO_4_5
from duplex_protocol.values import Json

_SESSION: Final[Json] = {
    "object": "realtime.session",
    "type": "realtime",
    "id": "sess_demo_01",
    "model": "openbmb/MiniCPM-o-4_5",
    "state": "open",
    "turn_state": "idle",
    "epoch": 0,
    "turn_id": 0,
    "active_request_id": None,
    "active_response_id": None,
    "active_response_turn_id": None,
    "modalities": ["audio", "text"],
    "output_modalities": ["audio", "text"],
    "instructions": "You are a concise voice assistant.",
    "voice": None,
    "response_format": "pcm16",
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "audio": {
        "input": {"format": {"type": "audio/pcm", "rate": 16000}, "sample_rate_hz": 16000},
        "output": {"format": {"type": "audio/pcm", "rate": 24000}},
    },
    "temperature": 0.7,
    "max_tokens": None,
    "speed": None,
    "idle_timeout_s": 300.0,
    "overlap_policy": "listen_only",
    "overlap_short_ack_ms": 700,
    "overlap_barge_in_ms": 1200,
    "overlap_silence_rms": 0.003,
    "playback_commit_policy": "ack_only",
    "turn_detection": None,
    "input_audio_transcription": None,
    "tracing": None,
    "playback": {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0},
    "capabilities": MINICPMO_4_5.as_wire(),
    "ref_audio": REFERENCE_VOICE,
    "extra_body": {"native_duplex": True, "force_listen_count": 0},
}

_QUESTION: Final[Json] = {
    "id": "item_01",
    "object": "realtime.item",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_audio", "transcript": "what is the weather today"}],
}
_ANSWER: Final[Json] = {
    "id": "item_resp_01",
    "object": "realtime.item",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [
        {
            "type": "output_audio",
            "transcript": "It is sunny, 24 degrees.",
            "audio_duration_ms": 2000,
            "audio_text_marks": [
                {"text_chars": 13, "audio_end_ms": 1000},
                {"text_chars": 24, "audio_end_ms": 2000},
            ],
        }
    ],
}
_AT: Final[Json] = {"response_id": "resp_01", "item_id": "item_resp_01", "output_index": 0, "content_index": 0}

SERVER_EXAMPLES: Final[dict[str, Json]] = {
    "session.created": {
        "type": "session.created",
        "incarnation": 0,
        "attachment_generation": 1,
        "resume_token": "rt_01",
        "session": _SESSION,
    },
    "session.updated": {"type": "session.updated", "session": _SESSION},
    "session.heartbeat_ack": {"type": "session.heartbeat_ack", "session_id": "sess_demo_01"},
    "session.closed": {"type": "session.closed", "session_id": "sess_demo_01", "reason": "session_close"},
    "session.resumed": {
        "type": "session.resumed",
        "session_id": "sess_demo_01",
        "incarnation": 0,
        "attachment_generation": 2,
        "resume_token": "rt_02",
    },
    "session.replaced": {"type": "session.replaced", "session_id": "sess_demo_01", "attachment_generation": 1},
    "session.expired": {
        "type": "session.expired",
        "session_id": "sess_demo_01",
        "incarnation": 0,
        "reason": "idle_ttl_expired",
    },
    "session.resync_required": {
        "type": "session.resync_required",
        "session_id": "sess_demo_01",
        "reason": "journal_gap",
    },
    "input_audio_buffer.speech_started": {
        "type": "input_audio_buffer.speech_started",
        "audio_start_ms": 0,
        "item_id": "item_01",
    },
    "input_audio_buffer.speech_stopped": {
        "type": "input_audio_buffer.speech_stopped",
        "audio_end_ms": 1000,
        "item_id": "item_01",
    },
    "input_audio_buffer.committed": {
        "type": "input_audio_buffer.committed",
        "previous_item_id": None,
        "item_id": "item_01",
        "event": {
            "type": "input.committed",
            "session_id": "sess_demo_01",
            "turn_id": 1,
            "epoch": 0,
            "history_len": 1,
            "native_audio": True,
            "message": {
                "role": "user",
                "content": [
                    {"type": "audio_url", "audio_url": {"url": "native-duplex:input-audio"}},
                    {"type": "text", "text": "what is the weather today"},
                ],
            },
            "realtime_item_id": "item_01",
            "item_id": "item_01",
            "transcript": "what is the weather today",
        },
    },
    "input_audio_buffer.cleared": {"type": "input_audio_buffer.cleared"},
    "conversation.item.added": {
        "type": "conversation.item.added",
        "previous_item_id": None,
        "item": _QUESTION,
    },
    "conversation.item.created": {
        "type": "conversation.item.created",
        "previous_item_id": None,
        "item": _QUESTION,
    },
    "conversation.item.done": {
        "type": "conversation.item.done",
        "previous_item_id": None,
        "item": _QUESTION,
    },
    "conversation.item.input_audio_transcription.completed": {
        "type": "conversation.item.input_audio_transcription.completed",
        "item_id": "item_01",
        "content_index": 0,
        "transcript": "what is the weather today",
    },
    "conversation.item.deleted": {
        "type": "conversation.item.deleted",
        "item_id": "item_01",
        "event": {"type": "conversation.item.deleted", "item_id": "item_01"},
    },
    "conversation.item.retrieved": {
        "type": "conversation.item.retrieved",
        "item": _ANSWER,
    },
    "conversation.item.truncated": {
        "type": "conversation.item.truncated",
        "item_id": "item_resp_01",
        "content_index": 0,
        "audio_end_ms": 1850,
        "event": {
            "type": "conversation.item.truncated",
            "item_id": "item_resp_01",
            "content_index": 0,
            "audio_end_ms": 1850,
        },
    },
    "response.created": {
        "type": "response.created",
        "response_id": "resp_01",
        "response": {
            "id": "resp_01",
            "object": "realtime.response",
            "status": "in_progress",
            "status_details": None,
            "output": [],
            "modalities": ["audio", "text"],
            "metadata": {
                "duplex_event": {
                    "type": "response.created",
                    "session_id": "sess_demo_01",
                    "response_id": "resp_01",
                    "epoch": 0,
                    "turn_id": 1,
                }
            },
        },
    },
    "response.output_item.added": {
        "type": "response.output_item.added",
        "response_id": "resp_01",
        "output_index": 0,
        "item": {
            "id": "item_resp_01",
            "object": "realtime.item",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        },
    },
    "response.content_part.added": {
        "type": "response.content_part.added",
        **_AT,
        "part": {"type": "audio", "transcript": ""},
    },
    "response.speak": {
        "type": "response.speak",
        **_AT,
        "metadata": {"session_id": "sess_demo_01", "epoch": 0, "model_speak": True},
    },
    "response.output_audio.delta": {
        "type": "response.output_audio.delta",
        **_AT,
        "delta": "…",
        "format": "pcm16",
        "sample_rate_hz": 24000,
        "metadata": {
            "session_id": "sess_demo_01",
            "epoch": 0,
            "model_speak": True,
            "end_of_turn": False,
            "audio_duration_ms": 1000,
            "audio_text_marks": [{"text_chars": 13, "audio_end_ms": 1000}],
            "playback": {"generated_ms": 1000, "sent_ms": 1000, "played_ms": 0, "committed_ms": 0},
        },
    },
    "response.output_audio_transcript.delta": {
        "type": "response.output_audio_transcript.delta",
        **_AT,
        "delta": "It is sunny, ",
    },
    "response.output_text.delta": {
        "type": "response.output_text.delta",
        **_AT,
        "delta": "It is sunny, ",
    },
    "response.output_text.done": {
        "type": "response.output_text.done",
        **_AT,
        "text": "It is sunny, 24 degrees.",
    },
    "response.output_audio.done": {
        "type": "response.output_audio.done",
        **_AT,
    },
    "response.output_audio_transcript.done": {
        "type": "response.output_audio_transcript.done",
        **_AT,
        "transcript": "It is sunny, 24 degrees.",
    },
    "response.content_part.done": {
        "type": "response.content_part.done",
        **_AT,
        "part": {"type": "audio", "transcript": "It is sunny, 24 degrees."},
    },
    "response.output_item.done": {
        "type": "response.output_item.done",
        "response_id": "resp_01",
        "output_index": 0,
        "item": _ANSWER,
    },
    "response.done": {
        "type": "response.done",
        "response_id": "resp_01",
        "response": {
            "id": "resp_01",
            "object": "realtime.response",
            "status": "completed",
            "status_details": None,
            "output": [_ANSWER],
            "metadata": {
                "type": "response.done",
                "session_id": "sess_demo_01",
                "response_id": "resp_01",
                "epoch": 0,
                "committed": False,
                "playback": {"generated_ms": 2000, "sent_ms": 2000, "played_ms": 0, "committed_ms": 0},
            },
        },
    },
    "rate_limits.updated": {"type": "rate_limits.updated", "rate_limits": []},
    "response.listen": {
        "type": "response.listen",
        "session_id": "sess_demo_01",
        "epoch": 0,
        "response": {
            "object": "realtime.response",
            "status": "listening",
            "metadata": {
                "type": "response.listen",
                "session_id": "sess_demo_01",
                "epoch": 0,
                "reason": "silence_or_noise",
                "model_listen": False,
            },
        },
    },
    "response.function_call_arguments.delta": {
        "type": "response.function_call_arguments.delta",
        "response_id": "resp_01",
        "item_id": "item_01",
        "output_index": 0,
        "call_id": "call_7d1f",
        "delta": '{"city":"Hong Kong"}',
    },
    "response.function_call_arguments.done": {
        "type": "response.function_call_arguments.done",
        "response_id": "resp_01",
        "item_id": "item_01",
        "output_index": 0,
        "call_id": "call_7d1f",
        "arguments": '{"city":"Hong Kong"}',
    },
    "duplex.function_call.done": {
        "type": "duplex.function_call.done",
        "event": {
            "type": "function_call.done",
            "session_id": "sess_demo_01",
            "epoch": 0,
            "call_id": None,
            "name": None,
            "arguments": "{",
        },
    },
    "output_audio_buffer.cleared": {"type": "output_audio_buffer.cleared", "response_id": "resp_01"},
    "playback.acknowledged": {
        "type": "playback.acknowledged",
        "event": {
            "type": "playback.acknowledged",
            "session_id": "sess_demo_01",
            "epoch": 0,
            "item_id": "item_resp_01",
            "played_ms": 1000,
            "committed_ms": 1000,
            "truncate": False,
            "playback": {"generated_ms": 2000, "sent_ms": 2000, "played_ms": 1000, "committed_ms": 1000},
            "history_committed": True,
        },
    },
    "overlap.decision": {
        "type": "overlap.decision",
        "session_id": "sess_demo_01",
        "epoch": 0,
        "policy": "listen_only",
        "action": "listen",
        "reason": "accumulating_overlap_speech",
        "overlap_ms": 1000,
        "duration_ms": 1000,
        "buffer_audio": True,
        "defer_runtime_append": True,
        "force_listen": True,
    },
    "runtime.control": {
        "type": "runtime.control",
        "session_id": "sess_demo_01",
        "epoch": 0,
        "result": {"ok": True, "operation": "signal", "unsupported_count": 1, "error_count": 0},
    },
    "error": {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "code": "input_audio_buffer_empty",
            "message": "input_audio_buffer.commit requires a non-empty input audio buffer.",
            "event_id": "evt_0060",
        },
    },
}
