"""Readers of single JSON values: each checks one kind and returns the typed value, or raises with the field's name.

A reader is a function ``(value, param) -> typed value``; ``value`` is never None (null means absent everywhere on the
wire, the callers skip it). All raise :class:`RemoteProtocolError`, ``bad_event`` unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pybase64

from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import Json

Reader = Callable[[Any, str], Any]

MAX_EXACT: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""
MAX_NAME_CHARS: Final = 256
MAX_VIDEO_FRAMES: Final = 2
MAX_VIDEO_FRAME_CHARS: Final = 4_000_000
_IMAGE_MAGIC: Final = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")


def wrong_kind(param: str, wanted: str, value: object, *, code: str = "bad_event") -> RemoteProtocolError:
    """The refusal of a value of the wrong kind; names the kind that came, never the value itself."""
    came = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")
    return RemoteProtocolError(code, f"{param} must be {wanted}, not {came}", param=param)


def text(value: Any, param: str) -> str:
    """A string, maybe empty."""
    if not isinstance(value, str):
        raise wrong_kind(param, "a string", value)
    return value


def word(value: Any, param: str) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise RemoteProtocolError("bad_event", f"{param} must be a non-empty string", param=param)
    return value


def flag(value: Any, param: str) -> bool:
    """A boolean; 0, 1 and words are not booleans."""
    if not isinstance(value, bool):
        raise wrong_kind(param, "a boolean", value)
    return value


def number(value: Any, param: str) -> float:
    """A finite number; booleans are not numbers. Returns int or float as it came."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind(param, "a number", value)
    if not math.isfinite(value):
        raise RemoteProtocolError("bad_event", f"{param} is not a finite number", param=param)
    return value


def not_negative(value: Any, param: str) -> float:
    """A finite number; negative ones count as 0."""
    return max(number(value, param), 0)


def milliseconds(value: Any, param: str) -> float:
    """A finite number, drawn in to what a JSON integer can carry exactly; it may be negative."""
    return max(-MAX_EXACT, min(number(value, param), MAX_EXACT))


def positive_ms(value: Any, param: str) -> float:
    """As :func:`milliseconds`; negative ones count as 0."""
    if value.__class__ is int and 0 <= value <= MAX_EXACT:  # nearly every one
        return int(value)
    return max(milliseconds(value, param), 0)


def whole(value: Any, param: str) -> int:
    """A whole number (1.0 is one) of a size that JSON carries exactly; booleans are not numbers."""
    checked = number(value, param)
    if (isinstance(checked, float) and not checked.is_integer()) or abs(checked) > MAX_EXACT:
        raise RemoteProtocolError("bad_event", f"{param} must be a whole number", param=param)
    return int(checked)


def object_(value: Any, param: str) -> Json:
    """A JSON object."""
    if not isinstance(value, dict):
        raise wrong_kind(param, "an object", value)
    return value


def anything(value: Any, param: str) -> Any:
    """Any JSON value, unchecked here."""
    return value


def base64_audio(value: Any, param: str) -> bytes:
    """Strict base64 text → bytes, never empty. Bytes, which only a caller in this process can have, stay as they are.

    Raises ``bad_event`` for a value that is not a string or is empty, ``bad_audio`` for one that is not base64.
    """
    if not isinstance(value, str | bytes):
        raise wrong_kind(param, "base64 text", value)
    if not value:
        raise RemoteProtocolError("bad_event", f"{param} is empty", param=param)
    return value if isinstance(value, bytes) else strict_base64(value, param)


def strict_base64(value: str, param: str, *, code: str = "bad_audio") -> bytes:
    """Standard alphabet, correct padding, nothing else; raises ``code`` otherwise."""
    try:
        return pybase64.b64decode(value, validate=True)
    except ValueError:
        raise RemoteProtocolError(code, f"{param} is not base64", param=param) from None


def video_frames(value: Any, param: str) -> tuple[str, ...]:
    """At most two base64 JPEG or PNG images; null entries are skipped. Raises ``invalid_video_frames``."""
    if not isinstance(value, list):
        raise wrong_kind(param, "an array", value, code="invalid_video_frames")
    frames = tuple(frame for frame in value if frame is not None)
    if len(frames) > MAX_VIDEO_FRAMES:
        raise RemoteProtocolError("invalid_video_frames", f"at most {MAX_VIDEO_FRAMES} frames an append", param=param)
    for frame in frames:
        if not isinstance(frame, str) or not frame or len(frame) > MAX_VIDEO_FRAME_CHARS:
            raise RemoteProtocolError(
                "invalid_video_frames",
                f"a frame is a base64 string of 1..{MAX_VIDEO_FRAME_CHARS} characters",
                param=param,
            )
        image = strict_base64(frame, param, code="invalid_video_frames")
        if not image.startswith(_IMAGE_MAGIC):
            raise RemoteProtocolError("invalid_video_frames", "a frame must be a JPEG or PNG image", param=param)
    return frames


def one_slice(value: Any, param: str) -> int:
    """``max_slice_nums`` must be 1 when it is there at all (contract 18)."""
    if isinstance(value, bool) or value != 1:
        raise RemoteProtocolError("invalid_video_frames", "max_slice_nums must be 1", param="video_frames")
    return 1


def acknowledged_seq(value: Any, param: str) -> int:
    """A non-negative integer; anything else is ``invalid_event_ack``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RemoteProtocolError("invalid_event_ack", f"{param} must be a non-negative integer", param=param)
    return value


def item_id(value: Any, param: str) -> str:
    """A non-empty item id; an empty one is ``missing_item_id``, another kind or an endless one ``bad_event``."""
    if text(value, param) == "":
        raise RemoteProtocolError("missing_item_id", f"{param} is empty", param=param)
    return name(value, param)


def name(value: Any, param: str) -> str:
    """A non-empty string of at most 256 characters: an id, which is repeated in several events."""
    if len(word(value, param)) > MAX_NAME_CHARS:
        raise RemoteProtocolError("bad_event", f"{param} may have {MAX_NAME_CHARS} characters", param=param)
    return str(value)


def drain(value: Any, param: str) -> str | None:
    """How far a close waits: ``sent`` or ``played``; true means ``sent``, false not at all."""
    if isinstance(value, bool):
        return "sent" if value else None
    if value not in ("sent", "played"):
        raise RemoteProtocolError("bad_event", f"{param} must be sent or played", param=param)
    return str(value)
