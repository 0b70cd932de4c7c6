"""Tracebacks for the log that hold code lines only."""

from __future__ import annotations

import traceback

__all__ = ["plain_traceback"]


def plain_traceback(error: BaseException) -> str:
    """The traceback of ``error`` as text, for a log entry's ``exception`` key.

    Trap: structlog's console output, where rich is installed, prints the local variables of every frame for an
    ``exc_info``: headers with keys in them, and what users said.
    """
    return "".join(traceback.format_exception(error)).rstrip()
