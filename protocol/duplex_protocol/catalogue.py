"""The 42 server events of the realtime dialect as a table, with what the plain view does to each (seed, contract 25).

``python -m duplex_protocol.catalogue`` prints the wire reference as markdown.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

PlainRule = Literal["same", "reshaped", "asked", "omitted"]
"""What the plain view shows: the same shape, OpenAI's shape of it, only an answer to a request, or nothing."""


@attrs.frozen
class ServerRow:
    """One server event: the seed's tier, what it says in own words, its fields beside type, event_id and number.

    A field in square brackets is not always there. ``extra`` names what the duplex view adds to OpenAI's event.
    """

    tier: int
    description: str
    fields: tuple[str, ...]
    extra: tuple[str, ...] = ()
    plain: PlainRule = "same"


_CONTENT: Final = ("response_id", "item_id", "output_index", "content_index")

SERVER_EVENTS: Final[dict[str, ServerRow]] = {
    "session.created": ServerRow(
        2,
        "The session is open.",
        ("session",),
        ("incarnation", "attachment_generation", "[resume_token]"),
        "reshaped",
    ),
    "session.updated": ServerRow(
        2, "The effective configuration after an accepted update.", ("session",), (), "reshaped"
    ),
    "session.heartbeat_ack": ServerRow(3, "Answers a heartbeat.", ("session_id",), (), "asked"),
    "session.closed": ServerRow(
        3, "The session's last event, with the reason.", ("session_id", "reason"), ("[deadlines]",), "asked"
    ),
    "session.resumed": ServerRow(
        3,
        "A resume was accepted; what the client missed follows. Without a number.",
        ("session_id", "incarnation", "attachment_generation", "resume_token"),
        (),
        "asked",
    ),
    "session.replaced": ServerRow(
        3,
        "To a socket whose session went to another one, with its own generation. Without a number.",
        ("session_id", "attachment_generation"),
        (),
        "omitted",
    ),
    "session.expired": ServerRow(
        3,
        "The other last event: the session waited too long for a socket or for life signs.",
        ("session_id", "incarnation", "reason"),
        ("[deadlines]",),
        "omitted",
    ),
    "session.resync_required": ServerRow(
        3, "What was missed can no longer be replayed; start anew.", ("session_id", "reason"), (), "asked"
    ),
    "input_audio_buffer.speech_started": ServerRow(
        1, "The user began to speak (in the plain view only with turn detection).", ("audio_start_ms", "item_id")
    ),
    "input_audio_buffer.speech_stopped": ServerRow(
        1, "The user stopped (in the plain view only with turn detection).", ("audio_end_ms", "item_id")
    ),
    "input_audio_buffer.committed": ServerRow(
        2, "A commit was accepted; names its item.", ("previous_item_id", "item_id"), ("event",), "reshaped"
    ),
    "input_audio_buffer.cleared": ServerRow(1, "Uncommitted input is gone.", ()),
    "conversation.item.added": ServerRow(
        2, "An item is in the conversation.", ("previous_item_id", "item"), (), "reshaped"
    ),
    "conversation.item.created": ServerRow(
        2, "The same under its beta name; both are always sent.", ("previous_item_id", "item"), (), "reshaped"
    ),
    "conversation.item.done": ServerRow(2, "An item is final.", ("previous_item_id", "item"), (), "reshaped"),
    "conversation.item.input_audio_transcription.completed": ServerRow(
        1,
        "What the model understood of a user item (plain view: with usage).",
        ("item_id", "content_index", "transcript"),
        (),
        "reshaped",
    ),
    "conversation.item.deleted": ServerRow(2, "An item was removed.", ("item_id",), ("event",), "reshaped"),
    "conversation.item.retrieved": ServerRow(1, "The item that was asked for.", ("item",), (), "reshaped"),
    "conversation.item.truncated": ServerRow(
        2, "An item was cut.", ("item_id", "content_index", "audio_end_ms"), ("event",), "reshaped"
    ),
    "response.created": ServerRow(
        2, "An answer begins.", ("response",), ("response_id", "response.metadata.duplex_event"), "reshaped"
    ),
    "response.output_item.added": ServerRow(
        1, "The answer got its item.", ("response_id", "output_index", "item"), (), "reshaped"
    ),
    "response.content_part.added": ServerRow(1, "A part of the item was opened.", (*_CONTENT, "part")),
    "response.speak": ServerRow(3, "The model chose to speak.", (*_CONTENT, "metadata"), (), "omitted"),
    "response.output_audio.delta": ServerRow(
        2,
        "One chunk of audio, base64.",
        (*_CONTENT, "delta"),
        ("format", "sample_rate_hz", "metadata"),
        "reshaped",
    ),
    "response.output_audio_transcript.delta": ServerRow(
        1, "The words of the audio chunk before it, maybe none.", (*_CONTENT, "delta")
    ),
    "response.output_text.delta": ServerRow(1, "A piece of a written answer.", (*_CONTENT, "delta")),
    "response.output_text.done": ServerRow(1, "The written answer.", (*_CONTENT, "text")),
    "response.output_audio.done": ServerRow(1, "No more audio in this answer.", _CONTENT),
    "response.output_audio_transcript.done": ServerRow(
        1, "All words of the answer's audio: the deltas joined.", (*_CONTENT, "transcript")
    ),
    "response.content_part.done": ServerRow(1, "A part is final.", (*_CONTENT, "part")),
    "response.output_item.done": ServerRow(
        1, "The answer's item is final.", ("response_id", "output_index", "item"), (), "reshaped"
    ),
    "response.done": ServerRow(
        2,
        "The end of an answer, exactly one for each.",
        ("response",),
        ("response_id", "[response.metadata.deadlines]"),
        "reshaped",
    ),
    "rate_limits.updated": ServerRow(1, "Follows every response.done; always an empty list.", ("rate_limits",)),
    "response.listen": ServerRow(
        3,
        "The model chose to keep listening; names a response only when it ends one that had begun.",
        ("session_id", "epoch", "[response_id]", "response"),
        (),
        "omitted",
    ),
    "response.function_call_arguments.delta": ServerRow(
        1, "The arguments of a tool call, in one piece.", ("response_id", "item_id", "output_index", "call_id", "delta")
    ),
    "response.function_call_arguments.done": ServerRow(
        1,
        "The arguments are complete (plain view: with the name).",
        ("response_id", "item_id", "output_index", "call_id", "arguments"),
        (),
        "reshaped",
    ),
    "duplex.function_call.done": ServerRow(
        3, "A tool call that lacks its id or name, as the model made it.", ("event",), (), "omitted"
    ),
    "output_audio_buffer.cleared": ServerRow(1, "Answers output_audio_buffer.clear.", ("response_id",)),
    "playback.acknowledged": ServerRow(
        3, "Answers playback.ack with the cursors and whether history changed.", ("event",), (), "asked"
    ),
    "overlap.decision": ServerRow(
        3,
        "What was done with speech over an answer: drop, listen or barge_in.",
        (
            "session_id",
            "epoch",
            "policy",
            "action",
            "reason",
            "[overlap_ms]",
            "[duration_ms]",
            "[buffer_audio]",
            "[defer_runtime_append]",
            "[force_listen]",
            "[cancel_reason]",
            "[preserve_realtime_input]",
        ),
        (),
        "omitted",
    ),
    "runtime.control": ServerRow(
        3, "An engine operation worked only in part.", ("session_id", "epoch", "result"), (), "omitted"
    ),
    "error": ServerRow(2, "A client event was refused, or the engine failed.", ("error",), (), "reshaped"),
}

BEYOND_THE_CATALOGUE: Final[dict[str, ServerRow]] = {
    "duplex.turn.event": ServerRow(3, "Answers a turn signal that does nothing on the wire.", ("event",), (), "asked"),
}
"""What is sent beside the 42 (contract 3.2: unmapped internal events)."""


if __name__ == "__main__":
    from duplex_protocol.wire_doc import markdown

    print(markdown())
