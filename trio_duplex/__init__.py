"""Full-duplex speech sessions over WebSocket on Trio: each session is a nursery, each epoch a cancel scope.

``import trio_duplex`` is light: the names below are imported when they are first used, so a client needs neither the
server's packages nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trio_duplex.client import DuplexClient, SessionConfig
    from trio_duplex.config import DeployError, Deployment, load_deployment
    from trio_duplex.hub import Hub
    from trio_duplex.inprocess import EmbeddedHub, open_hub
    from trio_duplex.server.listener import BoundAddress
    from trio_duplex.server.serve import build_app, serve

__version__ = "0.1.0"

_HOMES = {
    "BoundAddress": "trio_duplex.server.listener",
    "Deployment": "trio_duplex.config",
    "DeployError": "trio_duplex.config",
    "DuplexClient": "trio_duplex.client",
    "EmbeddedHub": "trio_duplex.inprocess",
    "Hub": "trio_duplex.hub",
    "SessionConfig": "trio_duplex.client",
    "build_app": "trio_duplex.server.serve",
    "load_deployment": "trio_duplex.config",
    "open_hub": "trio_duplex.inprocess",
    "serve": "trio_duplex.server.serve",
}

__all__ = [
    "BoundAddress",
    "DeployError",
    "Deployment",
    "DuplexClient",
    "EmbeddedHub",
    "Hub",
    "SessionConfig",
    "build_app",
    "load_deployment",
    "open_hub",
    "serve",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trio_duplex' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
