"""Playback truth: cursors, both policies, cuts, refusals (contract 14, 24a; cases T1, T4, T5)."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from duplex_protocol.values import TextMark
from tests.session.talk import AUTO, Json, Talk, check_log, talking
from trio_duplex.session.playback import PlaybackLedger, cut_text, merge_marks
from trio_duplex.testing import Piece, ScriptedOptions

LONG = ScriptedOptions(script=lambda _: [Piece(f"word{k} ") for k in range(50)])
SHORT = ScriptedOptions(script=lambda _: [Piece("One "), Piece("two "), Piece("three.")])
ACK_ONLY: Json = {**AUTO, "playback_commit_policy": "ack_only"}


def assistant_history(talk: Talk) -> list[str]:
    return [e.text for e in talk.session.conversation.history() if e.role == "assistant"]


async def finished(talk: Talk) -> str:
    """One complete answer; its id."""
    talk.ask()
    done = await talk.reader.until("response.done")
    return str(done["response_id"])


async def ack(talk: Talk, **fields: object) -> Json:
    count = len(talk.reader.of("playback.acknowledged"))
    talk.send("playback.ack", **fields)
    event = await talk.reader.until("playback.acknowledged", count + 1)
    inner: Json = event["event"]
    return inner


async def test_commit_all_remembers_the_whole_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        await finished(talk)
        assert talk.reader.of("response.done")[0]["response"]["metadata"]["committed"] is True
        assert assistant_history(talk) == ["One two three."]


async def test_ack_only_remembers_what_was_acknowledged(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config=ACK_ONLY) as talk:
        response_id = await finished(talk)
        assert talk.reader.of("response.done")[0]["response"]["metadata"]["committed"] is False
        assert assistant_history(talk) == []
        reply = await ack(talk, response_id=response_id, played_ms=400)
        assert reply["history_committed"] is True
        assert reply["playback"] == {"generated_ms": 600, "sent_ms": 600, "played_ms": 400, "committed_ms": 400}
        assert assistant_history(talk) == ["One two"]
        await ack(talk, response_id=response_id, played_ms=600)
        assert assistant_history(talk) == ["One two three."]


async def test_interrupted_history_is_what_was_heard(autojump_clock: trio.testing.MockClock) -> None:
    """T4, T5: the item is cut at the acknowledged position, the transcript deltas still add up to their done."""
    async with talking(LONG) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        await talk.reader.until("response.output_audio.delta", 10)
        reply = await ack(talk, played_ms=1000)
        assert reply["history_committed"] is False, "still generating: the entry is only reserved"
        talk.say()
        done = await talk.reader.until("response.done")
        item = done["response"]["output"][0]
        assert item["content"][0]["transcript"] == "word0 word1 word2 word3 word4"
        assert assistant_history(talk) == ["word0 word1 word2 word3 word4"]
        talk.send("conversation.item.retrieve", item_id=f"item_{created['response_id']}")
        retrieved = await talk.reader.until("conversation.item.retrieved")
        assert retrieved["item"]["content"][0]["transcript"] == "word0 word1 word2 word3 word4"
        check_log(talk.events)


async def test_nothing_acknowledged_leaves_no_history(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 5)
        talk.say()
        done = await talk.reader.until("response.done")
        assert done["response"]["output"][0]["content"][0]["transcript"] == ""
        assert assistant_history(talk) == []


async def test_ack_after_cancel_updates_the_entry(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(LONG) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        await talk.reader.until("response.output_audio.delta", 10)
        talk.send("response.cancel")
        await talk.reader.until("response.done")
        await ack(talk, response_id=created["response_id"], played_ms=600, truncate=True)
        assert assistant_history(talk) == ["word0 word1 word2"]
        await ack(talk, response_id=created["response_id"], played_ms=2000)
        assert assistant_history(talk) == ["word0 word1 word2"], "no later ack passes the smallest cap"


async def test_acks_are_clamped_to_what_was_sent(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        response_id = await finished(talk)
        reply = await ack(talk, response_id=response_id, played_ms=99_999)
        assert reply["played_ms"] == 99_999, "the answer repeats the request"
        assert reply["playback"]["played_ms"] == 600
        assert reply["playback"]["committed_ms"] == 600


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"response_id": "resp_x"}, "playback_item_not_found"),
        ({"item_id": "weird"}, "playback_item_not_found"),
        ({"response_id": "resp_x", "item_id": "item_resp_y"}, "playback_item_mismatch"),
        ({"played_ms": "soon"}, "bad_event"),
    ],
)
async def test_bad_acks_change_nothing(fields: Json, code: str, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        await finished(talk)
        talk.send("playback.ack", **{"played_ms": 100, "event_id": "evt_9", **fields})
        error = await talk.reader.until("error")
        assert error["error"]["code"] == code
        assert error["error"]["event_id"] == "evt_9"
        assert not talk.reader.of("playback.acknowledged")
        assert talk.session.last_response is not None
        assert talk.session.last_response.ledger.played_ms == 0


async def test_ack_without_any_answer_is_acknowledged(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        reply = await ack(talk, played_ms=10)
        assert reply["item_id"] is None
        assert reply["history_committed"] is False


async def test_too_late_ack_is_refused_unless_reserved(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config=ACK_ONLY) as talk:
        first = await finished(talk)
        talk.ask()
        await talk.reader.until("response.done", 2)
        talk.send("playback.ack", response_id=first, played_ms=600)
        assert (await talk.reader.until("error"))["error"]["code"] == "playback_ack_too_late"
    async with talking(SHORT, config=ACK_ONLY) as talk:
        first = await finished(talk)
        await ack(talk, response_id=first, played_ms=0)
        talk.ask()
        await talk.reader.until("response.done", 2)
        await ack(talk, response_id=first, played_ms=600)
        assert assistant_history(talk)[0] == "One two three."


async def test_truncate_cuts_item_and_history(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        response_id = await finished(talk)
        talk.send("conversation.item.truncate", item_id=f"item_{response_id}", content_index=0, audio_end_ms=200)
        event = await talk.reader.until("conversation.item.truncated")
        assert event["audio_end_ms"] == 200
        await talk.reader.until("playback.acknowledged")
        assert assistant_history(talk) == ["One"]
        talk.send("conversation.item.retrieve", item_id=f"item_{response_id}")
        item = (await talk.reader.until("conversation.item.retrieved"))["item"]
        assert item["content"][0]["transcript"] == "One"


async def test_truncate_while_generating_stays_cut(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        await talk.reader.until("response.output_audio.delta", 2)
        talk.send("conversation.item.truncate", item_id=f"item_{created['response_id']}", audio_end_ms=200)
        await talk.reader.until("conversation.item.truncated")
        done = await talk.reader.until("response.done")
        assert done["response"]["output"][0]["content"][0]["transcript"] == "One"
        assert assistant_history(talk) == ["One"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"item_id": ""}, "missing_item_id"),
        ({"item_id": "item_nobody"}, "item_not_found"),
        ({"audio_end_ms": -1}, "bad_event"),
        ({"audio_end_ms": "x"}, "bad_event"),
        ({"audio_end_ms": 6000}, "bad_event"),
        ({"content_index": 3}, "bad_event"),
    ],
)
async def test_bad_truncates_cut_nothing(fields: Json, code: str, autojump_clock: trio.testing.MockClock) -> None:
    """T1: refused, and the session goes on."""
    async with talking(SHORT) as talk:
        response_id = await finished(talk)
        event = {"item_id": f"item_{response_id}", "content_index": 0, "audio_end_ms": 100, **fields}
        talk.send("conversation.item.truncate", **event)
        assert (await talk.reader.until("error"))["error"]["code"] == code
        assert not talk.reader.of("conversation.item.truncated")
        assert assistant_history(talk) == ["One two three."]
        talk.ask()
        await talk.reader.until("response.done", 2)


def test_cut_text_by_marks() -> None:
    marks = (TextMark(4, 200), TextMark(8, 400))
    assert cut_text("One two three.", 200, marks=marks, duration_ms=600) == "One"
    assert cut_text("One two three.", 300, marks=marks, duration_ms=600) == "One tw"
    assert cut_text("One two three.", 500, marks=marks, duration_ms=600) == "One two thr"
    assert cut_text("One two three.", 9999, marks=marks, duration_ms=600) == "One two three."
    assert cut_text("One two three.", 0, marks=marks, duration_ms=600) == ""


def test_cut_text_without_marks() -> None:
    assert cut_text("abcdefghij", 500, marks=(), duration_ms=1000) == "abcde"
    assert cut_text("abcdefghij", 1, marks=(), duration_ms=0) == "abcdefghij"
    assert cut_text("abcdefghij", 0, marks=(), duration_ms=0) == ""


marks_strategy = st.lists(st.builds(TextMark, st.integers(0, 60), st.integers(0, 5000)), max_size=8)


@given(st.text(max_size=50), marks_strategy, st.integers(0, 5000), st.lists(st.integers(-10, 6000), min_size=2))
def test_cuts_are_prefixes_that_only_grow(text: str, raw: list[TextMark], duration: int, times: list[int]) -> None:
    marks = merge_marks((), raw)
    cuts = [cut_text(text, t, marks=marks, duration_ms=duration) for t in sorted(times)]
    assert all(text.startswith(c) for c in cuts)
    assert cuts == sorted(cuts, key=len)


@given(marks_strategy, st.builds(TextMark, st.integers(0, 60), st.integers(0, 6000)))
def test_one_more_mark_is_merged_as_all_of_them_are(raw: list[TextMark], mark: TextMark) -> None:
    known = merge_marks((), raw)
    assert merge_marks(known, [mark]) == merge_marks((), [*known, mark])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "ack", "truncate", "unsend"]),
            st.integers(-50, 4000),
            st.none() | st.integers(0, 4000),
        )
    )
)
def test_ledger_invariant(steps: list[tuple[str, int, int | None]]) -> None:
    """24a: generated >= sent >= max(played, committed); only a truncating ack (or a retraction) lowers committed."""
    ledger = PlaybackLedger()
    named = False
    for kind, value, committed in steps:
        before = ledger.committed_ms
        if kind == "send":
            ledger.sent(max(0, value))
        elif kind == "unsend":
            ledger.unsent(max(0, value))
        else:
            named = named or committed is not None
            ledger.acknowledge(value, committed, truncate=kind == "truncate")
        assert ledger.generated_ms >= ledger.sent_ms >= max(ledger.played_ms, ledger.committed_ms) >= 0
        if kind in ("send", "ack"):
            assert ledger.committed_ms >= before or ledger.cap_ms is not None
        if not named:
            assert ledger.committed_ms <= ledger.played_ms


async def test_commit_all_with_an_ack_inside(autojump_clock: trio.testing.MockClock) -> None:
    """14.2: text up to the ack that stands at done; later acks extend it, a smaller plain one changes nothing."""
    async with talking(SHORT) as talk:
        talk.ask()
        created = await talk.reader.until("response.created")
        await talk.reader.until("response.output_audio.delta", 2)
        reply = await ack(talk, response_id=created["response_id"], played_ms=200)
        assert reply["history_committed"] is False
        done = await talk.reader.until("response.done")
        assert done["response"]["metadata"]["committed"] is True
        assert assistant_history(talk) == ["One"]
        reply = await ack(talk, response_id=created["response_id"], played_ms=400)
        assert reply["history_committed"] is True
        assert assistant_history(talk) == ["One two"]
        await ack(talk, response_id=created["response_id"], played_ms=100)
        assert assistant_history(talk) == ["One two"]
        await ack(talk, response_id=created["response_id"], played_ms=600)
        assert assistant_history(talk) == ["One two three."]


async def test_ack_after_done_cuts_under_commit_all(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        response_id = await finished(talk)
        assert assistant_history(talk) == ["One two three."]
        await ack(talk, response_id=response_id, played_ms=400)
        assert assistant_history(talk) == ["One two"]


async def test_explicit_committed_may_pass_played(autojump_clock: trio.testing.MockClock) -> None:
    """24a."""
    async with talking(SHORT, config=ACK_ONLY) as talk:
        response_id = await finished(talk)
        reply = await ack(talk, response_id=response_id, played_ms=100, committed_ms=600)
        assert reply["playback"] == {"generated_ms": 600, "sent_ms": 600, "played_ms": 100, "committed_ms": 600}
        assert assistant_history(talk) == ["One two three."]


async def test_target_without_any_id(autojump_clock: trio.testing.MockClock) -> None:
    """14.5: the only pending answer, else the active one, else nothing to mean."""
    async with talking(SHORT, config=ACK_ONLY) as talk:
        first = await finished(talk)
        assert (await ack(talk, played_ms=0))["item_id"] == f"item_{first}"
        talk.ask()
        second = (await talk.reader.until("response.created", 2))["response_id"]
        await talk.reader.until("response.output_audio.delta", 4)
        assert (await ack(talk, played_ms=100))["item_id"] == f"item_{first}", "still the only finished one"
        await ack(talk, response_id=first, played_ms=600)
        assert (await ack(talk, played_ms=100))["item_id"] == f"item_{second}"
        await talk.reader.until("response.done", 2)
        await ack(talk, response_id=second, played_ms=600)
        assert (await ack(talk, played_ms=100))["item_id"] is None, "two finished, none pending"


async def test_negative_counts_as_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT) as talk:
        response_id = await finished(talk)
        reply = await ack(talk, response_id=response_id, played_ms=-500)
        assert reply["playback"]["played_ms"] == 0
        assert assistant_history(talk) == ["One two three."]


async def test_session_cursor_is_zero_after_a_cancel(autojump_clock: trio.testing.MockClock) -> None:
    """12.3; until the next answer."""
    async with talking(LONG) as talk:
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 3)
        assert talk.session.snapshot().playback.sent_ms > 0
        talk.send("response.cancel")
        await talk.settled()
        assert talk.session.snapshot().playback.sent_ms == 0
        talk.ask()
        await talk.reader.until("response.output_audio.delta", 4)
        assert talk.session.snapshot().playback.sent_ms > 0


@pytest.mark.parametrize(
    ("command", "bumps", "events"),
    [
        ("response.cancel", False, ["error"]),
        ("output_audio_buffer.clear", True, ["output_audio_buffer.cleared"]),
        ("input.cancel", True, ["input_audio_buffer.cleared"]),
        ("barge_in", True, ["input_audio_buffer.cleared"]),
    ],
)
async def test_interrupting_playback_that_still_runs(
    command: str, bumps: bool, events: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    """12.3: generation done, playback running under ack_only: no second terminal, history settled as heard."""
    async with talking(SHORT, config=ACK_ONLY) as talk:
        response_id = await finished(talk)
        await talk.reader.until("rate_limits.updated")
        await ack(talk, response_id=response_id, played_ms=400)
        seen = len(talk.events)
        talk.send(command)
        await talk.settled()
        assert [e["type"] for e in talk.events[seen:-1]] == events
        assert talk.session.epoch.number == int(bumps)
        assert assistant_history(talk) == ["One two"]
        if command == "output_audio_buffer.clear":
            assert talk.events[seen]["response_id"] == response_id
            talk.send(command)
            await talk.settled()
            assert talk.session.epoch.number == 1, "nothing left to clear: no bump, still acknowledged"


async def test_everything_played_leaves_nothing_to_clear(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config=ACK_ONLY) as talk:
        response_id = await finished(talk)
        await ack(talk, response_id=response_id, played_ms=600)
        talk.send("output_audio_buffer.clear")
        event = await talk.reader.until("output_audio_buffer.cleared")
        assert event["response_id"] == response_id
        assert talk.session.epoch.number == 0


async def test_native_cancel_reaches_running_playback(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(SHORT, config=ACK_ONLY, view="native") as talk:
        talk.ask()
        await talk.reader.until("response.done")
        talk.send("response.cancel")
        await talk.settled()
        assert talk.session.epoch.number == 1
        assert not talk.reader.of("error")
        talk.send("response.cancel")
        assert (await talk.reader.until("error"))["code"] == "response_not_active"


async def test_words_without_sound_fail_the_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with talking(ScriptedOptions(script=lambda _: [Piece("silent film", 0)])) as talk:
        talk.ask()
        done = await talk.reader.until("response.done")
        assert done["response"]["status_details"]["reason"] == "runtime_data_plane_text_without_audio"
        assert talk.reader.of("error")[0]["error"]["type"] == "server_error"
        await talk.settled()
        check_log(talk.events)
