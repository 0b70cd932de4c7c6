"""Capability objects of the known models and the surfaces that they gate (seed, contract section 20)."""

from __future__ import annotations

from typing import Final, Literal

import attrs

from duplex_protocol import commands as c
from duplex_protocol.errors import LocalProtocolError
from duplex_protocol.values import Capabilities

ProfileName = Literal["minicpmo_4_5", "personaplex", "nemotron_voicechat", "chat_fallback", "qwen3_omni"]

MINICPMO_4_5: Final = Capabilities(
    supports_external_turn_signal=True,
    supports_barge_in=True,
    supports_audio_truncate=True,
    requires_model_runner_kv=True,
    requires_native_stage_role=True,
    signal_sources=("model_native", "client_event", "server_policy"),
    stage_handoff_transport="scheduler_data_plane",
    chunk_period_ms=1000,
)
PERSONAPLEX: Final = Capabilities(
    supports_client_commit=False,
    supports_session_resume=False,
    requires_model_runner_kv=True,
    requires_native_stage_role=True,
    stage_handoff_transport="scheduler_data_plane",
    chunk_period_ms=80,
)
NEMOTRON_VOICECHAT: Final = attrs.evolve(
    PERSONAPLEX, supports_client_commit=True, supports_session_resume=True, supports_multi_session_same_replica=False
)
CHAT_FALLBACK: Final = Capabilities(
    supports_model_native_turn_policy=False,
    supports_external_turn_signal=True,
    supports_barge_in=True,
    supports_input_append=False,
    supports_replace_latest_chunk=True,
    supports_reencode_context=True,
    supports_turn_commit_only=True,
    supports_model_internal_state=False,
    supports_stage_resumption=False,
    supports_core_resumable_request=False,
    supports_stage_connector_handoff=False,
    supports_independent_io_streams=False,
    supports_multi_session=False,
    supports_multi_session_same_replica=False,
    supports_session_lease=False,
    supports_session_resume=False,
    session_admission_mode="serving_managed",
    implementation_level="serving_session_adapter",
    adapter_patterns=("chunk_group_append",),
    input_modes=("turn_commit_only", "reencode_context"),
    signal_sources=("client_event", "server_policy", "model_native"),
    chunk_period_ms=1000,
    target_barge_in_latency_ms=1000,
)
QWEN3_OMNI: Final = attrs.evolve(CHAT_FALLBACK, supports_input_append=True)

PROFILES: Final[dict[ProfileName, Capabilities]] = {
    "minicpmo_4_5": MINICPMO_4_5,
    "personaplex": PERSONAPLEX,
    "nemotron_voicechat": NEMOTRON_VOICECHAT,
    "chat_fallback": CHAT_FALLBACK,
    "qwen3_omni": QWEN3_OMNI,
}
"""Each model's capabilities with room for more than one session; :func:`profile` fits them to a deployment."""


def profile(name: str, *, max_sessions: int) -> Capabilities:
    """A model's capabilities in a deployment of ``max_sessions``: the multi-session flags need more than one.

    Raises :class:`LocalProtocolError` for an unknown name.
    """
    for known, capabilities in PROFILES.items():
        if known == name:
            return capabilities if max_sessions > 1 else single_session(capabilities)
    raise LocalProtocolError(f"unknown profile {name!r}; known: {', '.join(PROFILES)}")


def single_session(capabilities: Capabilities) -> Capabilities:
    """The same capabilities where only one session fits."""
    return attrs.evolve(capabilities, supports_multi_session=False, supports_multi_session_same_replica=False)


@attrs.frozen
class Gate:
    """What a capability flag opens: in words, as commands that need it (with the refusal code), as wire events."""

    flag: str
    surface: str
    commands: tuple[type[c.Command], ...] = ()
    code: str | None = None
    events: tuple[str, ...] = ()


GATES: Final[tuple[Gate, ...]] = (
    Gate(
        "implementation_level",
        "response.listen and response.speak as the model's own decisions, or the chat lane",
        events=("response.listen", "response.speak", "input.text.append"),
    ),
    Gate("chunk_period_ms", "the unit to which listen decisions and camera frames align", events=("response.listen",)),
    Gate(
        "supports_session_resume",
        "session.resume, session.resumed, session.replaced, replay",
        code="unsupported_session_resume",
        events=("session.resume", "session.resumed", "session.replaced", "session.resync_required"),
    ),
    Gate(
        "supports_barge_in",
        "barge_in, turn.signal barge_in, overlap_policy barge_in_on_speech, turn_detection server_vad",
        (c.BargeIn,),
        "barge_in_unsupported",
        ("barge_in", "turn.signal", "overlap.decision"),
    ),
    Gate(
        "supports_audio_truncate",
        "conversation.item.truncate and truncating playback.ack change the stored item",
        events=("conversation.item.truncate", "playback.ack"),
    ),
)
"""The seed's gated surfaces that have a flag; video input and tool calls follow from the model itself."""


def gate_refusal(command: type[c.Command], capabilities: Capabilities) -> str | None:
    """The error code with which a model without the capability refuses ``command``; None = allowed."""
    for gate in GATES:
        if command in gate.commands and not getattr(capabilities, gate.flag):
            return gate.code
    return None
