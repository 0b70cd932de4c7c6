"""The demo's story: ask something, let the model decide to answer, interrupt it, hear the second answer out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from trio_duplex.client import AudioFormat, SessionConfig
from trio_duplex.showcase.conversation import Conversation
from trio_duplex.showcase.event_log import Entry
from trio_duplex.showcase.facts import answers
from trio_duplex.showcase.microphone import Utterance
from trio_duplex.showcase.recordings import Recording

__all__ = ["SESSION", "Story", "Told", "story"]

SESSION: Final = SessionConfig(
    input_audio=AudioFormat("pcm16", 16_000),
    output_audio=AudioFormat("pcm16", 24_000),
    playback_commit_policy="ack_only",
)
"""Turn detection stays null: the model itself decides when to speak. History keeps what was acknowledged."""

PATIENCE_S: Final = 20.0
"""How long any single thing may take to happen."""
LONGEST_ANSWER_S: Final = 90.0

Tell = Callable[[str], None]


@attrs.frozen
class Story:
    """What to say, and how much of the first answer to hear before interrupting it (ms of audio played)."""

    first: Recording
    second: Recording
    hear_ms: float = 4_000.0


@attrs.frozen
class Told:
    """What happened, with its measures. Times in ms."""

    first: Utterance
    second: Utterance
    first_audio_ms: float
    """End of the user's speech → first byte of the answer's audio at the client."""
    second_audio_ms: float
    """The same for the second answer."""
    interruption_ms: float
    """Onset of the second utterance → last byte of the first answer's audio at the client; negative when the last
    audio had come before (it is sent a little ahead)."""
    silenced_ms: float
    """Onset of the second utterance → the loudspeaker was silenced."""
    microphone_late_ms: float
    """The worst lateness of the microphone itself."""


async def story(talk: Conversation, plot: Story, tell: Tell) -> Told:
    """Play the plot; ``tell`` gets a line for each thing that happens.

    Raises :class:`trio_duplex.showcase.event_log.Missing` when the model does not do its part. Cancellation: stops
    where it is.
    """
    log, speaker = talk.log, talk.speaker
    first = talk.microphone.say(plot.first)
    await first.begun.wait()
    tell(f"you    speak: {plot.first.name}, {plot.first.duration_ms / 1000:.1f} s")
    await first.finished.wait()
    opening = await talk.first_audio(within_s=PATIENCE_S)
    tell(_heard(talk, opening))
    first_id = str(opening.event["response_id"])
    if not await speaker.wait_played(first_id, plot.hear_ms):
        tell("model  ended before it could be interrupted")

    mark = log.position
    second = talk.microphone.say(plot.second)
    await second.begun.wait()
    tell(f"you    interrupt: {plot.second.name}, {plot.second.duration_ms / 1000:.1f} s")
    ended = await talk.done(first_id, within_s=PATIENCE_S)
    status = ended.event["response"]["status"]
    heard_ms = speaker.played[first_id].played_ms(trio.current_time())
    tell(f"model  stops ({status}) after {heard_ms / 1000:.1f} s that were heard")
    answer = await talk.first_audio(
        within_s=PATIENCE_S + plot.second.duration_ms / 1000, after=max(mark, log.entries.index(ended))
    )
    tell(_heard(talk, answer))
    second_id = str(answer.event["response_id"])
    ended = await talk.done(second_id, within_s=LONGEST_ANSWER_S)
    if ended.event["response"]["status"] == "completed":
        await speaker.wait_finished(second_id)
        await _acknowledged(talk, second_id)
        tell("model  has finished, and was heard to its end")
    for response_id in (first_id, second_id):
        await _retrieve(talk, f"item_{response_id}")
    return Told(
        first=first,
        second=second,
        first_audio_ms=(opening.at_s - first.speech_ended_s) * 1000,
        second_audio_ms=(answer.at_s - second.speech_ended_s) * 1000,
        interruption_ms=(_last_audio_s(talk, first_id) - second.speech_started_s) * 1000,
        silenced_ms=((speaker.played[first_id].stopped_s or ended.at_s) - second.speech_started_s) * 1000,
        microphone_late_ms=max(talk.microphone.late_ms),
    )


def _heard(talk: Conversation, opening: Entry) -> str:
    """The line that says what the model made of the user's words."""
    transcript = ""
    for entry in talk.log.entries[: talk.log.entries.index(opening)]:
        if entry.side == "server" and entry.type == "conversation.item.input_audio_transcription.completed":
            transcript = str(entry.event.get("transcript", ""))
    return f"model  decides to speak; it understood: “{transcript}”"


def _last_audio_s(talk: Conversation, response_id: str) -> float:
    """When the last audio of a response came."""
    return next(a.deltas[-1].at_s for a in answers(talk.log) if a.response_id == response_id)


async def _acknowledged(talk: Conversation, response_id: str) -> None:
    """Wait for the server's word on the last ack."""
    await talk.log.expect(
        lambda e: (
            e.type == "playback.acknowledged"
            and e.event["event"].get("item_id") == f"item_{response_id}"
            and e.event["event"]["played_ms"] >= talk.speaker.played[response_id].acked_ms
        ),
        what="the answer to the last playback.ack",
        within_s=PATIENCE_S,
    )


async def _retrieve(talk: Conversation, item_id: str) -> None:
    """Ask for an item as history has it; it stays in the log."""
    mark = talk.log.position
    await talk.client.send({"type": "conversation.item.retrieve", "item_id": item_id})
    await talk.log.expect(
        lambda e: e.type in ("conversation.item.retrieved", "error"),
        what=f"the item {item_id}",
        within_s=PATIENCE_S,
        after=mark,
    )
