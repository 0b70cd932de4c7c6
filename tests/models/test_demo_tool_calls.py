"""When the rules call a tool, with which arguments, and how its result is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.demo.tool_calls import ToolResult, choose_tool, spoken_results

TEXT = {"type": "string"}


def tool(name: str, properties: dict[str, Any] | None = None, required: list[str] | None = None) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return {"type": "function", "name": name, "description": "A tool", "parameters": schema}


WEATHER = tool("get_weather", {"city": TEXT}, ["city"])
GO = tool("goForward", {"distance": {"type": "number"}, "unit": {"type": "string", "enum": ["feet", "meters"]}})
TIME = tool("time", {})
TOOLS = [WEATHER, GO, TIME]


def called(text: str, tools: list[Any] = TOOLS, choice: Any = None) -> tuple[str, Any] | None:
    call = choose_tool(text, tools, choice)
    return None if call is None else (call.name, json.loads(call.arguments))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("Hello, what's the weather like in New York please.", ("get_weather", {"city": "New York"})),
        ("Please use the tool get weather with São Paulo now", ("get_weather", {"city": "São Paulo"})),
        ("Call the get_weather tool for Oslo", ("get_weather", {"city": "Oslo"})),
        ("Tell me the Paris weather", ("get_weather", {"city": "Paris"})),
        ("the weather", ("get_weather", {"city": ""})),
        ("Go forward ten meters.", ("goForward", {"distance": 10, "unit": "meters"})),
        ("go forward 2.5 feet", ("goForward", {"distance": 2.5, "unit": "feet"})),
        ("What time is it?", ("time", {})),
        ("It's a nice day.", None),
        ("whether or not", None),
        ("go back", None),
        ("", None),
    ],
)
def test_the_name_of_a_tool_asks_for_it(text: str, call: tuple[str, Any] | None) -> None:
    assert called(text) == call


def test_the_tool_with_more_words_wins_then_the_first() -> None:
    tools = [tool("weather"), tool("weather_forecast"), tool("forecast_weather")]
    assert called("the weather forecast", tools) == ("weather_forecast", {})


def test_the_only_tool_need_not_be_named() -> None:
    assert called("Please use the tool with seven bananas", [tool("frobnicate", {"what": TEXT})]) == (
        "frobnicate",
        {"what": "seven bananas"},
    )
    assert called("Please use the tool with seven bananas", [tool("frobnicate"), tool("mangle")]) is None


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("none", None),
        ("auto", "time"),
        ("required", "time"),
        ({"type": "function", "name": "get_weather"}, "get_weather"),
        ({"type": "function", "function": {"name": "goForward"}}, "goForward"),
        ({"type": "function", "name": "unknown"}, "time"),
    ],
)
def test_tool_choice(choice: Any, name: str | None) -> None:
    call = choose_tool("what time is it", TOOLS, choice)
    assert (call.name if call else None) == name


def test_required_calls_something_in_any_case() -> None:
    assert called("Nice day.", choice="required") == ("get_weather", {"city": "Nice day"})


@pytest.mark.parametrize(
    ("properties", "required", "arguments"),
    [
        ({"a": TEXT, "b": TEXT}, ["b"], {"b": "seven red bricks"}),
        ({"a": TEXT, "b": TEXT}, ["a", "b"], {"a": "seven red bricks", "b": "seven red bricks"}),
        ({"a": TEXT, "b": TEXT}, [], {"a": "seven red bricks"}),
        ({"n": {"type": "integer"}}, ["n"], {"n": 7}),
        ({"n": {"type": ["null", "integer"]}, "m": {"type": "integer", "minimum": 3}}, ["n", "m"], {"n": 7, "m": 3}),
        ({"colour": {"enum": ["blue", "red"]}}, [], {"colour": "red"}),
        ({"colour": {"enum": ["blue", "green"]}}, ["colour"], {"colour": "blue"}),
        ({"colour": {"enum": ["blue", "green"]}}, [], {}),
        ({"on": {"type": "boolean"}, "maybe": {"type": "boolean"}}, ["on"], {"on": True}),
        ({"names": {"type": "array", "items": TEXT}}, ["names"], {"names": ["seven red bricks"]}),
        ({"more": {"type": "object"}}, ["more"], {"more": {}}),
        ({"kind": {"const": "x"}}, [], {"kind": "x"}),
    ],
)
def test_arguments_follow_the_schema(properties: Any, required: list[str], arguments: Any) -> None:
    assert called("build seven red bricks", [tool("build", properties, required)]) == ("build", arguments)


def test_both_forms_of_tools_and_nothing_else() -> None:
    chat = {"type": "function", "function": {k: v for k, v in TIME.items() if k != "type"}}
    assert called("what time is it", [chat]) == ("time", {})
    for odd in (
        {},
        {"type": "web_search"},
        {"type": "function"},
        {"name": 7},
        "time",
        {"type": "function", "name": ""},
    ):
        assert called("what time is it", [odd]) is None
    assert called("what time is it", [{"type": "function", "name": "time", "parameters": 5}]) == ("time", {})


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([ToolResult("get_weather", "Sunny.")], "The tool get weather says: Sunny."),
        ([ToolResult("time", '{"hour": 3, "isNight": true}')], "The tool time says: hour 3, is night yes."),
        ([ToolResult(None, '["a", {"b": [1, null]}]')], "The tool says: a, b 1, b nothing."),
        ([ToolResult("time", "")], "The tool time is done."),
        ([ToolResult("time", "{}")], "The tool time is done."),
        ([ToolResult("a", "x"), ToolResult("b", "y")], "The tool a says: x. The tool b says: y."),
        ([ToolResult("a", "[" * 3000)], "The tool a is done."),
        ([ToolResult("a", "[" * 900 + "]" * 900)], "The tool a is done."),
    ],
)
def test_results_are_said(results: list[ToolResult], words: str) -> None:
    assert spoken_results(results) == words


def test_a_long_result_is_not_said_to_its_end() -> None:
    assert len(spoken_results([ToolResult("a", json.dumps(["word " * 100] * 100))])) < 2100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SCHEMA_WORDS = st.sampled_from(["type", "enum", "const", "default", "items", "minimum", "properties", "required"])
KINDS = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null"])
SCHEMAS = st.dictionaries(SCHEMA_WORDS, JSON | KINDS | st.lists(KINDS, max_size=3), max_size=4)
TOOLS_OF_STRANGERS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "name": st.sampled_from(["weather", "go_forward", "x"])},
        optional={"parameters": st.fixed_dictionaries({"properties": st.dictionaries(st.text(max_size=4), SCHEMAS)})},
    )
    | JSON.filter(lambda value: not isinstance(value, dict)),
    max_size=3,
)
TALK = st.lists(
    st.sampled_from(["weather", "go", "forward", "x", "use the", "tool", "ten", "3.5", "3pm", "1e9", "9" * 400]),
    max_size=8,
)


@settings(derandomize=True, database=None, deadline=None)
@given(st.text(max_size=60) | TALK.map(" ".join), TOOLS_OF_STRANGERS, JSON | st.just("required"))
def test_whatever_strangers_declare_the_arguments_are_an_object(text: str, tools: list[Any], choice: Any) -> None:
    call = choose_tool(text, tools, choice)
    if call is not None:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.name in ("weather", "go_forward", "x")


@settings(derandomize=True, database=None, deadline=None)
@given(JSON.map(json.dumps) | st.text())
def test_any_result_can_be_said(output: str) -> None:
    assert spoken_results([ToolResult("weather", output)]).startswith("The tool weather ")
