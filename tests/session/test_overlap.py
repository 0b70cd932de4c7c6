"""The overlap policy's table, row by row (contract 11). Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_duplex.session.overlap import SHORT_ACKS, Overlap, decide, is_short_ack, normalised

SPEECH: dict[str, Any] = {"speech": True, "duration_ms": 200.0}


def overlap(**fields: Any) -> Overlap:
    base: dict[str, Any] = {
        "policy": "listen_only",
        "short_ack_ms": 700.0,
        "barge_in_ms": 1200.0,
        "auto_response": False,
        "can_barge_in": True,
        **SPEECH,
    }
    return Overlap(**{**base, **fields})


BARGE = {"policy": "barge_in_on_speech"}

# (facts, action, reason, buffer, defer, accumulated afterwards)
TABLE: list[tuple[dict[str, Any], str, str, bool, bool, float]] = [
    # 1: asked for on a model without it
    ({"can_barge_in": False, "force_barge_in": True}, "listen", "barge_in_unsupported", True, True, 200),
    ({"can_barge_in": False, "action_word": "interrupt"}, "listen", "barge_in_unsupported", True, True, 200),
    (
        {"can_barge_in": False, "force_barge_in": True, "speech": False},
        "listen",
        "barge_in_unsupported",
        False,
        True,
        0,
    ),
    # 2: the client's own word
    *(
        ({"action_word": word, "accumulated_ms": 500.0}, "barge_in", "client_overlap_action", True, False, 0)
        for word in ("barge_in", "interrupt", "cancel")
    ),
    *(
        ({"action_word": word, "accumulated_ms": 900.0}, "listen", "client_overlap_action", False, True, 0)
        for word in ("continue", "continue_output", "ack")
    ),
    ({"action_word": "listen", "accumulated_ms": 600.0}, "listen", "client_overlap_action", True, True, 0),
    ({"action_word": "listen", "accumulated_ms": 400.0}, "listen", "client_overlap_action", False, True, 0),
    *(
        ({"action_word": word}, "drop", "client_overlap_action", False, False, 0)
        for word in ("drop", "ignore", "silence")
    ),
    # 3
    ({"force_barge_in": True, "speech": False}, "barge_in", "client_force_barge_in", True, False, 0),
    # 4
    ({"auto_response": True, **BARGE}, "barge_in", "barge_in_on_speech", True, False, 0),
    ({"auto_response": True, **BARGE, "vad": "onset"}, "barge_in", "server_vad_speech_started", True, False, 0),
    ({"auto_response": True, **BARGE, "vad": "active"}, "listen", "auto_response_continuous", True, False, 200),
    ({"auto_response": True, **BARGE, "speech": False}, "listen", "auto_response_continuous", True, False, 0),
    ({"auto_response": True}, "listen", "auto_response_continuous", True, False, 200),
    # 5
    ({"force_listen": True, "accumulated_ms": 900.0}, "listen", "client_force_listen", True, True, 0),
    ({"force_listen": True, "speech": False}, "listen", "client_force_listen", False, True, 0),
    # 6
    ({"speech": False, "accumulated_ms": 300.0}, "drop", "silence_or_noise", False, False, 300),
    ({"speech": False, **BARGE}, "drop", "silence_or_noise", False, False, 0),
    # 7
    ({"transcript": "Okay!", "accumulated_ms": 500.0}, "listen", "short_ack_transcript", False, True, 0),
    ({"transcript": "嗯嗯。", **BARGE}, "listen", "short_ack_transcript", False, True, 0),
    # 8
    ({}, "listen", "short_ack", True, True, 200),
    ({"accumulated_ms": 500.0}, "listen", "short_ack", True, True, 700),
    ({"accumulated_ms": 501.0}, "listen", "accumulating_overlap_speech", True, True, 701),
    ({"accumulated_ms": 999.0}, "listen", "accumulating_overlap_speech", True, True, 1199),
    ({"accumulated_ms": 1000.0}, "listen", "long_overlap_speech", True, True, 1200),
    ({"accumulated_ms": 1200.0}, "listen", "long_overlap_speech", True, True, 1400),
    # 9
    (BARGE, "barge_in", "policy_barge_in_on_speech", True, False, 0),
    ({**BARGE, "can_barge_in": False}, "listen", "barge_in_unsupported", True, True, 200),
    ({**BARGE, "vad": "onset"}, "barge_in", "server_vad_speech_started", True, False, 0),
    ({**BARGE, "vad": "active"}, "listen", "server_vad_utterance_active", True, False, 200),
]


@pytest.mark.parametrize(("facts", "action", "reason", "buffer", "defer", "accumulated"), TABLE)
def test_table(facts: dict[str, Any], action: str, reason: str, buffer: bool, defer: bool, accumulated: float) -> None:
    decision = decide(overlap(**facts))
    assert (decision.action, decision.reason) == (action, reason)
    assert decision.buffer is buffer
    assert decision.defer is defer
    assert decision.accumulated_ms == accumulated


def test_the_seeds_example() -> None:
    """1400 ms of overlap under listen_only: buffered, deferred, the model must listen."""
    decision = decide(overlap(accumulated_ms=1200.0))
    assert (decision.reason, decision.overlap_ms) == ("long_overlap_speech", 1400)
    assert decision.buffer
    assert decision.defer
    assert decision.force_listen


def test_cancel_reasons() -> None:
    assert decide(overlap(**BARGE)).cancel_reason == "barge_in"
    assert decide(overlap(**BARGE, vad="onset")).cancel_reason == "turn_detected"
    assert decide(overlap(force_barge_in=True, vad="onset")).cancel_reason == "barge_in"
    assert decide(overlap()).cancel_reason is None


def test_what_forgets_the_open_item() -> None:
    """Dropped and short-ack overlaps were no input; plain silence never takes buffered speech away."""
    assert decide(overlap(action_word="drop")).forget
    assert decide(overlap(transcript="right")).forget
    assert decide(overlap(action_word="ack")).forget
    assert not decide(overlap(speech=False)).forget
    assert not decide(overlap()).forget
    assert not decide(overlap(action_word="listen", accumulated_ms=900.0)).forget


@pytest.mark.parametrize("word", sorted(SHORT_ACKS))
def test_short_acks_in_any_dress(word: str) -> None:
    assert is_short_ack(f"  {word.upper()}... ")
    assert not is_short_ack(f"{word} but wait")


def test_normalising() -> None:
    assert normalised("  Keep,   GOING!? ") == "keep going"
    assert not is_short_ack(None)
    assert not is_short_ack("")


@given(
    st.builds(
        Overlap,
        policy=st.sampled_from(["listen_only", "barge_in_on_speech", "what"]),
        short_ack_ms=st.floats(0, 2000),
        barge_in_ms=st.floats(0, 2000),
        auto_response=st.booleans(),
        can_barge_in=st.booleans(),
        speech=st.booleans(),
        duration_ms=st.floats(0, 5000),
        accumulated_ms=st.floats(0, 5000),
        action_word=st.none() | st.sampled_from(["barge_in", "listen", "drop", "ack", "dance"]),
        force_barge_in=st.booleans(),
        force_listen=st.booleans(),
        transcript=st.none() | st.sampled_from(["yes", "no, stop"]),
        vad=st.sampled_from([None, "silent", "onset", "active"]),
    )
)
def test_always_decides_and_never_interrupts_a_model_that_cannot(facts: Overlap) -> None:
    decision = decide(facts)
    if not facts.can_barge_in:
        assert decision.action != "barge_in"
    if decision.action == "barge_in":
        assert decision.buffer, "the interrupting chunk begins the new input"
        assert decision.accumulated_ms == 0
        assert decision.cancel_reason in ("barge_in", "turn_detected")
    if decision.action == "drop":
        assert not decision.buffer
