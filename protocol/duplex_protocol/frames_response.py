"""Builders of realtime frames of a response: brackets, deltas, the terminal sequence, function calls.

Same form as :mod:`duplex_protocol.frames_session`: ``(memory, native event) -> frame``.
"""

from __future__ import annotations

from typing import Any

from duplex_protocol import events as e
from duplex_protocol import shapes
from duplex_protocol.memory import Memory
from duplex_protocol.session_echo import plain_format
from duplex_protocol.shapes import item_frame
from duplex_protocol.values import Item, Json

# --- responses --------------------------------------------------------------------------------------------------------


def response_created(m: Memory, ev: e.ResponseCreated) -> Json:
    if m.plain:
        output: Json = {"format": plain_format(ev.output_format)}
        if m.snapshot is not None and m.snapshot.config.voice is not None:
            output["voice"] = m.snapshot.config.voice
        response = plain_response(ev.response_id, "in_progress", ev.modalities, ev.metadata)
        return {"type": "response.created", "response": response | {"audio": {"output": output}}}
    native: Json = {
        "type": "response.created",
        "session_id": ev.session_id,
        "response_id": ev.response_id,
        "epoch": ev.epoch,
        "turn_id": ev.turn_id,
    }
    native |= shapes.optional(conversation=ev.conversation, prompt=ev.prompt)
    return {
        "type": "response.created",
        "response_id": ev.response_id,
        "response": {
            "id": ev.response_id,
            "object": "realtime.response",
            "status": "in_progress",
            "status_details": None,
            "output": [],
            "modalities": list(ev.modalities),
            "metadata": {**(ev.metadata or {}), "duplex_event": native},
        },
    }


def plain_response(response_id: str, status: str, modalities: tuple[str, ...], metadata: Json | None) -> Json:
    """OpenAI's response object without output, details or usage."""
    return {
        "object": "realtime.response",
        "id": response_id,
        "status": status,
        "status_details": None,
        "output": [],
        "output_modalities": shapes.plain_modalities(modalities),
        "metadata": shapes.plain_metadata(metadata),
        "usage": None,
    }


def answer_added(_: Memory, ev: e.ResponseCreated) -> Json:
    return item_frame("conversation.item.added", ev.previous_item_id, shapes.open_message(ev.item_id))


def answer_created(_: Memory, ev: e.ResponseCreated) -> Json:
    return item_frame("conversation.item.created", ev.previous_item_id, shapes.open_message(ev.item_id))


def output_item_added(_: Memory, ev: e.ResponseCreated) -> Json:
    return {
        "type": "response.output_item.added",
        "response_id": ev.response_id,
        "output_index": 0,
        "item": shapes.open_message(ev.item_id),
    }


def address(kind: str, response_id: str, item_id: str, content_index: int) -> Json:
    """The head that all content events of a response share."""
    return {
        "type": kind,
        "response_id": response_id,
        "item_id": item_id,
        "output_index": 0,
        "content_index": content_index,
    }


def audio_part_added(m: Memory, ev: e.ResponseCreated | e.AudioDelta) -> Json:
    m.open[ev.response_id].audio_part = True
    head = address("response.content_part.added", ev.response_id, ev.item_id, 0)
    return {**head, "part": {"type": "audio", "transcript": ""}}


def text_part_added(m: Memory, ev: e.TextDelta) -> Json:
    bracket = m.open[ev.response_id]
    bracket.text_part = True
    head = address("response.content_part.added", ev.response_id, ev.item_id, int(bracket.audio_part))
    return {**head, "part": {"type": "text", "text": ""}}


def speak(m: Memory, ev: e.ResponseSpeak | e.AudioDelta) -> Json:
    m.open[ev.response_id].speak_sent = True
    head = address("response.speak", ev.response_id, ev.item_id, 0)
    return {**head, "metadata": {"session_id": ev.session_id, "epoch": ev.epoch, "model_speak": True}}


def audio_delta(m: Memory, ev: e.AudioDelta) -> Json:
    frame: Json = {
        "type": "response.output_audio.delta",
        "response_id": ev.response_id,
        "item_id": ev.item_id,
        "output_index": 0,
        "content_index": 0,
        "delta": ev.audio,
    }
    if m.view == "duplex":
        frame["format"] = ev.format.encoding
        frame["sample_rate_hz"] = ev.format.rate_hz
        frame["metadata"] = {
            "session_id": ev.session_id,
            "epoch": ev.epoch,
            "model_speak": ev.model_speak,
            "end_of_turn": ev.end_of_turn,
            "audio_duration_ms": ev.audio_duration_ms,
            "audio_text_marks": [mark.as_wire() for mark in ev.marks],
            "playback": ev.playback.as_wire(),
        }
    return frame


def transcript_delta(_: Memory, ev: e.AudioDelta) -> Json:
    return {
        "type": "response.output_audio_transcript.delta",
        "response_id": ev.response_id,
        "item_id": ev.item_id,
        "output_index": 0,
        "content_index": 0,
        "delta": ev.text,
    }


def text_delta(m: Memory, ev: e.TextDelta) -> Json:
    index = int(m.open[ev.response_id].audio_part)
    return {**address("response.output_text.delta", ev.response_id, ev.item_id, index), "delta": ev.delta}


def listen(_: Memory, ev: e.ResponseListen) -> Json:
    metadata: Json = {
        "type": "response.listen",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        "reason": ev.reason,
    }
    if not ev.model_listen:
        metadata["model_listen"] = False
    if ev.buffering:
        metadata["buffering"] = True
    named = shapes.optional(id=ev.response_id)
    return {
        "type": "response.listen",
        "session_id": ev.session_id,
        "epoch": ev.epoch,
        **shapes.optional(response_id=ev.response_id),
        "response": {**named, "object": "realtime.response", "status": "listening", "metadata": metadata},
    }


# --- terminal sequence (contract 5.1) ---------------------------------------------------------------------------------


def audio_done(_: Memory, ev: e.ResponseDone) -> Json:
    return address("response.output_audio.done", ev.response_id, ev.item.id, 0)


def transcript_done(_: Memory, ev: e.ResponseDone) -> Json:
    head = address("response.output_audio_transcript.done", ev.response_id, ev.item.id, 0)
    return {**head, "transcript": ev.transcript}


def audio_part_done(_: Memory, ev: e.ResponseDone) -> Json:
    head = address("response.content_part.done", ev.response_id, ev.item.id, 0)
    return {**head, "part": {"type": "audio", "transcript": ev.transcript}}


def _text_index(m: Memory, ev: e.ResponseDone) -> int:
    return int(m.open[ev.response_id].audio_part)


def text_done(m: Memory, ev: e.ResponseDone) -> Json:
    head = address("response.output_text.done", ev.response_id, ev.item.id, _text_index(m, ev))
    return {**head, "text": ev.text}


def text_part_done(m: Memory, ev: e.ResponseDone) -> Json:
    head = address("response.content_part.done", ev.response_id, ev.item.id, _text_index(m, ev))
    return {**head, "part": {"type": "text", "text": ev.text}}


def output_item_done(m: Memory, ev: e.ResponseDone) -> Json:
    return {
        "type": "response.output_item.done",
        "response_id": ev.response_id,
        "output_index": 0,
        "item": shapes.answer_item(ev, m.view),
    }


def answer_done(m: Memory, ev: e.ResponseDone) -> Json:
    return item_frame("conversation.item.done", ev.predecessor_id, shapes.answer_item(ev, m.view))


def response_done(m: Memory, ev: e.ResponseDone) -> Json:
    status, details = shapes.response_status(ev, m.view)
    output = [shapes.answer_item(ev, m.view)]
    if m.plain:
        response = plain_response(ev.response_id, status, ev.modalities, ev.metadata)
        response |= {"status_details": details, "output": output}
        return {"type": "response.done", "response": response}
    return {
        "type": "response.done",
        "response_id": ev.response_id,
        "response": {
            "id": ev.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output,
            "metadata": shapes.native_response_done(ev),
        },
    }


def rate_limits(_: Memory, ev: Any) -> Json:
    return {"type": "rate_limits.updated", "rate_limits": []}


def output_cleared(m: Memory, ev: e.OutputCleared) -> Json:
    # OpenAI's type wants a string here; an idle clear has no response to name.
    return {
        "type": "output_audio_buffer.cleared",
        "response_id": ev.response_id or "" if m.plain else ev.response_id,
    }


# --- function calls (contract 19) -------------------------------------------------------------------------------------


def call_item(ev: e.FunctionCallDone, *, begun: bool) -> Item:
    """The function call's item; ``begun`` gives its in-progress form without arguments."""
    return Item(
        id=ev.item_id,
        type="function_call",
        role=None,
        status="in_progress" if begun else "completed",
        call_id=ev.call_id,
        name=ev.name,
        arguments="" if begun else ev.arguments,
    )


def _call_response(m: Memory, ev: e.FunctionCallDone, *, begun: bool) -> Json:
    status = "in_progress" if begun else "completed"
    output: list[Json] = [] if begun else [shapes.item(call_item(ev, begun=False), m.view)]
    kind = "response.created" if begun else "response.done"
    if m.plain:
        return {"type": kind, "response": plain_response(ev.response_id, status, (), None) | {"output": output}}
    native = shapes.native_function_call(ev)
    response: Json = {
        "id": ev.response_id,
        "object": "realtime.response",
        "status": status,
        "status_details": None,
        "output": output,
    }
    if begun:
        response["modalities"] = []
    response["metadata"] = {"duplex_event": native} if begun else native
    return {"type": kind, "response_id": ev.response_id, "response": response}


def call_response_created(m: Memory, ev: e.FunctionCallDone) -> Json:
    return _call_response(m, ev, begun=True)


def call_response_done(m: Memory, ev: e.FunctionCallDone) -> Json:
    return _call_response(m, ev, begun=False)


def _call_shape(m: Memory, ev: e.FunctionCallDone, *, done: bool) -> Json:
    """OpenAI announces a call empty and in progress; the seed announces it whole."""
    return shapes.item(call_item(ev, begun=m.plain and not done), m.view)


def call_added(m: Memory, ev: e.FunctionCallDone) -> Json:
    return item_frame("conversation.item.added", ev.previous_item_id, _call_shape(m, ev, done=False))


def call_created(m: Memory, ev: e.FunctionCallDone) -> Json:
    return item_frame("conversation.item.created", ev.previous_item_id, _call_shape(m, ev, done=False))


def call_output_item_added(m: Memory, ev: e.FunctionCallDone) -> Json:
    return {
        "type": "response.output_item.added",
        "response_id": ev.response_id,
        "output_index": 0,
        "item": _call_shape(m, ev, done=False),
    }


def _call_head(kind: str, ev: e.FunctionCallDone) -> Json:
    return {
        "type": kind,
        "response_id": ev.response_id,
        "item_id": ev.item_id,
        "output_index": 0,
        "call_id": ev.call_id,
    }


def call_arguments_delta(_: Memory, ev: e.FunctionCallDone) -> Json:
    return {**_call_head("response.function_call_arguments.delta", ev), "delta": ev.arguments}


def call_arguments_done(m: Memory, ev: e.FunctionCallDone) -> Json:
    frame = _call_head("response.function_call_arguments.done", ev)
    if m.plain:
        frame["name"] = ev.name
    return {**frame, "arguments": ev.arguments}


def call_output_item_done(m: Memory, ev: e.FunctionCallDone) -> Json:
    return {
        "type": "response.output_item.done",
        "response_id": ev.response_id,
        "output_index": 0,
        "item": _call_shape(m, ev, done=True),
    }


def call_done(m: Memory, ev: e.FunctionCallDone) -> Json:
    return item_frame("conversation.item.done", ev.previous_item_id, _call_shape(m, ev, done=True))


def call_raw(_: Memory, ev: e.FunctionCallDone) -> Json:
    return {"type": "duplex.function_call.done", "event": shapes.native_function_call(ev)}
