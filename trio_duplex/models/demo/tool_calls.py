"""When the rules call a tool, with which arguments, and how its result is said.  Deterministic, pure.

A tool is asked for by its name: every word of it that means something ("weather" of ``get_weather``) occurs in what was
said.  What was said besides becomes the arguments, as the tool's JSON schema wants them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from duplex_protocol.values import Json
from trio_duplex.models.demo.arithmetic import number_at

__all__ = ["ToolCall", "ToolResult", "choose_tool", "spoken_results"]

LOOK_AT_MOST: Final = 2000
"""Characters of a text that are looked at."""
TOOLS_AT_MOST: Final = 128
RESULT_AT_MOST: Final = 20_000
SAY_AT_MOST: Final = 40
"""Values of one result that are said."""
NESTED_AT_MOST: Final = 8
NUMBER_AT_MOST: Final = 10**15

WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
NUMBER_OR_WORD: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|[^\W\d_]+")
NAME_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


# Words of a tool's name that nobody says when he wants it.
VERBS: Final = _words("get fetch find look lookup up query search call run do set check show tell make")
SMALL_WORDS: Final = _words("a an the of for by to in on at is and or with my your tool function api")
# What may stand around the argument: "please call the tool weather with … now".
BEFORE: Final = SMALL_WORDS | _words(
    "what what's whats which how how's who where when can could would will you i me we us please use used using call "
    "run get give tell show know want like need let let's about from do does are was be it its it's that there named "
    "called argument arguments value hello hi hey okay ok so well um uh"
)
AFTER: Final = _words("please now tool function thanks thank you the a an is in of for and")
NEGATIONS: Final = _words("no not off don't doesn't without false never stop")


@attrs.frozen
class ToolCall:
    """A tool of the session and the JSON text of its arguments."""

    name: str
    arguments: str


@attrs.frozen
class ToolResult:
    """What a tool answered; ``name`` is None when it is not known which tool that was."""

    name: str | None
    output: str


@attrs.frozen
class _Tool:
    name: str
    schema: Mapping[str, Any]
    words: tuple[str, ...]
    """The words that ask for it."""


# --- which tool -----------------------------------------------------------------------------------------------------


def choose_tool(text: str, tools: Sequence[Json], tool_choice: Any = None) -> ToolCall | None:
    """The call that ``text`` asks for, None for an answer in words.

    ``tools`` in the realtime form or the chat form; what is no tool is passed over.  ``tool_choice``: ``none`` never
    calls, ``required`` always does, a function's name always calls that one; anything else leaves it to the words.
    Of several tools that were asked for it is the one with most words, then the first.
    """
    known = list(_read(tools))
    if not known or tool_choice == "none":
        return None
    said = [match.group().lower().replace("’", "'") for match in WORD.finditer(text[:LOOK_AT_MOST])]
    asked = [tool for tool in known if _asks_for(tool, said)]
    forced = _forced(tool_choice, known)
    if forced is not None:
        tool = forced
    elif asked:
        tool = max(asked, key=lambda tool: len(tool.words))
    elif tool_choice == "required" or (len(known) == 1 and _asks_for_any(said)):
        tool = known[0]
    else:
        return None
    arguments = _Arguments(text[:LOOK_AT_MOST], said, tool).build()
    return ToolCall(tool.name, json.dumps(arguments, ensure_ascii=False))


def _read(tools: Sequence[Json]) -> Iterator[_Tool]:
    for tool in tools[:TOOLS_AT_MOST]:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            continue
        name = function.get("name")
        if isinstance(name, str) and name:
            schema = function.get("parameters")
            words = [word.lower() for word in NAME_WORD.findall(name)]
            telling = tuple(word for word in words if word not in VERBS and word not in SMALL_WORDS)
            yield _Tool(name, schema if isinstance(schema, dict) else {}, telling or tuple(words))


def _forced(choice: Any, tools: list[_Tool]) -> _Tool | None:
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = choice.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return next((tool for tool in tools if tool.name == name), None)


def _asks_for(tool: _Tool, said: list[str]) -> bool:
    return bool(tool.words) and all(_place(word, said) is not None for word in tool.words)


def _asks_for_any(said: list[str]) -> bool:
    """ "Use the tool", where there is but one."""
    line = f" {' '.join(said)} "
    return bool(re.search(r" (call|use|run) (the|your|that|a) (tool|function) ", line))


def _place(word: str, said: list[str]) -> int | None:
    """Where ``word`` occurs last, alone or as a plural or possessive."""
    forms = {word, word + "s", word + "'s", word.removesuffix("s")}
    return next((at for at in range(len(said) - 1, -1, -1) if said[at] in forms), None)


# --- its arguments --------------------------------------------------------------------------------------------------


class _Arguments:
    """What was said → values for the properties of a JSON schema: required ones, and those that something fits."""

    def __init__(self, text: str, said: list[str], tool: _Tool) -> None:
        self._said = said
        self._schema = tool.schema
        self._rest = self._remaining(text, tool)
        self._numbers = list(_numbers(NUMBER_OR_WORD.findall(text.lower())))

    def build(self) -> Json:
        properties = self._schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        required = self._schema.get("required")
        needed = [name for name in required if name in properties] if isinstance(required, list) else []
        texts = [name for name, schema in properties.items() if _is_free_text(schema)]
        main = [name for name in texts if name in needed] or texts[:1]
        values = {}
        for name, schema in properties.items():
            value = self._value(schema if isinstance(schema, dict) else {}, needed=name in needed, main=name in main)
            if value is not None:
                values[name] = value
        return values

    def _value(self, schema: Json, *, needed: bool, main: bool) -> Any:
        """None: leave it out."""
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            said = next((choice for choice in choices if self._was_said(choice)), None)
            return said if said is not None else schema.get("default", choices[0]) if needed else None
        match _kind(schema):
            case "integer" | "number" as kind:
                if self._numbers:
                    number = self._numbers.pop(0)
                    return round(number) if kind == "integer" or number == round(number) else number
                return schema.get("default", schema.get("minimum", 0)) if needed else None
            case "boolean":
                return schema.get("default", not NEGATIONS & set(self._said)) if needed else None
            case "array":
                items = schema.get("items")
                words = [self._rest] if self._rest and (not isinstance(items, dict) or _is_free_text(items)) else []
                return schema.get("default", words) if needed else None
            case "object":
                return schema.get("default", {}) if needed else None
            case _:
                if main and self._rest:
                    return self._rest
                return schema.get("default", "") if needed else None

    def _was_said(self, choice: Any) -> bool:
        words = [word.lower() for word in WORD.findall(str(choice))]
        line = f" {' '.join(self._said)} "
        return bool(words) and f" {' '.join(words)} " in line

    def _remaining(self, text: str, tool: _Tool) -> str:
        """The words behind the tool's name, else those before it, without what only leads to them; spelled as said."""
        places = [place for word in tool.words if (place := _place(word, self._said)) is not None]
        named = len(places) == len(tool.words)
        behind = (max(places) + 1, len(self._said)) if named else (0, len(self._said))
        before = (0, min(places)) if named and places else (0, 0)
        for first, end in (behind, before):
            while first < end and self._said[first] in BEFORE:
                first += 1
            while first < end and self._said[end - 1] in AFTER:
                end -= 1
            if first < end:
                spans = [match.span() for match in WORD.finditer(text)]
                return text[spans[first][0] : spans[end - 1][1]]
        return ""


def _kind(schema: Json) -> str:
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        return next((word for word in kind if isinstance(word, str) and word != "null"), "string")
    return kind if isinstance(kind, str) else "string"


def _is_free_text(schema: Any) -> bool:
    return isinstance(schema, dict) and _kind(schema) == "string" and not {"enum", "const"} & schema.keys()


def _numbers(said: list[str]) -> Iterator[float]:
    at = 0
    while at < len(said):
        found = number_at(said, at)
        if found is None:
            at += 1
            continue
        if found[0] <= NUMBER_AT_MOST:
            yield float(found[0])
        at = found[1]


# --- its result -----------------------------------------------------------------------------------------------------


def spoken_results(results: Sequence[ToolResult]) -> str:
    """What the tools said, in words; never empty for one result or more."""
    return " ".join(_spoken(result) for result in results)


def _spoken(result: ToolResult) -> str:
    words = " ".join(word.lower() for word in NAME_WORD.findall(result.name or ""))
    tool = f"The tool {words}" if words else "The tool"
    try:
        value = json.loads(result.output[:RESULT_AT_MOST])
    except (ValueError, RecursionError):
        value = result.output
    said = ", ".join([piece for piece in _pieces(value) if WORD.search(piece)][:SAY_AT_MOST])[:LOOK_AT_MOST]
    if not said:
        return f"{tool} is done."
    return f"{tool} says: {said}" + ("" if said.endswith((".", "!", "?")) else ".")


def _pieces(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """A JSON value as short phrases; numbers stay digits, which a voice reads as numbers."""
    if depth > NESTED_AT_MOST:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            words = " ".join(word.lower() for word in NAME_WORD.findall(str(key)))
            yield from _pieces(inner, f"{name} {words}".strip(), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _pieces(inner, name, depth + 1)
    else:
        if value is None:
            words = "nothing"
        elif isinstance(value, bool):
            words = "yes" if value else "no"
        else:
            words = " ".join(str(value)[:LOOK_AT_MOST].split())
        yield f"{name} {words}".strip()
