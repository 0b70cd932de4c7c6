"""The ASGI lifespan protocol, driven so that a failing app ends the server instead of running on without it.

hypercorn's own driver goes on serving when the app's lifespan task crashes, which for us would mean a server whose
sessions have lost the nursery they live in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio

__all__ = ["AsgiApp", "Lifespan", "LifespanFailed"]

AsgiApp = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

log = structlog.get_logger(__name__)


class LifespanFailed(Exception):
    """The app said that it cannot start or stop; the text is the app's."""


class Lifespan:
    """One run of an app's lifespan.

    ``state`` is the dictionary the app may fill at startup; every connection's scope gets a copy.
    """

    def __init__(self, app: AsgiApp, extensions: dict[str, Any]) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._extensions = extensions
        self._asked = 0
        self._stop_wanted = trio.Event()
        self._stopped = trio.Event()
        self._started = False
        self._task_status: trio.TaskStatus[LifespanFailed | None] = trio.TASK_STATUS_IGNORED

    async def run(self, *, task_status: trio.TaskStatus[LifespanFailed | None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the app's lifespan task.

        ``started(None)`` once the app has completed its startup, ``started(failure)`` if it reports that it cannot
        start.  An app that raises before either does not speak lifespan (the ASGI rule) and is served without;
        whatever it raises later comes out of here.  Cancellation is passed on to the app's task.
        """
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
            "extensions": self._extensions,
        }
        self._task_status = task_status
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:  # border: the ASGI rule reads a raise before startup as "no lifespan"
            if self._started:
                raise
            log.debug("lifespan_unsupported", error=type(error).__name__)
        self._report(None)
        self._stopped.set()

    def _report(self, failure: LifespanFailed | None) -> None:
        if not self._started:
            self._started = True
            self._task_status.started(failure)

    async def stop(self, limit_s: float) -> None:
        """Ask the app to shut down and wait for its answer, at most ``limit_s`` seconds.

        Cancellation stops waiting; the app's task is then cancelled with ``run``'s.
        """
        self._stop_wanted.set()
        with trio.move_on_after(limit_s) as limit:
            await self._stopped.wait()
        if limit.cancelled_caught:
            log.warning("lifespan_shutdown_timed_out", limit_s=limit_s)

    async def _receive(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked == 1:
            return {"type": "lifespan.startup"}
        if self._asked == 2:
            await self._stop_wanted.wait()
            return {"type": "lifespan.shutdown"}
        await trio.sleep_forever()
        raise AssertionError  # pragma: no cover

    async def _send(self, message: Any) -> None:
        kind = message["type"]
        text = message.get("message", "") or kind
        if kind == "lifespan.startup.complete":
            self._report(None)
        elif kind == "lifespan.shutdown.complete":
            self._stopped.set()
        elif kind == "lifespan.startup.failed":
            self._report(LifespanFailed(text))
        elif kind == "lifespan.shutdown.failed":
            raise LifespanFailed(text)
        else:
            raise ValueError(f"not a lifespan event: {kind!r}")
