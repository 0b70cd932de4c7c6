"""What an entry point does to its process: logging, threads, garbage collection. Other programs may use it too."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any

__all__ = ["configure_logging", "settle_process", "tune_process"]


def configure_logging(log_format: str, level: str) -> None:
    """Set up structlog (and the standard library's loggers) for this process: one line per fact, on standard error.

    Tracebacks are printed without the values of variables, which may hold what users said.
    """
    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def tune_process() -> None:
    """Settings that only an entry point may choose: they hold for the whole process. Before numpy and torch load."""
    # One core for the model's steps, the rest for the event loop: more threads make both slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from trio_duplex.server.guards import quicken_thread_switches

    quicken_thread_switches()


def settle_process() -> None:
    """Once the model is warm: take everything that was loaded out of the garbage collector's sight.

    A full collection over torch and the weights stopped the event loop for 150 to 300 ms in the middle of an answer.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    # A full collection waits until a quarter as much has come as it saw last time. What it sees from now on is what
    # sessions leave: told so, it comes in time, and takes a millisecond.
    gc.collect()
