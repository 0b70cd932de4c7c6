"""Media files, units, waiting, picture stacking (contract 21.6)."""

from __future__ import annotations

import base64
import io
import sys
import wave

import pytest
import trio
from PIL import Image

from trio_duplex.client import (
    audio_data_url,
    chunk_period_ms,
    concat_frames,
    concat_frames_b64,
    has_residual_model_unit,
    image_data_url,
    read_pcm16_wav,
    reference_audio_data_url,
    unit_subframe_offsets,
    wait_for_condition,
    wrap_event,
    write_pcm16_wav,
)


def test_data_urls(tmp_path):
    clip = tmp_path / "voice.wav"
    clip.write_bytes(b"RIFF")
    assert audio_data_url(b"RIFF") == audio_data_url(clip) == "data:audio/wav;base64,UklGRg=="
    assert audio_data_url(b"x", mime="audio/mpeg") == "data:audio/mpeg;base64,eA=="
    assert image_data_url(b"x") == "data:image/jpeg;base64,eA=="
    assert image_data_url(clip, mime="image/png") == "data:image/png;base64,UklGRg=="


def test_reference_audio(tmp_path):
    assert reference_audio_data_url(None) is None
    with pytest.raises(FileNotFoundError):
        reference_audio_data_url(tmp_path / "none.wav")
    clip = tmp_path / "voice.wav"
    clip.write_bytes(b"RIFF")
    assert reference_audio_data_url(clip) == reference_audio_data_url(str(clip)) == audio_data_url(clip)
    other = tmp_path / "voice.mp3"
    other.write_bytes(b"ID3")
    assert reference_audio_data_url(other).startswith("data:audio/mpeg;base64,")


def test_wav_round_trip(tmp_path):
    path = tmp_path / "x.wav"
    pcm = bytes(range(200))
    write_pcm16_wav(path, pcm, sample_rate_hz=24000)
    assert read_pcm16_wav(path, sample_rate_hz=24000) == pcm
    with pytest.raises(ValueError, match="24000 Hz"):
        read_pcm16_wav(path)
    write_pcm16_wav(path, pcm + b"\x01", sample_rate_hz=16000)
    assert read_pcm16_wav(path) == pcm


@pytest.mark.parametrize(("channels", "width"), [(2, 2), (1, 1), (1, 4)])
def test_other_wavs_are_refused(tmp_path, channels, width):
    path = tmp_path / "x.wav"
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(16000)
        writer.writeframes(bytes(16))
    with pytest.raises(ValueError, match="mono 16-bit"):
        read_pcm16_wav(path)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a wave file at all, really", b"RIFF\x24\x00\x00\x00WAVEfmt "])
def test_no_wav(tmp_path, content):
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a PCM WAV"):
        read_pcm16_wav(path)


def test_chunk_period():
    def named(value):
        return {"type": "session.created", "session": {"capabilities": {"chunk_period_ms": value}}}

    assert chunk_period_ms([]) == 1000
    assert chunk_period_ms([], default=40) == 40
    assert chunk_period_ms([named(80), {"type": "x"}, wrap_event(named(160))]) == 160
    for bad in (0, -1, 80.5, "80", None, True):
        assert chunk_period_ms([named(80), named(bad)]) == 80
    assert chunk_period_ms([{"session": None}, {"session": {"capabilities": 5}}]) == 1000


def test_residual_unit():
    second = bytes(32000)
    assert not has_residual_model_unit(second, chunk_period_ms=1000)
    assert has_residual_model_unit(second + bytes(2), chunk_period_ms=1000)
    assert not has_residual_model_unit(b"", chunk_period_ms=1000)
    assert not has_residual_model_unit(bytes(2560), chunk_period_ms=80)
    assert has_residual_model_unit(bytes(2560), chunk_period_ms=60)


async def test_wait_for_condition(autojump_clock):
    asked = []

    def after_five():
        asked.append(trio.current_time())
        return len(asked) == 5

    started = trio.current_time()
    await wait_for_condition(after_five, timeout_s=10, label="five")
    assert trio.current_time() - started == pytest.approx(0.08)
    with pytest.raises(TimeoutError, match="the moon") as caught:
        await wait_for_condition(lambda: False, timeout_s=2, label="the moon")
    assert type(caught.value) is TimeoutError


def picture(width, height, colour=(200, 0, 0)):
    return Image.new("RGB", (width, height), colour)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (1, (40, 30), (40, 30)),
        (2, (40, 30), (40, 66)),
        (2, (30, 40), (66, 40)),
        (2, (40, 40), (86, 40)),
        (3, (40, 30), (40, 102)),
        (3, (30, 40), (102, 40)),
        (4, (40, 30), (86, 66)),
        (5, (40, 30), (224, 30)),
        (6, (10, 10), (90, 10)),
    ],
)
def test_grid(count, size, expected):
    assert concat_frames([picture(*size) for _ in range(count)]).size == expected


def test_seams_and_letterbox():
    tiled = concat_frames(
        [picture(40, 30, (200, 0, 0)), picture(20, 30, (0, 200, 0)), picture(40, 30), picture(40, 30)]
    )
    assert tiled.mode == "RGB"
    assert tiled.getpixel((20, 15)) == (200, 0, 0)
    assert [tiled.getpixel((x, 15)) for x in range(40, 46)] == [(0, 0, 0)] * 6
    assert tiled.getpixel((46, 15)) == (255, 255, 255), "a narrow picture gets white beside it"
    assert tiled.getpixel((66, 15)) == (0, 200, 0)
    assert [tiled.getpixel((20, y)) for y in range(30, 36)] == [(0, 0, 0)] * 6


def test_no_frames():
    with pytest.raises(ValueError, match="frame"):
        concat_frames([])
    with pytest.raises(ValueError, match="frame"):
        concat_frames_b64([])


def test_stacking_encoded_pictures():
    out = io.BytesIO()
    picture(16, 16).save(out, format="PNG")
    raw = out.getvalue()
    encoded = base64.b64encode(raw).decode()
    stacked = concat_frames_b64([encoded, f"data:image/png;base64,{encoded}", raw, encoded])
    decoded = base64.b64decode(stacked)
    assert decoded[:2] == b"\xff\xd8"
    assert Image.open(io.BytesIO(decoded)).size == (38, 38)
    assert len(concat_frames_b64([encoded], quality=10)) <= len(concat_frames_b64([encoded]))


def test_subframe_offsets():
    assert unit_subframe_offsets(4) == [0.25, 0.5, 0.75]
    assert unit_subframe_offsets(1) == []
    assert unit_subframe_offsets(5, unit_s=2.0) == pytest.approx([0.4, 0.8, 1.2, 1.6])


def test_missing_pillow_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"trio-duplex\[video\]"):
        concat_frames([picture(1, 1)])
