"""Turn detection objects (contract 2.1, 9, 9.1, 25)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from duplex_protocol.realtime import RealtimeDialect
from duplex_protocol.session_echo import turn_detection as shown
from duplex_protocol.values import SessionConfig, TurnDetection
from tests.protocol.wire_kit import DEFAULTS, TURN_BASED, refusal

PLAIN, DUPLEX = "plain", "duplex"


def opened(session: dict[str, Any], *, native: bool = True, view: Any = DUPLEX) -> SessionConfig:
    """The configuration of an opening object."""
    defaults = DEFAULTS if native else TURN_BASED
    return RealtimeDialect(view).parse_open(session, defaults).config


def refused(session: dict[str, Any], *, native: bool = True, view: Any = DUPLEX) -> tuple[str, str | None]:
    """Code and param."""
    error = refusal(opened, session, native=native, view=view)
    return error.code, error.param


def detect(**fields: Any) -> dict[str, Any]:
    """A session object with server VAD."""
    return {"turn_detection": {"type": "server_vad", **fields}}


UNSUPPORTED = ("unsupported_turn_detection", "turn_detection")


def test_absent_and_null_mean_none() -> None:
    assert opened({}).turn_detection is None
    config = opened({"turn_detection": None})
    assert (config.turn_detection, config.turn_detection_named) == (None, False)


def test_native_defaults() -> None:
    config = opened(detect())
    assert config.turn_detection == TurnDetection(
        "server_vad", threshold=0.5, prefix_padding_ms=300, silence_duration_ms=500, min_speech_duration_ms=None
    )
    assert config.turn_detection.interrupt_response is True
    assert config.turn_detection.create_response is True
    assert config.overlap_policy == "barge_in_on_speech"


def test_turn_based_defaults() -> None:
    config = opened(detect(), native=False)
    assert config.turn_detection is not None
    assert (config.turn_detection.interrupt_response, config.turn_detection.create_response) == (False, True)
    assert config.overlap_policy == "listen_only"


@pytest.mark.parametrize("where", ["turn_detection", "audio.input.turn_detection"])
def test_both_spellings(where: str) -> None:
    value = {"type": "server_vad", "threshold": 0.7}
    session = (
        {"turn_detection": value} if where == "turn_detection" else {"audio": {"input": {"turn_detection": value}}}
    )
    detection = opened(session).turn_detection
    assert detection is not None
    assert detection.threshold == 0.7


def test_equal_spellings_agree_and_share_interrupt_response() -> None:
    full = {"type": "server_vad", "threshold": 0.7, "interrupt_response": True}
    part = {"type": "server_vad", "threshold": 0.7}
    for top, nested in ((full, full), (full, part), (part, full)):
        detection = opened({"turn_detection": top, "audio": {"input": {"turn_detection": nested}}}).turn_detection
        assert detection is not None
        assert detection.interrupt_response is True
    assert opened({"turn_detection": None, "audio": {"input": {"turn_detection": None}}}).turn_detection is None


@pytest.mark.parametrize(
    "nested",
    [
        None,
        {"type": "server_vad", "threshold": 0.6},
        {"type": "server_vad"},
        "server_vad",
        {"type": "server_vad", "threshold": True},
    ],
    ids=str,
)
def test_different_spellings_are_refused(nested: Any) -> None:
    top = {"type": "server_vad", "threshold": 1}
    assert refused({"turn_detection": top, "audio": {"input": {"turn_detection": nested}}}) == UNSUPPORTED


@pytest.mark.parametrize(
    "value",
    [
        "server_vad",
        7,
        True,
        [],
        {},
        {"type": "none"},
        {"type": "semantic_vad"},
        {"type": ["server_vad"]},
        {"threshold": 0.5},
        {"type": "server_vad", "eagerness": "low"},
        {"type": "server_vad", "idle_timeout_ms": 5000},
        {"type": "server_vad", "threshold": True},
        {"type": "server_vad", "threshold": "0.5"},
        {"type": "server_vad", "threshold": 0.15},
        {"type": "server_vad", "threshold": 1.01},
        {"type": "server_vad", "prefix_padding_ms": -1},
        {"type": "server_vad", "prefix_padding_ms": 1.5},
        {"type": "server_vad", "silence_duration_ms": 0},
        {"type": "server_vad", "silence_duration_ms": "500"},
        {"type": "server_vad", "silence_duration_ms": 1e18},
        {"type": "server_vad", "min_speech_duration_ms": 0},
        {"type": "server_vad", "interrupt_response": False},
        {"type": "server_vad", "create_response": False},
        {"type": "server_vad", "create_response": 1},
    ],
    ids=str,
)
def test_refused_on_a_native_model(value: Any) -> None:
    assert refused({"turn_detection": value}) == UNSUPPORTED


def test_the_edges_of_a_native_model() -> None:
    config = opened(
        detect(
            threshold=0.16,
            prefix_padding_ms=0,
            silence_duration_ms=1,
            min_speech_duration_ms=32.0,
            create_response=None,
        )
    )
    assert config.turn_detection == TurnDetection(
        threshold=0.16, prefix_padding_ms=0, silence_duration_ms=1, min_speech_duration_ms=32
    )


def test_the_edges_of_a_turn_based_model() -> None:
    for threshold in (0, 0.15, 1):
        detection = opened(detect(threshold=threshold, create_response=False), native=False).turn_detection
        assert detection is not None
        assert (detection.threshold, detection.create_response) == (threshold, False)
    assert refused(detect(threshold=-0.1), native=False) == UNSUPPORTED
    assert refused(detect(min_speech_duration_ms=96), native=False) == UNSUPPORTED
    assert refused(detect(interrupt_response=True), native=False) == (
        "server_vad_requires_native_duplex",
        "turn_detection",
    )


# --- overlap policy ---------------------------------------------------------------------------------------------------


def test_server_vad_and_overlap_policy() -> None:
    assert opened({**detect(), "overlap_policy": "barge_in_on_speech"}).overlap_policy == "barge_in_on_speech"
    assert refused({**detect(), "overlap_policy": "listen_only"}) == UNSUPPORTED
    assert refused({"overlap_policy": "barge_in_on_speech"}) == UNSUPPORTED
    assert refused({"extra_body": {"overlap_policy": "barge_in_on_speech"}}) == UNSUPPORTED
    assert opened({"overlap_policy": "listen_only"}).overlap_policy == "listen_only"
    assert refused({**detect(), "overlap_policy": "barge_in_on_speech"}, native=False) == (
        "server_vad_requires_native_duplex",
        "overlap_policy",
    )


def test_updates_of_server_vad() -> None:
    dialect = RealtimeDialect()
    base = opened(detect())
    off = dialect.parse_update({"turn_detection": None}, base, DEFAULTS)
    assert (off.config.turn_detection, off.config.overlap_policy) == (None, "listen_only")
    assert off.config.turn_detection_named
    assert "turn_detection" in off.named
    assert refusal(dialect.parse_update, {"overlap_policy": "listen_only"}, base, DEFAULTS).code == UNSUPPORTED[0]
    same = dialect.parse_update({"overlap_policy": "barge_in_on_speech", "speed": 1}, base, DEFAULTS)
    assert same.config == attrs.evolve(base, speed=1)
    fresh = dialect.parse_update(detect(threshold=0.9), opened(detect(silence_duration_ms=200)), DEFAULTS)
    assert fresh.config.turn_detection == TurnDetection(threshold=0.9)


def test_turn_based_vad_hears_pcm16_at_two_rates() -> None:
    param = ("unsupported_turn_detection", "audio.input.format")
    for rate in (16_000, 24_000):
        assert opened({**detect(), "sample_rate_hz": rate}, native=False).input_format.rate_hz == rate
    assert refused({**detect(), "sample_rate_hz": 48_000}, native=False) == param
    assert refused({**detect(), "input_audio_format": "alaw"}, native=False) == param
    assert opened({**detect(), "input_audio_format": "alaw"}).input_format.encoding == "g711_alaw"


def test_in_the_plain_view_a_native_model_has_the_turns_unless_the_client_says_otherwise() -> None:
    unsaid = opened({}, view=PLAIN)
    assert shown(unsaid.turn_detection, "plain") == {
        "type": "semantic_vad",
        "interrupt_response": True,
        "create_response": True,
    }
    assert unsaid.auto_response
    assert unsaid.overlap_policy == "barge_in_on_speech"
    assert opened({"turn_detection": None}, view=PLAIN).turn_detection is None
    assert not opened({"audio": {"input": {"turn_detection": None}}}, view=PLAIN).auto_response
    assert opened(detect(threshold=0.7), view=PLAIN).turn_detection == TurnDetection(threshold=0.7)


def test_in_the_plain_view_a_turn_based_model_has_server_vad_unless_the_client_says_otherwise() -> None:
    """OpenAI's default; a turn-based model is not interrupted by it (contract 9.1)."""
    unsaid = opened({}, view=PLAIN, native=False)
    assert shown(unsaid.turn_detection, "plain") == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "interrupt_response": False,
        "create_response": True,
    }
    assert not unsaid.turn_detection_named
    assert (unsaid.auto_response, unsaid.overlap_policy) == (False, "listen_only")
    for nothing in ({"turn_detection": None}, {"audio": {"input": {"turn_detection": None}}}):
        assert opened(nothing, view=PLAIN, native=False).turn_detection is None
    assert opened({}, native=False).turn_detection is None


def test_the_default_of_a_turn_based_model_is_left_behind_with_the_plain_view() -> None:
    dialect = RealtimeDialect(PLAIN)
    defaults = attrs.evolve(DEFAULTS, native_lane=False)
    unsaid = opened({}, view=PLAIN, native=False)
    assert dialect.parse_update({"instructions": "x"}, unsaid, defaults).config.turn_detection == unsaid.turn_detection
    assert dialect.parse_update({"turn_detection": None}, unsaid, defaults).config.turn_detection is None
    named = opened(detect(), view=PLAIN, native=False)
    dialect.view = "duplex"
    assert dialect.parse_update({"extra_body": {"x": 1}}, unsaid, defaults).config.turn_detection is None
    assert dialect.parse_update({"extra_body": {"x": 1}}, named, defaults).config.turn_detection == named.turn_detection


def test_the_plain_views_default_can_be_changed_and_is_left_behind_with_the_view() -> None:
    dialect = RealtimeDialect(PLAIN)
    unsaid = opened({}, view=PLAIN)
    assert dialect.parse_update({"instructions": "x"}, unsaid, DEFAULTS).config.turn_detection == unsaid.turn_detection
    by_hand = dialect.parse_update({"turn_detection": None}, unsaid, DEFAULTS).config
    assert (by_hand.turn_detection, by_hand.auto_response, by_hand.overlap_policy) == (None, False, "listen_only")
    dialect.view = "duplex"
    switched = dialect.parse_update({"extra_body": {"x": 1}}, unsaid, DEFAULTS).config
    assert switched == attrs.evolve(opened({"extra_body": {"x": 1}}), **audio_of(switched))
    auto = dialect.parse_update({"extra_body": {"auto_response": True}}, unsaid, DEFAULTS).config
    assert (auto.turn_detection, auto.auto_response) == (None, True)


def audio_of(config: SessionConfig) -> dict[str, Any]:
    """What the plain view decided before: formats stay when a session changes over."""
    return {"input_format": config.input_format, "output_format": config.output_format}


# --- echo and plain view ----------------------------------------------------------------------------------------------


def test_the_echo_has_all_defaults() -> None:
    assert shown(opened(detect()).turn_detection, "duplex") == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "interrupt_response": True,
        "create_response": True,
    }
    echoed = shown(opened(detect(min_speech_duration_ms=64)).turn_detection, "duplex")
    assert echoed is not None
    assert echoed["min_speech_duration_ms"] == 64


def test_semantic_vad_on_a_native_model_is_the_models_own_turn_taking() -> None:
    sent = {"type": "semantic_vad", "eagerness": "low", "interrupt_response": True, "create_response": True}
    config = opened({"audio": {"input": {"turn_detection": sent}}}, view=PLAIN)
    assert config.turn_detection is not None
    assert config.turn_detection.kind == "semantic_vad"
    assert config.auto_response
    assert config.overlap_policy == "barge_in_on_speech"
    assert shown(config.turn_detection, "plain") == sent
    off = RealtimeDialect("plain").parse_update({"audio": {"input": {"turn_detection": None}}}, config, DEFAULTS).config
    assert (off.turn_detection, off.auto_response, off.overlap_policy) == (None, False, "listen_only")


@pytest.mark.parametrize(
    ("eagerness", "silence_ms"), [("high", 400), ("medium", 800), ("auto", 800), ("low", 1200), (None, 800)]
)
def test_semantic_vad_on_a_turn_based_model_becomes_server_vad(eagerness: str | None, silence_ms: int) -> None:
    sent = {"type": "semantic_vad", "interrupt_response": True, "create_response": True}
    if eagerness is not None:
        sent["eagerness"] = eagerness
    config = opened({"audio": {"input": {"turn_detection": sent}}}, native=False, view=PLAIN)
    detection = config.turn_detection
    assert detection is not None
    assert (detection.kind, detection.silence_duration_ms, detection.create_response) == (
        "server_vad",
        silence_ms,
        True,
    )
    # The answer cannot be interrupted by the server here, and the echo says so: clients then cancel by themselves.
    assert shown(detection, "plain") == {**sent, "interrupt_response": False}


@pytest.mark.parametrize("sent", [{"eagerness": "wild"}, {"eagerness": ["low"]}, {"threshold": 0.5}], ids=str)
def test_wrong_semantic_vad(sent: dict[str, Any]) -> None:
    assert refused({"turn_detection": {"type": "semantic_vad", **sent}}, view=PLAIN) == UNSUPPORTED


def test_server_vad_in_the_plain_view() -> None:
    config = opened(
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": None}}}}, view=PLAIN
    )
    echoed = shown(config.turn_detection, "plain")
    assert echoed is not None
    assert echoed["interrupt_response"] is True
