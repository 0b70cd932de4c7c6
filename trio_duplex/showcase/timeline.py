"""The picture of a conversation: who spoke when, what was made, sent and heard, and under which epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pybase64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from trio_duplex.showcase.event_log import EventLog
from trio_duplex.showcase.facts import Answer, answers, decisions, epochs, playing, speech_spans, user_turns

__all__ = ["draw_timeline"]

Floats = npt.NDArray[np.float64]

INK: Final = "#22303c"
USER: Final = "#2f6db3"
MADE: Final = "#8d6cab"
SENT: Final = "#3d9a8b"
HEARD: Final = "#1d6b4f"
LISTEN: Final = "#9aa7b3"
SPEAK: Final = "#e08a1e"
STOP: Final = "#c0392b"
COMMIT: Final = "#5b6b7a"
EPOCHS: Final = ("#dfe9f5", "#fdeccf", "#e2f1e4", "#f3e1ee")

LANES: Final = (
    "user speech",
    "latency",
    "answer generated",
    "answer sent",
    "answer played",
    "decisions",
    "epoch",
)
BIN_S: Final = 0.01
LANE_HALF: Final = 0.38
WORDS_SHOWN: Final = 60
CHARS_ACROSS: Final = 190
"""About how many small letters fit across the picture."""


def draw_timeline(log: EventLog, path: Path) -> None:
    """Write the conversation's picture as a PNG. Raises OSError when the file cannot be written."""
    figure = Figure(figsize=(15, 8.2), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    lanes, ledger = figure.subplots(2, 1, sharex=True, height_ratios=(3.1, 1.5))
    start_s = log.entries[0].at_s if log.entries else 0.0
    spoken = answers(log)
    _draw_epochs(lanes, ledger, log, start_s)
    _draw_user(lanes, log, start_s)
    for answer in spoken:
        _draw_answer(lanes, log, answer, start_s)
        _draw_ledger(ledger, log, answer, start_s)
    _draw_decisions(lanes, log, start_s)
    _draw_marks(lanes, ledger, log, start_s)
    _draw_latencies(lanes, log, spoken, start_s)
    _draw_words(lanes, log, spoken, start_s)
    _dress(lanes, ledger, log, start_s)
    figure.savefig(path)


def _end_s(log: EventLog) -> float:
    return max(log.entries[-1].at_s, log.entries[0].at_s + 0.1) if log.entries else 1.0


def _y(lane: str) -> float:
    return float(len(LANES) - 1 - LANES.index(lane))


def _draw_epochs(lanes: Axes, ledger: Axes, log: EventLog, start_s: float) -> None:
    for epoch in epochs(log):
        colour = EPOCHS[epoch.number % len(EPOCHS)]
        left, right = epoch.from_s - start_s, epoch.until_s - start_s
        for axes in (lanes, ledger):
            axes.axvspan(left, right, color=colour, alpha=0.35, linewidth=0, zorder=0)
        y = _y("epoch")
        lanes.broken_barh([(left, right - left)], (y - 0.3, 0.6), facecolor=colour, edgecolor=INK, linewidth=0.8)
        lanes.text((left + right) / 2, y, f"epoch {epoch.number}", ha="center", va="center", color=INK, fontsize=11)


def _draw_user(lanes: Axes, log: EventLog, start_s: float) -> None:
    """The microphone as it was streamed; a chunk ends when it is sent."""
    pieces = []
    for entry in log.entries:
        if entry.side == "client" and entry.type == "input_audio_buffer.append":
            samples = np.frombuffer(pybase64.b64decode(entry.event["audio"]), "<i2")
            rate_hz = int(entry.event.get("sample_rate_hz", 16_000))
            pieces.append((entry.at_s - start_s - len(samples) / rate_hz, samples, rate_hz))
    _draw_wave(lanes, _y("user speech"), pieces, USER)


def _draw_answer(lanes: Axes, log: EventLog, answer: Answer, start_s: float) -> None:
    made = []
    for delta, before in zip(answer.deltas, [None, *answer.deltas], strict=False):
        now_ms = (delta.playback or {}).get("generated_ms", 0)
        before_ms = (before.playback or {}).get("generated_ms", 0) if before is not None else 0
        made.append((delta.at_s - start_s, (now_ms - before_ms) / 1000))
    lanes.broken_barh(made, (_y("answer generated") - 0.22, 0.44), facecolor=MADE, edgecolor="white", linewidth=0.4)
    sent = [(d.at_s - start_s, np.frombuffer(d.audio, "<i2"), answer.rate_hz) for d in answer.deltas if d.audio]
    _draw_wave(lanes, _y("answer sent"), sent, SENT)
    played = playing(log, answer)
    samples = np.frombuffer(bytes(played.pcm), "<i2")
    pieces, place, y = [], 0, _y("answer played")
    for stretch in played.heard(played.end_s):
        count = round(stretch.duration_s * answer.rate_hz)
        pieces.append((stretch.start_s - start_s, samples[place : place + count], answer.rate_hz))
        place += count
    _draw_wave(lanes, y, pieces, HEARD)
    if played.stopped_s is not None:
        left_s = played.end_s - played.stopped_s
        lanes.broken_barh(
            [(played.stopped_s - start_s, left_s)], (y - 0.3, 0.6), facecolor="none", edgecolor=STOP, hatch="////"
        )


def _draw_wave(axes: Axes, y: float, pieces: Sequence[tuple[float, npt.NDArray[np.int16], int]], colour: str) -> None:
    """An envelope: (start in s, int16[n], rate) per piece, in bins of 10 ms."""
    if not pieces:
        return
    first = min(start for start, _, _ in pieces)
    last = max(start + len(samples) / rate for start, samples, rate in pieces)
    envelope: Floats = np.zeros(int((last - first) / BIN_S) + 2)
    for start, samples, rate in pieces:
        bins = ((start - first + np.arange(len(samples)) / rate) / BIN_S).astype(np.int64)
        np.maximum.at(envelope, bins, np.abs(samples.astype(np.float64)))
    loudest = float(envelope.max()) or 1.0
    times = first + BIN_S * np.arange(len(envelope))
    half = LANE_HALF * np.sqrt(envelope / loudest)
    axes.fill_between(times, y - half, y + half, where=(half > 0).tolist(), color=colour, linewidth=0, step="mid")


def _draw_ledger(axes: Axes, log: EventLog, answer: Answer, start_s: float) -> None:
    """How far ahead of the ear an answer was made and sent, and how far behind it the acknowledgements were."""
    if not answer.deltas:
        return
    played = playing(log, answer)
    end_s = played.stopped_s if played.stopped_s is not None else played.end_s
    grid = np.arange(answer.deltas[0].at_s, end_s, BIN_S)
    heard = np.array([played.played_ms(t) for t in grid])
    arrived = [d.at_s for d in answer.deltas]
    made = np.array([0, *((d.playback or {}).get("generated_ms", 0) for d in answer.deltas)])
    sent = np.array([0, *np.cumsum([len(d.audio) for d in answer.deltas])]) * 1000 / (2 * answer.rate_hz)
    count = np.searchsorted(arrived, grid, side="right")
    axes.plot(grid - start_s, made[count] - heard, color=MADE, linewidth=3.0, alpha=0.6)
    axes.plot(grid - start_s, sent[count] - heard, color=SENT, linewidth=1.2)
    acks = [
        (e.at_s, e.event["event"]["playback"]["committed_ms"])
        for e in log.server_events()
        if e.type == "playback.acknowledged" and e.event["event"].get("item_id") == f"item_{answer.response_id}"
    ]
    counted_s = np.array([answer.deltas[0].at_s, *(at_s for at_s, _ in acks)])
    counted = np.array([0, *(ms for _, ms in acks)])
    behind = counted[np.searchsorted(counted_s, grid, side="right") - 1] - heard
    axes.plot(grid - start_s, behind, color=HEARD, linewidth=1.2)


def _draw_decisions(lanes: Axes, log: EventLog, start_s: float) -> None:
    for kind, colour in (("listen", LISTEN), ("speak", SPEAK)):
        times = [at_s - start_s for at_s, decision in decisions(log) if decision == kind]
        y = _y("decisions")
        lanes.vlines(times, y - 0.28, y + 0.28, color=colour, linewidth=1.4)


MARKS: Final = {
    "input_audio_buffer.committed": ("commit", COMMIT),
    "overlap.decision": ("barge-in", STOP),
    "response.done": ("", STOP),
}


def _marks(log: EventLog) -> Iterator[tuple[float, str, str]]:
    for entry in log.server_events():
        if entry.type not in MARKS:
            continue
        label, colour = MARKS[entry.type]
        if entry.type == "response.done":
            status = str(entry.event["response"]["status"])
            label, colour = (status, STOP if status == "cancelled" else HEARD)
        elif entry.type == "overlap.decision" and entry.event.get("action") != "barge_in":
            continue
        yield entry.at_s, label, colour


def _draw_marks(lanes: Axes, ledger: Axes, log: EventLog, start_s: float) -> None:
    """Vertical lines with a word above; words that would collide go one row up."""
    rows: list[float] = []
    end_s = _end_s(log) - start_s
    for at_s, label, colour in _marks(log):
        x = at_s - start_s
        for axes in (lanes, ledger):
            axes.axvline(x, color=colour, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
        row = next((i for i, busy_until in enumerate(rows) if x > busy_until), len(rows))
        width = end_s * len(label) / CHARS_ACROSS * 1.3
        rows[row : row + 1] = [x + width]
        at_edge = x + width > end_s
        lanes.annotate(
            label,
            (x, len(LANES) - 0.5),
            xytext=(-3 if at_edge else 3, 4 + 13 * row),
            textcoords="offset points",
            ha="right" if at_edge else "left",
            color=colour,
            fontsize=10,
            annotation_clip=False,
        )


def _draw_latencies(lanes: Axes, log: EventLog, spoken: Sequence[Answer], start_s: float) -> None:
    """Bars for end of speech → first audio, and onset of the interruption → last audio."""
    spans = speech_spans(log)
    for (_, end_s), answer in zip(spans, spoken, strict=False):
        if answer.deltas:
            _bar(lanes, end_s - start_s, answer.deltas[0].at_s - start_s, INK)
    if len(spans) > 1 and spoken and spoken[0].deltas:
        _bar(lanes, spans[1][0] - start_s, spoken[0].deltas[-1].at_s - start_s, STOP)


def _bar(axes: Axes, left: float, right: float, colour: str) -> None:
    y = _y("latency")
    axes.plot([left, right], [y, y], color=colour, linewidth=3, solid_capstyle="butt", zorder=4)
    for x in (left, right):
        axes.plot([x, x], [y - 0.16, y + 0.16], color=colour, linewidth=1.4, zorder=4)
    axes.text(max(left, right) + 0.12, y, f"{(right - left) * 1000:.0f} ms", va="center", color=colour, fontsize=11)


def _draw_words(lanes: Axes, log: EventLog, spoken: Sequence[Answer], start_s: float) -> None:
    """The beginning of what was said under each voice, as far as there is room before the next."""
    end_s = _end_s(log)
    asked = [begin_s for begin_s, _ in speech_spans(log)]
    _row_of_words(
        lanes, "user speech", list(zip(asked, [t.transcript for t in user_turns(log)], strict=False)), start_s, end_s
    )
    told = [(answer.deltas[0].at_s, answer.said) for answer in spoken if answer.deltas]
    _row_of_words(lanes, "answer played", told, start_s, end_s)


def _row_of_words(axes: Axes, lane: str, words: Sequence[tuple[float, str]], start_s: float, end_s: float) -> None:
    ends = [at_s for at_s, _ in words[1:]] + [end_s]
    for (at_s, text), until_s in zip(words, ends, strict=False):
        room = min(WORDS_SHOWN, int((until_s - at_s) / (end_s - start_s) * CHARS_ACROSS))
        shown = text if len(text) <= room else text[: max(0, text.rfind(" ", 0, room))] + " …"
        axes.text(at_s - start_s, _y(lane) - 0.48, f"“{shown}”", va="center", color=INK, fontsize=9, style="italic")


def _dress(lanes: Axes, ledger: Axes, log: EventLog, start_s: float) -> None:
    end_s = _end_s(log) - start_s
    lanes.set_xlim(0, end_s)
    lanes.set_ylim(-0.5, len(LANES) - 0.5)
    lanes.set_yticks([_y(lane) for lane in LANES], LANES, fontsize=11)
    lanes.tick_params(axis="y", length=0)
    lanes.set_title(
        "One full-duplex conversation: asked, answered, interrupted, answered again",
        loc="left",
        color=INK,
        fontsize=14,
        pad=34,
    )
    ledger.set_ylabel("ms ahead of the ear")
    ledger.set_xlabel("seconds since the connection was opened")
    ledger.axhline(0, color=INK, linewidth=1)
    ledger.grid(axis="y", color="white", linewidth=1)
    for axes in (lanes, ledger):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    handles: list[Any] = [
        Patch(color=USER, label="user"),
        Patch(color=MADE, label="generated"),
        Patch(color=SENT, label="sent (received by the client)"),
        Patch(color=HEARD, label="played (below: acknowledged)"),
        Patch(facecolor="none", edgecolor=STOP, hatch="////", label="received, never played"),
        Line2D([], [], color=LISTEN, marker="|", linestyle="none", markersize=12, label="listen"),
        Line2D([], [], color=SPEAK, marker="|", linestyle="none", markersize=12, label="speak"),
        Line2D([], [], color=INK, linewidth=3, label="end of speech → first audio"),
        Line2D([], [], color=STOP, linewidth=3, label="onset → last audio of the interrupted answer"),
    ]
    ledger.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=5, frameon=False)
