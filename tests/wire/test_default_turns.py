"""What finds turns for a stock client that says nothing about it, in front of a turn-based model (contract 25)."""

from __future__ import annotations

import pytest
import trio

from tests.session.talk import append
from tests.wire.stack import Wire, open_stack
from trio_duplex.models.plugin import Traits
from trio_duplex.testing import Piece, ScriptedOptions
from trio_duplex.testing.profiles import ProfilePlugin
from trio_duplex.testing.rig import silence, speech
from trio_duplex.testing.scripted_vad import ScriptedVad

TURN_BASED = ["chat_fallback", "qwen3_omni", "minicpmo_4_5"]


async def utterance(wire: Wire) -> None:
    for part in (silence(320, 24_000), speech(640, 24_000), silence(800, 24_000)):
        await wire.send(append(part))


def shown(wire: Wire, kind: str = "session.created") -> object:
    return wire.of(kind)[-1]["session"]["audio"]["input"].get("turn_detection")


@pytest.mark.parametrize("name", TURN_BASED)
async def test_speech_is_found_and_answered(name: str, autojump_clock: trio.testing.MockClock) -> None:
    async with open_stack(ProfilePlugin(name), scorer=ScriptedVad()) as stack:  # type: ignore[arg-type]
        wire = await stack.plain()
        detection = shown(wire)
        assert isinstance(detection, dict)
        assert (detection["type"], detection["interrupt_response"]) == ("server_vad", False)
        await utterance(wire)
        await wire.until("response.done")
        assert len(wire.of("input_audio_buffer.speech_started")) == 1
        assert len(wire.of("input_audio_buffer.committed")) == 1
        assert not wire.of("error")


@pytest.mark.parametrize("scorer", [None, ScriptedVad(unavailable=True)], ids=["none", "unavailable"])
async def test_where_nothing_can_find_turns_the_session_opens_without(
    scorer: ScriptedVad | None, autojump_clock: trio.testing.MockClock
) -> None:
    """Nobody asked for it, so that nobody is refused; and nothing is shown that is not there."""
    async with open_stack(ProfilePlugin("chat_fallback"), scorer=scorer) as stack:
        wire = await stack.plain()
        assert shown(wire) is None
        await wire.send(append(speech(640, 24_000)))
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")
        await wire.until("response.done")
        assert not wire.of("error")
        # Who asks for it is told.
        other = await stack.connect(model=stack.plugin.name)
        await other.until("session.created")
        await other.send("session.update", session={"type": "realtime", "turn_detection": {"type": "server_vad"}})
        assert (await other.error())["code"] == "server_vad_initialization_failed"


async def test_null_turns_it_off_and_gives_the_place_back(autojump_clock: trio.testing.MockClock) -> None:
    scorer = ScriptedVad()
    async with open_stack(ProfilePlugin("chat_fallback"), scorer=scorer) as stack:
        wire = await stack.plain({"audio": {"input": {"turn_detection": None}}})
        assert shown(wire, "session.updated") is None
        assert scorer.open_streams == 0
        await wire.send(append(speech(640, 24_000)))
        await wire.send("input_audio_buffer.commit")
        await wire.until("input_audio_buffer.committed")
        assert not wire.of("input_audio_buffer.speech_started")


async def test_a_client_that_turns_out_to_be_duplex_aware_has_none(autojump_clock: trio.testing.MockClock) -> None:
    scorer = ScriptedVad()
    async with open_stack(ProfilePlugin("chat_fallback"), scorer=scorer) as stack:
        wire = await stack.plain()
        await wire.send("session.update", session={"playback_commit_policy": "ack_only"})
        updated = (await wire.until("session.updated"))["session"]
        assert updated.get("turn_detection") is None
        assert scorer.open_streams == 0


async def test_what_heard_the_first_audio_stays(autojump_clock: trio.testing.MockClock) -> None:
    """A turn-based session's turn detection is fixed after audio came (9.1); a switch that names none changes none."""
    async with open_stack(ProfilePlugin("chat_fallback"), scorer=ScriptedVad()) as stack:
        wire = await stack.plain()
        await wire.send(append(silence(320, 24_000)))
        await wire.send("session.update", session={"playback_commit_policy": "ack_only"})
        updated = (await wire.until("session.updated"))["session"]
        assert updated["turn_detection"]["type"] == "server_vad"
        assert not wire.of("error")


async def test_a_model_that_finds_turns_itself_needs_no_detector(autojump_clock: trio.testing.MockClock) -> None:
    native = ScriptedOptions(script=lambda _: [Piece("Yes.")], traits=Traits())
    async with open_stack(native) as stack:
        wire = await stack.plain()
        detection = shown(wire)
        assert isinstance(detection, dict)
        assert detection["type"] == "semantic_vad"
