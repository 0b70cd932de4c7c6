"""Numbers as English words (American: no "and" inside numbers)."""

from __future__ import annotations

__all__ = ["cardinal", "decimal", "digits", "money", "ordinal", "time_of_day", "year"]

ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SCALES = ("", "thousand", "million", "billion", "trillion")
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}


def _below_thousand(value: int) -> list[str]:
    words = []
    if value >= 100:
        words += [ONES[value // 100], "hundred"]
        value %= 100
    if value >= 20:
        words.append(TENS[value // 10])
        value %= 10
        if value:
            words.append(ONES[value])
    elif value or not words:
        words.append(ONES[value])
    return words


def cardinal(value: int) -> str:
    """``42`` -> "forty two".  From 10^15 on digit by digit."""
    if value < 0:
        return "minus " + cardinal(-value)
    if value >= 10**15:
        return digits(str(value))
    groups = []
    while value:
        groups.append(value % 1000)
        value //= 1000
    words: list[str] = []
    for scale in range(len(groups) - 1, -1, -1):
        if groups[scale]:
            words += _below_thousand(groups[scale])
            if scale:
                words.append(SCALES[scale])
    return " ".join(words) or "zero"


def ordinal(value: int) -> str:
    """``21`` -> "twenty first"."""
    *before, last = cardinal(value).split()
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return " ".join([*before, ORDINALS.get(last, regular)])


def digits(text: str) -> str:
    """``"007"`` -> "zero zero seven"."""
    return " ".join(ONES[int(digit)] for digit in text)


def decimal(text: str) -> str:
    """``"3.14"`` -> "three point one four"."""
    whole, _, fraction = text.partition(".")
    return f"{cardinal(int(whole))} point {digits(fraction)}"


def year(value: int) -> str:
    """``1984`` -> "nineteen eighty four", ``2005`` -> "two thousand five", ``1900`` -> "nineteen hundred"."""
    century, rest = divmod(value, 100)
    if value % 1000 < 10:
        return cardinal(value)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def time_of_day(text: str) -> str:
    """``"3:07 pm"`` -> "three oh seven P M", ``"3:00"`` -> "three o'clock"."""
    clock, half = text, ""
    if text[-1].lower() in "m.":
        half = "A M" if "a" in text.lower() else "P M"
        clock = text.lower().rstrip("m. ").rstrip("ap ")
    hours, minutes = (int(part) for part in clock.split(":"))
    words = [cardinal(hours)]
    if minutes:
        words.append(f"oh {cardinal(minutes)}" if minutes < 10 else cardinal(minutes))
    elif not half:
        words.append("o'clock" if hours <= 12 else "hundred")
    return " ".join([*words, half] if half else words)


def money(text: str) -> str:
    """``"$3.50"`` -> "three dollars and fifty cents", ``"$2 million"`` -> "two million dollars"."""
    major, minor = CURRENCIES[text[0]]
    amount, _, scale = text[1:].partition(" ")
    if scale:
        return f"{decimal(amount) if '.' in amount else cardinal(int(amount))} {scale.lower()} {major}s"
    whole, _, fraction = amount.partition(".")
    if len(fraction) not in (0, 2):
        return f"{decimal(amount)} {major}s"
    parts = []
    if int(whole) or not int(fraction or 0):
        parts.append(f"{cardinal(int(whole))} {major}{'' if int(whole) == 1 else 's'}")
    if cents := int(fraction or 0):
        few = minor if cents == 1 else "pence" if minor == "penny" else minor + "s"
        parts.append(f"{cardinal(cents)} {few}")
    return " and ".join(parts)
