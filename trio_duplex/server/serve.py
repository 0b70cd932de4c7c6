"""Starting a server inside any nursery: hub, ASGI app and listener joined. The place that carries every promise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import trio

from trio_duplex.config import Deployment, LimitSettings, load_deployment
from trio_duplex.hub import Hub
from trio_duplex.models.plugin import ModelPlugin
from trio_duplex.models.registry import build_plugin, build_scorer
from trio_duplex.server.access import Access
from trio_duplex.server.app import DuplexApp, Refusal, Visitor
from trio_duplex.server.auth import Gate
from trio_duplex.server.connection import Connection
from trio_duplex.server.handshake import Handshake, NativeHandshake, RealtimeHandshake
from trio_duplex.server.listener import BoundAddress, ListenerOptions, serve_asgi
from trio_duplex.server.metrics import MetricsPage
from trio_duplex.server.secrets import ClientSecrets
from trio_duplex.server.socket import ServerSocket, SocketLike


def endpoint(
    hub: Hub, handshake: Callable[[SocketLike, Hub, Access | None], Handshake], access: Access | None = None
) -> Callable[[ServerSocket], Awaitable[None]]:
    """A WebSocket endpoint: one :class:`Connection` per socket."""

    async def serve_socket(socket: ServerSocket) -> None:
        await Connection(socket, hub, lambda socket, hub: handshake(socket, hub, access), access).run()

    return serve_socket


def build_hub(deployment: Deployment, plugin: ModelPlugin | None = None) -> Hub:
    """The hub of a deployment; nothing is loaded before it runs. Raises :class:`trio_duplex.config.DeployError`."""
    return Hub(
        plugin or build_plugin(deployment),
        deployment.duplex_session,
        scorer=build_scorer(deployment),
        active_stream_window=deployment.active_stream_window,
    )


def build_app(hub: Hub, gate: Gate | None = None, limits: LimitSettings | None = None) -> DuplexApp:
    """The ASGI app of a hub; its lifespan runs the hub, so sessions outlive sockets. ``gate`` None lets anybody in."""
    gate = Gate(local_only=False, origins=("*",)) if gate is None else gate
    gate = attrs.evolve(gate, secrets=ClientSecrets())
    access = Access(hub, gate, limits or LimitSettings())

    page = MetricsPage(hub)

    async def stop() -> None:
        hub.stop()

    def authorize(visitor: Visitor) -> Refusal | None:
        refusal = gate(visitor)
        if refusal is not None:
            hub.tally.openings_refused[refusal.code] += 1
        return refusal

    return DuplexApp(
        sockets={
            "/v1/realtime": endpoint(hub, RealtimeHandshake, access),
            "/v1/duplex": endpoint(hub, NativeHandshake, access),
        },
        health=hub.health,
        models=lambda: models_page(hub),
        metrics=page.text,
        authorize=authorize,
        posts={"/v1/realtime/client_secrets": access.client_secrets_page},
        background=hub.run,
        companion=page.lateness.run,
        shutdown=stop,
    )


def models_page(hub: Hub) -> dict[str, Any]:
    """``GET /v1/models`` in OpenAI's list shape."""
    model = {"id": hub.plugin.name, "object": "model", "created": 0, "owned_by": "trio-duplex"}
    return {"object": "list", "data": [model]}


async def serve(
    deploy: Deployment | Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    plugin: ModelPlugin | None = None,
    listener: ListenerOptions | None = None,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one deployment until ``shutdown`` is set; meant for ``nursery.start``.

    ``task_status.started`` hands over the bound address once the model is warm (port 0 works; ``/health`` answers 503
    before that). ``plugin`` replaces the deployment's model (tests). Raises :class:`trio_duplex.config.DeployError`
    for a bad file and for missing API keys (a ``host`` that lets other machines in needs some, or the deployment's
    word that it does not), ``PortBusy``/``ListenError``, and the model's own start-up error. On shutdown every session
    says ``session.closed`` (``server_shutdown``) and its socket closes with 1001, within a bounded time. Cancellation:
    the same ends at once, without good-byes.
    """
    deployment = deploy if isinstance(deploy, Deployment) else load_deployment(Path(deploy))
    gate = Gate.build(deployment.auth, host=host)
    hub = build_hub(deployment, plugin)
    shutdown = trio.Event() if shutdown is None else shutdown
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_hub_on, shutdown, hub)
        options = listener or ListenerOptions()
        start = trio.Event()
        bound: list[BoundAddress] = []

        async def listen() -> None:
            await serve_asgi(
                build_app(hub, gate, deployment.limits),
                host=host,
                port=port,
                options=options,
                shutdown=shutdown,
                task_status=_Report(bound, start),
            )
            nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        await start.wait()
        await hub.ready.wait()
        task_status.started(bound[0])


class _Report(trio.TaskStatus[BoundAddress]):
    """Keeps the address until the model is warm too."""

    def __init__(self, bound: list[BoundAddress], start: trio.Event) -> None:
        self._bound, self._start = bound, start

    def started(self, value: BoundAddress | None = None) -> None:
        assert value is not None
        self._bound.append(value)
        self._start.set()


async def _stop_hub_on(shutdown: trio.Event, hub: Hub) -> None:
    """Sessions say good-bye while their sockets still stand. Cancellation: nothing to undo."""
    await shutdown.wait()
    hub.stop()
