"""Shared by the wire tests: native events with ordinary values, and comparison of frames with examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from duplex_protocol import events as e
from duplex_protocol import values as v
from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.dialect import Dialect, Projected, SessionDefaults
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.profiles import MINICPMO_4_5

T = TypeVar("T")

MORE = "…"
"""In an example: any string; as a key: further members are allowed."""

DEFAULTS = SessionDefaults(model="openbmb/MiniCPM-o-4_5")
TURN_BASED = SessionDefaults(model="qwen", native_lane=False)
SESSION = "sess_demo_01"
PCM = AudioFormat("pcm16", 24_000)

CREATED = e.ResponseCreated(
    session_id=SESSION,
    response_id="resp_01",
    epoch=0,
    turn_id=1,
    item_id="item_resp_01",
    previous_item_id="item_9b2d",
    modalities=("audio", "text"),
)
DELTA = e.AudioDelta(
    session_id=SESSION,
    response_id="resp_01",
    item_id="item_resp_01",
    epoch=0,
    audio=b"\x01\x00" * 240,
    format=PCM,
    text="It is sunny",
    audio_duration_ms=1000,
    marks=(v.TextMark(11, 1000),),
    playback=v.Playback(1000, 1000, 0, 0),
)
TEXT = e.TextDelta(session_id=SESSION, response_id="resp_01", item_id="item_resp_01", epoch=0, delta="Tomorrow looks")
ANSWER = v.Item(
    id="item_resp_01",
    role="assistant",
    content=(v.ContentPart("output_audio", transcript="It is sunny, 24 degrees."),),
)
DONE = e.ResponseDone(
    session_id=SESSION,
    response_id="resp_01",
    epoch=0,
    status="completed",
    item=ANSWER,
    predecessor_id="item_9b2d",
    committed=True,
    playback=v.Playback(2400, 2400, 2400, 2400),
    had_audio=True,
    transcript="It is sunny, 24 degrees.",
    text="",
)
CANCELLED = attrs.evolve(
    DONE, status="cancelled", reason="barge_in", item=attrs.evolve(ANSWER, status="cancelled"), next_epoch=1
)
USER_ITEM = v.Item(id="item_9b2d", content=(v.ContentPart("input_audio", transcript="what is the weather today"),))
COMMITTED = e.InputCommitted(
    session_id=SESSION,
    turn_id=1,
    epoch=0,
    history_len=1,
    item=USER_ITEM,
    previous_item_id=None,
    message={
        "role": "user",
        "content": [{"type": "audio_url", "audio_url": {"url": "native-duplex:input-audio"}}],
    },
    transcript=None,
    audio_ms=1820,
)
CALL = e.FunctionCallDone(
    session_id=SESSION,
    epoch=0,
    call_id="call_7d1f",
    name="get_weather",
    arguments='{"city":"Hong Kong"}',
    response_id="resp_fc_01",
    item_id="item_fc_01",
    previous_item_id="item_9b2d",
)


def snapshot(config: v.SessionConfig | None = None) -> v.SessionSnapshot:
    """A session at rest."""
    return v.SessionSnapshot(SESSION, config or v.SessionConfig(model="m"), MINICPMO_4_5)


def session_created(config: v.SessionConfig | None = None, *, by_update: bool = True) -> e.SessionCreated:
    """The first event of a session."""
    return e.SessionCreated(
        session=snapshot(config),
        incarnation=0,
        attachment_generation=1,
        resume_token="rt_3f9c",
        opened_by_update=by_update,
    )


def frames(projected: list[Projected]) -> list[dict[str, Any]]:
    """All frames in order."""
    return [frame for group in projected for frame in group.frames]


def run(dialect: Dialect, *events: e.Event) -> list[dict[str, Any]]:
    """The frames of several native events."""
    return [frame for event in events for frame in frames(dialect.project(event))]


def types(shown: list[dict[str, Any]]) -> list[str]:
    """Their types."""
    return [frame["type"] for frame in shown]


def matches(example: Any, actual: Any, extra: frozenset[str] = frozenset(), path: str = "") -> None:
    """Assert that ``actual`` is ``example``, key order included.

    Ellipses of the example match anything; ``extra`` names members (by path) that may be there beyond the example.
    """
    if isinstance(example, str) and MORE in example:
        assert isinstance(actual, str), path
        return
    assert type(example) is type(actual), f"{path}: {example!r} is not {actual!r}"
    if isinstance(example, dict):
        wanted = [key for key in example if key != MORE]
        beyond = [key for key in actual if key not in example]
        if MORE not in example:
            assert not [key for key in beyond if f"{path}.{key}".lstrip(".") not in extra], f"{path}: extra {beyond}"
        assert [key for key in actual if key in wanted] == wanted, f"{path}: {list(actual)} lacks or reorders {wanted}"
        for key in wanted:
            matches(example[key], actual[key], extra, f"{path}.{key}".lstrip("."))
    elif isinstance(example, list):
        assert len(example) == len(actual), path
        for index, (one, other) in enumerate(zip(example, actual, strict=True)):
            matches(one, other, extra, f"{path}[{index}]")
    else:
        assert example == actual, path


def attempt(action: Callable[..., T], *args: Any, **kwargs: Any) -> T | RemoteProtocolError:
    """The result of an action, or the protocol error that it raises."""
    try:
        return action(*args, **kwargs)
    except RemoteProtocolError as error:
        return error


def refusal(action: Callable[..., Any], *args: Any, **kwargs: Any) -> RemoteProtocolError:
    """The protocol error that an action must raise."""
    result = attempt(action, *args, **kwargs)
    assert isinstance(result, RemoteProtocolError), f"not refused: {result!r}"
    return result
