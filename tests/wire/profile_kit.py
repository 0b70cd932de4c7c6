"""Sessions of the model profiles: openings, appends in the form each model takes, an answer under way."""

from __future__ import annotations

from typing import Any

import trio

from duplex_protocol.profiles import ProfileName
from tests.wire.stack import Json, Stack, Wire, append, b64, floats
from trio_duplex.testing import Piece
from trio_duplex.testing.profiles import MODELS

MC: ProfileName = "minicpmo_4_5"
PP: ProfileName = "personaplex"
NV: ProfileName = "nemotron_voicechat"
CF: ProfileName = "chat_fallback"
QW: ProfileName = "qwen3_omni"
ALL: tuple[ProfileName, ...] = (MC, PP, NV, CF, QW)

REF = "data:audio/wav;base64,UklGRg=="
JPEG = "/9j/4AAQSkZJRg=="
AUTO: Json = {"extra_body": {"auto_response": True}}
OPENINGS: dict[ProfileName, Json] = {
    MC: {"ref_audio": REF, "extra_body": {"native_duplex": True, "auto_response": True}},
    PP: AUTO,
    NV: AUTO,
    CF: {},
    QW: {},
}
LONG = tuple(Piece(f"word{k} ") for k in range(30))


def tool(name: Any = "get_weather") -> Json:
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


def heard(name: ProfileName, ms: float, amplitude: int = 8_000, **fields: Any) -> Json:
    """An append in the form the model takes."""
    model = MODELS[name]
    rate = model.unit.input_rate_hz
    if model.traits.framing is None:
        return append(ms, amplitude, rate, format="pcm16", sample_rate_hz=rate, **fields)
    audio = b64(floats(ms, amplitude, rate))
    return {
        "type": "input_audio_buffer.append",
        "audio": audio,
        "format": "pcm_f32le",
        "sample_rate_hz": rate,
        **fields,
    }


async def say(wire: Wire, name: ProfileName, units: int = 2, amplitude: int = 8_000) -> None:
    period = MODELS[name].unit.period_ms
    for _ in range(units):
        await wire.send(heard(name, period, amplitude))
        await trio.sleep(period / 1000)


async def speaking(stack: Stack, name: ProfileName, session: Json | None = None) -> Wire:
    """A session in the middle of an answer."""
    wire = await stack.duplex(OPENINGS[name] if session is None else session)
    await say(wire, name)
    if MODELS[name].traits.turn_based:
        await wire.send("input_audio_buffer.commit", response_create=True)
    else:
        await say(wire, name, 2, amplitude=0)
    await wire.until("response.output_audio_transcript.delta")
    return wire
