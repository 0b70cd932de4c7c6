"""Constants and configuration values of the client (contract section 21.1)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from .intervals import rounded

PCM16_SAMPLE_RATE = 16_000
"""Default input rate in Hz."""

PCM16_BYTES_PER_SAMPLE = 2
"""Bytes of one mono PCM16 sample."""

DUPLEX_UNIT_MS = 1_000
"""Length of one unit of a model that decides once a second (MiniCPM-o 4.5), in ms."""

DUPLEX_FIRST_UNIT_MS = 1_000
"""Length of the first such unit; older servers of this API used 1030."""

_BYTES_PER_SAMPLE = {"pcm16": 2, "pcm_f32le": 4}


def duplex_unit_boundary_ms(unit_index: int) -> int:
    """End of unit `unit_index` (0-based, negative counts as 0) in ms from the start of the stream."""
    return DUPLEX_FIRST_UNIT_MS + max(0, unit_index) * DUPLEX_UNIT_MS


@attrs.frozen
class AudioFormat:
    """Encoding and rate of one direction of mono audio."""

    encoding: str
    """`pcm16` or `pcm_f32le`."""
    sample_rate_hz: int
    """Samples per second."""

    @property
    def bytes_per_sample(self) -> int:
        """2 for `pcm16`, 4 for `pcm_f32le`; any other encoding raises ValueError."""
        try:
            return _BYTES_PER_SAMPLE[self.encoding]
        except KeyError:
            known = ", ".join(sorted(_BYTES_PER_SAMPLE))
            raise ValueError(f"no sample size is known for audio encoding {self.encoding!r} (known: {known})") from None

    def duration_ms(self, byte_count: int) -> float:
        """How long `byte_count` bytes sound, in ms."""
        return byte_count * 1000.0 / (self.bytes_per_sample * self.sample_rate_hz)

    def byte_count(self, duration_ms: float) -> int:
        """Bytes of `duration_ms` of audio, rounded to whole samples."""
        return round(duration_ms * self.sample_rate_hz / 1000.0) * self.bytes_per_sample


@attrs.frozen(kw_only=True)
class Deadlines:
    """How a session's units of work kept their deadline on the server so far (an extension of our server)."""

    units: int
    """Units that had a deadline and were finished."""
    missed: int
    """Of these, the ones finished after it."""
    lateness_ms_p50: float | None = None
    """Median of finish minus deadline over the last units; negative is early."""
    lateness_ms_p99: float | None = None
    """99th percentile over the last units."""
    lateness_ms_max: float | None = None
    """The worst of the whole session."""

    @classmethod
    def from_wire(cls, value: object) -> Deadlines | None:
        """A `deadlines` object of the wire; None for anything that is none."""
        if not isinstance(value, Mapping):
            return None
        units, missed = rounded(value.get("units")), rounded(value.get("missed"))
        if not isinstance(units, int) or not isinstance(missed, int):
            return None
        return cls(
            units=units,
            missed=missed,
            lateness_ms_p50=rounded(value.get("lateness_ms_p50")),
            lateness_ms_p99=rounded(value.get("lateness_ms_p99")),
            lateness_ms_max=rounded(value.get("lateness_ms_max")),
        )


@attrs.frozen(kw_only=True)
class SessionConfig:
    """What a session is opened with, free of any model. Change fields with `replace` (or `attrs.evolve`)."""

    modalities: Sequence[str] = ("audio", "text")
    """What answers consist of."""
    input_audio: AudioFormat = AudioFormat("pcm16", PCM16_SAMPLE_RATE)
    """What `append_audio` and `stream_pcm` are given."""
    output_audio: AudioFormat = AudioFormat("pcm16", 24_000)
    """What answers sound in."""
    instructions: str | None = None
    """System prompt, role or persona."""
    ref_audio: str | None = None
    """Data URL of the assistant's voice clip."""
    voice: str | None = None
    """A voice by name, where the model has several."""
    auto_response: bool = True
    """Whether a commit lets the model answer; travels in `extra_body`."""
    temperature: float | None = None
    """Sampling temperature."""
    overlap_policy: str | None = None
    """What speech during an answer does: `listen_only`, `barge_in_on_speech`, …"""
    playback_commit_policy: str | None = None
    """When answers enter the history: `ack_only`, …"""
    turn_detection: Mapping[str, Any] | None = None
    """Server VAD settings; null leaves turns to the model or to commits, and is sent."""
    idle_timeout_s: float | None = None
    """Seconds without a client message after which the session ends."""
    max_output_tokens: int | None = None
    """Most tokens of one answer."""
    extra_body: Mapping[str, Any] = attrs.field(factory=dict)
    """The model's own knobs."""

    def replace(self, **changes: Any) -> SessionConfig:
        """A copy with the named fields changed; an unknown name raises TypeError."""
        return attrs.evolve(self, **changes)

    def to_session_payload(self, *, model: str, session_id: str | None = None) -> dict[str, Any]:
        """The `session` object of the opening `session.update`.

        `turn_detection` is sent even when null, since null (model-owned turns) is a choice; other fields left at
        None are omitted so that the server's defaults hold. The own `extra_body` wins over `auto_response`.
        """
        payload: dict[str, Any] = {"model": model}
        if session_id is not None:
            payload["session_id"] = session_id
        payload["modalities"] = list(self.modalities)
        payload["input_audio_format"] = self.input_audio.encoding
        payload["output_audio_format"] = self.output_audio.encoding
        payload["sample_rate_hz"] = self.input_audio.sample_rate_hz
        payload["audio"] = {
            "input": {"sample_rate_hz": self.input_audio.sample_rate_hz},
            "output": {"sample_rate_hz": self.output_audio.sample_rate_hz},
        }
        payload["turn_detection"] = None if self.turn_detection is None else dict(self.turn_detection)
        for name in (
            "instructions",
            "ref_audio",
            "voice",
            "temperature",
            "overlap_policy",
            "playback_commit_policy",
            "idle_timeout_s",
            "max_output_tokens",
        ):
            value = getattr(self, name)
            if value is not None:
                payload[name] = value
        payload["extra_body"] = {"auto_response": self.auto_response, **self.extra_body}
        return payload


@attrs.frozen
class ReconnectPolicy:
    """How often and how patiently a lost connection is taken up again.

    `backoff_s` is (low, high). `uniform` draws the jitter; tests hand in their own.
    """

    max_attempts: int = 5
    """Attempts after which the session counts as lost."""
    backoff_s: tuple[float, float] = (0.25, 4.0)
    """Shortest and longest wait before an attempt, in seconds."""
    uniform: Callable[[float, float], float] = attrs.field(default=random.uniform, kw_only=True, eq=False, repr=False)
    """Draws the jitter."""

    def delay(self, attempt: int) -> float:
        """Seconds to wait before `attempt`: uniform between low and min(high, low * 2**attempt).

        The client counts attempts from 1, so that already the first one is spread out after a server restart.
        """
        low, high = self.backoff_s
        return self.uniform(low, min(high, low * 2.0**attempt))
