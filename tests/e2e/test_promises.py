"""Every promise of the demo can be broken: a true conversation is tampered with, and exactly that promise notices."""

from __future__ import annotations

import copy
from collections.abc import Callable

import attrs
import pybase64
import pytest

from tests.e2e.conftest import Held
from trio_duplex.showcase.event_log import Entry, EventLog
from trio_duplex.showcase.promises import judge

pytestmark = [pytest.mark.speech, pytest.mark.realtime]

Tamper = Callable[[list[Entry]], None]


def broken_by(held: Held, tamper: Tamper) -> set[str]:
    """The promises that the tampered conversation breaks."""
    log = EventLog(copy.deepcopy(held.demo.log.entries))
    tamper(log.entries)
    return {verdict.promise.text for verdict in judge(log) if not verdict.kept}


def places(entries: list[Entry], kind: str) -> list[int]:
    """Where the server's events of a type stand."""
    return [place for place, entry in enumerate(entries) if entry.side == "server" and entry.type == kind]


def renumber(entries: list[Entry]) -> None:
    """Number the server's events again, so that only the tampering shows."""
    for number, entry in enumerate((e for e in entries if e.side == "server"), 1):
        entry.event["server_event_seq"] = number


def late_audio(entries: list[Entry]) -> None:
    done = places(entries, "response.done")[0]
    deltas = [place for place in places(entries, "response.output_audio.delta") if place < done]
    # The audio and its text arrive after the terminal instead of before.
    moved = entries[deltas[-1] : deltas[-1] + 2]
    del entries[deltas[-1] : deltas[-1] + 2]
    entries[done : done + 0] = [attrs.evolve(entry, at_s=entries[done].at_s) for entry in moved]
    renumber(entries)


def second_terminal(entries: list[Entry]) -> None:
    done = places(entries, "response.done")[1]
    entries[done + 2 : done + 2] = copy.deepcopy(entries[done : done + 2])
    renumber(entries)


def no_rate_limits(entries: list[Entry]) -> None:
    del entries[places(entries, "rate_limits.updated")[0]]
    renumber(entries)


def completed_instead(entries: list[Entry]) -> None:
    response = entries[places(entries, "response.done")[0]].event["response"]
    response["status_details"]["reason"] = "client_cancelled"


def second_cancelled(entries: list[Entry]) -> None:
    entries[places(entries, "response.done")[1]].event["response"]["status"] = "failed"


def another_transcript(entries: list[Entry]) -> None:
    entries[places(entries, "response.output_audio_transcript.done")[0]].event["transcript"] += "!"


def lost_number(entries: list[Entry]) -> None:
    entries[places(entries, "response.listen")[3]].event["server_event_seq"] += 1


def sent_falls(entries: list[Entry]) -> None:
    ledger = entries[places(entries, "response.output_audio.delta")[10]].event["metadata"]["playback"]
    ledger["generated_ms"] = ledger["sent_ms"] = ledger["played_ms"] = ledger["committed_ms"] = 0


def heard_more_than_sent(entries: list[Entry]) -> None:
    ledger = entries[places(entries, "response.output_audio.delta")[-1]].event["metadata"]["playback"]
    ledger["played_ms"] = ledger["sent_ms"] + 1


def last_ack_lost(entries: list[Entry]) -> None:
    del entries[places(entries, "playback.acknowledged")[-1]]
    renumber(entries)


def history_claims_all(entries: list[Entry]) -> None:
    item = entries[places(entries, "conversation.item.retrieved")[0]].event["item"]
    deltas = (entries[place].event for place in places(entries, "response.output_audio_transcript.delta"))
    item["content"][0]["transcript"] = "".join(e["delta"] for e in deltas if f"item_{e['response_id']}" == item["id"])


def history_forgets(entries: list[Entry]) -> None:
    entries[places(entries, "conversation.item.retrieved")[0]].event["item"]["content"][0]["transcript"] = "You"


def answers_are_silent(entries: list[Entry]) -> None:
    for place in places(entries, "response.output_audio.delta"):
        event = entries[place].event
        event["delta"] = pybase64.b64encode(bytes(len(pybase64.b64decode(event["delta"])))).decode()


def turn_without_words(entries: list[Entry]) -> None:
    kind = "conversation.item.input_audio_transcription.completed"
    entries[places(entries, kind)[1]].event["transcript"] = ""


def an_error(entries: list[Entry]) -> None:
    place = places(entries, "response.listen")[-1]
    entries[place] = attrs.evolve(
        entries[place], event={**entries[place].event, "type": "error", "error": {"code": "x"}}
    )


def no_good_bye(entries: list[Entry]) -> None:
    del entries[places(entries, "session.closed")[0]]


def only_one_answer(entries: list[Entry]) -> None:
    second = entries[places(entries, "response.created")[1]].event["response_id"]
    gone = [e for e in entries if e.event.get("response_id") == second or second in str(e.event.get("event", ""))]
    for entry in gone:
        entries.remove(entry)
    renumber(entries)


@pytest.mark.parametrize(
    ("tamper", "promise"),
    [
        (late_audio, "nothing of an interrupted epoch follows its terminal"),
        (second_terminal, "every answer has exactly one terminal"),
        (no_rate_limits, "every answer has exactly one terminal"),
        (completed_instead, "the first answer was cut by the interruption"),
        (second_cancelled, "the second answer was completed"),
        (another_transcript, "transcript deltas join to the final transcript"),
        (lost_number, "server event numbers have no gap"),
        (sent_falls, "generated ≥ sent ≥ heard, and no cursor falls"),
        (heard_more_than_sent, "generated ≥ sent ≥ heard, and no cursor falls"),
        (last_ack_lost, "the second answer was heard to its end"),
        (history_claims_all, "history holds what was heard and no more"),
        (history_forgets, "history holds what was heard and no more"),
        (answers_are_silent, "the answers hold speech"),
        (turn_without_words, "both user turns were transcribed"),
        (an_error, "no request was refused"),
        (no_good_bye, "the session closed in good order"),
        (only_one_answer, "two answers were given"),
    ],
)
def test_a_broken_promise_is_named(held: Held, tamper: Tamper, promise: str) -> None:
    assert promise in broken_by(held, tamper)


def test_the_untouched_conversation_breaks_none(held: Held) -> None:
    assert broken_by(held, lambda _: None) == set()
