"""The app as a stock ASGI server imports it; logs as JSON lines on stdout."""

from __future__ import annotations

import structlog

from tests.server.server_kit import make_app

structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()])
app = make_app()
