"""The ``trio-duplex`` command.

==================  ===================================================================
module              holds
==================  ===================================================================
``errors``          what a user can cause, as one line and a non-zero exit
``process``         what an entry point does to its process: logging, threads
``shared``          kinds of options, the deployment that a file describes
``serve_command``   ``trio-duplex serve``
``talk_command``    ``trio-duplex talk``
``demo_command``    ``trio-duplex demo``
``bench_command``   ``trio-duplex bench``
==================  ===================================================================

Heavy imports happen inside the commands, so that ``--help`` is instant and works in a client-only installation.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

import click

from trio_duplex.cli.bench_command import bench
from trio_duplex.cli.demo_command import demo
from trio_duplex.cli.errors import OneLineErrors
from trio_duplex.cli.process import configure_logging, settle_process, tune_process
from trio_duplex.cli.serve_command import serve
from trio_duplex.cli.talk_command import talk

__all__ = ["configure_logging", "main", "settle_process", "tune_process"]

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


def _version() -> str:
    try:
        return importlib.metadata.version("trio-duplex")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


@click.group(cls=OneLineErrors, context_settings=CONTEXT)
@click.version_option(_version(), prog_name="trio-duplex")
def main() -> None:
    """Full-duplex speech sessions over WebSocket: the model listens while it speaks, and can be interrupted."""


for command in (serve, talk, demo, bench):
    main.add_command(command)
