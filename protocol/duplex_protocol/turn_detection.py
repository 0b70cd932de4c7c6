"""``turn_detection`` of a session object → effective values (contract 2.1, 9, 9.1, 25).

Everything here follows from the object, the lane and the flavour; what needs a session (capability, audio already
heard, loading a detector) is the session's to check. All refusals are about ``param: turn_detection``.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json, TurnDetection

Flavour = Literal["duplex", "plain", "native"]
"""Which rules read a session object: a view of the realtime dialect, or the native dialect."""

SEMANTIC_SILENCE_MS: Final[dict[str, int]] = {"high": 400, "medium": 800, "auto": 800, "low": 1200}
"""Eagerness of ``semantic_vad`` → silence of the server VAD that stands in for it on turn-based models."""

NATIVE_MIN_THRESHOLD: Final = 0.15
MAX_DURATION_MS: Final = 3_600_000
"""Longest duration that is taken for meant (an hour); beyond it buffers could not be bounded."""

SERVER_KEYS: Final = frozenset(
    {
        "type",
        "threshold",
        "prefix_padding_ms",
        "silence_duration_ms",
        "min_speech_duration_ms",
        "interrupt_response",
        "create_response",
    }
)
SEMANTIC_KEYS: Final = frozenset({"type", "eagerness", "interrupt_response", "create_response"})


def refused(message: str, *, code: str = "unsupported_turn_detection", param: str = "turn_detection") -> Exception:
    """The refusal of a turn detection object."""
    return RemoteProtocolError(code, message, param=param)


def merge_spellings(top: Any, nested: Any) -> Any:
    """One value out of ``turn_detection`` and ``audio.input.turn_detection`` when both are present.

    An ``interrupt_response`` that one lacks is taken from the other; any other difference is refused.
    """
    if isinstance(top, dict) and isinstance(nested, dict):
        first, second = _without_nulls(top), _without_nulls(nested)
        if "interrupt_response" in first or "interrupt_response" in second:
            shared = first.get("interrupt_response", second.get("interrupt_response"))
            first = {**first, "interrupt_response": first.get("interrupt_response", shared)}
            second = {**second, "interrupt_response": second.get("interrupt_response", shared)}
        if first == second and _same_kinds(first, second):
            return first
    elif top == nested and type(top) is type(nested):
        return top
    raise refused("turn_detection and audio.input.turn_detection differ")


def parse(value: Any, *, native_lane: bool, flavour: Flavour) -> TurnDetection | None:
    """The effective turn detection; ``value`` None turns it off.

    Raises ``unsupported_turn_detection``, or ``server_vad_requires_native_duplex`` where a turn-based session asks for
    interruption.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise refused("turn_detection must be null or an object")
    sent = _without_nulls(value)
    kind = sent.get("type")
    if kind == "semantic_vad" and flavour == "plain":
        return _semantic(sent, native_lane=native_lane)
    if kind != "server_vad":
        raise refused("turn_detection.type must be server_vad")
    _known_keys(sent, SERVER_KEYS)
    if not native_lane and "min_speech_duration_ms" in sent:
        raise refused("turn_detection.min_speech_duration_ms is not supported on turn-based models")
    low = NATIVE_MIN_THRESHOLD if native_lane else 0.0
    threshold = _number(sent, "threshold", 0.5)
    if not low <= threshold <= 1 or (native_lane and threshold <= low):
        raise refused(f"turn_detection.threshold must be {'above' if native_lane else 'at least'} {low} and at most 1")
    return TurnDetection(
        kind="server_vad",
        threshold=threshold,
        prefix_padding_ms=_duration(sent, "prefix_padding_ms", 300, at_least=0),
        silence_duration_ms=_duration(sent, "silence_duration_ms", 500, at_least=1),
        min_speech_duration_ms=(
            _duration(sent, "min_speech_duration_ms", 96, at_least=1) if "min_speech_duration_ms" in sent else None
        ),
        interrupt_response=_interrupts(sent, native_lane=native_lane, flavour=flavour),
        create_response=_creates(sent, native_lane=native_lane),
    )


def _semantic(sent: Json, *, native_lane: bool) -> TurnDetection:
    """``semantic_vad``: the model's own turn-taking, or server VAD of a fitting patience on turn-based models."""
    _known_keys(sent, SEMANTIC_KEYS)
    eagerness = sent.get("eagerness", "auto")
    if not isinstance(eagerness, str) or eagerness not in SEMANTIC_SILENCE_MS:
        raise refused("turn_detection.eagerness must be low, medium, high or auto")
    echo: Json = {"type": "semantic_vad"}
    if "eagerness" in sent:
        echo["eagerness"] = eagerness
    return TurnDetection(
        kind="semantic_vad" if native_lane else "server_vad",
        silence_duration_ms=500 if native_lane else SEMANTIC_SILENCE_MS[eagerness],
        interrupt_response=_interrupts(sent, native_lane=native_lane, flavour="plain"),
        create_response=_creates(sent, native_lane=native_lane),
        echo=echo,
    )


def _interrupts(sent: Json, *, native_lane: bool, flavour: Flavour) -> bool:
    """Native: always true. Turn-based: always false; stock clients that ask for true get false and interrupt by
    ``response.cancel`` themselves, because the echo tells them so.
    """
    asked = _flag(sent, "interrupt_response")
    if native_lane:
        if asked is False:
            raise refused("turn_detection.interrupt_response=false is not supported on model-native sessions")
        return True
    if asked and flavour != "plain":
        raise refused(
            "turn_detection.interrupt_response=true needs a model-native session",
            code="server_vad_requires_native_duplex",
        )
    return False


def _creates(sent: Json, *, native_lane: bool) -> bool:
    asked = _flag(sent, "create_response")
    if native_lane and asked is False:
        raise refused("turn_detection.create_response=false is not supported on model-native sessions")
    return asked is not False


def _without_nulls(value: Json) -> Json:
    return {key: member for key, member in value.items() if member is not None}


def _same_kinds(first: Json, second: Json) -> bool:
    """JSON equality: true is not 1."""
    return all(isinstance(first[key], bool) is isinstance(second[key], bool) for key in first)


def _known_keys(sent: Json, known: frozenset[str]) -> None:
    for key in sent:
        if key not in known:
            raise refused(f"turn_detection.{key[:64]} is not supported")


def _number(sent: Json, key: str, default: float) -> float:
    value = sent.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refused(f"turn_detection.{key} must be a number")
    return value


def _duration(sent: Json, key: str, default: int, *, at_least: int) -> int:
    value = _number(sent, key, default)
    if value != int(value) or not at_least <= value <= MAX_DURATION_MS:
        raise refused(f"turn_detection.{key} must be a whole number of ms, at least {at_least}")
    return int(value)


def _flag(sent: Json, key: str) -> bool | None:
    value = sent.get(key)
    if value is not None and not isinstance(value, bool):
        raise refused(f"turn_detection.{key} must be a boolean")
    return value
