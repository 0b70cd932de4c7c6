"""The bare ASGI app for a stock server: ``hypercorn -k trio trio_duplex.server.asgi:app``.

The deploy file is named by ``TRIO_DUPLEX_DEPLOY`` (default: the demo model). It works, logs one warning, and loses the
promises that docs/architecture.md lists; ``trio-duplex serve`` and :func:`trio_duplex.serve` keep them.
"""

from __future__ import annotations

import os
from pathlib import Path

from trio_duplex.config import Deployment, load_deployment
from trio_duplex.server.app import DuplexApp
from trio_duplex.server.auth import Gate, with_keys_from_environment
from trio_duplex.server.serve import build_app, build_hub


def make_app() -> DuplexApp:
    """An app for the deployment that the environment names. Raises :class:`trio_duplex.config.DeployError`."""
    path = os.environ.get("TRIO_DUPLEX_DEPLOY")
    deployment = load_deployment(Path(path)) if path else Deployment(model="demo")
    # Where the server listens is not known here: without keys only peers on this machine are let in.
    gate = Gate.build(with_keys_from_environment(deployment.auth))
    return build_app(build_hub(deployment), gate, deployment.limits)


app = make_app()
