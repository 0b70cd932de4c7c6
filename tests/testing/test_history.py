"""The history checker finds what is broken and nothing else: real logs are clean, each damage is named."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import trio

from duplex_protocol.values import Json
from trio_duplex.client import AudioFormat, SessionConfig
from trio_duplex.testing import Piece, ScriptedOptions, check_history, merge_logs, open_rig, run_seeded, silence, speech
from trio_duplex.testing.history import INVARIANTS

LONG = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(20)])


async def interrupted_turn(rate_hz: int = 16_000, **query: str) -> list[Json]:
    """Two answers, the first interrupted after an ack; the log of its only socket."""
    async with open_rig(LONG, seed=3) as rig:
        socket = await rig.connect(**(query or {"duplex": "1"}))
        if "view" not in query:
            await socket.send({"type": "session.update", "session": {"extra_body": {"auto_response": True}}})
        else:
            await socket.until("session.created")
            detection = {"turn_detection": {"type": "server_vad"}}
            await socket.send(
                {"type": "session.update", "session": {"type": "realtime", "audio": {"input": detection}}}
            )
        for round_ in (1, 2):
            await socket.send(_append(speech(320, rate_hz)))
            if "view" in query:
                await trio.sleep(0.1)  # the onset interrupts the first answer
                await socket.send({"type": "input_audio_buffer.commit"})
                await socket.send({"type": "response.create"})
            else:
                await socket.send(_append(silence(640, rate_hz)))
            while sum(e["type"] == "response.output_audio.delta" for e in socket.received) < 3 * round_:
                await socket.receive()
            answer = [e for e in socket.received if e["type"] == "response.created"][-1]["response"]["id"]
            await socket.send({"type": "playback.ack", "played_ms": 300, "response_id": answer})
            await socket.until("playback.acknowledged")
        await socket.until("response.done")
        await socket.send({"type": "session.close"})
        await socket.until("session.closed")
        return socket.received


def _append(pcm: bytes) -> Json:
    import pybase64

    return {"type": "input_audio_buffer.append", "audio": pybase64.b64encode(pcm).decode()}


@pytest.fixture(scope="module")
def log() -> list[Json]:
    return run_seeded(interrupted_turn, 1)


def at(log: list[Json], kind: str, nth: int = 0) -> int:
    """Position of the nth event of a type; negative counts from the end."""
    return [i for i, e in enumerate(log) if e["type"] == kind][nth]


def renumber(log: list[Json]) -> None:
    for number, event in enumerate(log, 1):
        event["server_event_seq"] = number
        event["event_id"] = f"event_{number}"


def names(log: list[Json], **options: bool) -> set[str]:
    return {v.invariant for v in check_history(log, **options)}


def test_a_real_log_is_clean(log: list[Json]) -> None:
    assert check_history(log, complete=True) == ()
    assert sum(e["type"] == "response.done" for e in log) == 2


def test_a_plain_view_log_is_clean() -> None:
    async def plain() -> list[Json]:
        return await interrupted_turn(24_000, view="openai")

    log = run_seeded(plain, 1)
    assert check_history(log, complete=True) == ()
    assert "incarnation" not in log[0]
    assert sum(e["type"] == "response.done" for e in log) == 2


def test_a_log_cut_anywhere_is_clean(log: list[Json]) -> None:
    """A client that leaves has seen a beginning of the truth, which breaks nothing."""
    for end in range(len(log)):
        assert check_history(log[:end]) == (), f"cut at {end}"


def test_the_log_is_not_changed(log: list[Json]) -> None:
    before = copy.deepcopy(log)
    check_history(log, complete=True)
    assert log == before


def test_foreign_objects_are_findings_not_exceptions() -> None:
    odd: list[Json] = [{}, {"type": 7}, {"type": "response.done"}, {"type": "session.created", "server_event_seq": "x"}]
    assert names(odd) >= {"sequence_gapless", "event_ids_unique"}


# --- each damage is named: (what is broken, how, which invariants must see it) ---


def _drop(kind: str, nth: int = 0) -> Callable[[list[Json]], None]:
    def damage(log: list[Json]) -> None:
        del log[at(log, kind, nth)]
        renumber(log)

    return damage


def _twice(kind: str, nth: int = 0) -> Callable[[list[Json]], None]:
    def damage(log: list[Json]) -> None:
        i = at(log, kind, nth)
        log.insert(i + 1, copy.deepcopy(log[i]))
        renumber(log)

    return damage


def _move(kind: str, nth: int, behind: str, behind_nth: int = 0) -> Callable[[list[Json]], None]:
    def damage(log: list[Json]) -> None:
        event = log.pop(at(log, kind, nth))
        log.insert(at(log, behind, behind_nth) + 1, event)
        renumber(log)

    return damage


def _set(kind: str, nth: int, value: object, *path: str | int) -> Callable[[list[Json]], None]:
    def damage(log: list[Json]) -> None:
        target: object = log[at(log, kind, nth)]
        for key in path[:-1]:
            target = target[key]  # type: ignore[index]
        target[path[-1]] = value  # type: ignore[index]

    return damage


AUDIO = "response.output_audio.delta"
WORDS = "response.output_audio_transcript.delta"
DONE = "response.done"
PLAYBACK = ("response", "metadata", "playback")

DAMAGE: list[tuple[str, Callable[[list[Json]], None]]] = [
    ("sequence_gapless", _set(AUDIO, 0, 400, "server_event_seq")),
    ("sequence_gapless", lambda log: log[5].pop("server_event_seq")),
    ("event_ids_unique", lambda log: log[7].update(event_id=log[8]["event_id"])),
    ("session_announced_first", _move("session.created", 0, "session.updated")),
    ("one_session_terminal", _twice("session.closed")),
    ("one_session_terminal", _drop("session.closed")),
    ("one_session_terminal", _move("session.closed", 0, DONE, -1)),
    ("epochs_never_fall", _set(AUDIO, -1, 0, "metadata", "epoch")),
    ("epoch_ends_with_its_terminal", _set(DONE, 0, 5, "response", "metadata", "epoch")),
    ("epoch_ends_with_its_terminal", _set("response.created", 1, 0, "response", "metadata", "duplex_event", "epoch")),
    ("one_epoch_per_answer", _set(AUDIO, -1, 2, "metadata", "epoch")),
    ("barge_in_settles_first", _move("overlap.decision", 0, "response.created")),
    ("one_active_response", _move(DONE, 0, "response.created", 1)),
    ("response_ids_unique", _twice("response.created")),
    ("one_terminal_per_response", _twice(DONE)),
    ("one_terminal_per_response", _drop(DONE)),
    ("nothing_after_terminal", _move(AUDIO, 2, "rate_limits.updated")),
    ("nothing_after_terminal", _move("response.content_part.done", 0, "rate_limits.updated")),
    ("brackets_closed", _drop("response.content_part.done")),
    ("brackets_closed", _drop("response.output_item.done")),
    ("brackets_closed", _drop("conversation.item.done", 1)),
    ("terminal_sequence", _drop("rate_limits.updated")),
    ("terminal_sequence", _move("response.output_item.done", 0, WORDS)),
    ("terminal_sequence", _move("response.output_audio.done", 0, "response.content_part.done")),
    ("audio_has_its_words", _drop(WORDS)),
    ("audio_has_its_words", _twice(AUDIO)),
    ("transcript_joins", _set(WORDS, 1, "other", "delta")),
    ("transcript_joins", _drop("response.output_audio_transcript.done")),
    ("final_item_agrees", _set("conversation.item.done", 1, "completed", "item", "status")),
    ("speak_before_audio", _twice("response.speak")),
    ("speak_before_audio", _move("response.speak", 0, WORDS)),
    ("commit_before_answer", _set("response.created", 0, 3, "response", "metadata", "duplex_event", "turn_id")),
    ("whole_samples", _set(AUDIO, 0, "AAAA", "delta")),
    ("whole_samples", _set(AUDIO, 0, "@@@", "delta")),
    ("one_format_per_answer", _set(AUDIO, 1, 16_000, "sample_rate_hz")),
    ("durations_cumulative", _set(AUDIO, 1, 100, "metadata", "audio_duration_ms")),
    ("marks_cumulative", _set(AUDIO, 1, 9_000, "metadata", "audio_text_marks", 0, "audio_end_ms")),
    ("ledger", _set(DONE, 0, 900_000, *PLAYBACK, "sent_ms")),
    ("ledger", _set(DONE, 0, 0, *PLAYBACK, "played_ms")),
    ("sent_is_what_was_sent", _set(DONE, 1, 10, *PLAYBACK, "sent_ms")),
    ("heard_text_only", _set(DONE, 0, "word0 word1 word2", "response", "output", 0, "content", 0, "transcript")),
    ("item_chain", _set("conversation.item.added", -1, "item_foreign", "previous_item_id")),
    ("item_chain", _set("input_audio_buffer.committed", 1, None, "previous_item_id")),
    ("items_announced_and_finished", _drop("conversation.item.created")),
    ("items_announced_and_finished", _drop("conversation.item.done")),
    ("items_announced_and_finished", _twice("conversation.item.done")),
    ("speech_in_order", _twice("input_audio_buffer.speech_started")),
    ("speech_in_order", _drop("input_audio_buffer.speech_stopped")),
    ("speech_in_order", _move("input_audio_buffer.speech_started", 0, "input_audio_buffer.speech_stopped")),
    ("commits_counted", _set("input_audio_buffer.committed", 1, 7, "event", "turn_id")),
    ("transcription_of_known_items", _twice("conversation.item.input_audio_transcription.completed")),
    ("listen_ends_its_response", lambda log: log.insert(at(log, AUDIO, 1), _listen(log))),
]


def _listen(log: list[Json]) -> Json:
    answer = log[at(log, "response.created")]["response_id"]
    return {"type": "response.listen", "epoch": 0, "response_id": answer, "response": {"id": answer}}


@pytest.mark.parametrize(("invariant", "damage"), DAMAGE, ids=[f"{n}-{i}" for i, (n, _) in enumerate(DAMAGE)])
def test_damage_is_named(log: list[Json], invariant: str, damage: Callable[[list[Json]], None]) -> None:
    broken = copy.deepcopy(log)
    damage(broken)
    assert invariant in names(broken, complete=True)


def test_every_invariant_has_a_damage() -> None:
    assert {name for name, _ in DAMAGE} == set(INVARIANTS)


# --- merging the logs of several sockets ---


def test_replay_is_exactly_once(log: list[Json]) -> None:
    resumed = {"type": "session.resumed", "event_id": "event_x"}
    merged = merge_logs([log[:20], [resumed, *log[15:]]])
    assert merged.violations == ()
    assert merged.log == log


def test_a_changed_replay_is_named(log: list[Json]) -> None:
    changed = copy.deepcopy(log[10:])
    changed[0]["event_id"] = "event_other"
    merged = merge_logs([log[:20], changed])
    assert [v.invariant for v in merged.violations] == ["replay_exactly_once"]


def test_a_hole_in_the_replay_is_named(log: list[Json]) -> None:
    assert [v.invariant for v in merge_logs([log[:20], [*log[20:25], *log[26:]]]).violations] == ["replay_in_order"]
    assert "sequence_gapless" in names(merge_logs([log[:20], log[22:]]).log)


async def test_g711_and_text_answers_are_clean(autojump_clock: trio.testing.MockClock) -> None:
    config = SessionConfig(input_audio=AudioFormat("pcm16", 16_000), output_audio=AudioFormat("g711_ulaw", 8_000))
    for chosen in (config, SessionConfig(modalities=("text",))):
        async with open_rig(LONG) as rig, rig.client(chosen) as client:
            await client.append_audio(speech(320))
            await client.append_audio(silence(640))
            await client.wait_for("response.done", timeout_s=60)
        (session,) = rig.hub.every_session
        assert check_history(rig.log(session).log, complete=True) == ()
