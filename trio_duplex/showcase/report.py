"""What a conversation leaves behind: the files in a folder, and the page that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trio_duplex.client.media import write_pcm16_wav
from trio_duplex.showcase.event_log import EventLog
from trio_duplex.showcase.facts import Answer, answers, user_turns
from trio_duplex.showcase.promises import Verdict
from trio_duplex.showcase.scenario import Told

__all__ = [
    "leave_events",
    "leave_picture",
    "leave_sound",
    "print_files",
    "print_measures",
    "print_verdicts",
    "print_words",
]


def leave_sound(log: EventLog, folder: Path) -> list[Path]:
    """One WAV per answer that sounded, numbered in the order of their beginning. Raises OSError."""
    paths = []
    for number, answer in enumerate((a for a in answers(log) if a.pcm), 1):
        path = folder / f"answer_{number}.wav"
        write_pcm16_wav(path, answer.pcm, sample_rate_hz=answer.rate_hz)
        paths.append(path)
    return paths


def leave_events(log: EventLog, folder: Path) -> Path:
    """The log as JSON lines. Raises OSError."""
    path = folder / "events.jsonl"
    log.write(path)
    return path


def leave_picture(log: EventLog, folder: Path) -> Path:
    """The timeline. Raises OSError."""
    from trio_duplex.showcase.timeline import draw_timeline  # matplotlib is only needed here

    path = folder / "timeline.png"
    draw_timeline(log, path)
    return path


def print_words(console: Console, log: EventLog) -> None:
    """Who said what; of an interrupted answer also how far it was heard."""
    lines = [(turn.committed_s, "you", turn.transcript) for turn in user_turns(log)]
    lines += [(answer.created_s, "model", _with_end(answer)) for answer in answers(log)]
    for _, who, words in sorted(lines):
        console.print(f"[bold]{who:>6}[/bold]  {escape(words)}")


def _with_end(answer: Answer) -> str:
    if answer.status == "completed":
        return answer.said
    return f"{answer.said} … [{answer.status}: {answer.reason}; {answer.acked_ms / 1000:.1f} s were heard]"


def print_measures(console: Console, told: Told) -> None:
    """The latencies."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(justify="right")
    for ms, what in (
        (told.first_audio_ms, "first-audio latency: end of your speech → first byte of the answer"),
        (told.second_audio_ms, "the same for the second answer"),
        (told.interruption_ms, "interruption latency: onset of your speech → last byte of the interrupted answer"),
        (told.silenced_ms, "onset of your speech → the loudspeaker is silent"),
    ):
        table.add_row(f"{ms:.0f} ms", what)
    console.print(table)


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Every promise, kept or broken."""
    for verdict in verdicts:
        mark = "[green]kept  [/green]" if verdict.kept else "[bold red]BROKEN[/bold red]"
        console.print(f"{mark} {escape(verdict.promise.text)}")
        for fault in verdict.broken:
            console.print(f"       {escape(fault)}")


def print_files(console: Console, paths: Sequence[Path]) -> None:
    """Where everything is."""
    for path in paths:
        console.print(f"{escape(str(path))}  [dim]{path.stat().st_size / 1024:.0f} KiB[/dim]")
