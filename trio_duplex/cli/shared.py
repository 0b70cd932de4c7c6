"""What several commands need: kinds of options, the deployment that a file describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from trio_duplex.config import Deployment
    from trio_duplex.models.plugin import ModelPlugin
    from trio_duplex.models.progress import Progress

__all__ = ["FILE", "FOLDER", "find_deployment"]

FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)


def find_deployment(path: Path | None, progress: Progress | None = None) -> tuple[Deployment, ModelPlugin]:
    """The deployment of a file, or the demo model with every default; and its plugin, with nothing loaded yet.

    ``progress`` will be told how loading goes.
    Raises DeployError naming the file.
    """
    from trio_duplex.config import DeployError, Deployment, load_deployment
    from trio_duplex.models.registry import build_plugin

    deployment = Deployment(model="demo", session_mode="duplex") if path is None else load_deployment(path)
    try:
        return deployment, build_plugin(deployment, progress)
    except DeployError as error:
        raise error if path is None else DeployError(f"{path}: {error}") from None
