"""A server on a free loopback port for as long as something runs beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from trio_duplex.client.errors import unwrapped
from trio_duplex.config import Deployment
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.serve import serve

__all__ = ["with_server"]

T = TypeVar("T")


async def with_server(
    deployment: Deployment,
    work: Callable[[BoundAddress], Awaitable[T]],
    *,
    plugin: ModelPlugin | None = None,
) -> T:
    """Start the server, wait until it is warm, run ``work``, stop the server; returns what ``work`` returned.

    Raises what the server's start or ``work`` raises. Cancellation: ends both.
    """
    shutdown = trio.Event()
    with unwrapped():
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(partial(serve, deployment, plugin=plugin, shutdown=shutdown))
            result = await work(bound)
            shutdown.set()
    return result
