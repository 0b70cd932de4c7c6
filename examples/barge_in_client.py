"""Ask a question, interrupt the answer, hear the second answer; one WAV per response. The flow is drawn in
barge_in_client_flow.md.

    python examples/barge_in_client.py --url ws://127.0.0.1:8099/v1/realtime --model demo \\
        --question-wav question_16k.wav --interrupt-wav follow_up_16k.wav --output-dir ./duplex_out

Input WAVs are mono, 16 kHz, PCM16. --preset minicpmo_4_5 needs --ref-audio, the assistant's voice.
"""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

import numpy as np
import trio

from trio_duplex.client import (
    AudioFormat,
    DuplexClient,
    DuplexProtocolError,
    ResponseHandle,
    SessionConfig,
    presets,
    read_pcm16_wav,
    reference_audio_data_url,
    write_pcm16_wav,
)
from trio_duplex.resampling import Resampler

INTERRUPT_AFTER_MS = 600
"""How much of the first answer is heard before the caller speaks again."""

ANSWER_TIMEOUT_S = 120.0
CHUNK_MS = 80
NOTHING_TO_CANCEL = {"response_not_active", "response_cancel_not_active"}


def session_config(preset: str, ref_audio: Path | None) -> SessionConfig:
    """The session that a model wants."""
    if preset == "minicpmo_4_5":
        return presets.minicpmo_4_5.create_duplex_session_config(ref_audio=reference_audio_data_url(ref_audio))
    if preset == "personaplex":
        return presets.personaplex.create_duplex_session_config()
    if preset == "nemotron_voicechat":
        return presets.nemotron_voicechat.create_duplex_session_config()
    return presets.neutral.create_duplex_session_config(ref_audio=reference_audio_data_url(ref_audio))


def read_speech(path: Path, wanted: AudioFormat) -> bytes:
    """A 16 kHz WAV in the session's input format."""
    pcm = read_pcm16_wav(path)
    if wanted == AudioFormat("pcm16", 16_000):
        return pcm
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32_768)
    resampler = Resampler(16_000, wanted.sample_rate_hz)
    samples = np.concatenate([resampler.push(samples), resampler.flush()])
    if wanted.encoding == "pcm_f32le":
        return samples.astype("<f4").tobytes()
    return np.clip(np.round(samples * 32_768), -32_768, 32_767).astype("<i2").tobytes()


class Microphone:
    """Is always on, as a real one: sends what is said into it, and silence in between."""

    def __init__(self, client: DuplexClient) -> None:
        self._client = client
        self._size = client.config.input_audio.byte_count(CHUNK_MS)
        self._waiting: deque[bytes] = deque()
        self._said = trio.Event()

    async def run(self) -> None:
        """Stream until cancelled, one chunk every CHUNK_MS."""
        due_s = trio.current_time()
        while True:
            await self._client.append_audio(self._waiting.popleft() if self._waiting else bytes(self._size))
            if not self._waiting:
                self._said.set()
            due_s += CHUNK_MS / 1000
            await trio.sleep_until(due_s)

    async def say(self, speech: bytes) -> None:
        """Put speech into the microphone, wait until it was sent, and end the turn."""
        self._said = trio.Event()
        for start in range(0, len(speech), self._size):
            self._waiting.append(speech[start : start + self._size].ljust(self._size, b"\0"))
        await self._said.wait()
        # A model with its own lane decides by itself; others answer because of the commit.
        native = self._client.session_info.get("capabilities", {}).get("implementation_level") == "model_native_duplex"
        await self._client.commit(create_response=False if native else None)


async def next_answer(client: DuplexClient) -> ResponseHandle:
    """The next response that speaks; listen decisions and a cancel that came too late are passed over."""
    while True:
        try:
            async for response in client.responses():
                if response.decision != "listen":
                    return response
        except DuplexProtocolError as error:
            if error.code not in NOTHING_TO_CANCEL:
                raise


async def hear(client: DuplexClient, response: ResponseHandle, *, until_ms: float = float("inf")) -> bytes:
    """Take an answer's audio and acknowledge it as played, to its end or until `until_ms` were heard."""
    heard = bytearray()
    async for chunk in response.audio():
        heard += chunk
        await client.ack_playback(response.played_ms, response_id=response.response_id)
        if response.played_ms >= until_ms:
            break
    return bytes(heard)


def keep(number: int, response: ResponseHandle, pcm: bytes, client: DuplexClient, folder: Path) -> Path:
    """Write one WAV and say what is in it."""
    path = folder / f"response_{number}.wav"
    write_pcm16_wav(path, pcm, sample_rate_hz=client.config.output_audio.sample_rate_hz)
    status = response.done_event.status if response.done_event is not None else "unfinished"
    print(f"{path}: {response.played_ms} ms, {status}: {response.transcript}")
    return path


async def barge_in(options: argparse.Namespace) -> list[Path]:
    """The whole conversation; the files it wrote. Cancellation: the session is closed."""
    options.output_dir.mkdir(parents=True, exist_ok=True)
    config = session_config(options.preset, options.ref_audio)
    question = read_speech(options.question_wav, config.input_audio)
    interruption = read_speech(options.interrupt_wav, config.input_audio)
    written = []
    async with (
        DuplexClient(options.url, model=options.model, config=config) as client,
        trio.open_nursery() as nursery,
    ):
        microphone = Microphone(client)
        nursery.start_soon(microphone.run)
        with trio.fail_after(ANSWER_TIMEOUT_S):
            await microphone.say(question)
            first = await next_answer(client)
            heard = await hear(client, first, until_ms=INTERRUPT_AFTER_MS)
            # The interruption itself. A model that hears it may have stopped by then; this makes sure.
            if not first.finished:
                await client.cancel_response(first.response_id)
                await client.clear_input()
            await microphone.say(interruption)
            heard += await hear(client, first)
            await first.wait()
            written.append(keep(1, first, heard, client, options.output_dir))
            second = await next_answer(client)
            heard = await hear(client, second)
            await second.wait()
            written.append(keep(2, second, heard, client, options.output_dir))
        nursery.cancel_scope.cancel()
    return written


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--url", default="ws://127.0.0.1:8099/v1/realtime")
    parser.add_argument("--model", required=True)
    parser.add_argument("--ref-audio", type=Path, default=None, help="WAV of the assistant's voice")
    parser.add_argument("--question-wav", type=Path, required=True)
    parser.add_argument("--interrupt-wav", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, default=Path("duplex_out"))
    parser.add_argument("--preset", choices=sorted(presets.__all__), default="neutral")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    trio.run(barge_in, parse())
