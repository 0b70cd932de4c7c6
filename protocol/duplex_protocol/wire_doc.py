"""The wire reference as markdown, generated from the tables of this package and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duplex_protocol.aliases import EVENT_ALIASES, OPENING_ALIASES, TURN_SIGNAL_COMMANDS
from duplex_protocol.audio_formats import ENCODINGS
from duplex_protocol.catalogue import BEYOND_THE_CATALOGUE, SERVER_EVENTS
from duplex_protocol.client_events import CLIENT_EVENTS
from duplex_protocol.error_meanings import ERROR_MEANINGS
from duplex_protocol.errors import ERRORS
from duplex_protocol.frames_session import PLAIN_CODES, PLAIN_ITEM_CODES
from duplex_protocol.item_events import ITEM_FIELDS
from duplex_protocol.model_rules import RULES
from duplex_protocol.native import FLAT
from duplex_protocol.profiles import GATES, PROFILES
from duplex_protocol.projection import FANOUT, Row, always, never
from duplex_protocol.session_fields import FIELDS
from duplex_protocol.shapes import PLAIN_ITEM_STATUS, PLAIN_REASONS
from duplex_protocol.states import ALLOWED, RESPONSE_MOVES, SESSION_MOVES
from duplex_protocol.wire_events import PLAIN, client_blocks, code, fields, gates_of, server_blocks
from duplex_protocol.wire_prose import DEADLINES, INTRODUCTION, LIMITS, RESUME, RULINGS, VIEWS


def markdown() -> str:
    """The whole reference."""
    parts = [
        "# Wire reference",
        INTRODUCTION,
        "## The two views",
        VIEWS,
        "## Resume",
        RESUME,
        "## Deadlines",
        DEADLINES,
        *_section("Client events at a glance", _client_rows()),
        *_section("Server events at a glance", _server_rows()),
        *_section("Items of conversation.item.create", _item_rows()),
        *_section("Fields of the session object", _session_rows()),
        *_section("Other names", _alias_rows()),
        *_section("Audio formats", _format_rows()),
        *_section("What a native event becomes", _fanout_rows()),
        *_section("Error codes", _error_rows()),
        *_section("Words of the plain view", _plain_rows()),
        *_section("Session states", _state_rows()),
        *_section("Life of a response", _response_rows()),
        *_section("Capability gates", _gate_rows()),
        *_section("Capabilities by model", _capability_rows()),
        *_section("What a model takes", _rule_rows()),
        *_section("Limits", [["what", "limit", "over it"], *([*row] for row in LIMITS)]),
        *_section("Rulings", [["where contract and seed are silent", "what holds"], *([*row] for row in RULINGS)]),
        "## Client events",
        *client_blocks(),
        "## Server events",
        *server_blocks(),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in body)]
    return [f"## {title}", "\n".join(lines)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _client_rows() -> list[list[str]]:
    body = [[f"`{name}`", str(row.tier), row.description, gates_of(name)] for name, row in CLIENT_EVENTS.items()]
    return [["event", "tier", "what it does", "gate"], *body]


def _item_rows() -> list[list[str]]:
    return [["item type", "fields"], *([f"`{kind}`", fields(table)] for kind, table in ITEM_FIELDS.items())]


def _session_rows() -> list[list[str]]:
    body = [[f"`{field.name}`", code(field.paths), "at open only" if field.at_open else ""] for field in FIELDS]
    return [["field", "spellings, first one present wins", "limits"], *body]


def _server_rows() -> list[list[str]]:
    body = [
        [f"`{name}`", str(row.tier), row.description, gates_of(name), PLAIN[row.plain]]
        for name, row in (SERVER_EVENTS | BEYOND_THE_CATALOGUE).items()
    ]
    return [["event", "tier", "what it says", "gate", "plain view"], *body]


def _alias_rows() -> list[list[str]]:
    rows = [["name", "means", "where"]]
    rows += [[f"`{alias}`", f"`{name}`", "both dialects"] for alias, name in EVENT_ALIASES.items()]
    rows += [[f"`{alias}`", f"`{name}`", "first message, native dialect"] for alias, name in OPENING_ALIASES.items()]
    rows += [[f"`turn.signal` with event `{word}`", f"`{word}`", "both"] for word in sorted(TURN_SIGNAL_COMMANDS)]
    return rows


def _format_rows() -> list[list[str]]:
    rows = [["format", "spellings", "default rate in Hz", "in", "out"]]
    for name, row in ENCODINGS.items():
        way_in = "yes" if row.allowed_in else "legacy append names only"
        rows.append(
            [f"`{name}`", code(row.aliases), str(row.default_rate_hz), way_in, "yes" if row.allowed_out else "no"]
        )
    return rows


def _words(docstring: str | None) -> str:
    return (docstring or "").split("\n")[0].rstrip(".")


def _step(row: Row) -> str:
    when = "" if row.when is always else f" – {_words(row.when.__doc__)}"
    if row.plain is never:
        when += " (duplex view only)"
    elif row.plain is not always:
        when += f" (plain view: if {_words(row.plain.__doc__).lower()})"
    return f"`{row.type}`{when}"


def _fanout_rows() -> list[list[str]]:
    rows = [["native event", "realtime events in order", "native dialect"]]
    for kind, steps in FANOUT.items():
        flat = "one flat event" if kind in FLAT else "nothing"
        rows.append([kind.__name__, "<br>".join(_step(step) for step in steps), flat])
    return rows


def _error_rows() -> list[list[str]]:
    rows = [["code", "class", "when", "session ends", "retryable"]]
    for name, row in ERRORS.items():
        retryable = "" if row.retryable is None else str(row.retryable).lower()
        rows.append([f"`{name}`", row.error_class, ERROR_MEANINGS[name], "yes" if row.session_ends else "", retryable])
    return rows


def _plain_rows() -> list[list[str]]:
    rows = [["our word", "plain view", "where"]]
    rows += [[f"`{ours}`", f"`{theirs}`", "error code"] for ours, theirs in PLAIN_CODES.items()]
    rows += [
        ["`item_not_found`", f"`{theirs}`", f"error of {cause.__name__}"] for cause, theirs in PLAIN_ITEM_CODES.items()
    ]
    rows += [[f"`{ours}`", f"`{theirs}`", "item status"] for ours, theirs in PLAIN_ITEM_STATUS.items()]
    rows += [[f"`{ours}`", f"`{theirs}`", "status_details.reason"] for ours, theirs in PLAIN_REASONS.items()]
    return rows


def _state_rows() -> list[list[str]]:
    rows = [["state", "commands taken", "moves"]]
    for state, allowed in ALLOWED.items():
        moves = ", ".join(f"{what} → {after}" for (before, what), after in SESSION_MOVES.items() if before == state)
        names = "all" if len(allowed) > 2 else code(sorted(command.__name__ for command in allowed))
        rows.append([f"`{state}`", names, moves or "none"])
    return rows


def _response_rows() -> list[list[str]]:
    body: list[list[str]] = [[before or "none yet", move, after] for (before, move), after in RESPONSE_MOVES.items()]
    return [["phase", "happening", "next phase"], *body]


def _gate_rows() -> list[list[str]]:
    body = [
        [f"`{gate.flag}`", gate.surface, code(gate.events), f"`{gate.code}`" if gate.code else ""] for gate in GATES
    ]
    return [["flag", "what it opens", "events", "refusal without it"], *body]


def _rule_rows() -> list[list[str]]:
    rows = [["model", "reserved keys of `extra_body`"]]
    for name, rules in RULES.items():
        prefixed = [f"{rules.reserved_prefix}*"] if rules.reserved_prefix else []
        rows.append([name, code([*sorted(rules.reserved), *prefixed]) or "none"])
    return rows


def _capability_rows() -> list[list[str]]:
    shown = {name: capabilities.as_wire() for name, capabilities in PROFILES.items()}
    keys = next(iter(shown.values()))
    return [["capability", *shown], *([f"`{key}`", *(_value(one[key]) for one in shown.values())] for key in keys)]


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if value is None:
        return "null"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
