"""What the demo model says: rules, tried in order. Deterministic, pure and quick; the clock is handed in.

Everything it says can be read aloud: words and plain punctuation, no markup, no digits of its own (a user's words are
repeated as they were recognised).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import attrs

from duplex_gpu.numbers import cardinal, ordinal, year
from trio_duplex.models.demo.arithmetic import answer_sum, number_at
from trio_duplex.models.demo.small_talk import capital, sentence_of, spell, talk_about
from trio_duplex.models.plugin import HistoryEntry

__all__ = ["reply"]

History = tuple[HistoryEntry, ...]
Words = Sequence[str]

COUNT_AT_MOST: Final = 100
READ_AT_MOST: Final = 2000
"""Characters of a text that are looked at: two minutes of speech; a client may store far more as a text item."""

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)

GREETINGS: Final = ("hello", "hi", "hey", "hiya", "greetings", "good morning", "good afternoon", "good evening")
COURTESIES: Final = (
    *GREETINGS,
    *("please", "now", "okay", "ok", "so", "well", "um", "uh", "there", "then", "and then", "demo", "computer"),
    *("can you", "could you", "would you", "will you", "i want you to", "i would like you to", "let us", "let's"),
)
COURTESY: Final = re.compile(
    rf"\W*(?:{'|'.join(sorted(map(re.escape, COURTESIES), key=len, reverse=True))})(?![\w'’])[\s,.!?;:]*", re.IGNORECASE
)
"""What may stand before a request and changes nothing in it; the longest one that fits."""

ASKS_TIME: Final = re.compile(
    r"\b(?:what|what's|whats|which|tell me|give me|(?:say|know|have)(?= the| what))(?: is| what)?(?: it is)?"
    r"(?: the| today's| today)?(?: current| exact| right)? "
    r"(?P<what>time|date|day|month|year)\b(?! (?:do|does|did|will)\b)"
)

WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def reply(text: str, history: History, now: datetime, instructions: str | None = None) -> str:
    """The answer to ``text``, of which ``history`` is what came before; never empty.

    Empty ``text`` asks for an opening line: what ``instructions`` tell to say, else a greeting.
    """
    text = _readable(text)
    instructions = _readable(instructions or "")
    history = tuple(attrs.evolve(entry, text=_readable(entry.text)) for entry in history)
    if not text:
        return _opening(history, now, instructions)
    request = _without_courtesies(text)
    for rule in RULES:
        answer = rule(request or text, history, now, instructions)
        if answer is not None:
            return answer
    return talk_about(text)


def _readable(text: str) -> str:
    return text[:READ_AT_MOST].strip()


def _opening(history: History, now: datetime, instructions: str) -> str:
    return _repeat(_without_courtesies(instructions), history, now, "") or "Hello. I am listening."


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in WORD.findall(text)]


def _without_courtesies(text: str) -> str:
    """``text`` from its first word that carries meaning; empty when there is none."""
    rest = text.strip()
    while match := COURTESY.match(rest):
        rest = rest[match.end() :]
    return rest


def _starts(words: Words, *phrases: str) -> str | None:
    """The first of ``phrases`` with which ``words`` begin."""
    line = " ".join(words) + " "
    return next((phrase for phrase in phrases if line.startswith(phrase + " ")), None)


def _after(text: str, phrase: str) -> str:
    """What follows the first words of ``text`` (as many as ``phrase`` has), spelled as it was."""
    for _ in phrase.split():
        match = WORD.search(text)
        text = text[match.end() :] if match else ""
    return text.strip(' \t\r\n,.:;-–—"“”')


def _sentence(text: str) -> str:
    return capital(sentence_of(text.strip().strip('"“”')))


# --- rules: each answers, or leaves it (None) to the next ----------------------------------------------------------


def _nothing_to_read(text: str, _history: History, _now: datetime, _instructions: str) -> str | None:
    return None if WORD.search(text) else "I did not catch that. Please say it again."


def _recall(text: str, history: History, _now: datetime, _instructions: str) -> str | None:
    """What did I say before?"""
    if not _asks_recall(_words(text)):
        return None
    for entry in reversed(history):
        if entry.role == "user" and entry.text.strip() and not _asks_recall(_words(entry.text)):
            return f"Before that you said: {_sentence(entry.text)}"
    return "You have not said anything before this."


def _asks_recall(words: Words) -> bool:
    line = " ".join(words)
    return bool(
        re.search(r"\bwhat (did|have) i (just |last |first )?(say|said|tell|told|ask|asked)\b", line)
        or re.search(r"\b(repeat|tell me) what i (just |last )?(said|told you)\b", line)
        or re.search(r"\bwhat was (it )?(that )?i (just |last )?said\b", line)
    )


def _again(text: str, history: History, _now: datetime, _instructions: str) -> str | None:
    """Say that again."""
    words = _words(text)
    line = " ".join(words)
    if not re.fullmatch(
        r"(repeat|(say|repeat) (it|that|this)( again| once more)?|again|once more|what did you( just)? say|pardon)"
        r"( me)?( please)?",
        line,
    ):
        return None
    for entry in reversed(history):
        if entry.role == "assistant" and entry.text.strip():
            return f"I said: {_sentence(entry.text)}"
    return "I have not said anything yet."


def _repeat(text: str, _history: History, _now: datetime, _instructions: str) -> str | None:
    """Repeat after me; say …"""
    phrase = _starts(_words(text), "repeat after me", "repeat the words", "repeat", "say the words", "say")
    if phrase is None:
        return None
    words = _after(text, phrase)
    return _sentence(words) if WORD.search(words) else "What shall I say?"


def _spell(text: str, _history: History, _now: datetime, _instructions: str) -> str | None:
    """Spell …"""
    phrase = _starts(_words(text), "spell the word", "spell", "how do you spell", "how is")
    if phrase is None:
        return None
    words = WORD.findall(_after(text, phrase))
    if phrase == "how is":
        if not words or words[-1].lower() != "spelled":
            return None
        words = words[:-1]
    if not words:
        return "What shall I spell?"
    return " ".join(f"{capital(word)} is spelled {spell(word)}." for word in words)


def _time(text: str, _history: History, now: datetime, _instructions: str) -> str | None:
    """The time, the date, the day."""
    match = ASKS_TIME.search(" ".join(_words(text)))
    if match is None:
        return None
    match match["what"]:
        case "time":
            return f"It is {_spoken_time(now)}."
        case "year":
            return f"It is the year {year(now.year)}."
        case _:
            return f"Today is {DAYS[now.weekday()]}, {MONTHS[now.month - 1]} {ordinal(now.day)}, {year(now.year)}."


def _spoken_time(now: datetime) -> str:
    hour = cardinal((now.hour - 1) % 12 + 1)
    if now.minute == 0:
        clock = f"{hour} o'clock"
    elif now.minute < 10:
        clock = f"{hour} oh {cardinal(now.minute)}"
    else:
        clock = f"{hour} {cardinal(now.minute)}"
    if 5 <= now.hour < 12:
        return f"{clock} in the morning"
    if 12 <= now.hour < 18:
        return f"{clock} in the afternoon"
    return f"{clock} in the evening" if 18 <= now.hour < 22 else f"{clock} at night"


def _sum(text: str, _history: History, _now: datetime, _instructions: str) -> str | None:
    """What is twelve plus seven?"""
    return answer_sum(text)


def _count(text: str, _history: History, _now: datetime, _instructions: str) -> str | None:
    """Count to ten; count from three to seven; count down from five."""
    words = _words(text)
    if _starts(words, "count") is None:
        return None
    numbers = [int(found[0]) for at in range(len(words)) if (found := _whole_number(words, at)) is not None]
    if not numbers:
        return "How far shall I count?"
    down = "down" in words or "backwards" in words
    if "from" in words and len(numbers) > 1:
        first, last = numbers[0], numbers[1]
    else:
        first, last = (numbers[0], 1) if down else (1, numbers[0])
    step = 1 if last >= first else -1
    line = list(range(first, last + step, step)[:COUNT_AT_MOST])
    told = ", ".join(map(cardinal, line))
    return f"{capital(told)}." + ("" if line[-1] == last else " That is far enough for me.")


def _whole_number(words: Words, at: int) -> tuple[int, int] | None:
    """A number that begins at ``at`` and is not the tail of one that began before."""
    found = number_at(words, at)
    if found is None or found[0].denominator != 1:
        return None
    before = number_at(words, at - 1) if at else None
    return None if before is not None and before[1] > at else (int(found[0]), found[1])


def _manners(text: str, _history: History, _now: datetime, instructions: str) -> str | None:
    """Greetings and the small questions about itself."""
    words = _words(text)
    line = " ".join(words)
    if re.search(r"\b(who are you|what are you|your name|what can you do|help me|introduce yourself)\b", line):
        return f"I am {_name(instructions)}. I repeat, count, spell, tell the time and do sums. Just say something."
    if re.search(r"\bhow are you\b|\bhow do you do\b", line):
        return "I am well, thank you. What shall we talk about?"
    if len(words) <= 6 and re.search(r"\b(thanks|thank you)\b", line):
        return "You are welcome."
    if len(words) <= 4 and re.search(r"\b(goodbye|good bye|bye|good night|see you|farewell)\b", line):
        return "Goodbye. It was nice talking to you."
    if len(words) <= 4 and (greeting := _starts(words, *GREETINGS)) is not None:
        return f"{capital(greeting)}! How can I help you?"
    return None


def _name(instructions: str) -> str:
    match = re.search(r"\b[Yy]our name is ([A-Z]\w*)", instructions)
    return match.group(1) if match else "the demo model"


Rule = Callable[[str, History, datetime, str], str | None]
RULES: Final[tuple[Rule, ...]] = (
    _nothing_to_read,
    _recall,
    _again,
    _repeat,
    _spell,
    _count,
    _sum,
    _time,
    _manners,
)
