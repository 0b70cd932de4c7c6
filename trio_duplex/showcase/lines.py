"""A conversation as lines of text: what was understood, decided and said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio_duplex.client import wrap_event

__all__ = ["line_of"]


def line_of(event: Mapping[str, Any]) -> str | None:
    """What is worth a line of a server event; None for the rest."""
    match event.get("type"):
        case "session.created":
            return f"session {wrap_event(dict(event)).session_id} is open"
        case "input_audio_buffer.speech_started":
            return f"it hears speech from {event.get('audio_start_ms')} ms on"
        case "conversation.item.input_audio_transcription.completed":
            return f"it understood: “{event.get('transcript', '')}”"
        case "response.speak":
            return "it decides to speak"
        case "overlap.decision":
            return f"overlap: {event.get('action')} ({event.get('reason')})"
        case "response.output_audio_transcript.done":
            return f"it said: “{event.get('transcript', '')}”"
        case "response.done":
            response = event.get("response") or {}
            details = response.get("status_details") or {}
            reason = f" ({details.get('reason')})" if details.get("reason") else ""
            return f"the answer is {response.get('status')}{reason}"
        case "error":
            error = event.get("error")
            detail = f"{error.get('code')}: {error.get('message')}" if isinstance(error, dict) else str(error)
            return f"error: {detail}"
    return None
