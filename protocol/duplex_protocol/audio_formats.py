"""Audio formats of the wire: names, aliases, rates, sizes (contract 2.2). No samples are touched here."""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

from duplex_protocol.errors import RemoteProtocolError

Encoding = Literal["pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw", "wav"]

MIN_RATE_HZ: Final = 8_000
MAX_RATE_HZ: Final = 192_000


@attrs.frozen
class EncodingRow:
    """Facts about one encoding: accepted spellings, GA type word, bytes per sample, default rate, directions."""

    aliases: tuple[str, ...]
    ga_type: str
    bytes_per_sample: int
    default_rate_hz: int
    allowed_in: bool = True
    allowed_out: bool = True


ENCODINGS: Final[dict[Encoding, EncodingRow]] = {
    "pcm16": EncodingRow(("pcm16", "pcm", "pcm_s16le", "s16le", "audio/pcm", "audio/pcm16"), "audio/pcm", 2, 24_000),
    "pcm_f32le": EncodingRow(
        ("pcm_f32le", "f32le", "audio/pcm_f32le"), "audio/pcm_f32le", 4, 16_000, allowed_out=False
    ),
    "g711_ulaw": EncodingRow(
        ("g711_ulaw", "g711-ulaw", "ulaw", "mulaw", "audio/g711_ulaw", "audio/pcmu"), "audio/g711_ulaw", 1, 8_000
    ),
    "g711_alaw": EncodingRow(
        ("g711_alaw", "g711-alaw", "alaw", "audio/g711_alaw", "audio/pcma"), "audio/g711_alaw", 1, 8_000
    ),
    "wav": EncodingRow(("wav", "audio/wav"), "audio/wav", 2, 24_000, allowed_in=False),
}

_BY_ALIAS: Final[dict[str, Encoding]] = {alias: name for name, row in ENCODINGS.items() for alias in row.aliases}


@attrs.frozen
class AudioFormat:
    """One mono audio format: an encoding and a sample rate in Hz."""

    encoding: Encoding
    rate_hz: int

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample (wav counts its PCM16 payload)."""
        return ENCODINGS[self.encoding].bytes_per_sample

    def duration_ms(self, byte_count: int) -> float:
        """How long ``byte_count`` bytes play, in milliseconds."""
        return byte_count / self.bytes_per_sample * 1000.0 / self.rate_hz


def encoding_of(name: object, *, param: str, direction: Literal["in", "out", "legacy_in"] = "in") -> Encoding:
    """Fold a spelling to its encoding.

    Raises :class:`RemoteProtocolError` ``unsupported_audio_format`` with ``param`` for a word that is not in
    contract 2.2 or is not allowed in that direction (``legacy_in``: the two append aliases that may carry WAV).
    """
    if isinstance(name, str):
        encoding = _BY_ALIAS.get(name.strip().lower())
        if encoding is not None:
            row = ENCODINGS[encoding]
            if direction == "out" and row.allowed_out:
                return encoding
            if direction != "out" and (row.allowed_in or direction == "legacy_in"):
                return encoding
    raise RemoteProtocolError(
        "unsupported_audio_format", f"audio format {_shown(name)} is not supported here", param=param
    )


def _shown(value: object) -> str:
    """A client's value for an error message: short, whatever it is."""
    if isinstance(value, str):
        return repr(value[:32])
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def rate_of(value: object, *, code: str, param: str) -> int:
    """Check a sample rate: a whole number of Hz in 8 000 … 192 000 (booleans are not numbers).

    Raises :class:`RemoteProtocolError` with the caller's ``code`` and ``param`` (they differ per place, contract 2.2).
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        value, whole = int(value), True
    if not whole or not MIN_RATE_HZ <= value <= MAX_RATE_HZ:  # type: ignore[operator]
        raise RemoteProtocolError(
            code,
            f"sample rate must be a whole number of Hz in {MIN_RATE_HZ}..{MAX_RATE_HZ}, got {_shown(value)}",
            param=param,
        )
    return value  # type: ignore[return-value]


def split_format(value: object) -> tuple[object, object | None]:
    """Split a format field, which may be a word or an object ``{type|format, rate|sample_rate_hz|sample_rate}``.

    Returns ``(word, rate or None)``, both unchecked.
    """
    if isinstance(value, dict):
        word = value.get("type", value.get("format"))
        for key in ("rate", "sample_rate_hz", "sample_rate"):
            if value.get(key) is not None:
                return word, value[key]
        return word, None
    return value, None


def ga_format(fmt: AudioFormat) -> dict[str, Any]:
    """The GA object of a format as the duplex view echoes it."""
    return {"type": ENCODINGS[fmt.encoding].ga_type, "rate": fmt.rate_hz}


def append_format(session: AudioFormat, encoding: Encoding | None, rate_hz: int | None) -> AudioFormat:
    """The format of one append: its own words first, then the session's (contract 2.1, 2.2).

    A named encoding that differs from the session's takes that encoding's default rate unless a rate is named too.
    """
    if encoding is None or encoding == session.encoding:
        return session if rate_hz is None or rate_hz == session.rate_hz else AudioFormat(session.encoding, rate_hz)
    return AudioFormat(encoding, rate_hz or ENCODINGS[encoding].default_rate_hz)


def check_whole_samples(audio: bytes, fmt: AudioFormat, *, param: str = "audio") -> None:
    """Refuse an odd tail (``bad_audio``): every append must be whole samples of its format."""
    if len(audio) % fmt.bytes_per_sample:
        raise RemoteProtocolError(
            "bad_audio",
            f"{len(audio)} bytes are not whole {fmt.encoding} samples of {fmt.bytes_per_sample} bytes",
            param=param,
        )
