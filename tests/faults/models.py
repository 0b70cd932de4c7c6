"""Models for processes under test, by name (see ``scripted_process``)."""

from __future__ import annotations

from trio_duplex.models.demo import DemoPlugin
from trio_duplex.testing import Piece, ScriptedOptions
from trio_duplex.testing.scripted_model import ScriptedPlugin


def scripted() -> ScriptedPlugin:
    """Answers of two minutes, made all at once, so that a client that never reads has much to leave unread."""
    return ScriptedPlugin(
        ScriptedOptions(script=lambda _: [Piece(f"word{k} ", 2_000) for k in range(60)], unpaced=True)
    )


def stuck() -> DemoPlugin:
    """The demo model on its real threads; the first step of its detector never returns."""
    # Imported here: onnxruntime writes a file of its own into the temporary folder as it is imported.
    from tests.faults.networks import FaultyNetworks, demo_plugin

    return demo_plugin(FaultyNetworks(fault="never returns"), stuck_after_s=1.0)
