"""Files and data URLs: WAV in and out, reference voices, images (contract section 21.6)."""

from __future__ import annotations

import mimetypes
import wave
from pathlib import Path

import pybase64

from .values import PCM16_BYTES_PER_SAMPLE, PCM16_SAMPLE_RATE


def audio_data_url(source: bytes | Path, *, mime: str = "audio/wav") -> str:
    """The bytes, or the file's bytes, as a `data:` URL. OSError if the file cannot be read."""
    return _data_url(source, mime)


def image_data_url(source: bytes | Path, *, mime: str = "image/jpeg") -> str:
    """The bytes, or the file's bytes, as a `data:` URL. OSError if the file cannot be read."""
    return _data_url(source, mime)


def reference_audio_data_url(path: str | Path | None) -> str | None:
    """A voice clip as a data URL; None gives None, a missing file FileNotFoundError."""
    if path is None:
        return None
    clip = Path(path)
    if not clip.is_file():
        raise FileNotFoundError(f"no reference audio at {clip}")
    guessed, _ = mimetypes.guess_type(clip.name)
    mime = guessed if guessed is not None and guessed.startswith("audio/") else "audio/wav"
    return audio_data_url(clip, mime="audio/wav" if mime == "audio/x-wav" else mime)


def read_pcm16_wav(path: str | Path, *, sample_rate_hz: int = PCM16_SAMPLE_RATE) -> bytes:
    """The samples of a mono, 16-bit, uncompressed WAV of exactly that rate; ValueError for any other file."""
    try:
        with wave.open(str(path), "rb") as reader:
            found = (reader.getnchannels(), reader.getsampwidth(), reader.getframerate(), reader.getcomptype())
            if found != (1, PCM16_BYTES_PER_SAMPLE, sample_rate_hz, "NONE"):
                channels, width, rate, compression = found
                raise ValueError(
                    f"{path}: need mono 16-bit PCM at {sample_rate_hz} Hz, found {channels} channel(s), "
                    f"{8 * width} bits, {rate} Hz, compression {compression}"
                )
            return reader.readframes(reader.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path}: not a PCM WAV file ({error})") from error


def write_pcm16_wav(path: str | Path, pcm16: bytes, *, sample_rate_hz: int) -> None:
    """Write mono PCM16. An odd last byte, which is no sample, is left out."""
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(PCM16_BYTES_PER_SAMPLE)
        writer.setframerate(sample_rate_hz)
        writer.writeframes(pcm16[: len(pcm16) - len(pcm16) % PCM16_BYTES_PER_SAMPLE])


def _data_url(source: bytes | Path, mime: str) -> str:
    data = source.read_bytes() if isinstance(source, Path) else source
    return f"data:{mime};base64,{pybase64.b64encode(data).decode('ascii')}"
