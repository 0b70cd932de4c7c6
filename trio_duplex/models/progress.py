"""What a model that is loading is told to tell; one form for all models."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, float], None]
"""Told on the Trio thread: what is being done, and the part (0 … 1) that is done of it, or of the whole start-up."""
