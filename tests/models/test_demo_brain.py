"""What the demo model says to what, and that it never falls silent."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_duplex.models.demo.arithmetic import answer_sum
from trio_duplex.models.demo.brain import reply
from trio_duplex.models.demo.small_talk import speaking_time_s, talk_about
from trio_duplex.models.plugin import HistoryEntry

MORNING = datetime(2026, 11, 30, 8, 5)
HISTORY = (
    HistoryEntry("i1", "system", "Be kind."),
    HistoryEntry("i2", "user", "The sky is blue."),
    HistoryEntry("i3", "assistant", "You said: The sky is blue."),
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello.", "Hello! How can I help you?"),
        ("Good morning!", "Good morning! How can I help you?"),
        ("Please repeat after me: I love tea", "I love tea."),
        ("Can you say: What a day!", "What a day!"),
        ("say", "What shall I say?"),
        ("Say that again.", "I said: You said: The sky is blue."),
        ("repeat", "I said: You said: The sky is blue."),
        ("What did I say before?", "Before that you said: The sky is blue."),
        ("what did I just say", "Before that you said: The sky is blue."),
        ("Hello, what time is it?", "It is eight oh five in the morning."),
        ("what's the date today", "Today is Monday, November thirtieth, twenty twenty six."),
        ("Tell me the year", "It is the year twenty twenty six."),
        ("What is twelve plus seven?", "Twelve plus seven is nineteen."),
        ("Please count to five.", "One, two, three, four, five."),
        ("Count from three to seven", "Three, four, five, six, seven."),
        ("count down from three", "Three, two, one."),
        ("count from nineteen to twenty one", "Nineteen, twenty, twenty one."),
        ("count", "How far shall I count?"),
        ("Spell tree", "Tree is spelled T, R, E, E."),
        ("how is tree spelled", "Tree is spelled T, R, E, E."),
        ("Thank you very much", "You are welcome."),
        ("Goodbye", "Goodbye. It was nice talking to you."),
        ("say tea,", "Tea."),
        ("...", "I did not catch that. Please say it again."),
    ],
)
def test_rules(text: str, answer: str) -> None:
    assert reply(text, HISTORY, MORNING) == answer


def test_without_history() -> None:
    assert reply("what did I say", (), MORNING) == "You have not said anything before this."
    assert reply("say it again", (), MORNING) == "I have not said anything yet."


def test_asking_twice_what_was_said_does_not_answer_with_the_question() -> None:
    asked = (*HISTORY, HistoryEntry("i4", "user", "What did I say before?"))
    assert reply("What did I say before?", asked, MORNING) == "Before that you said: The sky is blue."


@pytest.mark.parametrize(
    ("hour", "minute", "spoken"),
    [
        (0, 0, "twelve o'clock at night"),
        (12, 30, "twelve thirty in the afternoon"),
        (13, 9, "one oh nine in the afternoon"),
        (18, 59, "six fifty nine in the evening"),
        (23, 15, "eleven fifteen at night"),
    ],
)
def test_the_time_is_the_clocks(hour: int, minute: int, spoken: str) -> None:
    assert reply("what time is it", (), MORNING.replace(hour=hour, minute=minute)) == f"It is {spoken}."


@pytest.mark.parametrize(
    "text",
    ["What a nice day", "what time does the train leave", "I like one and two", "how many times have I told you"],
)
def test_no_rule_is_too_eager(text: str) -> None:
    assert reply(text, HISTORY, MORNING).startswith(f"You said: {text}. ")


def test_a_sentence_cut_short_gets_one_full_stop() -> None:
    assert reply("he is to be ill-disposed,", (), MORNING).startswith("You said: he is to be ill-disposed. That is")


def test_counting_has_an_end() -> None:
    answer = reply("count to a million", (), MORNING)
    assert answer.endswith("ninety nine, one hundred. That is far enough for me.")


def test_instructions_name_it_and_open_the_conversation() -> None:
    assert reply("who are you", (), MORNING, "Your name is Ada. Be brief.").startswith("I am Ada.")
    assert reply("who are you", (), MORNING).startswith("I am the demo model.")
    assert reply("", (), MORNING) == "Hello. I am listening."
    assert reply("", (), MORNING, "Please say hello to the user") == "Hello to the user."


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("what's 12 + 7", "Twelve plus seven is nineteen."),
        ("three times four minus two", "Three times four minus two is ten."),
        ("two plus three times four", "Two plus three times four is fourteen."),
        ("ten divided by four", "Ten divided by four is two point five."),
        ("10 / 3", "Ten divided by three is about three point three three three."),
        ("five over zero", "I cannot divide by zero, and neither can you."),
        ("subtract four from ten", "Ten minus four is six."),
        ("add twenty-one and nine", "Twenty one plus nine is thirty."),
        ("the sum of one and two and three", "One plus two plus three is six."),
        (
            "one hundred and five plus two thousand",
            "One hundred five plus two thousand is two thousand one hundred five.",
        ),
        ("three point five times two", "Three point five times two is seven."),
        ("seven minus minus two", "Seven minus minus two is nine."),
        ("3 - 5", "Three minus five is minus two."),
        (
            "What is 1,234 times 2?",
            "One thousand two hundred thirty four times two is two thousand four hundred sixty eight.",
        ),
        (
            "ninety nine trillion times ninety nine trillion",
            "Ninety nine trillion times ninety nine trillion is more than I can count.",
        ),
        ("two plus", None),
        ("one and two", None),
        ("", None),
    ],
)
def test_sums(text: str, answer: str | None) -> None:
    assert answer_sum(text) == answer


@settings(derandomize=True, database=None, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 9999), st.sampled_from(["plus", "minus", "times", "divided by"]))
def test_sums_are_right(a: int, b: int, operator: str) -> None:
    from duplex_gpu.numbers import cardinal

    exact = {"plus": a + b, "minus": a - b, "times": a * b}.get(operator)
    spoken = answer_sum(f"what is {cardinal(a)} {operator} {cardinal(b)}")
    digits = answer_sum(f"{a} {operator} {b}")
    assert spoken == digits
    assert spoken is not None
    if exact is not None:
        assert spoken.endswith(f" is {cardinal(exact)}.")
    elif a % b == 0:
        assert spoken.endswith(f" is {cardinal(a // b)}.")
    else:
        assert " point " in spoken


@pytest.mark.parametrize(
    "text", ["go forward ten meters", "Tree", "No.", "42", "He was not an ill-disposed young man."]
)
def test_it_talks_long_enough_to_be_interrupted(text: str) -> None:
    answer = talk_about(text)
    assert answer.startswith(f"You said: {text}")
    rest = answer.removeprefix(f"You said: {text}")
    # The voice says "the first word is spelled" and its like at some 14 characters a second, letters slower.
    assert len(rest) / 14 >= 8.0
    assert speaking_time_s(rest) >= 8.0
    assert len(answer) < 1000


@settings(derandomize=True, database=None, deadline=None)
@given(st.text(max_size=200))
def test_something_speakable_is_said_to_anything(text: str) -> None:
    answer = reply(text, HISTORY, MORNING)
    assert any(character.isalnum() for character in answer)
    assert reply(text, HISTORY, MORNING) == answer


@pytest.mark.realtime
def test_a_huge_text_is_answered_quickly() -> None:
    huge = "what did I tell you about one plus " * 200_000
    begin = time.perf_counter()
    assert len(reply(huge, (HistoryEntry("i", "user", huge),), MORNING)) < 10_000
    assert time.perf_counter() - begin < 1.0


@pytest.mark.parametrize("text", ["count to 3pm", "what is ² plus two", "count from ¹ to 4th"])
def test_odd_digits_are_no_numbers(text: str) -> None:
    assert reply(text, (), datetime(2026, 11, 30, 12, 0))
