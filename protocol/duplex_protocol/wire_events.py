"""One block per event for the wire reference: tier, gate, fields, the worked example and the test that executes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from duplex_protocol.catalogue import SERVER_EVENTS, ServerRow
from duplex_protocol.client_events import CLIENT_EVENTS
from duplex_protocol.examples import CLIENT_EXAMPLES, ClientExample
from duplex_protocol.examples_server import SERVER_EXAMPLES
from duplex_protocol.profiles import GATES
from duplex_protocol.rows import ClientRow, Field

CLIENT_TEST: Final = "tests/wire/test_examples.py::test_client_example"
SERVER_TEST: Final = "tests/wire/test_examples.py::test_server_example"
SHOWN_CHARS: Final = 60
"""Longest string that an example shows whole; longer ones are base64."""

STATES: Final[dict[str, str]] = {
    "new": "a new socket",
    "open": "an open session",
    "heard": "an utterance in the buffer",
    "committed": "a committed utterance",
    "speaking": "the middle of an answer",
    "answered": "after an answer",
    "chat": "an open session of the chat lane",
    "chat_committed": "a committed utterance in the chat lane",
    "dropped": "a new socket after the old one was lost",
}
TIERS: Final[dict[int, str]] = {1: "OpenAI's", 2: "OpenAI's with extensions", 3: "duplex only"}
PLAIN: Final[dict[str, str]] = {
    "same": "the same",
    "reshaped": "OpenAI's shape",
    "asked": "only as an answer to a request",
    "omitted": "not sent",
}


def client_blocks() -> list[str]:
    """Markdown of all client events."""
    return [part for name, row in CLIENT_EVENTS.items() for part in _client(name, row, CLIENT_EXAMPLES[name])]


def server_blocks() -> list[str]:
    """Markdown of all server events."""
    return [part for name, row in SERVER_EVENTS.items() for part in _server(name, row)]


def gates_of(name: str) -> str:
    """The capability flags that gate an event, empty for none."""
    return ", ".join(f"`{gate.flag}`" for gate in GATES if name in gate.events)


def code(words: Iterable[str]) -> str:
    """Words as code."""
    return ", ".join(f"`{word}`" for word in words)


def fields(shown: Iterable[Field]) -> str:
    """The fields of a client event in one line."""
    parts = []
    for field in shown:
        text = f"`{field.name}`" + (f" (also {code(field.aliases)})" if field.aliases else "")
        text += f" required, else `{field.missing}`" if field.missing else ""
        parts.append(text + (f": {field.note}" if field.note else ""))
    return "; ".join(parts) or "none"


def shortened(value: Any) -> Any:
    """An example as it is printed: long strings cut."""
    if isinstance(value, dict):
        return {key: shortened(member) for key, member in value.items()}
    if isinstance(value, list):
        return [shortened(member) for member in value]
    return value[:24] + "…" if isinstance(value, str) and len(value) > SHOWN_CHARS and " " not in value else value


def _json(example: Any) -> str:
    text = json.dumps(shortened(example), ensure_ascii=False)
    if len(text) > 110:
        text = json.dumps(shortened(example), ensure_ascii=False, indent=2)
    return f"```json\n{text}\n```"


def _facts(tier: int, name: str, *more: str) -> str:
    gate = gates_of(name)
    return "\n".join(
        f"- {one}" for one in (f"tier {tier}: {TIERS[tier]}", *((f"gate: {gate}",) if gate else ()), *more)
    )


def _client(name: str, row: ClientRow, example: ClientExample) -> list[str]:
    answer = f"answered by `{example.reply}`" if example.reply else "no answer"
    return [
        f"### {name}",
        row.description,
        _facts(row.tier, name, f"fields: {fields(row.fields)}", f"example: in {STATES[example.state]}; {answer}"),
        _json(example.event),
        f"`{CLIENT_TEST}[{name}]`",
    ]


def _server(name: str, row: ServerRow) -> list[str]:
    extra = (f"duplex view adds: {code(row.extra)}",) if row.extra else ()
    shown = f"fields: {code(row.fields)}" if row.fields else "fields: none"
    return [
        f"### {name}",
        row.description,
        _facts(row.tier, name, shown, *extra, f"plain view: {PLAIN[row.plain]}"),
        _json(SERVER_EXAMPLES[name]),
        f"`{SERVER_TEST}[{name}]`",
    ]
