"""Errors as one line: what a user can cause (a bad file, a busy port, a missing package) is never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import click

__all__ = ["OneLineErrors", "expected_errors", "one_line"]

EXTRA_PACKAGES: Final = frozenset(
    {
        "hypercorn", "h11", "wsproto", "yaml", "structlog", "torch", "safetensors", "onnxruntime", "matplotlib",
        "outcome", "httpx", "sentencepiece", "onnx",
    }
)  # fmt: skip
"""What the base installation lacks; all of it comes with the extra ``demo``."""

EXPECTED: Final = {
    "trio_duplex.config": ("DeployError",),
    "trio_duplex.server.listener": ("ListenError",),
    "trio_duplex.benchmark.report": ("ResultExists",),
    "trio_duplex.benchmark.server_process": ("NoServer",),
    "trio_duplex.client": ("DuplexClientError",),
    "trio_duplex.showcase.recordings": ("RecordingError",),
    "trio_duplex.live.sound": ("SoundError",),
    "trio_duplex.showcase.event_log": ("Missing",),
    "duplex_gpu.steps": ("DeviceMissing",),
    "duplex_gpu.weights": ("WeightsMissing", "WeightsCorrupt"),
    "duplex_gpu.piper_voice": ("VoiceUnsuitable",),
}
"""Errors that a user can cause, by the module that defines them. Their text is one line that says what to do."""


def expected_errors() -> tuple[type[BaseException], ...]:
    """The classes of :data:`EXPECTED`, and groups, which may hold them. A module never loaded has raised nothing."""
    found: list[type[BaseException]] = [BaseExceptionGroup, ModuleNotFoundError, OSError, TimeoutError]
    for module, names in EXPECTED.items():
        loaded = sys.modules.get(module)
        if loaded is not None:
            found += [getattr(loaded, name) for name in names]
    return tuple(found)


def one_line(error: BaseException) -> str | None:
    """What to tell the user; None for an error that is ours and deserves its traceback."""
    lines = [_explain(leaf) for leaf in _leaves(error)]
    return None if not lines or None in lines else lines[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _explain(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_PACKAGES:
            return None
        return f"the package {package!r} is not installed; install the extra: pip install 'trio-duplex[demo]'"
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return None if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) if isinstance(error, expected_errors()) else None


class OneLineErrors(click.Group):
    """A group whose commands turn expected errors into click's one-line form (``Error: …``, exit status 1)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Anything unexpected keeps its traceback."""
        try:
            return super().invoke(ctx)
        except expected_errors() as error:
            line = one_line(error)
            if line is None:
                raise
            raise click.ClickException(line) from None
