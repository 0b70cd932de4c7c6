"""One worked example per client event, with the state it belongs to and what answers it.

The wire tests bring a session into that state, send exactly this text, and wait for exactly that answer. Ids are those
of a session whose first user item is ``item_01`` and whose first answer is ``resp_01``.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from duplex_protocol.values import Json

State = Literal["new", "open", "heard", "committed", "speaking", "answered", "chat", "chat_committed", "dropped"]
"""Where a session stands before an example is sent: nothing opened yet; open; an utterance buffered; committed, not
answered; in the middle of an answer; after it; the same in the chat lane; its socket lost.
"""


@attrs.frozen
class ClientExample:
    """``event`` sent in ``state`` is answered by an event of type ``reply``; None: by nothing, and by no error."""

    event: Json
    state: State
    reply: str | None


SHORT_AUDIO: Final = "QB9AH0AfQB9AH0AfQB9AH8DgwODA4MDgwODA4MDgwOA="
REFERENCE_VOICE: Final = "data:audio/wav;base64,UklGRiQAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQAAAAA="

CLIENT_EXAMPLES: Final[dict[str, ClientExample]] = {
    "session.update": ClientExample(
        {
            "type": "session.update",
            "event_id": "evt_0001",
            "session": {
                "model": "openbmb/MiniCPM-o-4_5",
                "session_id": "sess_demo_01",
                "modalities": ["audio", "text"],
                "instructions": "You are a concise voice assistant.",
                "input_audio_format": "pcm16",
                "output_audio_format": "pcm16",
                "ref_audio": REFERENCE_VOICE,
                "turn_detection": None,
                "overlap_policy": "listen_only",
                "playback_commit_policy": "ack_only",
                "temperature": 0.7,
                "idle_timeout_s": 300,
                "extra_body": {"native_duplex": True, "force_listen_count": 0},
            },
        },
        "new",
        "session.updated",
    ),
    "session.heartbeat": ClientExample({"type": "session.heartbeat"}, "open", "session.heartbeat_ack"),
    "session.event_ack": ClientExample({"type": "session.event_ack", "server_event_seq": 2}, "open", None),
    "session.close": ClientExample({"type": "session.close"}, "open", "session.closed"),
    "session.resume": ClientExample(
        {
            "type": "session.resume",
            "session_id": "sess_demo_01",
            "incarnation": 0,
            "resume_token": "rt_01",
            "last_received_server_event_seq": 2,
        },
        "dropped",
        "session.resumed",
    ),
    "input_audio_buffer.append": ClientExample(
        {
            "type": "input_audio_buffer.append",
            "event_id": "evt_0042",
            "audio": SHORT_AUDIO,
            "input_audio_format": "pcm16",
            "sample_rate_hz": 16000,
            "duration_ms": 1,
            "audio_end_ms": 1,
            "is_speech": True,
        },
        "open",
        "input_audio_buffer.speech_started",
    ),
    "input_audio_buffer.commit": ClientExample(
        {"type": "input_audio_buffer.commit", "event_id": "evt_0060", "final": True},
        "heard",
        "input_audio_buffer.committed",
    ),
    "input.commit": ClientExample(
        {"type": "input.commit", "final": True, "response_create": True}, "heard", "response.created"
    ),
    "input_audio_buffer.clear": ClientExample(
        {"type": "input_audio_buffer.clear"}, "heard", "input_audio_buffer.cleared"
    ),
    "input.cancel": ClientExample({"type": "input.cancel"}, "speaking", "input_audio_buffer.cleared"),
    "input.text.append": ClientExample({"type": "input.text.append", "text": "and tomorrow?"}, "chat", None),
    "conversation.item.create": ClientExample(
        {
            "type": "conversation.item.create",
            "previous_item_id": None,
            "item": {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Summarise what I said."}],
            },
        },
        "open",
        "conversation.item.done",
    ),
    "conversation.item.retrieve": ClientExample(
        {"type": "conversation.item.retrieve", "item_id": "item_resp_01"}, "answered", "conversation.item.retrieved"
    ),
    "conversation.item.delete": ClientExample(
        {"type": "conversation.item.delete", "item_id": "item_01"}, "answered", "conversation.item.deleted"
    ),
    "conversation.item.truncate": ClientExample(
        {"type": "conversation.item.truncate", "item_id": "item_resp_01", "content_index": 0, "audio_end_ms": 1850},
        "answered",
        "conversation.item.truncated",
    ),
    "response.create": ClientExample(
        {
            "type": "response.create",
            "event_id": "evt_0070",
            "response": {
                "modalities": ["audio", "text"],
                "instructions": "Answer in one sentence.",
                "output_audio_format": "pcm16",
                "temperature": 0.6,
                "max_output_tokens": 256,
                "metadata": {"trace": "turn-3"},
            },
        },
        "chat_committed",
        "response.created",
    ),
    "response.cancel": ClientExample(
        {"type": "response.cancel", "response_id": "resp_01"}, "speaking", "response.done"
    ),
    "output_audio_buffer.clear": ClientExample(
        {"type": "output_audio_buffer.clear"}, "speaking", "output_audio_buffer.cleared"
    ),
    "barge_in": ClientExample({"type": "barge_in"}, "speaking", "response.done"),
    "turn.signal": ClientExample(
        {"type": "turn.signal", "event": "barge_in", "payload": {"source": "client_vad"}}, "speaking", "response.done"
    ),
    "playback.ack": ClientExample(
        {
            "type": "playback.ack",
            "response_id": "resp_01",
            "item_id": "item_resp_01",
            "played_ms": 1000,
            "committed_ms": 1000,
        },
        "answered",
        "playback.acknowledged",
    ),
}
