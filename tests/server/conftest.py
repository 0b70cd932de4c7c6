"""Fixtures of the server tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from trio_duplex.server.listener import BoundAddress, serve_asgi

Serve = Callable[..., Awaitable[BoundAddress]]


@pytest.fixture
def serve(nursery: trio.Nursery) -> Serve:
    """Start ``serve_asgi`` beside the test; its crash fails the test."""

    async def start(app: Any, **arguments: Any) -> BoundAddress:
        return await nursery.start(partial(serve_asgi, app, **arguments))

    return start


@pytest.fixture
def logs() -> Iterator[list[dict[str, Any]]]:
    """Everything logged during the test."""
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[capture])
    yield capture.entries
    structlog.configure(**before)


@pytest.fixture
def quiet(logs: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As ``logs``; and the test fails if anything above info was logged by its end."""
    yield logs
    loud = [entry for entry in logs if entry["log_level"] not in ("debug", "info")]
    assert not loud
