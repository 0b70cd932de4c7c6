"""What each known model takes in its session object: preconditions, reserved keys, fixed fields (contract 17, 19).

Pure functions over configurations, so that a model's plugin, a scripted stand-in and the documentation share one table.
What holds for every model (model, voice after audio, lane, formats) is checked by the session, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.profiles import ProfileName
from duplex_protocol.values import Json, SessionConfig

MAX_TOOLS: Final = 5
"""Tools that Nemotron VoiceChat can be told of (contract 16.3)."""

LOCAL_PATH_KEYS: Final = ("ref_audio_path", "tts_ref_audio_path")
PERSONAPLEX_VOICES: Final = frozenset(
    f"{kind}{number}.pt"
    for kind, count in (("NATF", 4), ("NATM", 4), ("VARF", 5), ("VARM", 5))
    for number in range(count)
)
"""The voice prompts that come with PersonaPlex."""
DEFAULT_VOICE: Final = "NATF2.pt"

WINDOW_MODES: Final = ("off", "basic", "context")
WINDOW_SIZES: Final = ("sliding_window_high", "sliding_window_low")
WINDOW_KEYS: Final = ("sliding_window_mode", *WINDOW_SIZES)

Check = Callable[[ConfigUpdate], SessionConfig]
CheckUpdate = Callable[[SessionConfig, ConfigUpdate], SessionConfig]


@attrs.frozen
class ModelRules:
    """One model's rules. ``at_open`` and ``at_update`` return the configuration with the model's defaults filled.

    ``reserved`` keys of ``extra_body`` (and those with ``reserved_prefix``) are the server's own. Both raise
    :class:`RemoteProtocolError` with ``code`` and ``param`` and have no side effects.
    """

    at_open: Check
    at_update: CheckUpdate
    reserved: frozenset[str] = frozenset()
    reserved_prefix: str | None = None


def check_open(name: ProfileName, update: ConfigUpdate) -> SessionConfig:
    """An opening configuration for this model."""
    rules = RULES[name]
    _check_reserved(rules, update.config.extra_body)
    return rules.at_open(update)


def check_update(name: ProfileName, current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    """A later configuration for this model."""
    rules = RULES[name]
    _check_reserved(rules, update.config.extra_body)
    return rules.at_update(current, update)


def _refused(message: str, param: str, code: str = "invalid_duplex_runtime_config") -> RemoteProtocolError:
    return RemoteProtocolError(code, message, param=param)


def _check_reserved(rules: ModelRules, extra_body: Json) -> None:
    for key in extra_body:
        prefixed = rules.reserved_prefix is not None and key.startswith(rules.reserved_prefix)
        if key in rules.reserved or prefixed:
            raise _refused(f"extra_body.{key[:64]} is reserved", f"extra_body.{key[:64]}")


def _fixed(current: SessionConfig, update: ConfigUpdate, name: str, code: str) -> None:
    """Refuse a change of a field that was fixed at the opening; naming the same value is fine."""
    if name in update.named and getattr(update.config, name) != getattr(current, name):
        raise _refused(f"{name} cannot change on this model", name, code)


# --- MiniCPM-o 4.5 ----------------------------------------------------------------------------------------------------


def _minicpmo_open(update: ConfigUpdate) -> SessionConfig:
    config = update.config
    for key in LOCAL_PATH_KEYS:
        if config.extra_body.get(key) is not None:
            raise _refused("reference audio is never a path", f"extra_body.{key}", "unsupported_ref_audio_path")
    if config.ref_audio is not None and not config.ref_audio.startswith(("data:", "http://", "https://")):
        raise _refused("ref_audio must be a data URL or http(s)", "ref_audio", "unsupported_ref_audio_path")
    if config.native_duplex and "audio" in config.modalities and not config.ref_audio:
        raise _refused("a spoken answer needs a reference voice", "ref_audio", "ref_audio_required")
    units = config.extra_body.get("force_listen_count")
    if units is not None and not _is_whole(units, 0):
        raise _refused("force_listen_count must be a whole number", "extra_body.force_listen_count")
    _check_windows(config.extra_body)
    return config


def _minicpmo_update(current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    if current.native_duplex:
        _fixed(current, update, "instructions", "instructions_update_unsupported")
    _check_windows(update.config.extra_body)
    for key in WINDOW_KEYS:
        if update.config.extra_body.get(key) != current.extra_body.get(key):
            raise _refused(f"{key} cannot change", f"extra_body.{key}", "sliding_window_update_unsupported")
    return _minicpmo_open(update)


def _check_windows(extra_body: Json) -> None:
    code = "invalid_sliding_window_config"
    mode = extra_body.get("sliding_window_mode")
    if mode is not None and mode not in WINDOW_MODES:
        raise _refused(f"sliding_window_mode is {', '.join(WINDOW_MODES)}", "extra_body.sliding_window_mode", code)
    for key in WINDOW_SIZES:
        if extra_body.get(key) is not None and not _is_whole(extra_body[key], 1):
            raise _refused(f"{key} must be a positive whole number", f"extra_body.{key}", code)
    high, low = (extra_body.get(key) for key in WINDOW_SIZES)
    if high is not None and low is not None and low >= high:
        raise _refused("sliding_window_low must be below sliding_window_high", "extra_body.sliding_window_low", code)


def _is_whole(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


# --- PersonaPlex ------------------------------------------------------------------------------------------------------


def _personaplex_open(update: ConfigUpdate) -> SessionConfig:
    config = update.config
    if config.voice is None or (not update.strict and config.voice not in PERSONAPLEX_VOICES):
        return attrs.evolve(config, voice=DEFAULT_VOICE)
    if config.voice not in PERSONAPLEX_VOICES:
        raise _refused("voice must be the name of a bundled voice", "voice")
    return config


def _personaplex_update(current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    _fixed(current, update, "instructions", "persona_update_unsupported")
    if not update.strict and update.config.voice not in PERSONAPLEX_VOICES:
        return attrs.evolve(update.config, voice=current.voice)
    _fixed(current, update, "voice", "voice_update_unsupported")
    return attrs.evolve(update.config, voice=current.voice)


# --- Nemotron VoiceChat -----------------------------------------------------------------------------------------------


def _nemotron_open(update: ConfigUpdate) -> SessionConfig:
    config = update.config
    extra = {key: value for key, value in config.extra_body.items() if key != "native_duplex"}
    if not update.strict and not extra.keys() & {"auto_response", "full_duplex"}:
        extra["auto_response"] = True
    config = attrs.evolve(config, extra_body=extra)
    _needs_auto(config)
    _check_tools(config)
    return config


def _nemotron_update(current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    _fixed(current, update, "instructions", "invalid_duplex_runtime_config")
    _fixed(current, update, "tools", "invalid_duplex_runtime_config")
    if update.config.extra_body.get("realtime_tools") != current.extra_body.get("realtime_tools"):
        raise _refused("the tools cannot change", "extra_body.realtime_tools")
    return _nemotron_open(update)


def _needs_auto(config: SessionConfig) -> None:
    if not config.auto_response:
        raise _refused(
            "this model always answers by itself: auto_response must be true",
            "extra_body.auto_response",
            "unsupported_nemotron_duplex_mode",
        )


def _check_tools(config: SessionConfig) -> None:
    param, tools = "tools", list(config.tools)
    if not tools and config.extra_body.get("realtime_tools") is not None:
        param = "extra_body.realtime_tools"
        tools = config.extra_body["realtime_tools"]
        if not isinstance(tools, list):
            raise _refused("realtime_tools must be an array", param)
    if len(tools) > MAX_TOOLS:
        raise _refused(f"this model knows at most {MAX_TOOLS} tools", param)
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise _refused("every tool needs a name", param)


# --- turn-based models ------------------------------------------------------------------------------------------------


def _chat_open(update: ConfigUpdate) -> SessionConfig:
    if update.config.native_duplex:
        raise _refused(
            "this deployment has no native lane", "extra_body.native_duplex", "runtime_native_stage_role_required"
        )
    return update.config


def _chat_update(current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    return _chat_open(update)


def _qwen_open(update: ConfigUpdate) -> SessionConfig:
    config = _chat_open(update)
    if config.auto_response:
        raise _refused("a turn-based model answers commits", "extra_body.auto_response")
    if config.tools:
        raise _refused("this model calls no tools", "tools")
    if config.ref_audio is not None:
        raise _refused("this model takes no reference audio", "ref_audio")
    return config


def _qwen_update(current: SessionConfig, update: ConfigUpdate) -> SessionConfig:
    return _qwen_open(update)


RULES: Final[dict[ProfileName, ModelRules]] = {
    "minicpmo_4_5": ModelRules(
        _minicpmo_open,
        _minicpmo_update,
        frozenset(
            {
                "duplex_stage_sampling_params",
                "duplex_stage_max_tokens",
                "duplex_stage0_max_tokens",
                "duplex_scheduler_token_id",
                "duplex_first_append_context_tokens",
                "ref_audio_data",
                "ref_audio_format",
                "ref_audio_sample_rate_hz",
                "initial_user_text",
            }
        ),
    ),
    "personaplex": ModelRules(
        _personaplex_open,
        _personaplex_update,
        frozenset({"personaplex_prefill_slots", "personaplex_model_path", "native_duplex"}),
    ),
    "nemotron_voicechat": ModelRules(_nemotron_open, _nemotron_update, reserved_prefix="nvc_"),
    "chat_fallback": ModelRules(_chat_open, _chat_update),
    "qwen3_omni": ModelRules(_qwen_open, _qwen_update),
}
