"""Session configuration and the options of one response → the body of a chat request.  Pure.

Options hold for one response and win over the session's values (contract 12.4).
"""

from __future__ import annotations

from typing import Any

from duplex_protocol.values import Json, SessionConfig
from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.limits import token_limit

__all__ = ["OptionError", "build_body", "chat_tools"]


class OptionError(Exception):
    """An option of one response has a form that no backend understands; the message names it."""


def build_body(options: ChatOptions, config: SessionConfig, given: Json, messages: list[Json], *, sound: bool) -> Json:
    """The request. ``given`` is the raw ``response`` object, ``sound`` whether audio is wanted back.

    The deployment's ``extra_body`` cannot replace what is built here. Raises :class:`OptionError`.
    """
    body: Json = {**options.extra_body, "model": options.model, "messages": messages, "stream": True}
    if options.output == "audio":
        body["modalities"] = ["text", "audio"] if sound else ["text"]
        if sound:
            voice = _voice(given) or config.voice or options.voice
            body["audio"] = {"format": options.audio_format} | ({"voice": voice} if voice else {})
    temperature = _number(given, "temperature", config.temperature)
    if temperature is not None:
        body["temperature"] = temperature
    limit = token_limit(given, config.max_tokens)
    if limit is not None:
        body[options.max_tokens_field] = limit
    tools = given["tools"] if "tools" in given else list(config.tools)
    if tools:
        body["tools"] = chat_tools(tools)
        choice = given.get("tool_choice", config.tool_choice)
        if choice is not None:
            body["tool_choice"] = _tool_choice(choice)
    if config.ref_audio is not None and options.ref_audio == "forwarded":
        body["ref_audio"] = config.ref_audio
    return body


def chat_tools(tools: Any) -> list[Json]:
    """The realtime form of tools (flat) → the chat form (nested); the chat form passes. Raises :class:`OptionError`."""
    if not isinstance(tools, list | tuple):
        raise OptionError("tools must be an array")
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> Json:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise OptionError("a tool must be a function")
    function = tool.get("function", {key: value for key, value in tool.items() if key != "type"})
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise OptionError("a tool needs a name")
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = choice.get("name") or (choice.get("function") or {}).get("name")
        if isinstance(name, str) and name:
            return {"type": "function", "function": {"name": name}}
    raise OptionError("tool_choice must be a word or a function with a name")


def _voice(given: Json) -> str | None:
    audio = given.get("audio")
    output = audio.get("output") if isinstance(audio, dict) else None
    value = given.get("voice") or (output.get("voice") if isinstance(output, dict) else None)
    if isinstance(value, dict):
        value = value.get("id")
    if value is not None and not isinstance(value, str):
        raise OptionError("voice must be a name")
    return value


def _number(given: Json, key: str, otherwise: float | None) -> float | None:
    value = given.get(key, otherwise)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise OptionError(f"{key} must be a number")
    return value
