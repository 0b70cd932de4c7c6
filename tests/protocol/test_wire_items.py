"""``conversation.item.create``: which items come in, and what is refused with which field (contract 2.2, 3.1, 10.3)."""

from __future__ import annotations

from typing import Any

import pybase64
import pytest

from duplex_protocol import commands as c
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.values import ContentPart, Item
from tests.protocol.wire_kit import refusal

PCM = b"\x01\x02" * 4
AUDIO = pybase64.b64encode_as_string(PCM)


def create(item: Any, **fields: Any) -> c.CreateItem:
    """The command of an item."""
    (command,) = RealtimeDialect().decode({"type": "conversation.item.create", "item": item, **fields})
    assert isinstance(command, c.CreateItem)
    return command


def refused(item: Any, **fields: Any) -> tuple[str, str | None]:
    """Code and param."""
    error = refusal(create, item, event_id="evt_1", **fields)
    assert error.event_id == "evt_1"
    return error.code, error.param


def test_a_text_message_with_the_seeds_defaults() -> None:
    part = {"type": "input_text", "text": "Summarise what I said."}
    command = create({"type": "message", "role": "user", "content": [part]}, previous_item_id=None)
    assert command.item == Item(
        id="", content=(ContentPart("input_text", text="Summarise what I said.", raw=part),), status="completed"
    )
    assert command.previous_item_named is False
    assert create({"content": [part]}) == command


def test_the_clients_id_place_and_status_are_kept() -> None:
    command = create(
        {"id": "item_mine", "status": "incomplete", "content": [{"type": "text", "text": "x"}]},
        previous_item_id="root",
    )
    assert (command.item.id, command.item.status) == ("item_mine", "incomplete")
    assert (command.previous_item_id, command.previous_item_named) == ("root", True)
    assert command.item.content[0].type == "input_text"


def test_a_tool_result() -> None:
    command = create({"type": "function_call_output", "call_id": "call_7d1f", "output": '{"temperature_c": 24}'})
    assert command.item == Item(
        id="", type="function_call_output", role=None, call_id="call_7d1f", output='{"temperature_c": 24}'
    )


def test_a_tool_call_of_an_older_conversation() -> None:
    command = create({"type": "function_call", "call_id": "c1", "name": "f"})
    assert command.item == Item(id="", type="function_call", role=None, call_id="c1", name="f", arguments="")


@pytest.mark.parametrize("key", ["audio", "data"])
def test_audio_parts(key: str) -> None:
    command = create(
        {
            "content": [
                {"type": "input_audio", key: AUDIO, "format": "alaw", "sample_rate": 8000, "transcript": "hi"},
                {"type": "input_text", "text": "and"},
                {"type": "audio", key: AUDIO, "format": {"type": "audio/pcm", "rate": 24000}},
            ]
        }
    )
    assert command.audio == (
        c.ItemAudio(audio=PCM, encoding="g711_alaw", rate_hz=8000),
        c.ItemAudio(audio=PCM, encoding="pcm16", rate_hz=24000),
    )
    assert [part.type for part in command.item.content] == ["input_audio", "input_text", "input_audio"]
    assert command.item.content[0].transcript == "hi"


def test_a_transcript_without_audio_is_a_message_too() -> None:
    command = create({"content": [{"type": "input_audio", "transcript": "earlier words"}]})
    assert command.audio == ()
    assert command.item.content[0].transcript == "earlier words"


@pytest.mark.parametrize(
    ("role", "part", "kept"),
    [
        ("assistant", {"type": "output_text", "text": "x"}, "output_text"),
        ("assistant", {"type": "text", "text": "x"}, "output_text"),
        ("assistant", {"type": "output_audio", "transcript": "x"}, "output_audio"),
        ("assistant", {"type": "audio", "transcript": "x"}, "output_audio"),
        ("system", {"type": "input_text", "text": "x"}, "input_text"),
    ],
)
def test_other_roles(role: str, part: dict[str, Any], kept: str) -> None:
    command = create({"role": role, "content": [part]})
    assert command.item.role == role
    assert command.item.content[0].type == kept
    assert command.audio == ()


def test_an_assistant_message_may_be_empty() -> None:
    assert create({"role": "assistant"}).item.content == ()


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, ("bad_event", "item.content")),
        ({"content": []}, ("bad_event", "item.content")),
        ({"content": "hello"}, ("bad_event", "item.content")),
        ({"content": ["hello"]}, ("bad_event", "item.content")),
        ({"content": [{"type": "input_text"}]}, ("bad_event", "item.content")),
        ({"content": [{"type": "input_text", "text": ""}]}, ("bad_event", "item.content")),
        ({"content": [{"type": "input_text", "text": 5}]}, ("bad_event", "item.content.text")),
        ({"content": [{"type": "nonsense", "text": "x"}]}, ("bad_event", "item.content.type")),
        ({"content": [{"type": ["input_text"], "text": "x"}]}, ("bad_event", "item.content.type")),
        ({"content": [{"text": "x"}]}, ("bad_event", "item.content.type")),
        ({"content": [{"type": "output_audio", "transcript": "x"}]}, ("bad_event", "item.content.type")),
        ({"content": [{"type": "input_image", "image_url": "data:"}]}, ("invalid_input_modality", "item.content")),
        ({"role": "system", "content": [{"type": "input_audio", "audio": AUDIO}]}, ("bad_event", "item.content.type")),
        ({"role": "robot"}, ("bad_event", "item.role")),
        ({"role": ["user"]}, ("bad_event", "item.role")),
        ({"type": "mcp_call"}, ("bad_event", "item.type")),
        ({"status": "cancelled"}, ("bad_event", "item.status")),
        ({"id": 7}, ("bad_event", "item.id")),
        ({"id": ""}, ("bad_event", "item.id")),
        ({"type": "function_call", "name": "f"}, ("bad_event", "item.call_id")),
        ({"type": "function_call", "call_id": "c"}, ("bad_event", "item.name")),
        ({"type": "function_call_output", "output": "x"}, ("invalid_function_call_output", "item.call_id")),
        (
            {"type": "function_call_output", "call_id": 4, "output": "x"},
            ("invalid_function_call_output", "item.call_id"),
        ),
        ({"type": "function_call_output", "call_id": "c"}, ("invalid_function_call_output", "item.output")),
        (
            {"type": "function_call_output", "call_id": "c", "output": {}},
            ("invalid_function_call_output", "item.output"),
        ),
    ],
    ids=str,
)
def test_wrong_items(item: dict[str, Any], expected: tuple[str, str]) -> None:
    assert refused(item) == expected


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({}, "bad_audio"),
        ({"audio": ""}, "bad_audio"),
        ({"audio": 5}, "bad_audio"),
        ({"audio": "@@@"}, "bad_audio"),
        ({"audio": AUDIO, "format": "mp3"}, "unsupported_audio_format"),
        ({"audio": AUDIO, "format": "wav"}, "unsupported_audio_format"),
        ({"audio": AUDIO, "format": {"type": "pcm16", "rate": 1}}, "unsupported_audio_format"),
        ({"audio": AUDIO, "sample_rate_hz": 1}, "bad_audio"),
        ({"audio": AUDIO, "sample_rate_hz": True}, "bad_audio"),
    ],
    ids=str,
)
def test_wrong_item_audio(part: dict[str, Any], code: str) -> None:
    text = {"type": "input_text", "text": "x"}
    assert refused({"content": [text, {"type": "input_audio", **part}]}) == (code, "item.content.audio")


def test_a_previous_item_id_is_text() -> None:
    assert refused({"content": [{"type": "input_text", "text": "x"}]}, previous_item_id=5) == (
        "bad_event",
        "previous_item_id",
    )


@pytest.mark.parametrize(
    "item",
    [
        {"id": "i" * 257, "content": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c" * 257, "name": "n"},
        {"type": "function_call", "call_id": "c", "name": "n" * 257},
    ],
)
def test_endless_ids_are_refused(item: dict[str, object]) -> None:
    """An id is repeated in several events; one of a megabyte would be sent back many times over."""
    event = {"type": "conversation.item.create", "event_id": "evt_1", "item": item}
    with pytest.raises(RemoteProtocolError) as caught:
        RealtimeDialect(view="duplex").decode(event)
    assert (caught.value.code, caught.value.event_id) == ("bad_event", "evt_1")


def test_endless_ids_are_not_looked_up() -> None:
    for kind in ("retrieve", "delete"):
        with pytest.raises(RemoteProtocolError) as caught:
            RealtimeDialect(view="duplex").decode({"type": f"conversation.item.{kind}", "item_id": "i" * 257})
        assert (caught.value.code, caught.value.param) == ("bad_event", "item_id")
